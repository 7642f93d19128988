"""State of one pool: free capacity, tenants' usage and guarantees, gangs, reservations and terminating pods.

The cache keeps it from cycle to cycle. Between cycles it is what the snapshot says; `PoolUpdates` follows changes. In a
round, it is what the round has decided so far; the journal undoes that at the end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from vkgateway.scheduler.core.capacity.expected_ends import ExpectedEnds
from vkgateway.scheduler.core.capacity.forecast import Reservation
from vkgateway.scheduler.core.capacity.node_fit import BoolArray, FloatArray, IntArray
from vkgateway.scheduler.core.capacity.node_resources import NodeResources
from vkgateway.scheduler.core.capacity.slow_terminations import is_overdue
from vkgateway.scheduler.core.capacity.terminating_pods import TerminatingPods
from vkgateway.scheduler.core.decisions import Evict
from vkgateway.scheduler.core.guarantees.guarantee_sums import may_hold
from vkgateway.scheduler.core.guarantees.guaranteed_placement import GuaranteeReservation
from vkgateway.scheduler.core.guarantees.pool_guarantees import PoolGuarantees, use_for_pods
from vkgateway.scheduler.core.guarantees.usage import GuaranteeUsage
from vkgateway.scheduler.core.journal import Journal, Trial
from vkgateway.scheduler.core.pools.victims import GangIndex, PoolVictims
from vkgateway.scheduler.core.preemption.candidates import PreemptionCandidates
from vkgateway.scheduler.core.queueing.gang_rank import is_ranked_after
from vkgateway.scheduler.core.queueing.tenant_usage import TenantUsage
from vkgateway.scheduler.core.snapshot import GUARANTEED, LOW, Gang, Pod, Policy, Pool, Quota
from vkgateway.scheduler.governed import HOST_RESOURCES


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


class UsageByAge:
    """Usage of reclaimable and of terminating pods at one moment."""

    def __init__(self, candidates: PreemptionCandidates, pool: Pool, terminating_pods: TerminatingPods) -> None:
        self._terminating_pods = terminating_pods
        table = candidates.rows.as_table()
        rows = np.flatnonzero(table.alive)
        rows = rows[np.lexsort((table.created[rows], table.tenant[rows]))]
        self._created: FloatArray = table.created[rows]
        self._low = table.low[rows]
        self._priority = np.array([*table.priorities, 0], dtype=np.int64)[table.priority[rows]]
        self._usage: dict[str, IntArray] = {}
        # CPU and memory count only for pods without devices, as in `Pool.share_requests`.
        bare = table.units == 0 if pool.unit_resource else np.ones(len(table.alive), dtype=bool)
        for resource in (*pool.governed, *HOST_RESOURCES):
            usage = np.zeros(len(table.alive), dtype=np.int64)
            column = table.resources.get(resource, len(table.row_freed))
            if column < len(table.row_freed):
                np.add.at(usage, table.row_candidate, table.row_freed[column])
            if resource in HOST_RESOURCES:
                usage[~bare] = 0
            self._usage[resource] = usage[rows]
        self._sums_after: dict[tuple[str, bool, int], tuple[FloatArray, dict[str, IntArray]]] = {}
        bounds = table.tenant[rows].searchsorted(np.arange(len(table.tenants) + 1)).tolist()
        self._rows_by_tenant = {tenant: slice(*bounds[at : at + 2]) for tenant, at in table.tenants.items()}

    def discounted_usage_of(self, gang: Gang) -> dict[str, IntArray]:
        """Return `discounted_usage` for one gang."""
        created, low, priority = np.array([gang.created]), np.array([gang.band is LOW]), np.array([gang.priority])
        return self.discounted_usage(gang.tenant, created, low, priority)

    def discounted_usage(
        self, tenant: str, created: FloatArray, low: BoolArray, priority: FloatArray
    ) -> dict[str, IntArray]:
        """Return by resource, for each of a tenant's aged gangs, the usage that does not count against it.

        That is the usage of terminating pods, and of borrowing pods of later gangs without a higher rank.
        """
        leaving = self._terminating_pods.usage_of(tenant)
        found = self._usage_after(tenant, created, low, priority)
        return {resource: usage + leaving.get(resource, 0) for resource, usage in found.items()}

    def _usage_after(
        self, tenant: str, created: FloatArray, low: BoolArray, priority: FloatArray
    ) -> dict[str, IntArray]:
        """Return by resource, for each of a tenant's pending gangs, the usage of later gangs without a higher rank."""
        found = {resource: np.zeros(len(created), dtype=np.int64) for resource in self._usage}
        for is_low, least in set(zip(low.tolist(), priority.tolist(), strict=True)):
            times, sums = self._sum_after(tenant, is_low=is_low, least=least)
            asking = (low == is_low) & (priority == least)
            at = times.searchsorted(created[asking], side="right")
            for resource, usage in found.items():
                usage[asking] = sums[resource][at]
        return found

    def _sum_after(self, tenant: str, *, is_low: bool, least: int) -> tuple[FloatArray, dict[str, IntArray]]:
        """Return the creation times of a tenant's gangs without a higher rank than this, and what those from each of
        them on use, by resource.
        """
        found = self._sums_after.get((tenant, is_low, least))
        if found is None:
            mine = self._rows_by_tenant.get(tenant, slice(0, 0))
            no_better = (self._low[mine] > is_low) | ((self._low[mine] == is_low) & (self._priority[mine] <= least))
            sums = {
                resource: np.concatenate([np.cumsum(usage[mine][no_better][::-1])[::-1], [0]])
                for resource, usage in self._usage.items()
            }
            found = self._sums_after[tenant, is_low, least] = self._created[mine][no_better], sums
        return found


