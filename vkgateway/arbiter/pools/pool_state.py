"""State of one pool: free capacity, tenants' usage and guarantees, gangs, reservations and terminating pods.

The cache keeps it from cycle to cycle. Between cycles it is what the snapshot says; `PoolUpdates` follows changes. In a
round, from `begin_round` to `end_round`, it is what the round has decided so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from vkgateway.arbiter.capacity.expected_ends import ExpectedEnds
from vkgateway.arbiter.capacity.node_resources import Mark as ResourcesMark
from vkgateway.arbiter.capacity.node_resources import NodeResources, SavedResources
from vkgateway.arbiter.capacity.slow_terminations import is_overdue
from vkgateway.arbiter.capacity.terminating_pods import TerminatingPods
from vkgateway.arbiter.decisions import Evict
from vkgateway.arbiter.guarantees.guarantee_reservation import GuaranteeReservation
from vkgateway.arbiter.guarantees.pool_guarantees import PoolGuarantees
from vkgateway.arbiter.guarantees.usage import GuaranteeUsage
from vkgateway.arbiter.guarantees.usage import Mark as GuaranteeMark
from vkgateway.arbiter.pools.gang_index import GangIndex
from vkgateway.arbiter.pools.guarantee_state import GuaranteeState
from vkgateway.arbiter.pools.reservations import PoolReservations
from vkgateway.arbiter.pools.victims import PoolVictims
from vkgateway.arbiter.queueing.tenant_usage import SavedUsage, TenantUsage
from vkgateway.arbiter.queueing.usage_by_age import UsageByAge
from vkgateway.arbiter.snapshot import Gang, Pod, Policy, Pool, Quota
from vkgateway.arbiter.trial import JointState, Trial


class PoolFacts:
    """Facts about a pool's nodes, whatever runs on them."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.feasibility: dict[tuple[str, int], int] = {}
        """Answers about gangs in the empty pool, by question and equivalence class; see `phases.feasibility`."""

    @cached_property
    def idle_reserve(self) -> int:
        """Thousandths of the unit that borrowing gangs leave idle."""
        return self._pool.idle_reserve

    @cached_property
    def empty_resources(self) -> NodeResources:
        """The pool's nodes as if all were empty and usable: a gang that does not fit there never fits."""
        nodes = (replace(node, used={}, peers={}, usable=True) for node in self._pool.nodes)
        return NodeResources(replace(self._pool, nodes=tuple(nodes)))


class _RoundStart(NamedTuple):
    """State of a pool when a round began."""

    node_resources: SavedResources
    expected_ends: int
    guarantee_usage: GuaranteeMark
    tenant_usage: SavedUsage
    terminating_pods: TerminatingPods


class PoolMark(NamedTuple):
    """A moment of a round in one pool."""

    node_resources: ResourcesMark
    expected_ends: int
    guarantee_usage: GuaranteeMark
    tenant_usage: SavedUsage
    terminating_pods: TerminatingPods
    changed_gangs: dict[str, Gang]
    guarantee_reservations: dict[str, GuaranteeReservation]


