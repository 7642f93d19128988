"""Preemption within a tenant: higher ranks take capacity, limit and cells of lower ones, and of no other tenant."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.arbiter.simulated_cluster import LOW, Cluster, make_gang, make_node, make_quota, reports_by_gang
from vkgateway.scheduler.core.decisions import PendingReason
from vkgateway.scheduler.core.snapshot import GUARANTEED, Band, Gang, PodState, Quota


def high_gang(name: str = "high", sizes: tuple[int, ...] = (8,), **fields: object) -> Gang:
    return make_gang(name, "a", sizes, **{"priority": 1000, **fields})


def full_cluster(
    *, guarantee: int = 0, limit: int | None = 16, nodes: int = 2, others: int = 0, **fields: object
) -> Cluster:
    """Return a cluster whose tenant uses all that it may, with pods of 8."""
    cluster = Cluster(
        [make_node(f"n{at}") for at in range(nodes + others)],
        [make_quota("a", guarantee, limit=limit), make_quota("b")],
    )
    for at in range(others):
        cluster.add(make_gang(f"b{at}", "b", [8]))
    cluster.cycle()
    for at in range(nodes):
        cluster.add(make_gang(f"old{at}", "a", [8], **fields))
        cluster.run_for(3)
    assert len(cluster.running_gangs()) == nodes + others
    return cluster


@pytest.mark.parametrize("guarantee", [0, 8, 16])
@pytest.mark.parametrize("others", [0, 1])
def test_higher_priority_starts_within_notice_and_grace_at_limit(guarantee: int, others: int) -> None:
    cluster = full_cluster(guarantee=guarantee, others=others)
    cluster.add(high_gang(sizes=(1,)))
    decisions = cluster.cycle()
    assert [evict.makes_room_for for evict in decisions.evicts] == ["high"]
    assert len(decisions.evicts[0].pods) == 1
    cluster.run_for(16)
    assert "high" in cluster.running_gangs()
    assert len(cluster.running_gangs() & {"old0", "old1"}) == 1
    assert {"b0"} & cluster.running_gangs() == {f"b{at}" for at in range(others)}


def test_higher_priority_takes_cells_of_lower_gang() -> None:
    cluster = full_cluster(guarantee=8, limit=8, nodes=1, others=1)
    assert cluster.borrowed_marks("old0") == {False}
    cluster.add(high_gang())
    cluster.run_for(16)
    assert cluster.running_gangs() == {"high", "b0"}
    assert cluster.borrowed_marks("high") == {False}
    assert reports_by_gang(cluster.cycle())["old0"].code is PendingReason.QUOTA


def test_replacement_of_victim_does_not_take_freed_capacity() -> None:
    cluster = full_cluster(guarantee=8, limit=8, nodes=1, others=1)
    cluster.add(high_gang())
    for _ in range(40):
        cluster.run_for(2)
        assert not cluster.cycle().evicts or cluster.now < 1020
    assert cluster.running_gangs() == {"high", "b0"}


@pytest.mark.parametrize("guarantee", [0, 8])
def test_guaranteed_work_reclaims_from_low_work_of_its_tenant(guarantee: int) -> None:
    cluster = Cluster([make_node("n0")], [make_quota("a", guarantee, limit=None)])
    cluster.quotas = tuple(replace(each, preempts=False) for each in cluster.quotas)
    cluster.add(make_gang("low", "a", [8], band=LOW, priority=5000))
    cluster.cycle()
    cluster.add(make_gang("guaranteed", "a", [8], priority=0))
    cluster.run_for(16)
    assert cluster.running_gangs() == {"guaranteed"}


def test_equal_priority_never_preempts() -> None:
    cluster = full_cluster()
    cluster.add(high_gang(priority=0, created=1.0))
    cluster.run_for(4 * 3600, step=600)
    assert "high" not in cluster.running_gangs()


def test_a_lower_priority_never_preempts() -> None:
    cluster = full_cluster(priority=2000)
    cluster.add(high_gang())
    cluster.run_for(60, step=5)
    assert "high" not in cluster.running_gangs()


@pytest.mark.parametrize("who", ["gang", "tenant"])
def test_preemption_can_be_disabled(who: str) -> None:
    cluster = full_cluster()
    cluster.quotas = tuple(replace(each, preempts=who != "tenant") for each in cluster.quotas)
    cluster.add(high_gang(preempts=who != "gang"))
    cluster.run_for(60, step=5)
    assert cluster.running_gangs() == {"old0", "old1"}
    assert reports_by_gang(cluster.cycle())["high"].code is PendingReason.QUOTA


@pytest.mark.parametrize("waited", [0, 4 * 3600])
@pytest.mark.parametrize("guarantee", [0, 8])
@pytest.mark.parametrize("band", [GUARANTEED, LOW])
def test_non_preempting_gang_does_not_block_equal_preemptor(band: Band, guarantee: int, waited: int) -> None:
    cluster = Cluster([make_node("n0"), make_node("n1")], [make_quota("a", guarantee)])
    cluster.add(*(make_gang(f"old{number}", "a", [8], band=band) for number in range(2)))
    cluster.cycle()
    cluster.add(high_gang(band=band, preempts=False))
    cluster.run_for(max(1, waited), step=max(1, waited // 4))
    cluster.add(high_gang("urgent", band=band, created=cluster.now))
    cluster.run_for(16)
    assert "urgent" in cluster.running_gangs()


@pytest.mark.parametrize(("priority", "starts"), [(1000, False), (1001, True)])
def test_later_gangs_of_same_rank_do_not_preempt_before_aged_gang(priority: int, starts: bool) -> None:
    cluster = full_cluster(limit=None)
    cluster.add(make_gang("b0", "b", [8]), high_gang("big", sizes=(8, 8, 8)))
    cluster.pool = replace(cluster.pool, nodes=(*cluster.pool.nodes, make_node("n2")))
    cluster.run_for(4 * 3600, step=3600)
    cluster.add(high_gang("small", sizes=(8,), priority=priority))
    cluster.run_for(16)
    assert ("small" in cluster.running_gangs()) is starts


def test_only_gangs_of_same_tenant_are_evicted() -> None:
    cluster = Cluster([make_node("n0"), make_node("n1")], [make_quota("a"), make_quota("b")])
    cluster.add(make_gang("b0", "b", [8]), make_gang("old", "a", [8]))
    cluster.cycle()
    cluster.add(high_gang(sizes=(8, 8)))
    cluster.run_for(60, step=5)
    assert cluster.running_gangs() == {"b0", "old"}, "it does not fit, whichever gang of its tenant is evicted"


def test_surplus_is_evicted_before_whole_gangs() -> None:
    cluster = Cluster([make_node(f"n{at}") for at in range(3)], [make_quota("a", limit=24)])
    cluster.add(make_gang("pair", "a", [4, 4]), make_gang("elastic", "a", [4] * 4, minimum=2, elastic=True))
    cluster.run_for(3)
    cluster.add(high_gang("one", sizes=(4,)))
    decisions = cluster.cycle()
    assert [(evict.gang, evict.whole) for evict in decisions.evicts] == [("elastic", False)]
    cluster.run_for(16)
    cluster.add(high_gang("two", sizes=(8, 8)))
    evicted = {evict.gang for evict in cluster.cycle().evicts}
    assert "pair" in evicted or "elastic" in evicted
    cluster.run_for(20)
    assert {"one", "two"} <= cluster.running_gangs()


def test_victims_with_smallest_loss_are_chosen() -> None:
    cluster = full_cluster()
    cluster.gangs["old1"] = replace(cluster.gangs["old1"], checkpoint=cluster.now - 1)
    cluster.add(high_gang(sizes=(2, 2)))
    assert [evict.gang for evict in cluster.cycle().evicts] == ["old1"]


def test_gang_in_minimum_run_time_is_evicted_last() -> None:
    cluster = full_cluster()
    cluster.gangs["old0"] = replace(cluster.gangs["old0"], minimum_run=3600.0)
    cluster.add(high_gang("one"))
    assert [evict.gang for evict in cluster.cycle().evicts] == ["old1"]
    cluster.run_for(16)
    cluster.add(high_gang("two"))
    assert [evict.gang for evict in cluster.cycle().evicts] == ["old0"]


def test_victims_are_reprieved_when_preemptor_is_deleted() -> None:
    cluster = full_cluster(guarantee=8, limit=8, nodes=1)
    cluster.add(high_gang())
    cluster.run_for(4)
    del cluster.gangs["high"]
    decisions = cluster.cycle()
    assert [reprieve.gang for reprieve in decisions.reprieves] == ["old0"]
    cluster.cycle()
    assert cluster.borrowed_marks("old0") == {False}, "it is inside its guarantee again"


def test_low_gang_preempts_lower_low_gang_only() -> None:
    cluster = full_cluster(band=LOW, priority=-1000)
    cluster.add(high_gang(band=LOW, priority=-10))
    cluster.run_for(16)
    assert "high" in cluster.running_gangs()
    cluster.add(make_gang("other", "a", [8], priority=0))
    cluster.run_for(20)
    cluster.add(high_gang("top", band=LOW, priority=10**6))
    cluster.run_for(20)
    assert "other" in cluster.running_gangs()


def test_gang_is_not_evicted_for_gang_that_it_may_preempt() -> None:
    """Otherwise each would evict the other forever.

    Pods of 1 spread over nodes fit no cell of 8, but use up the limit.
    """
    quotas = [make_quota("a", 8, limit=8, cells=(8,)), make_quota("b")]
    cluster = Cluster([make_node("n0"), make_node("n1", 4), make_node("n2", 4)], quotas)
    cluster.add(make_gang("b0", "b", [2]), make_gang("b1", "b", [2]), make_gang("old", "a", [8]))
    cluster.run_for(3)
    cluster.add(high_gang(sizes=(2, 2, 2), required_level=""))
    cluster.run_for(40)
    assert "high" in cluster.running_gangs()
    for _ in range(30):
        assert not cluster.cycle().evicts
        cluster.advance(5)


def test_preemptor_reports_waiting_for_eviction() -> None:
    cluster = full_cluster()
    cluster.add(high_gang())
    cluster.cycle()
    report = reports_by_gang(cluster.cycle())["high"]
    assert (report.code, report.message) == (PendingReason.EVICTION, "starts on 1 node when 1 pod has terminated")


def test_victims_are_notified_once() -> None:
    cluster = full_cluster()
    cluster.add(high_gang())
    first = cluster.cycle()
    cluster.advance(3)
    assert not cluster.cycle().evicts
    pods = cluster.gangs[first.evicts[0].gang].pods
    assert [pod.state for pod in pods] == [PodState.NOTIFIED]


def test_lost_plans_are_recreated() -> None:
    cluster = full_cluster(guarantee=8, limit=8, nodes=1, others=1)
    cluster.add(high_gang())
    cluster.cycle()
    cluster.cache = None
    cluster.gangs = {name: replace(each, plan=None) for name, each in cluster.gangs.items()}
    cluster.advance(3)
    assert not cluster.cycle().evicts
    cluster.run_for(14)
    assert cluster.running_gangs() == {"high", "b0"}


def test_tenant_without_quota_preempts_nothing() -> None:
    one: tuple[Quota, ...] = (make_quota("b"),)
    cluster = Cluster([make_node("n0")], one)
    cluster.add(high_gang())
    assert reports_by_gang(cluster.cycle())["high"].code is PendingReason.QUOTA


def with_reservation(*, run: float | None, guarantee: int = 0) -> Cluster:
    """c's gang of 16 waits for b's, which ends at 2000; on the other node runs old of tenant a, for `run` seconds."""
    cluster = Cluster(
        [make_node("n0"), make_node("n1")], [make_quota("a", guarantee), make_quota("b"), make_quota("c")]
    )
    cluster.add(make_gang("b0", "b", [8], run_limit=1000.0), make_gang("old", "a", [8], run_limit=run))
    cluster.run_for(3)
    cluster.add(make_gang("big", "c", [8, 8]))
    cluster.run_for(3)
    return cluster


@pytest.mark.parametrize(
    ("run", "starts"),
    [
        (None, False),  # it may run beyond the start of big
        (900.0, True),
        (990.0, False),  # it ends before the start of big only without the notice
    ],
)
def test_reserved_capacity_is_preempted_only_by_gangs_that_end_in_time(run: float | None, starts: bool) -> None:
    cluster = with_reservation(run=500.0)
    cluster.add(high_gang(run_limit=run))
    cluster.run_for(16)
    assert ("high" in cluster.running_gangs()) is starts


def test_victims_are_not_spared_on_capacity_that_other_tenant_awaits() -> None:
    cluster = Cluster([make_node("n0")], [make_quota("a", 6), make_quota("b")])
    cluster.add(make_gang("lower", "a", [2]), make_gang("borrows", "b", [4]))
    cluster.cycle()
    cluster.add(make_gang("inside", "a", [4]))
    cluster.cycle()
    cluster.add(make_gang("waits", "b", [2], priority=1))
    assert {"inside", "waits"} == cluster.cycle().plans.keys()
    cluster.advance(1)
    cluster.add(make_gang("high", "a", [2], priority=2))

    decisions = cluster.cycle()

    assert [evict.gang for evict in decisions.evicts] == ["lower"]
    assert {"inside", "waits", "high"} == decisions.plans.keys() == cluster.cycle().plans.keys()
    cluster.run_for(16)
    assert cluster.running_gangs() == {"inside", "waits", "high"}


def test_unreserved_capacity_is_preempted() -> None:
    cluster = with_reservation(run=None)
    cluster.add(high_gang())
    cluster.run_for(16)
    assert cluster.running_gangs() == {"b0", "high"}


def test_guarantee_does_not_wait_for_reservation() -> None:
    cluster = with_reservation(run=500.0, guarantee=8)
    assert cluster.borrowed_marks("old") == {False}
    cluster.add(high_gang())
    cluster.run_for(16)
    assert cluster.running_gangs() == {"b0", "high"}
    assert cluster.borrowed_marks("high") == {False}


def test_backfilled_capacity_does_not_pass_to_preemptor() -> None:
    """Without a known end, capacity is reserved for an aged gang; low elastic work runs there."""
    cluster = Cluster([make_node("n0"), make_node("n1")], [make_quota("a"), make_quota("b"), make_quota("c")])
    cluster.add(make_gang("b0", "b", [8]), make_gang("b1", "b", [8]))
    cluster.run_for(3)
    cluster.add(make_gang("big", "c", [8, 8]))
    cluster.run_for(2 * 3600, step=600)
    del cluster.gangs["b1"]
    cluster.add(make_gang("lent", "a", [8], band=LOW, elastic=True))
    cluster.run_for(3)
    assert {pod.behind for pod in cluster.gangs["lent"].pods} == {"big"}
    cluster.add(high_gang())
    cluster.run_for(60)
    assert cluster.running_gangs() == {"b0", "lent"}
    del cluster.gangs["b0"]
    cluster.run_for(16)
    assert "big" in cluster.running_gangs()


@pytest.mark.parametrize("guarantee", [0, 8])
def test_surplus_does_not_suffice_if_it_frees_only_limit(guarantee: int) -> None:
    quotas = [make_quota("a", guarantee, limit=16)]
    cluster = Cluster([make_node("n0"), make_node("n1", 4)], quotas)
    cluster.add(make_gang("old", "a", [8, 4], minimum=1, elastic=True, band=LOW))
    cluster.run_for(3)
    assert len(cluster.placed_nodes("old")) == 2
    cluster.add(high_gang())
    cluster.run_for(16)
    assert cluster.placed_nodes("high") == {"high-0": "n0"}
