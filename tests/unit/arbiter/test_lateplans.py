"""Plans wait for their victims, even if no other victim would terminate sooner."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.arbiter.placed import runs
from tests.unit.arbiter.sim import KEY, LOW, Cluster, gang, node, quota
from vkgateway.arbiter.snapshot import PodState, PreemptionPlan

NOW = 100_000.0


def test_capacity_of_plan_stays_reserved_while_victims_terminate() -> None:
    """Otherwise the younger gang is evicted in the next cycle, and the nodes are never free together."""
    there = Cluster([node("n0"), node("n1")], [quota("t")], now=NOW)
    ends = {"state": PodState.ENDING, "deadline": NOW + 60, "evicted_for": "large", "behind": "large"}
    large = gang("large", "t", [8, 8], band=LOW, created=NOW - 50_000)
    there.add(
        replace(
            large, plan=PreemptionPlan(pool=KEY, nodes={"large-0": "n0", "large-1": "n1"}, borrowed=True, made=NOW - 30)
        ),
        runs(gang("second", "t", [8], band=LOW, created=NOW - 90, grace=60.0), ["n1"], borrowed=True, **ends),
        gang("first", "t", [8], band=LOW, created=NOW),
    )
    decisions = there.cycle()
    assert decisions.plans.keys() == {"large"}
    there.settle(61)
    assert there.running() == {"large"}
