"""Replacements of lost members of running gangs: they start before the queue of their tenant."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.arbiter.borrowed_pool import placed_pod
from tests.unit.arbiter.simulated_cluster import (
    KEY,
    OTHER,
    Cluster,
    make_gang,
    make_node,
    make_quota,
    reports_by_gang,
    with_pod_pools,
)
from vkgateway.scheduler.core.cycle import decide
from vkgateway.scheduler.core.snapshot import Gang, Pod, PodState

NOW = 100_000.0


def running_gang(name: str, nodes: str, *, borrowed: bool = False, **fields: object) -> Gang:
    """Return a running gang of tenant a: a pod of one GPU on each node of this text, such as `n0 n0 n1`."""
    pods = tuple(placed_pod(f"{name}-{rank}", on, borrowed=borrowed) for rank, on in enumerate(nodes.split()))
    pods = tuple(replace(pod, rank=rank) for rank, pod in enumerate(pods))
    return replace(make_gang(name, "a", [1] * len(pods), created=NOW - 10, **fields), pods=pods)


def lose_member(gang: Gang, rank: int, *, replaced: bool = True) -> Gang:
    """Return the gang without its member of a rank; `replaced`: its controller has created a new pod."""
    lost = gang.pods[rank]
    stay = tuple(pod for pod in gang.pods if pod is not lost)
    if replaced:
        return replace(gang, pods=(*stay, Pod(uid=f"{lost.uid}-new", shape=lost.shape, rank=rank)), short=True)
    return replace(gang, pods=stay, lost=(*gang.lost, replace(lost, deadline=NOW + 600.0)), short=True)


def full_guarantee(*gangs: Gang, **options: object) -> Cluster:
    """Return one node of 4 GPUs, all of them the guarantee of tenant a."""
    found = Cluster([make_node("n0", 4)], [make_quota("a", 4)], now=NOW, **options)  # type: ignore[arg-type]
    found.add(*gangs)
    return found


def test_replacement_starts_before_older_gang_of_higher_priority() -> None:
    old = make_gang("old", "a", [1], created=NOW - 5000, priority=10)
    found = full_guarantee(lose_member(running_gang("team", "n0 n0 n0 n0"), 2), old)
    found.cycle()
    assert found.running_gangs() == {"team"}
    assert found.borrowed_marks("team") == {False}


def test_replacement_of_a_borrowing_gang_does_not_enter_the_guarantee_alone() -> None:
    """Else it would stay when the others are evicted, as half a gang."""
    team = lose_member(running_gang("team", "n0 n0 n0 n0", borrowed=True), 2)
    found = Cluster([make_node("n0", 4)], [make_quota("a", 1), make_quota("b", 3)], now=NOW)
    found.add(team)

    found.cycle()

    assert found.borrowed_marks("team") == {True}
    assert len(found.placed_nodes("team")) == 4


def test_place_is_held_until_the_replacement_exists() -> None:
    team = lose_member(running_gang("team", "n0 n0 n0 n0"), 2, replaced=False)
    found = full_guarantee(team, make_gang("old", "a", [1], created=NOW - 5000))
    decisions = found.cycle()
    assert found.running_gangs() == {"team"}
    assert "held for lost pods of team" in reports_by_gang(decisions)["old"].message
    found.gangs["team"] = lose_member(running_gang("team", "n0 n0 n0 n0"), 2)
    found.cycle()
    assert found.running_gangs() == {"team"}
    assert len(found.placed_nodes("team")) == 4


def test_place_is_held_for_waiting_members_of_an_incomplete_gang() -> None:
    team = lose_member(lose_member(running_gang("team", "n0 n0 n0 n0"), 3), 1, replaced=False)
    found = full_guarantee(team, make_gang("old", "a", [1], created=NOW - 5000))
    found.cycle()
    assert found.running_gangs() == {"team"}


def test_place_is_held_for_all_pods_of_a_restarted_gang() -> None:
    ran = running_gang("team", "n0 n0 n0 n0")
    gone = tuple(replace(pod, deadline=NOW + 600.0) for pod in ran.pods)
    found = full_guarantee(replace(ran, pods=(), lost=gone, short=True), make_gang("old", "a", [1], created=NOW - 5000))
    found.cycle()
    assert not found.running_gangs()
    found.gangs["team"] = make_gang("team", "a", [1] * 4, created=NOW - 10, short=True)
    found.cycle()
    assert found.running_gangs() == {"team"}


def test_place_is_released_at_the_deadline() -> None:
    team = lose_member(running_gang("team", "n0 n0 n0 n0"), 2, replaced=False)
    found = full_guarantee(team, make_gang("old", "a", [1], created=NOW - 5000))
    found.cycle()
    found.now = NOW + 601.0
    found.cycle()
    assert found.running_gangs() == {"team", "old"}


def test_place_on_a_lost_node_is_held_elsewhere() -> None:
    team = lose_member(running_gang("team", "n0 n0 n0 n1"), 3, replaced=False)
    found = Cluster([make_node("n0", 3), make_node("n1", 1, usable=False)], [make_quota("a", 4)], now=NOW)
    found.add(team, make_gang("old", "a", [1], created=NOW - 5000))
    found.pool = replace(found.pool, nodes=(*found.pool.nodes, make_node("n2", 1)))
    found.cycle()
    assert found.running_gangs() == {"team"}


def test_running_gangs_are_not_promoted_into_the_place() -> None:
    team = lose_member(running_gang("team", "n0 n0 n0"), 2, replaced=False)
    found = full_guarantee(team, running_gang("solo", "n0", borrowed=True), running_gang("in", "n0"))
    found.gangs["solo"] = replace(found.gangs["solo"], created=NOW - 5000)
    found.pool = replace(found.pool, nodes=(make_node("n0", 5),))
    found.cycle()
    assert found.borrowed_marks("solo") == {True}


def test_guarantees_of_other_tenants_are_untouched() -> None:
    team = lose_member(running_gang("team", "n0 n0"), 1, replaced=False)
    found = Cluster([make_node("n0", 4)], [make_quota("a", 2), make_quota("b", 2)], now=NOW)
    found.add(team, make_gang("theirs", "b", [1, 1], created=NOW - 1))
    found.cycle()
    assert found.borrowed_marks("theirs") == {False}


def test_restarted_gang_keeps_what_is_left_of_its_place() -> None:
    found = full_guarantee(
        running_gang("solo", "n0"),
        make_gang("team", "a", [1] * 4, created=NOW - 10, short=True),
        make_gang("old", "a", [1], created=NOW - 5000),
    )
    found.cycle()
    assert found.borrowed_marks("old") == {True}
    del found.gangs["solo"]
    found.run_for(20)
    assert found.running_gangs() == {"team"}


def test_aged_gang_does_not_take_the_place() -> None:
    big = make_gang("big", "a", [1] * 2, created=NOW - 2 * 3600)
    found = full_guarantee(lose_member(running_gang("team", "n0 n0 n0 n0"), 2), big)
    found.cycle()
    assert found.running_gangs() == {"team"}


def test_borrowing_replacement_is_first_of_its_tenant_and_uses_the_reserve() -> None:
    team = lose_member(running_gang("team", "n0 n0 n0", borrowed=True), 1)
    old = make_gang("old", "a", [1], created=NOW - 5000, priority=10, preempts=False)
    found = Cluster([make_node("n0", 4)], [make_quota("a"), make_quota("b")], now=NOW, reserve=2)
    found.add(team, old)
    found.cycle()
    assert len(found.placed_nodes("team")) == 3
    assert "old" not in found.running_gangs()


def test_other_gangs_leave_the_reserve_idle() -> None:
    team = replace(lose_member(running_gang("team", "n0 n0 n0", borrowed=True), 1), short=False)
    found = Cluster([make_node("n0", 4)], [make_quota("a"), make_quota("b")], now=NOW, reserve=2)
    found.gangs["team"] = team
    decisions = decide(found.snapshot(), NOW)
    assert not decisions.admits


def test_surplus_of_a_short_gang_leaves_the_reserve_idle() -> None:
    team = lose_member(running_gang("team", "n0 n0", borrowed=True), 1)
    more = Pod(uid="team-9", shape=team.pods[0].shape, rank=9)
    found = Cluster([make_node("n0", 4)], [make_quota("a"), make_quota("b")], now=NOW, reserve=2)
    found.add(replace(team, pods=(*team.pods, more), elastic=True))
    found.cycle()
    assert len(found.placed_nodes("team")) == 2


def test_short_gang_in_several_pools_keeps_both_places() -> None:
    ran = with_pod_pools(running_gang("team", "n0 n0"), (KEY,), (OTHER,))
    first, second = ran.pods
    second = replace(second, node="m0", pool=OTHER, deadline=NOW + 600.0)
    quotas = [make_quota("a", 2), make_quota("a", 2, pool=OTHER)]
    found = Cluster([make_node("n0", 2)], quotas, now=NOW, more=[make_node("m0", 2)])
    found.add(replace(ran, pods=(first,), lost=(second,), short=True))
    found.add(make_gang("old", "a", [2], created=NOW - 5000, pools=(OTHER,)))
    found.cycle()
    assert found.running_gangs() == {"team"}
    fresh = replace(second, uid="team-new", node="", pool=None, state=PodState.WAITING, deadline=0.0)
    found.gangs["team"] = replace(ran, pods=(first, fresh), short=True)
    found.cycle()
    assert len(found.placed_nodes("team")) == 2


def test_borrowing_replacement_precedes_older_gangs_of_its_tenant() -> None:
    team = lose_member(running_gang("team", "n0 n0 n0", borrowed=True), 1)
    found = Cluster([make_node("n0", 3)], [make_quota("a"), make_quota("b")], now=NOW)
    found.add(team, make_gang("old", "a", [1], created=NOW - 5000, priority=10, preempts=False))
    found.cycle()
    assert found.running_gangs() == {"team"}
