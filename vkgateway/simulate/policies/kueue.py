"""Kueue's rules: a ClusterQueue for each tenant, all in one cohort, and placement after admission.

A guarantee is the nominal quota, the limit bounds borrowing, and the cohort has quota for the rest. The
settings are `reclaimWithinCohort: Any`, `withinClusterQueue: LowerPriority` and `BestEffortFIFO`. Quota is a sum, so an
admitted gang may find no node: it keeps its quota, and its pods hold the room that they find, until all of them fit.
https://kueue.sigs.k8s.io/docs/concepts/cluster_queue/ and https://kueue.sigs.k8s.io/docs/concepts/preemption/
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from vkgateway.arbiter.facts import GUARANTEED, WAITING, Gang, Plan
from vkgateway.simulate.policies.outcome import Outcome
from vkgateway.simulate.policies.pending import PoolGangs, amount, rank_of, started, usage
from vkgateway.simulate.policies.placing import PoolNodes, Room
from vkgateway.simulate.policies.poolbypool import PoolByPool

_Usage = dict[str, int]
"""Thousandths of the pool's unit, by tenant."""


class Kueue(PoolByPool):
    """A scheduler by quotas. A plan without nodes is an admission that waits for placement."""

    name = "kueue"

    def cycle(self, gangs: PoolGangs, nodes: PoolNodes, outcome: Outcome, now: float) -> None:
        """Add the decisions for one pool to the outcome."""
        _Cycle(gangs, nodes, outcome, now).run()


class _Cycle:
    """One cycle in one cohort."""

    def __init__(self, gangs: PoolGangs, nodes: PoolNodes, outcome: Outcome, now: float) -> None:
        self._gangs, self._outcome, self._now = gangs, outcome, now
        self._key, self._unit = gangs.pool.key, gangs.pool.measure
        self._room = Room(nodes)
        for gang in (*gangs.running, *gangs.leaving):
            self._room.take(pod for pod in gang.pods if pod.state is not WAITING)
        self._total = sum(node.allocatable.get(self._unit, 0) for node in gangs.pool.nodes if node.usable)
        self._admitted = sorted((gang for gang in gangs.pending if gang.plan is not None), key=_admission)
        self._used = usage([*gangs.running, *gangs.leaving, *self._admitted], self._unit)
        self._later = dict(self._used)
        """What is used once all that leave have left."""
        for tenant, left in usage(gangs.leaving, self._unit).items():
            self._later[tenant] -= left
        self._victims = [*gangs.running, *self._admitted]

    def run(self) -> None:
        """Place what was admitted earlier, then go through the heads of all queues until they are empty."""
        queues: dict[str, list[Gang]] = {}
        for gang in self._gangs.pending:
            if gang.plan is None:
                queues.setdefault(gang.tenant, []).append(gang)
        unplaced = list(self._admitted)
        heads = [queue.pop(0) for queue in queues.values()]
        while heads:
            for gang in sorted(heads, key=self._order):
                if self._fits(gang, self._used):
                    self._use(gang)
                    unplaced.append(gang)
                elif self._reserve(gang):
                    unplaced.append(gang)
            heads = [queue.pop(0) for queue in queues.values() if queue]
        self._place(unplaced)

    def _order(self, gang: Gang) -> tuple[bool, bool, int, float, str]:
        guaranteed, priority = rank_of(gang)
        return not self._is_nominal(gang, self._used), not guaranteed, -priority, gang.created, gang.id

    # Quota

    def _nominal(self, tenant: str) -> int:
        quota = self._gangs.quotas.get(tenant)
        if quota is None:
            return 0
        return sum(quota.cells) * 1000 or quota.guarantee.get(self._unit, 0)

    def _is_nominal(self, gang: Gang, used: Mapping[str, int]) -> bool:
        return used.get(gang.tenant, 0) + amount(gang, self._unit) <= self._nominal(gang.tenant)

    def _fits(self, gang: Gang, used: Mapping[str, int]) -> bool:
        request, quota = amount(gang, self._unit), self._gangs.quotas.get(gang.tenant)
        limit = quota.limit.get(self._unit, inf) if quota is not None else 0
        return used.get(gang.tenant, 0) + request <= limit and sum(used.values()) + request <= self._total

    def _use(self, gang: Gang) -> None:
        for used in (self._used, self._later):
            used[gang.tenant] = used.get(gang.tenant, 0) + amount(gang, self._unit)

    # Preemption

    def _reserve(self, gang: Gang) -> bool:
        """Give a gang that may preempt the quota of what leaves, and evict what it needs beyond that.

        Kueue gives it only when its victims have left, and borrowing workloads of other queues may come first. They
        then preempt each other without end, so here the quota is kept for the preemptor.
        """
        reclaims = self._is_nominal(gang, self._later)
        if not reclaims and gang.band is not GUARANTEED:
            return False
        if not self._fits(gang, self._later):
            chosen = self._search(gang, reclaims=reclaims)
            for victim in chosen:
                self._evict(victim, gang)
            if not chosen:
                return False
        self._use(gang)
        return True

    def _search(self, gang: Gang, *, reclaims: bool) -> list[Gang]:
        """Return as few victims as let the gang fit; none if even all of them would not."""
        used, chosen = dict(self._later), list[Gang]()
        for victim in self._candidates(gang, reclaims=reclaims):
            if victim.tenant != gang.tenant and used[victim.tenant] <= self._nominal(victim.tenant):
                continue
            used[victim.tenant] -= amount(victim, self._unit)
            chosen.append(victim)
            if self._fits(gang, used):
                break
        else:
            return []
        for victim in chosen[-2::-1]:
            spared = {**used, victim.tenant: used[victim.tenant] + amount(victim, self._unit)}
            if self._fits(gang, spared):
                used = spared
                chosen.remove(victim)
        return chosen

    def _candidates(self, gang: Gang, *, reclaims: bool) -> list[Gang]:
        def may_go(victim: Gang) -> bool:
            if victim.tenant == gang.tenant:
                return rank_of(victim) < rank_of(gang)
            return reclaims and self._later[victim.tenant] > self._nominal(victim.tenant)

        found = filter(may_go, self._victims)
        return sorted(found, key=lambda each: (each.tenant == gang.tenant, rank_of(each), -_since(each), each.id))

    def _evict(self, victim: Gang, gang: Gang) -> None:
        self._victims.remove(victim)
        self._later[victim.tenant] -= amount(victim, self._unit)
        if victim.plan is None:
            self._outcome.evict(victim, gang, self._now)
        else:
            # Nothing of it runs: its quota is free at once, and it queues again.
            self._used[victim.tenant] -= amount(victim, self._unit)
            self._admitted.remove(victim)

    # Placement

    def _place(self, admitted: list[Gang]) -> None:
        for gang in admitted:
            if gang.plan is not None and gang not in self._admitted:
                continue
            borrowed = gang.plan.borrowed if gang.plan is not None else self._borrows(gang)
            nodes = self._room.place(gang.pods, part=True)
            if nodes is not None:
                self._outcome.admit(gang, self._key, nodes, borrowed=borrowed)
            else:
                made = gang.plan.made if gang.plan is not None else self._now
                self._outcome.plans[gang.id] = Plan(pool=self._key, nodes={}, borrowed=borrowed, made=made)

    def _borrows(self, gang: Gang) -> bool:
        return self._used.get(gang.tenant, 0) > self._nominal(gang.tenant)


def _admission(gang: Gang) -> tuple[float, str]:
    return gang.plan.made if gang.plan is not None else 0.0, gang.id


def _since(gang: Gang) -> float:
    return gang.plan.made if gang.plan is not None else started(gang)
