"""Priority FIFO: kube-scheduler's rules with gangs as a whole. Tenants' guarantees mean nothing to it.

Higher bands and priorities come first, then the older gang; a gang that does not fit holds up no other. A gang preempts
lower ones of any tenant, as few as needed: the lowest and youngest are tried first, then those that can stay are spared
(https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/). Limits hold as ResourceQuotas do.
"""

from __future__ import annotations

from vkgateway.arbiter.facts import ENDING, GUARANTEED, NOTIFIED, WAITING, Gang, Plan
from vkgateway.simulate.policies.outcome import Outcome
from vkgateway.simulate.policies.pending import PoolGangs, amount, rank_of, started, usage
from vkgateway.simulate.policies.placing import PoolNodes, Room, wanted
from vkgateway.simulate.policies.poolbypool import PoolByPool


class PriorityFifo(PoolByPool):
    """A scheduler by priority and age."""

    name = "fifo"

    def cycle(self, gangs: PoolGangs, nodes: PoolNodes, outcome: Outcome, now: float) -> None:
        """Add the decisions for one pool to the outcome."""
        _Cycle(gangs, nodes, outcome, now).run()


class _Cycle:
    """One cycle in one pool."""

    def __init__(self, gangs: PoolGangs, nodes: PoolNodes, outcome: Outcome, now: float) -> None:
        self._gangs, self._outcome, self._now = gangs, outcome, now
        self._key, self._unit = gangs.pool.key, gangs.pool.measure
        there = [*gangs.running, *gangs.leaving]
        self._used = usage(there, self._unit)
        self._now_free = Room(nodes)
        """What is free now, less what higher gangs were given in this cycle or wait for."""
        self._later_free = Room(nodes)
        """The same once all that leave have left."""
        for gang in there:
            self._now_free.take(pod for pod in gang.pods if pod.state is not WAITING)
            self._later_free.take(pod for pod in gang.pods if pod.state not in (WAITING, NOTIFIED, ENDING))
        self._victims = sorted(gangs.running, key=lambda gang: (rank_of(gang), -started(gang)))
        self._failed: set[object] = set()
        """What does not fit: room only shrinks in a cycle."""

    def run(self) -> None:
        for gang in self._gangs.pending:
            kind = wanted(gang), rank_of(gang)
            if self._within_limit(gang) and kind not in self._failed and not self._schedule(gang):
                self._failed.add(kind)

    def _within_limit(self, gang: Gang) -> bool:
        quota = self._gangs.quotas.get(gang.tenant)
        limit = quota.limit.get(self._unit) if quota is not None else None
        return limit is None or self._used.get(gang.tenant, 0) + amount(gang, self._unit) <= limit

    def _schedule(self, gang: Gang) -> bool:
        trial = self._now_free.copy()
        nodes = trial.place(gang.pods)
        if nodes is not None:
            self._now_free = trial
            self._later_free.take(gang.pods, nodes)
            self._outcome.admit(gang, self._key, nodes, borrowed=self._borrows(gang))
            self._used[gang.tenant] = self._used.get(gang.tenant, 0) + amount(gang, self._unit)
            return True
        return self._nominate(gang) or self._preempt(gang)

    def _nominate(self, gang: Gang) -> bool:
        """Wait for lower gangs that leave already."""
        lower = any(rank_of(victim) < rank_of(gang) for victim in self._gangs.leaving)
        if gang.plan is None and not lower:
            return False
        nodes = self._later_free.place(gang.pods)
        if nodes is None:
            return False
        self._plan(gang, nodes)
        return True

    def _plan(self, gang: Gang, nodes: dict[str, str]) -> None:
        made = gang.plan.made if gang.plan is not None else self._now
        self._outcome.plans[gang.id] = Plan(pool=self._key, nodes=nodes, borrowed=self._borrows(gang), made=made)
        # What is free of it now stays free: lower gangs see less room than there is.
        self._now_free.take(gang.pods, nodes)

    def _preempt(self, gang: Gang) -> bool:
        lower = [victim for victim in self._victims if rank_of(victim) < rank_of(gang)]
        room, chosen = self._later_free.copy(), []
        for victim in lower:
            room.give(victim.pods)
            chosen.append(victim)
            if room.copy().place(gang.pods) is not None:
                break
        else:
            return False
        for victim in reversed(list(chosen)):
            spared = room.copy()
            spared.take(victim.pods)
            if spared.copy().place(gang.pods) is not None:
                room = spared
                chosen.remove(victim)
        nodes = room.place(gang.pods)
        assert nodes is not None
        for victim in chosen:
            self._outcome.evict(victim, gang, self._now)
            self._victims.remove(victim)
        self._later_free = room
        self._plan(gang, nodes)
        return True

    def _borrows(self, gang: Gang) -> bool:
        """Return whether the gang is outside its tenant's guarantee, counted as a sum: for metrics only."""
        quota = self._gangs.quotas.get(gang.tenant)
        guarantee = quota.guarantee.get(self._unit, 0) if quota is not None else 0
        mine = (each for each in self._gangs.running if each.tenant == gang.tenant and each.band is GUARANTEED)
        inside = sum(amount(each, self._unit) for each in mine if not any(pod.borrowed for pod in each.pods))
        inside += sum(
            amount(each, self._unit)
            for admit in self._outcome.admits
            if not admit.borrowed and (each := self._pending_of(admit.gang)) is not None and each.tenant == gang.tenant
        )
        return gang.band is not GUARANTEED or inside + amount(gang, self._unit) > guarantee

    def _pending_of(self, name: str) -> Gang | None:
        return next((gang for gang in self._gangs.pending if gang.id == name), None)
