"""Past shares: who borrowed recently comes after who borrowed long ago, and half is forgiven after each half-life."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from tests.unit.arbiter.borrowed_pool import placed_pod
from tests.unit.arbiter.simulated_cluster import GPU, KEY, OTHER, Cluster, make_gang, make_node, make_quota
from vkgateway.scheduler.core.cycle import decide
from vkgateway.scheduler.core.past_share import PastShare, half_life_problem
from vkgateway.scheduler.core.share_history import ShareHistory
from vkgateway.scheduler.core.snapshot import Gang, Policy, Pool, Quota, Snapshot

NOW = 1_000_000.0
HOUR = 3600.0


def past(tenant: str, average: float, *, at: float = NOW, share: float = 0.0) -> PastShare:
    return PastShare(tenant=tenant, pool=KEY, average=average, share=share, at=at)


def first_to_start(*shares: PastShare, half_life: float = HOUR, quotas: Iterable[Quota] = (), **fields: object) -> str:
    """Return the tenant whose gang starts in the only node, for which a gang of a, and then one of b waits."""
    gangs = [make_gang(f"gang-{name}", name, [8], created=NOW - ago, **fields) for name, ago in (("a", 20), ("b", 10))]
    snapshot = Snapshot(
        pools=(Pool(key=KEY, nodes=(make_node("n0"),), governed=(GPU,)),),
        quotas=tuple(quotas) or (make_quota("a"), make_quota("b")),
        gangs=tuple(gangs),
        policy=Policy(half_life=half_life),
        past_shares=shares,
    )
    (admit,) = decide(snapshot, NOW).admits
    return admit.gang.removeprefix("gang-")


def test_tenant_that_borrowed_less_comes_first() -> None:
    assert first_to_start() == "a"
    assert first_to_start(past("a", 0.5)) == "b"
    assert first_to_start(past("a", 0.5), past("b", 0.6)) == "a"


def test_long_ago_counts_less_than_recently() -> None:
    assert first_to_start(past("a", 1.0, at=NOW - 10 * HOUR), past("b", 0.1)) == "a"
    assert first_to_start(past("a", 1.0, at=NOW - HOUR), past("b", 0.1)) == "b"


@pytest.mark.parametrize(("of_b", "first"), [(0.199, "b"), (0.201, "a")])
def test_half_is_forgiven_after_each_half_life(of_b: float, first: str) -> None:
    assert first_to_start(past("a", 0.8, at=NOW - 2 * HOUR), past("b", of_b)) == first


@pytest.mark.parametrize(("of_b", "first"), [(0.199, "b"), (0.201, "a")])
def test_past_share_is_divided_by_weight(of_b: float, first: str) -> None:
    quotas = [make_quota("a", weight=2.0), make_quota("b")]
    assert first_to_start(past("a", 0.4), past("b", of_b), quotas=quotas) == first


def test_past_does_not_count_without_half_life() -> None:
    assert first_to_start(past("a", 1.0), half_life=0.0) == "a"


def test_present_and_past_shares_are_added() -> None:
    cluster = Cluster([make_node("n0"), make_node("n1")], [make_quota("a"), make_quota("b")], now=NOW)
    cluster.policy = Policy(half_life=HOUR)
    cluster.share_history = ShareHistory(HOUR)
    cluster.share_history.load([past("a", 0.3), past("b", 0.1)])
    runs = replace(make_gang("runs", "b", [2], created=NOW - 99), pods=(placed_pod("runs-0", "n0", 2),))
    cluster.add(runs, make_gang("a1", "a", [8], created=NOW - 9), make_gang("b1", "b", [8], created=NOW - 10))
    # 0.3 is more than 2/16 + 0.1, and less than 2/16 + 0.2
    assert [admit.gang for admit in decide(cluster.snapshot(), NOW).admits] == ["b1"]
    cluster.share_history.forget("b")
    cluster.share_history.load([past("b", 0.2)])
    assert [admit.gang for admit in decide(cluster.snapshot(), NOW).admits] == ["a1"]


def test_surplus_grows_by_past_shares() -> None:
    nodes, quotas = [make_node("n0", 7)], [make_quota("a"), make_quota("b")]
    cluster = Cluster(nodes, quotas, policy=Policy(half_life=HOUR), now=NOW)
    cluster.share_history.load([past("a", 0.5)])
    for tenant in ("a", "b"):
        cluster.add(make_gang(f"gang-{tenant}", tenant, [1] * 7, minimum=1, elastic=True, created=NOW - 10))
    cluster.cycle()
    assert {name: len(cluster.placed_nodes(name)) for name in cluster.gangs} == {"gang-a": 3, "gang-b": 4}


@pytest.mark.parametrize(("half_lives", "first"), [(0.5, "b"), (4.0, "a")])
def test_of_the_past_only_what_was_before_an_aged_gang_may_count(half_lives: float, first: str) -> None:
    """What the tenant has used since the gang was created is not held against it forever."""
    waited = half_lives * HOUR
    gangs = [make_gang("gang-a", "a", [8], created=NOW - waited), make_gang("gang-b", "b", [8], created=NOW - 10)]
    snapshot = Snapshot(
        pools=(Pool(key=KEY, nodes=(make_node("n0"),), governed=(GPU,)),),
        quotas=(make_quota("a"), make_quota("b")),
        gangs=tuple(gangs),
        policy=Policy(half_life=HOUR, age_cap=60.0),
        past_shares=(past("a", 0.9), past("b", 0.1)),
    )
    assert [admit.gang for admit in decide(snapshot, NOW).admits] == [f"gang-{first}"]


# History


def running(name: str, tenant: str, *uids: str, size: int = 8, pool: tuple[str, str] = KEY) -> Gang:
    gang = make_gang(name, tenant, [size] * len(uids))
    return replace(gang, pods=tuple(replace(placed_pod(f"{name}-{uid}", uid, size), pool=pool) for uid in uids))


def snapshot_of(*gangs: Gang, nodes: int = 2, quotas: Iterable[Quota] = ()) -> Snapshot:
    pool = Pool(key=KEY, nodes=tuple(make_node(f"n{at}") for at in range(nodes)), governed=(GPU,))
    return Snapshot(pools=(pool,), quotas=tuple(quotas) or (make_quota("a"),), gangs=gangs)


def average_of(history: ShareHistory, now: float) -> float:
    (found,) = history.shares
    return found.average_at(now, history.half_life)


def test_constant_share_is_its_own_average_in_the_long_run() -> None:
    history = ShareHistory(HOUR)
    history.observe(snapshot_of(running("g", "a", "n0")), NOW)
    assert average_of(history, NOW) == 0
    assert average_of(history, NOW + HOUR) == pytest.approx(0.25)
    assert average_of(history, NOW + 30 * HOUR) == pytest.approx(0.5)


def test_unused_share_halves_within_each_half_life() -> None:
    history = ShareHistory(HOUR)
    history.observe(snapshot_of(running("g", "a", "n0")), NOW)
    history.observe(snapshot_of(), NOW + 30 * HOUR)
    assert average_of(history, NOW + 31 * HOUR) == pytest.approx(0.25)
    assert average_of(history, NOW + 33 * HOUR) == pytest.approx(0.0625)
    assert history.observe(snapshot_of(), NOW + 60 * HOUR) == ()


def test_only_use_beyond_guarantee_counts() -> None:
    history = ShareHistory(HOUR)
    both = running("g", "a", "n0", "n1")
    history.observe(snapshot_of(both, quotas=[make_quota("a", 8)]), NOW)
    assert [each.share for each in history.shares] == [0.5]
    history.observe(snapshot_of(both, quotas=[make_quota("a", 16)]), NOW + HOUR)
    (share,) = history.shares
    assert share.share == 0
    assert share.average == pytest.approx(0.25)


def test_share_follows_capacity() -> None:
    history, gang = ShareHistory(HOUR), running("g", "a", "n0")
    history.observe(snapshot_of(gang), NOW)
    history.observe(snapshot_of(gang, nodes=4), NOW)
    assert [each.share for each in history.shares] == [0.25]


def test_unchanged_shares_stay_the_same_objects() -> None:
    """A change of time alone changes nothing in the snapshot."""
    history, gang = ShareHistory(HOUR), running("g", "a", "n0")
    before = history.observe(snapshot_of(gang), NOW)
    assert history.observe(snapshot_of(gang, running("h", "b", "n1")), NOW + 60)[0] is before[0]
    assert history.observe(snapshot_of(gang, running("h", "b", "n1")), NOW + 90) is history.shares


def test_pool_that_cannot_be_reached_keeps_its_shares() -> None:
    history, gang = ShareHistory(HOUR), running("g", "a", "n0")
    before = history.observe(snapshot_of(gang), NOW)
    assert history.observe(replace(snapshot_of(gang), pools=()), NOW + 60) == before


def test_pools_are_apart() -> None:
    history = ShareHistory(HOUR)
    snapshot = snapshot_of(running("g", "a", "n0"), running("h", "a", "m0", size=4, pool=OTHER))
    other = Pool(key=OTHER, nodes=(make_node("m0"),), governed=(GPU,))
    history.observe(replace(snapshot, pools=(*snapshot.pools, other)), NOW)
    assert {each.pool: each.share for each in history.shares} == {KEY: 0.5, OTHER: 0.5}


def test_restart_continues_from_stored_shares() -> None:
    gang, history = running("g", "a", "n0"), ShareHistory(HOUR)
    history.observe(snapshot_of(gang), NOW)
    again = ShareHistory(HOUR)
    again.load(history.shares)
    again.observe(snapshot_of(gang), NOW + HOUR)
    assert average_of(again, NOW + 2 * HOUR) == pytest.approx(average_of(history, NOW + 2 * HOUR))


def test_what_ended_during_an_outage_does_not_count() -> None:
    history = ShareHistory(HOUR)
    history.load([past("a", 0.5, share=0.5)])
    history.observe(snapshot_of(), NOW + HOUR)
    assert average_of(history, NOW + HOUR) == pytest.approx(0.25)


def test_shares_may_be_loaded_late() -> None:
    stored, gang = [past("a", 0.4, at=NOW - HOUR)], running("g", "a", "n0")
    early, late = ShareHistory(HOUR), ShareHistory(HOUR)
    early.load(stored)
    for history in (early, late):
        history.observe(snapshot_of(gang), NOW)
        history.observe(snapshot_of(), NOW + HOUR)
    late.load(stored)
    assert average_of(late, NOW + HOUR) == pytest.approx(average_of(early, NOW + HOUR))


def test_new_tenant_of_a_name_starts_at_nothing() -> None:
    history = ShareHistory(HOUR)
    history.load([past("a", 0.5)])
    history.observe(snapshot_of(), NOW)
    history.forget("a")
    assert history.observe(snapshot_of(), NOW + 1) == ()


def test_without_half_life_nothing_is_followed() -> None:
    history = ShareHistory(0.0)
    history.load([past("a", 0.5)])
    assert history.observe(snapshot_of(running("g", "a", "n0")), NOW) == history.shares == ()


@pytest.mark.parametrize(
    ("seconds", "is_valid"), [(0, True), (60, True), (86_400 * 90, True), (59, False), (-1, False), (8e6, False)]
)
def test_half_life_has_limits(seconds: float, is_valid: bool) -> None:
    assert (not half_life_problem(seconds)) is is_valid
