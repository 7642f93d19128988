"""Base class of schedulers that decide pool by pool."""

from __future__ import annotations

from vkgateway.arbiter.decisions import Decisions
from vkgateway.arbiter.snapshot import Pool, PoolKey, Snapshot
from vkgateway.simulate.policies.decision_builder import DecisionBuilder
from vkgateway.simulate.policies.placement import PoolLayout
from vkgateway.simulate.policies.pool_gangs import PoolGangs, gangs_by_pool
from vkgateway.simulate.scenario import Scenario


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
