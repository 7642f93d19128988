"""Kueue's rules: a ClusterQueue for each tenant, all in one cohort, and placement after admission.

A guarantee is the nominal quota, the limit bounds borrowing, and the cohort has quota for the rest. The settings are
`reclaimWithinCohort: Any`, `withinClusterQueue: LowerPriority` and `BestEffortFIFO`. Quota is a sum, so an admitted
gang may find no node: it keeps its quota, and its pods keep the nodes that they find, until all of them fit. See
https://kueue.sigs.k8s.io/docs/concepts/cluster_queue/ and https://kueue.sigs.k8s.io/docs/concepts/preemption/
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from vkgateway.scheduler.core.snapshot import GUARANTEED, WAITING, Gang, PreemptionPlan
from vkgateway_platform.simulate.policies.placement import FreeCapacity, PoolLayout
from vkgateway_platform.simulate.policies.pool_gangs import (
    PoolGangs,
    gang_rank,
    requested_amount,
    start_time,
    usage_by_tenant,
)
from vkgateway_platform.simulate.policies.pool_scheduler import DecisionBuilder, PoolScheduler

_UsageByTenant = dict[str, int]
"""Thousandths of the pool's unit, by tenant."""


class Kueue(PoolScheduler):
    """Scheduler by quotas. A plan without nodes is an admission that waits for placement."""

    name = "kueue"

    def run_cycle(self, gangs: PoolGangs, nodes: PoolLayout, outcome: DecisionBuilder, now: float) -> None:
        """Add the decisions for one pool to the outcome."""
        _CohortCycle(gangs, nodes, outcome, now).run()


