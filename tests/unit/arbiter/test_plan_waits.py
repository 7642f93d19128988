"""Plans wait for their victims, even if no other victim would terminate sooner."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.arbiter.placed_gangs import place_gang
from tests.unit.arbiter.simulated_cluster import KEY, LOW, Cluster, make_gang, make_node, make_quota
from vkgateway.scheduler.core.snapshot import PodState, PreemptionPlan

NOW = 100_000.0


def test_capacity_of_plan_stays_reserved_while_victims_terminate() -> None:
    """Otherwise the younger gang is evicted in the next cycle, and the nodes are never free together."""
    cluster = Cluster([make_node("n0"), make_node("n1")], [make_quota("t")], now=NOW)
    ends = {"state": PodState.ENDING, "deadline": NOW + 60, "evicted_for": "large", "behind": "large"}
    large = make_gang("large", "t", [8, 8], band=LOW, created=NOW - 50_000)
    cluster.add(
        replace(
            large,
            plan=PreemptionPlan(pool=KEY, nodes={"large-0": "n0", "large-1": "n1"}, borrowed=True, created=NOW - 30),
        ),
        place_gang(
            make_gang("second", "t", [8], band=LOW, created=NOW - 90, grace=60.0), ["n1"], borrowed=True, **ends
        ),
        make_gang("first", "t", [8], band=LOW, created=NOW),
    )
    decisions = cluster.cycle()
    assert decisions.plans.keys() == {"large"}
    cluster.run_for(61)
    assert cluster.running_gangs() == {"large"}
