"""Priority FIFO: kube-scheduler's rules with gangs as a whole.

It ignores tenants' guarantees.

Higher bands and priorities come first, then the older gang. A gang that does not fit does not block others. A gang
preempts lower ones of any tenant, as few as needed: the lowest and youngest are tried first, then victims that can stay
are reprieved (https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/). Limits apply as
ResourceQuotas do.
"""

from __future__ import annotations

from vkgateway.scheduler.core.snapshot import ENDING, GUARANTEED, NOTIFIED, WAITING, Gang, PreemptionPlan
from vkgateway_platform.simulate.policies.placement import FreeCapacity, PoolLayout, pod_shapes
from vkgateway_platform.simulate.policies.pool_gangs import (
    PoolGangs,
    gang_rank,
    requested_amount,
    start_time,
    usage_by_tenant,
)
from vkgateway_platform.simulate.policies.pool_scheduler import DecisionBuilder, PoolScheduler


class PriorityFifo(PoolScheduler):
    """Scheduler by priority and age."""

    name = "fifo"

    def run_cycle(self, gangs: PoolGangs, nodes: PoolLayout, outcome: DecisionBuilder, now: float) -> None:
        """Add the decisions for one pool to the outcome."""
        _PoolCycle(gangs, nodes, outcome, now).run()


class _PoolCycle:
    """One cycle in one pool."""

    def __init__(self, gangs: PoolGangs, nodes: PoolLayout, outcome: DecisionBuilder, now: float) -> None:
        self._gangs, self._outcome, self._now = gangs, outcome, now
        self._key, self._unit = gangs.pool.key, gangs.pool.loss_resource
        there = [*gangs.running, *gangs.terminating]
        self._used = usage_by_tenant(there, self._unit)
        self._free_now = FreeCapacity(nodes)
        """Free capacity, without what higher gangs got in this cycle or wait for."""
        self._free_later = FreeCapacity(nodes)
        """Free capacity after all victims have terminated."""
        for gang in there:
            self._free_now.allocate_pods(pod for pod in gang.pods if pod.state is not WAITING)
            self._free_later.allocate_pods(pod for pod in gang.pods if pod.state not in (WAITING, NOTIFIED, ENDING))
        self._victims = sorted(gangs.running, key=lambda gang: (gang_rank(gang), -start_time(gang)))
        self._failed: set[object] = set()
        """Shapes that do not fit, because free capacity only shrinks in a cycle."""

    def run(self) -> None:
        for gang in self._gangs.pending:
            kind = pod_shapes(gang), gang_rank(gang)
            if self._is_within_limit(gang) and kind not in self._failed and not self._schedule_gang(gang):
                self._failed.add(kind)

    def _is_within_limit(self, gang: Gang) -> bool:
        quota = self._gangs.quotas.get(gang.tenant)
        limit = quota.limit.get(self._unit) if quota is not None else None
        return limit is None or self._used.get(gang.tenant, 0) + requested_amount(gang, self._unit) <= limit

    def _schedule_gang(self, gang: Gang) -> bool:
        trial = self._free_now.copy()
        nodes = trial.place_pods(gang.pods)
        if nodes is not None:
            self._free_now = trial
            self._free_later.allocate_pods(gang.pods, nodes)
            self._outcome.admit_gang(gang, self._key, nodes, borrowed=self._is_borrowing(gang))
            self._used[gang.tenant] = self._used.get(gang.tenant, 0) + requested_amount(gang, self._unit)
            return True
        return self._nominate_nodes(gang) or self._preempt_gangs(gang)

    def _nominate_nodes(self, gang: Gang) -> bool:
        """Wait for lower gangs that already terminate."""
        lower = any(gang_rank(victim) < gang_rank(gang) for victim in self._gangs.terminating)
        if gang.plan is None and not lower:
            return False
        nodes = self._free_later.place_pods(gang.pods)
        if nodes is None:
            return False
        self._plan_preemption(gang, nodes)
        return True

    def _plan_preemption(self, gang: Gang, nodes: dict[str, str]) -> None:
        created = gang.plan.created if gang.plan is not None else self._now
        self._outcome.plans[gang.id] = PreemptionPlan(
            pool=self._key, nodes=nodes, borrowed=self._is_borrowing(gang), created=created
        )
        # Its currently free part stays reserved, so lower gangs see less free capacity.
        self._free_now.allocate_pods(gang.pods, nodes)

    def _preempt_gangs(self, gang: Gang) -> bool:
        lower = [victim for victim in self._victims if gang_rank(victim) < gang_rank(gang)]
        room, chosen = self._free_later.copy(), []
        for victim in lower:
            room.release_pods(victim.pods)
            chosen.append(victim)
            if room.copy().place_pods(gang.pods) is not None:
                break
        else:
            return False
        for victim in reversed(list(chosen)):
            spared = room.copy()
            spared.allocate_pods(victim.pods)
            if spared.copy().place_pods(gang.pods) is not None:
                room = spared
                chosen.remove(victim)
        nodes = room.place_pods(gang.pods)
        assert nodes is not None
        for victim in chosen:
            self._outcome.evict_gang(victim, gang, self._now)
            self._victims.remove(victim)
        self._free_later = room
        self._plan_preemption(gang, nodes)
        return True

    def _is_borrowing(self, gang: Gang) -> bool:
        """Return whether the gang is outside its tenant's guarantee, counted as a sum: for metrics only."""
        quota = self._gangs.quotas.get(gang.tenant)
        guarantee = quota.guarantee.get(self._unit, 0) if quota is not None else 0
        mine = (each for each in self._gangs.running if each.tenant == gang.tenant and each.band is GUARANTEED)
        inside = sum(requested_amount(each, self._unit) for each in mine if not any(pod.borrowed for pod in each.pods))
        inside += sum(
            requested_amount(each, self._unit)
            for admit in self._outcome.admits
            if not admit.borrowed
            and (each := self._find_pending(admit.gang)) is not None
            and each.tenant == gang.tenant
        )
        return gang.band is not GUARANTEED or inside + requested_amount(gang, self._unit) > guarantee

    def _find_pending(self, name: str) -> Gang | None:
        return next((gang for gang in self._gangs.pending if gang.id == name), None)