class _CohortCycle:
    """One cycle in one cohort."""

    def __init__(self, gangs: PoolGangs, nodes: PoolLayout, outcome: DecisionBuilder, now: float) -> None:
        self._gangs, self._outcome, self._now = gangs, outcome, now
        self._key, self._unit = gangs.pool.key, gangs.pool.loss_resource
        self._free_capacity = FreeCapacity(nodes)
        for gang in (*gangs.running, *gangs.terminating):
            self._free_capacity.allocate_pods(pod for pod in gang.pods if pod.state is not WAITING)
        self._total = sum(node.allocatable.get(self._unit, 0) for node in gangs.pool.nodes if node.usable)
        self._admitted = sorted((gang for gang in gangs.pending if gang.plan is not None), key=_admission_order)
        self._used = usage_by_tenant([*gangs.running, *gangs.terminating, *self._admitted], self._unit)
        self._used_later = dict(self._used)
        """Usage after all victims have terminated."""
        for tenant, left in usage_by_tenant(gangs.terminating, self._unit).items():
            self._used_later[tenant] -= left
        self._victims = [*gangs.running, *self._admitted]

    def run(self) -> None:
        """Place gangs that were admitted earlier, then process the heads of all queues until they are empty."""
        queues: dict[str, list[Gang]] = {}
        for gang in self._gangs.pending:
            if gang.plan is None:
                queues.setdefault(gang.tenant, []).append(gang)
        unplaced = list(self._admitted)
        heads = [queue.pop(0) for queue in queues.values()]
        while heads:
            for gang in sorted(heads, key=self._queue_order):
                if self._fits_quota(gang, self._used):
                    self._use_quota(gang)
                    unplaced.append(gang)
                elif self._reserve_quota(gang):
                    unplaced.append(gang)
            heads = [queue.pop(0) for queue in queues.values() if queue]
        self._place_gangs(unplaced)

    def _queue_order(self, gang: Gang) -> tuple[bool, bool, int, float, str]:
        guaranteed, priority = gang_rank(gang)
        return not self._is_within_nominal(gang, self._used), not guaranteed, -priority, gang.created, gang.id

    # Quota

    def _nominal_quota(self, tenant: str) -> int:
        quota = self._gangs.quotas.get(tenant)
        if quota is None:
            return 0
        return sum(quota.cells) * 1000 or quota.guarantee.get(self._unit, 0)

    def _is_within_nominal(self, gang: Gang, used: Mapping[str, int]) -> bool:
        return used.get(gang.tenant, 0) + requested_amount(gang, self._unit) <= self._nominal_quota(gang.tenant)

    def _fits_quota(self, gang: Gang, used: Mapping[str, int]) -> bool:
        request, quota = requested_amount(gang, self._unit), self._gangs.quotas.get(gang.tenant)
        limit = quota.limit.get(self._unit, inf) if quota is not None else 0
        if quota is not None and self._unit in quota.stopped:
            limit = min(limit, self._nominal_quota(gang.tenant))
        return used.get(gang.tenant, 0) + request <= limit and sum(used.values()) + request <= self._total

    def _use_quota(self, gang: Gang) -> None:
        for used in (self._used, self._used_later):
            used[gang.tenant] = used.get(gang.tenant, 0) + requested_amount(gang, self._unit)

    # Preemption

    def _reserve_quota(self, gang: Gang) -> bool:
        """Give a preempting gang the quota of terminating victims, and evict what it needs beyond that.

        Kueue gives the quota only when its victims have terminated, and borrowing workloads of other queues may come
        first. They would preempt each other without end, so here the quota is reserved for the preemptor.
        """
        reclaims = self._is_within_nominal(gang, self._used_later)
        if not reclaims and gang.band is not GUARANTEED:
            return False
        if not self._fits_quota(gang, self._used_later):
            chosen = self._find_victims(gang, reclaims=reclaims)
            for victim in chosen:
                self._evict_gang(victim, gang)
            if not chosen:
                return False
        self._use_quota(gang)
        return True

    def _find_victims(self, gang: Gang, *, reclaims: bool) -> list[Gang]:
        """Return as few victims as let the gang fit, empty if even all of them would not."""
        used, chosen = dict(self._used_later), list[Gang]()
        for victim in self._preemption_candidates(gang, reclaims=reclaims):
            if victim.tenant != gang.tenant and used[victim.tenant] <= self._nominal_quota(victim.tenant):
                continue
            used[victim.tenant] -= requested_amount(victim, self._unit)
            chosen.append(victim)
            if self._fits_quota(gang, used):
                break
        else:
            return []
        for victim in chosen[-2::-1]:
            spared = {**used, victim.tenant: used[victim.tenant] + requested_amount(victim, self._unit)}
            if self._fits_quota(gang, spared):
                used = spared
                chosen.remove(victim)
        return chosen

    def _preemption_candidates(self, gang: Gang, *, reclaims: bool) -> list[Gang]:
        def may_go(victim: Gang) -> bool:
            if victim.tenant == gang.tenant:
                return gang_rank(victim) < gang_rank(gang)
            return reclaims and self._used_later[victim.tenant] > self._nominal_quota(victim.tenant)

        found = filter(may_go, self._victims)
        return sorted(
            found, key=lambda each: (each.tenant == gang.tenant, gang_rank(each), -_admission_time(each), each.id)
        )

    def _evict_gang(self, victim: Gang, gang: Gang) -> None:
        self._victims.remove(victim)
        self._used_later[victim.tenant] -= requested_amount(victim, self._unit)
        if victim.plan is None:
            self._outcome.evict_gang(victim, gang, self._now)
        else:
            # Nothing of it runs: its quota is free at once, and it queues again.
            self._used[victim.tenant] -= requested_amount(victim, self._unit)
            self._admitted.remove(victim)

    # Placement

    def _place_gangs(self, admitted: list[Gang]) -> None:
        for gang in admitted:
            if gang.plan is not None and gang not in self._admitted:
                continue
            borrowed = gang.plan.borrowed if gang.plan is not None else self._is_borrowing(gang)
            nodes = self._free_capacity.place_pods(gang.pods, part=True)
            if nodes is not None:
                self._outcome.admit_gang(gang, self._key, nodes, borrowed=borrowed)
            else:
                created = gang.plan.created if gang.plan is not None else self._now
                self._outcome.plans[gang.id] = PreemptionPlan(
                    pool=self._key, nodes={}, borrowed=borrowed, created=created
                )

    def _is_borrowing(self, gang: Gang) -> bool:
        return self._used.get(gang.tenant, 0) > self._nominal_quota(gang.tenant)


def _admission_order(gang: Gang) -> tuple[float, str]:
    return gang.plan.created if gang.plan is not None else 0.0, gang.id


def _admission_time(gang: Gang) -> float:
    return gang.plan.created if gang.plan is not None else start_time(gang)
