"""Who holds how much at the moment of a simulation, followed from change to change."""

from __future__ import annotations

from collections.abc import Iterable

from vkgateway.scheduler.core.snapshot import ENDING, WAITING, Gang, Node, PoolKey
from vkgateway_platform.simulate.scenario import Scenario

MILLI_PER_UNIT = 1000


class OveruseError(Exception):
    """A scheduler started more on a node than the node has."""


class Usage:
    """Sums over the gangs of a simulation. Amounts are in thousandths of the pool's unit."""

    def __init__(self, scenario: Scenario, gangs: Iterable[Gang] = ()) -> None:
        self._units = scenario.pool_units
        self._nodes: dict[tuple[PoolKey, str], Node] = {
            (pool.key, node.name): node for pool in scenario.pools for node in pool.nodes
        }
        self._held: dict[tuple[PoolKey, str], dict[str, int]] = {
            key: dict(node.used) for key, node in self._nodes.items()
        }
        self.allocated = self.borrowed = self.terminating = self.pending = 0
        self.fragmented = sum(self._fragmented_amount(key) for key in self._nodes)
        self.tenants: dict[str, int] = {}
        for gang in gangs:
            self.replace_gang(None, gang)

    def replace_gang(self, old: Gang | None, new: Gang | None) -> None:
        """Replace a gang's former state; None: it did not exist, or does not any more.

        Raises:
            OveruseError: a node would hold more than it has.
        """
        if old is not None:
            self._count_gang(old, -1)
        if new is not None:
            self._count_gang(new, 1)
            self._check_nodes(new)

    def _count_gang(self, gang: Gang, sign: int) -> None:
        for pod in gang.pods:
            unit = self._units[pod.pool or gang.pools[0]]
            amount = sign * pod.shape.amount_of(unit)
            if pod.state is WAITING or pod.pool is None:
                self.pending += amount
                continue
            if pod.state is ENDING:
                self.terminating += amount
            else:
                self.allocated += amount
                self.borrowed += amount if pod.borrowed else 0
                self.tenants[gang.tenant] = self.tenants.get(gang.tenant, 0) + amount
            key = pod.pool, pod.node
            self.fragmented -= self._fragmented_amount(key)
            held = self._held[key]
            for resource, requested in pod.shape.requests:
                held[resource] = held.get(resource, 0) + sign * requested
            self.fragmented += self._fragmented_amount(key)

    def _fragmented_amount(self, key: tuple[PoolKey, str]) -> int:
        """Return what is idle on a node that is partly used."""
        unit = self._units[key[0]]
        held = self._held[key].get(unit, 0)
        return max(0, self._nodes[key].allocatable.get(unit, 0) - held) if held else 0

    def _check_nodes(self, gang: Gang) -> None:
        for pod in gang.pods:
            if pod.state is WAITING or pod.pool is None:
                continue
            held, node = self._held[pod.pool, pod.node], self._nodes[pod.pool, pod.node]
            for resource, requested in pod.shape.requests:
                if requested and held[resource] > node.allocatable.get(resource, 0):
                    raise OveruseError(f"node {node.name} has {resource} for less than pod {pod.uid} and the others")
