"""Devices that are free on the nodes of pools, whatever another scheduler believes (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from vkgateway.api.requests import MilliResources
from vkgateway.scheduler.core.snapshot import Pod, PoolKey, Snapshot

_NodeKey = tuple[PoolKey, str]


class NodeRoom:
    """Free devices of each node, in thousandths.

    A scheduler may move the slot of a pod whose node is not ready, and give its place to another gang, while the pod
    still runs there.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._governed = {pool.key: pool.governed for pool in snapshot.pools}
        self._usable = {(pool.key, node.name) for pool in snapshot.pools for node in pool.nodes if node.usable}

    @cached_property
    def _free(self) -> dict[_NodeKey, MilliResources]:
        """Free devices, computed when the first gang of a cycle starts."""
        free: dict[_NodeKey, MilliResources] = {
            (pool.key, node.name): {
                name: node.allocatable.get(name, 0) - node.used.get(name, 0) for name in pool.governed
            }
            for pool in self._snapshot.pools
            for node in pool.nodes
        }
        for gang in self._snapshot.gangs:
            for pod in gang.pods:
                if pod.pool is not None and pod.node:
                    self._take(free.get((pod.pool, pod.node)), pod.pool, pod)
        return free

    def unusable_nodes(self, pool: PoolKey, nodes: Iterable[str]) -> set[str]:
        """Return the nodes on which no pod can start now; an empty name means any node."""
        return {node for node in nodes if node and (pool, node) not in self._usable}

    def is_known(self, pool: PoolKey, node: str) -> bool:
        """Return whether a node exists in a pool."""
        return (pool, node) in self._free

    def full_nodes(self, pool: PoolKey, pods: Iterable[Pod], nodes: Mapping[str, str]) -> set[str]:
        """Return the nodes that have too few free devices for the pods that would start there, by UID."""
        wanted: dict[str, MilliResources] = {}
        for pod in pods:
            amounts = wanted.setdefault(nodes[pod.uid], {})
            for name, amount in self._devices(pool, pod):
                amounts[name] = amounts.get(name, 0) + amount
        return {
            node
            for node, amounts in wanted.items()
            if node and any(amount > self._free.get((pool, node), {}).get(name, 0) for name, amount in amounts.items())
        }

    def start(self, pool: PoolKey, pods: Iterable[Pod], nodes: Mapping[str, str]) -> None:
        """Count pods that start."""
        for pod in pods:
            self._take(self._free.get((pool, nodes[pod.uid])), pool, pod)

    def _take(self, free: MilliResources | None, pool: PoolKey, pod: Pod) -> None:
        if free is not None:
            for name, amount in self._devices(pool, pod):
                free[name] -= amount

    def _devices(self, pool: PoolKey, pod: Pod) -> list[tuple[str, int]]:
        governed = self._governed.get(pool, ())
        return [(name, amount) for name, amount in pod.shape.requests if name in governed]
