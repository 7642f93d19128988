"""What schedulers share that decide pool by pool, each by its rules."""

from __future__ import annotations

from vkgateway.arbiter.decisions import Decisions
from vkgateway.arbiter.facts import Pool, PoolKey, Snapshot
from vkgateway.simulate.policies.outcome import Outcome
from vkgateway.simulate.policies.pending import PoolGangs, by_pool
from vkgateway.simulate.policies.placing import PoolNodes
from vkgateway.simulate.scenario import Scenario


class PoolByPool:
    """A scheduler for which no pool depends on another one. Subclasses implement `cycle`."""

    name = ""

    def __init__(self) -> None:
        self._nodes: dict[PoolKey, PoolNodes] = {}

    def arrange(self, scenario: Scenario) -> Scenario:
        """Return the scenario unchanged."""
        return scenario

    def decide(self, snapshot: Snapshot, now: float) -> Decisions:
        """Return decisions for all pools."""
        outcome = Outcome()
        for gangs in by_pool(snapshot):
            self.cycle(gangs, self._nodes_of(gangs.pool), outcome, now)
        return outcome.decisions()

    def cycle(self, gangs: PoolGangs, nodes: PoolNodes, outcome: Outcome, now: float) -> None:
        """Add the decisions for one pool to the outcome."""
        raise NotImplementedError

    def _nodes_of(self, pool: Pool) -> PoolNodes:
        known = self._nodes.get(pool.key)
        if known is None or known.pool is not pool:
            known = self._nodes[pool.key] = PoolNodes(pool)
        return known
