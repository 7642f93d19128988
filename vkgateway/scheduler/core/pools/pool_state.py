"""State of one pool: free capacity, tenants' usage and guarantees, gangs, reservations and terminating pods.

The cache keeps it from cycle to cycle. Between cycles it is what the snapshot says; `PoolUpdates` follows changes. In a
round, it is what the round has decided so far; the journal undoes that at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property

from vkgateway.scheduler.core.capacity.expected_ends import ExpectedEnds
from vkgateway.scheduler.core.capacity.node_resources import NodeResources
from vkgateway.scheduler.core.capacity.slow_terminations import is_overdue
from vkgateway.scheduler.core.capacity.terminating_pods import TerminatingPods
from vkgateway.scheduler.core.decisions import Evict
from vkgateway.scheduler.core.guarantees.pool_guarantees import PoolGuarantees
from vkgateway.scheduler.core.guarantees.usage import GuaranteeUsage
from vkgateway.scheduler.core.journal import Journal, Trial
from vkgateway.scheduler.core.pools.gang_index import GangIndex
from vkgateway.scheduler.core.pools.guarantee_state import GuaranteeState
from vkgateway.scheduler.core.pools.reservations import PoolReservations
from vkgateway.scheduler.core.pools.victims import PoolVictims
from vkgateway.scheduler.core.queueing.tenant_usage import TenantUsage
from vkgateway.scheduler.core.queueing.usage_by_age import UsageByAge
from vkgateway.scheduler.core.snapshot import Pod, Policy, Pool, Quota


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


class PoolState:
    """A pool and the gangs in it.

    The pods of a plan count as placed while their victims still run. Free capacity of their nodes is then negative, so
    that no other gang takes what the victims free.
    """

    def __init__(self, pool: Pool, quotas: Iterable[Quota], policy: Policy, journal: Journal) -> None:
        """Create the state of an empty pool. The journal records all changes, those of updates between cycles, too."""
        self.pool = pool
        self.journal = journal
        self.facts = PoolFacts(pool)
        self.node_resources = NodeResources(pool, journal)
        self.tenant_usage = TenantUsage(pool, quotas, journal)
        self.expected_ends = ExpectedEnds(self.node_resources.nodes, pool, policy, journal)
        self.terminating_pods = TerminatingPods(journal)
        self.gang_index = GangIndex(pool.key)
        self.gangs = self.gang_index.gangs
        self.reservations = PoolReservations(journal)
        self.guarantee_usage = GuaranteeUsage(pool, journal)
        self.victims = PoolVictims(pool, self.gang_index, self.guarantee_usage, self.tenant_usage, journal)
        self.guarantee = GuaranteeState(
            self.guarantee_usage,
            tenant_usage=self.tenant_usage,
            gang_index=self.gang_index,
            victims=self.victims,
            reservations=self.reservations,
            expected_ends=self.expected_ends,
            journal=journal,
        )
        self._usage_by_age: UsageByAge | None = None

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
        """Begin a round."""
        self.guarantee.begin_round(now, self.node_resources)
        self.victims.begin_round()
        self.reservations.clear()
        self._usage_by_age = None
        for pod in self.terminating_pods.values():
            if is_overdue(pod, now):
                self.expected_ends.remove_pod(pod.uid)

    def trial(self) -> Trial:
        """Return a trial of changes, in all pools."""
        return self.journal.trial()

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
