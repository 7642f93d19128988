"""Base class of schedulers that decide pool by pool, and their decisions under construction."""

from __future__ import annotations

from dataclasses import dataclass, field

from vkgateway.scheduler.core.decisions import Admit, Decisions, Evict
from vkgateway.scheduler.core.snapshot import Gang, Pool, PoolKey, PreemptionPlan, Snapshot
from vkgateway_platform.simulate.policies.placement import PoolLayout
from vkgateway_platform.simulate.policies.pool_gangs import PoolGangs, gangs_by_pool
from vkgateway_platform.simulate.scenario import Scenario


@dataclass(slots=True)
class DecisionBuilder:
    """Decisions of a cycle so far: gangs are evicted whole."""

    admits: list[Admit] = field(default_factory=list)
    evicts: list[Evict] = field(default_factory=list)
    plans: dict[str, PreemptionPlan] = field(default_factory=dict)

    def admit_gang(self, gang: Gang, pool: PoolKey, nodes: dict[str, str], *, borrowed: bool) -> None:
        """Start a gang."""
        self.admits.append(Admit(gang=gang.id, pool=pool, nodes=nodes, borrowed=borrowed))

    def evict_gang(self, victim: Gang, preemptor: Gang, now: float) -> None:
        """Evict a gang after its notice."""
        uids = tuple(pod.uid for pod in victim.pods)
        deadline = now + victim.notice
        self.evicts.append(
            Evict(gang=victim.id, pods=uids, whole=True, makes_room_for=preemptor.id, deadline=deadline, lost=0.0)
        )

    def build_decisions(self) -> Decisions:
        return Decisions(admits=tuple(self.admits), evicts=tuple(self.evicts), plans=self.plans)


class PoolScheduler:
    """Scheduler for which no pool depends on another one. Subclasses implement `run_cycle`."""

    name = ""

    def __init__(self) -> None:
        self._layouts: dict[PoolKey, PoolLayout] = {}

    def arrange(self, scenario: Scenario) -> Scenario:
        """Return the scenario unchanged."""
        return scenario

    def decide(self, snapshot: Snapshot, now: float) -> Decisions:
        """Return decisions for all pools."""
        outcome = DecisionBuilder()
        for gangs in gangs_by_pool(snapshot):
            self.run_cycle(gangs, self._pool_layout(gangs.pool), outcome, now)
        return outcome.build_decisions()

    def run_cycle(self, gangs: PoolGangs, nodes: PoolLayout, outcome: DecisionBuilder, now: float) -> None:
        """Add the decisions for one pool to the outcome."""
        raise NotImplementedError

    def _pool_layout(self, pool: Pool) -> PoolLayout:
        known = self._layouts.get(pool.key)
        if known is None or known.pool is not pool:
            known = self._layouts[pool.key] = PoolLayout(pool)
        return known
