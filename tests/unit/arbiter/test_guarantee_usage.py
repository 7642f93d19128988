"""Usage of guarantees by placed pods and by plans, across cycles and within one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tests.unit.arbiter.placed_gangs import place_gang
from tests.unit.arbiter.simulated_cluster import GPU, KEY, make_gang, make_node, make_quota
from vkgateway.arbiter.guarantees.guarantee_sums import may_hold, may_hold_any
from vkgateway.arbiter.guarantees.guaranteed_pods import GuaranteedPods
from vkgateway.arbiter.guarantees.usage import GuaranteeUsage
from vkgateway.arbiter.snapshot import Gang, Pool, PreemptionPlan, Quota


def make_pool(*usable: bool) -> Pool:
    nodes = tuple(make_node(f"n{at}", usable=each) for at, each in enumerate(usable))
    return Pool(key=KEY, nodes=nodes, governed=(GPU,))


def make_usage(pool: Pool, *gangs: Gang, quotas: tuple[Quota, ...] = (make_quota("a", 8),)) -> GuaranteeUsage:
    """Return the usage of placed gangs, with cells."""
    usage = GuaranteeUsage(pool)
    for gang in gangs:
        for pod in gang.pods:
            if pod.node:
                usage.add_pod(gang.tenant, pod)
        usage.set_plan(gang)
    usage.recount_cells(quotas, {gang.id: gang for gang in gangs})
    return usage


def planned_gang(nodes: Mapping[str, str]) -> Gang:
    return replace(make_gang("next", "a", [4]), plan=PreemptionPlan(pool=KEY, nodes=nodes, borrowed=False))


def test_undo_restores_pods_and_entered_gangs() -> None:
    running, first, second = (
        place_gang(make_gang(name, "a", [2]), ["n0"], borrowed=False).pods[0] for name in ("running", "first", "second")
    )
    pods = GuaranteedPods()
    pods.add_pod("a", running)
    pods.enter_pod("a", first, gang="first")
    mark = pods.mark()
    pods.enter_pod("a", second, gang="second")
    pods.leave_pod("a", running)
    assert pods.uids == {"first-0", "second-0"}

    assert pods.undo(mark) == ["first", "second"]
    assert pods.uids == {"running-0", "first-0"}
    assert list(pods.entered_gangs) == ["first"]
    assert pods.used_amounts("a")[GPU] == 4000


def test_plan_holds_cells_until_it_is_released() -> None:
    usage = make_usage(make_pool(True, True), planned_gang({"next-0": "n1"}))
    assert usage.plans.counted_gangs == {"next"}
    assert usage.cells.units_left("a") == 4000

    usage.release_plan("next")
    assert usage.cells.units_left("a") == 8000


def test_plan_on_unusable_node_holds_no_cells() -> None:
    usage = make_usage(make_pool(True, False), planned_gang({"next-0": "n1"}))
    assert usage.plans.counted_gangs == set()
    assert usage.cells.units_left("a") == 8000


def test_plan_that_does_not_fit_holds_no_cells() -> None:
    running = place_gang(make_gang("running", "a", [6]), ["n0"], borrowed=False)
    usage = make_usage(make_pool(True, True), running, planned_gang({"next-0": "n1"}))
    assert usage.plans.counted_gangs == set()
    assert usage.cells.units_left("a") == 2000


def test_pods_beyond_cells_are_demoted_until_cells_return() -> None:
    running = place_gang(make_gang("running", "a", [8]), ["n0"], borrowed=False)
    usage = make_usage(make_pool(True, True), running, quotas=(make_quota("a", 4),))
    assert usage.demoted_gangs() == {"running"}
    assert usage.pods.uids == set()

    usage.reset_cells()
    assert usage.recount_cells([make_quota("a", 8)], {"running": running}) == {"running"}
    assert usage.demoted_gangs() == set()
    assert usage.pods.uids == {"running-0"}


def test_sums_decide_before_cells() -> None:
    running = place_gang(make_gang("running", "a", [6]), ["n0"], borrowed=False)
    usage, quota = make_usage(make_pool(True, True), running), make_quota("a", 8)
    small, large = make_gang("small", "a", [2]), make_gang("large", "a", [2, 1])
    assert may_hold_any(usage, small)
    assert may_hold(usage, quota, small, small.pods)
    assert not may_hold(usage, quota, large, large.pods)
    assert not may_hold_any(usage, make_gang("other", "b", [1]))