class PoolState:
    """A pool and the gangs in it.

    The pods of a plan count as placed while their victims still run. Free capacity of their nodes is then negative, so
    that no other gang takes what the victims free.
    """

    def __init__(self, pool: Pool, quotas: Iterable[Quota], policy: Policy) -> None:
        self.pool = pool
        self.facts = PoolFacts(pool)
        self.node_resources = NodeResources(pool)
        self.tenant_usage = TenantUsage(pool, quotas)
        self.expected_ends = ExpectedEnds(self.node_resources.nodes, pool, policy)
        self.terminating_pods = TerminatingPods()
        self.gang_index = GangIndex(pool.key)
        self.gangs = self.gang_index.gangs
        self.reservations = PoolReservations()
        self.guarantee_usage = GuaranteeUsage(pool)
        self.victims = PoolVictims(pool, self.gang_index, self.guarantee_usage, self.tenant_usage)
        self.guarantee = GuaranteeState(
            self.guarantee_usage,
            tenant_usage=self.tenant_usage,
            gang_index=self.gang_index,
            victims=self.victims,
            reservations=self.reservations,
            expected_ends=self.expected_ends,
        )
        self._usage_by_age: UsageByAge | None = None
        self._round_start: _RoundStart | None = None

    @property
    def guarantees(self) -> PoolGuarantees:
        """The tenants' guarantees."""
        return self.guarantee_usage.guarantees

    @property
    def usage_by_age(self) -> UsageByAge:
        """Usage of borrowing and of terminating pods, as of the first read in this round."""
        if self._usage_by_age is None:
            self._usage_by_age = UsageByAge(self.victims.preemption_candidates, self.pool, self.terminating_pods.copy())
        return self._usage_by_age

    def replace_pool(self, pool: Pool, node_resources: NodeResources) -> None:
        """Replace the pool after some of its nodes have changed. Nothing is placed in `node_resources` yet."""
        self.pool, self.node_resources, self.facts = pool, node_resources, PoolFacts(pool)
        self.guarantee_usage.replace_pool(pool)
        self.tenant_usage.replace_pool(pool)

    def begin_round(self, now: float) -> None:
        """Begin a round. `end_round` undoes all later changes."""
        self.guarantee.begin_round(now, self.node_resources)
        self.victims.begin_round()
        self.reservations.clear()
        self._usage_by_age = None
        self._round_start = _RoundStart(
            self.node_resources.save(),
            self.expected_ends.mark(),
            self.guarantee_usage.mark(),
            self.tenant_usage.save(),
            self.terminating_pods.copy(),
        )
        for pod in self.terminating_pods.values():
            if is_overdue(pod, now):
                self.expected_ends.remove_pod(pod.uid)

    def end_round(self) -> None:
        """Undo all changes of the round."""
        start, self._round_start = self._round_start, None
        if start is None:
            raise AssertionError("a round ends that did not begin")
        self.node_resources.restore(start.node_resources)
        self.expected_ends.undo(start.expected_ends)
        for name in self.guarantee_usage.undo(start.guarantee_usage):
            self.victims.mark_changed(name)
        self.tenant_usage.restore(start.tenant_usage)
        self.terminating_pods = start.terminating_pods
        self.victims.end_round()

    def placement_trial(self) -> Trial:
        """Return a trial of changes to free capacity and guarantees."""
        return Trial(JointState(self.node_resources, self.guarantees))

    def trial(self) -> Trial:
        """Return a trial of all changes that a round makes. It costs more than `placement_trial`."""
        return Trial(self)

    def mark(self) -> PoolMark:
        """Return the present moment of the round."""
        return PoolMark(
            self.node_resources.mark(),
            self.expected_ends.mark(),
            self.guarantee_usage.mark(),
            self.tenant_usage.save(),
            self.terminating_pods.copy(),
            self.victims.save(),
            self.reservations.save_guarantees(),
        )

    def undo(self, mark: PoolMark) -> None:
        """Undo the changes since that moment."""
        self.node_resources.undo(mark.node_resources)
        self.expected_ends.undo(mark.expected_ends)
        for name in self.guarantee_usage.undo(mark.guarantee_usage):
            self.victims.mark_changed(name)
        self.tenant_usage.restore(mark.tenant_usage)
        self.terminating_pods = mark.terminating_pods
        self.reservations.restore_guarantees(mark.guarantee_reservations)
        self.victims.restore(mark.changed_gangs)

    def add_pods(self, pods: Iterable[Pod], nodes: Mapping[str, str]) -> None:
        """Count pods as placed on these nodes."""
        for pod in pods:
            self.node_resources.add_pods(nodes[pod.uid], pod.shape)

    def remove_pods(self, pods: Iterable[Pod]) -> None:
        """Count placed pods as deleted."""
        for pod in pods:
            if pod.node in self.node_resources.nodes:
                self.node_resources.remove_pods(pod.node, pod.shape)

    def remove_evictable(self) -> None:
        """Count all pods as deleted that make room for a guarantee."""
        self.remove_pods(self.terminating_pods.values())
        candidates = self.victims.preemption_candidates.all_pods()
        self.remove_pods(pod for pod in candidates if pod.uid not in self.terminating_pods)

    def fits_on_nodes(self, pods: Iterable[Pod], nodes: Mapping[str, str]) -> bool:
        """Return whether pods that count as placed fit: no resource that they request is negative on their nodes, and
        they keep their hard constraints about other pods.
        """
        pods = list(pods)
        for pod in pods:
            free = self.node_resources.free.amounts_on(nodes[pod.uid])
            if any(amount and free.get(name, -1) < 0 for name, amount in pod.shape.requests):
                return False
        placed = [(nodes[pod.uid], pod.shape) for pod in pods]
        zones = self.node_resources.free.zones
        return (zones is None or zones.fits_placed(placed)) and self.node_resources.keep_peer_rules(placed)

    def evict_pods(self, evict: Evict) -> None:
        """Count the victims of an eviction as terminating."""
        pods = self.victims.mark_notified(evict)
        gang = self.gangs[evict.gang]
        self.terminating_pods.add_pods(gang.tenant, pods)
        self.expected_ends.add_notified(gang, pods, evict.deadline)

    def revert_evict(self, evict: Evict) -> None:
        """Count the victims of an eviction of this round as running. They no longer count as terminating."""
        for pod in self.victims.revert_notified(evict):
            self.expected_ends.update_pod(self.gangs[evict.gang], pod)