class GuaranteeState:
    """Use of the guarantees of one pool during a cycle."""

    def __init__(
        self,
        usage: GuaranteeUsage,
        *,
        tenant_usage: TenantUsage,
        gang_index: GangIndex,
        victims: PoolVictims,
        reservations: PoolReservations,
        expected_ends: ExpectedEnds,
        journal: Journal,
    ) -> None:
        self._journal = journal
        self.usage = usage
        self._tenant_usage, self._gang_index, self._victims = tenant_usage, gang_index, victims
        self._reservations, self._expected_ends = reservations, expected_ends
        self._now = 0.0
        self._node_resources: NodeResources | None = None
        self._unused_nodes: BoolArray | None = None

    def begin_round(self, now: float, node_resources: NodeResources) -> None:
        """Count the guarantees again if nodes or quotas have changed."""
        self._now, self._node_resources = now, node_resources
        self._unused_nodes = None
        for name in self.usage.recount(self._tenant_usage.quotas.values(), self._gang_index.gangs):
            self._victims.mark_changed(name)

    @property
    def guarantees(self) -> PoolGuarantees:
        """The tenants' guarantees."""
        return self.usage.guarantees

    @property
    def unused_nodes(self) -> BoolArray:
        """Mask of the nodes without guaranteed pods, as of the first read in this round."""
        if self._unused_nodes is None:
            assert self._node_resources is not None
            self._unused_nodes = ~self.guarantees.used_nodes()[self._node_resources.nodes.pool_order]
        return self._unused_nodes

    def is_guaranteed(self, uid: str) -> bool:
        """Return whether a placed pod is inside its tenant's guarantee."""
        return uid in self.usage.pods.uids

    def has_no_borrower(self, running: Iterable[Pod]) -> bool:
        """Return whether all these running min members are inside the guarantee. If some borrow, no other may enter it
        alone: it would stay when they are evicted, as half a gang.
        """
        unit = self.usage.pool.unit_resource
        return all(self.is_guaranteed(pod.uid) for pod in running if pod.shape.amount_of(unit))

    def borrowing_gangs(self) -> list[Gang]:
        """Return the gangs of the guaranteed band with running pods that borrow, by name."""
        gangs = self._gang_index.gangs
        names = sorted(self._gang_index.borrowing | self.usage.demoted_gangs())
        return [gang for name in names if (gang := gangs[name]).band is GUARANTEED]

    def entered_gangs(self) -> list[Gang]:
        """Return the running gangs whose pods entered guarantees in this cycle, by name."""
        gangs = self._gang_index.gangs
        return [gangs[name] for name in sorted(self.usage.pods.entered_gangs) if name in gangs]

    def promote_pods(self, gang: Gang, placed: Sequence[tuple[Pod, str]]) -> bool:
        """Count placed pods of a gang as guaranteed, if the guarantee holds all of them on their nodes."""
        pods = [pod for pod, _ in placed]
        if not self.may_use_guarantee(gang, pods):
            return False
        if not use_for_pods(self.guarantees, gang.tenant, self.usage.pool.unit_resource, placed):
            return False
        self.mark_guaranteed(gang.tenant, pods, gang=gang.id)
        return True

    def mark_guaranteed(self, tenant: str, pods: Iterable[Pod], *, gang: str) -> None:
        """Count pods as guaranteed for which the guarantee is used already."""
        for pod in pods:
            self.usage.pods.enter_pod(tenant, pod, gang=gang)
        if gang in self._gang_index.gangs:
            self._victims.mark_changed(gang)
            self._journal.record(self._victims.mark_changed, gang)

    def demote_pods(self, tenant: str, pods: Iterable[Pod]) -> None:
        """Count a tenant's guaranteed pods among these as borrowing: a gang of higher rank takes their part of it."""
        for pod in pods:
            if self.is_guaranteed(pod.uid):
                self.usage.demote_pod(tenant, pod)

    def may_use_guarantee(self, gang: Gang, pods: Sequence[Pod]) -> bool:
        """Return whether the guarantee, by its sums alone, has enough left for a gang; a necessary condition.

        It has not while a part is reserved for a gang that comes first; `has_guarantee_left` ignores reservations.
        """
        return self.reserved_ahead(gang) is None and self.has_guarantee_left(gang, pods)

    def reserved_ahead(self, gang: Gang) -> GuaranteeReservation | None:
        """Return what is reserved for a gang that comes first; None if this gang ends before that starts."""
        reservation = self._reservations.guarantees.get(gang.tenant)
        if reservation is None or gang.short or not is_ranked_after(gang, reservation.gang):
            return None
        run = self._expected_ends.expected_run_time(gang)
        ends_before = reservation.start is not None and run is not None and self._now + run <= reservation.start
        return None if ends_before else reservation

    def has_guarantee_left(self, gang: Gang, pods: Sequence[Pod]) -> bool:
        """Return whether the guarantee, by its sums alone, has enough left, reserved parts included."""
        quota = self._tenant_usage.quotas.get(gang.tenant)
        return quota is not None and may_hold(self.usage, quota, gang, pods)


