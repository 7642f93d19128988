"""Usage of guarantees by placed pods, across cycles and within one."""

from __future__ import annotations

from tests.unit.arbiter.placed_gangs import place_gang
from tests.unit.arbiter.simulated_cluster import GPU, KEY, make_gang, make_node, make_quota
from vkgateway.scheduler.core.guarantees.guarantee_sums import may_hold, may_hold_any
from vkgateway.scheduler.core.guarantees.usage import GuaranteedPods, GuaranteeUsage
from vkgateway.scheduler.core.journal import Journal
from vkgateway.scheduler.core.snapshot import Gang, Pool, Quota


def make_pool(*usable: bool) -> Pool:
    nodes = tuple(make_node(f"n{at}", usable=each) for at, each in enumerate(usable))
    return Pool(key=KEY, nodes=nodes, governed=(GPU,))


def make_usage(pool: Pool, *gangs: Gang, quotas: tuple[Quota, ...] = (make_quota("a", 8),)) -> GuaranteeUsage:
    """Return the usage of placed gangs, counted."""
    usage = GuaranteeUsage(pool)
    for gang in gangs:
        for pod in gang.pods:
            if pod.node:
                usage.add_pod(gang.tenant, pod)
    usage.recount(quotas, {gang.id: gang for gang in gangs})
    return usage


def test_undo_restores_pods_and_entered_gangs() -> None:
    running, first, second = (
        place_gang(make_gang(name, "a", [2]), ["n0"], borrowed=False).pods[0] for name in ("running", "first", "second")
    )
    journal = Journal()
    pods = GuaranteedPods(journal)
    pods.add_pod("a", running)
    pods.enter_pod("a", first, gang="first")
    with journal.trial():
        pods.enter_pod("a", second, gang="second")
        pods.leave_pod("a", running)
        assert pods.uids == {"first-0", "second-0"}
    assert pods.uids == {"running-0", "first-0"}
    assert list(pods.entered_gangs) == ["first"]
    assert pods.used_amounts("a")[GPU] == 4000


def test_pods_beyond_a_guarantee_are_demoted_until_it_returns() -> None:
    running = place_gang(make_gang("running", "a", [8]), ["n0"], borrowed=False)
    usage = make_usage(make_pool(True, True), running, quotas=(make_quota("a", 4),))
    assert usage.demoted_gangs() == {"running"}
    assert usage.pods.uids == set()

    usage.reset()
    assert usage.recount([make_quota("a", 8)], {"running": running}) == {"running"}
    assert usage.demoted_gangs() == set()
    assert usage.pods.uids == {"running-0"}


def test_sums_decide_before_nodes() -> None:
    running = place_gang(make_gang("running", "a", [6]), ["n0"], borrowed=False)
    usage, quota = make_usage(make_pool(True, True), running), make_quota("a", 8)
    small, large = make_gang("small", "a", [2]), make_gang("large", "a", [2, 1])
    assert may_hold_any(usage, small)
    assert may_hold(usage, quota, small, small.pods)
    assert not may_hold(usage, quota, large, large.pods)
    assert not may_hold_any(usage, make_gang("other", "b", [1]))


def test_changes_of_pods_are_followed_without_a_new_count() -> None:
    usage = make_usage(make_pool(True, True))
    guarantees = usage.guarantees
    running = place_gang(make_gang("running", "a", [6]), ["n0"], borrowed=False).pods[0]
    usage.add_pod("a", running)
    assert usage.guarantees is guarantees
    assert (guarantees.units_left("a"), guarantees.used_on("a", "n0")) == (2000, 6000)
    usage.remove_pod("a", running)
    assert (guarantees.units_left("a"), guarantees.used_on("a", "n0")) == (8000, 0)


def test_pods_on_an_unusable_node_use_up_cells() -> None:
    usage = make_usage(make_pool(True, False), quotas=(make_quota("a", 8), make_quota("b", 8)))
    assert [loss.tenant for loss in usage.guarantees.losses] == ["a"]
    running = place_gang(make_gang("running", "a", [6]), ["n1"], borrowed=False)
    usage.add_pod("a", running.pods[0])
    usage.recount((make_quota("a", 8), make_quota("b", 8)), {"running": running})
    assert usage.guarantees.losses == ()
    assert not usage.guarantees.use("a", "n0", 1000), "the node is promised to b"
    assert usage.guarantees.use("b", "n0", 8000)