class PoolReservations:
    """Reservations of nodes, of tenants' limits and of tenants' guarantees."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.nodes: Reservation | None = None
        """Nodes for the first borrowing gang that does not fit."""
        self.limits: dict[str, str] = {}
        """By tenant, its aged gang for which the rest of its limit is reserved."""
        self.guarantees: dict[str, GuaranteeReservation] = {}
        """By tenant, what is reserved of its guarantee for its aged gang."""
        self.held: dict[str, Gang] = {}
        """By tenant, a gang for whose lost members a part of its guarantee is held; the part counts as used."""

    def clear(self) -> None:
        """Drop all reservations."""
        self.nodes = None
        self.limits.clear()
        self.guarantees = {}
        self.held.clear()

    def reserve_nodes(self, reservation: Reservation) -> None:
        """Reserve nodes for a gang."""
        self.nodes = reservation

    def release_nodes(self, gangs: Collection[str]) -> None:
        """Drop the reservation of nodes if it is for one of these gangs."""
        if self.nodes is not None and self.nodes.gang in gangs:
            self.nodes = None

    def reserve_limit(self, tenant: str, gang: str) -> None:
        """Reserve what is left of a tenant's limit for a gang, unless it is reserved already."""
        self.limits.setdefault(tenant, gang)

    def reserve_guarantee(self, reservation: GuaranteeReservation) -> None:
        """Reserve a part of a guarantee for a gang of the tenant."""
        self._journal.record(self._set_guarantees, dict(self.guarantees))
        self.guarantees[reservation.gang.tenant] = reservation

    def release_guarantee(self, gang: Gang) -> bool:
        """Drop the reservation of a guarantee that is for this gang; return whether there was one."""
        reservation = self.guarantees.get(gang.tenant)
        if reservation is None or reservation.gang is not gang:
            return False
        self._journal.record(self._set_guarantees, dict(self.guarantees))
        del self.guarantees[gang.tenant]
        return True

    def _set_guarantees(self, reservations: dict[str, GuaranteeReservation]) -> None:
        self.guarantees = reservations
