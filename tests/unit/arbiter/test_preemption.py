"""Preemption within a tenant: higher ranks take capacity, limit and cells of lower ones, and of no other tenant."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.arbiter.simulated_cluster import LOW, Cluster, make_gang, make_node, make_quota, reports_by_gang
from vkgateway.arbiter.decisions import PendingReason
from vkgateway.arbiter.snapshot import GUARANTEED, Band, Gang, PodState, Quota


def high(name: str = "high", sizes: tuple[int, ...] = (8,), **fields: object) -> Gang:
    return make_gang(name, "a", sizes, **{"priority": 1000, **fields})


def full(*, guarantee: int = 0, limit: int | None = 16, nodes: int = 2, others: int = 0, **fields: object) -> Cluster:
    """Return a cluster whose tenant uses all that it may, with pods of 8."""
    there = Cluster(
        [make_node(f"n{at}") for at in range(nodes + others)],
        [make_quota("a", guarantee, limit=limit), make_quota("b")],
    )
    for at in range(others):
        there.add(make_gang(f"b{at}", "b", [8]))
    there.cycle()
    for at in range(nodes):
        there.add(make_gang(f"old{at}", "a", [8], **fields))
        there.run_for(3)
    assert len(there.running_gangs()) == nodes + others
    return there


@pytest.mark.parametrize("guarantee", [0, 8, 16])
@pytest.mark.parametrize("others", [0, 1])
def test_higher_priority_starts_within_notice_and_grace_at_limit(guarantee: int, others: int) -> None:
    there = full(guarantee=guarantee, others=others)
    there.add(high(sizes=(1,)))
    decisions = there.cycle()
    assert [evict.makes_room_for for evict in decisions.evicts] == ["high"]
    assert len(decisions.evicts[0].pods) == 1
    there.run_for(16)
    assert "high" in there.running_gangs()
    assert len(there.running_gangs() & {"old0", "old1"}) == 1
    assert {"b0"} & there.running_gangs() == {f"b{at}" for at in range(others)}


def test_higher_priority_takes_cells_of_lower_gang() -> None:
    there = full(guarantee=8, limit=8, nodes=1, others=1)
    assert there.borrowed_marks("old0") == {False}
    there.add(high())
    there.run_for(16)
    assert there.running_gangs() == {"high", "b0"}
    assert there.borrowed_marks("high") == {False}
    assert reports_by_gang(there.cycle())["old0"].code is PendingReason.QUOTA


def test_replacement_of_victim_does_not_take_freed_capacity() -> None:
    there = full(guarantee=8, limit=8, nodes=1, others=1)
    there.add(high())
    for _ in range(40):
        there.run_for(2)
        assert not there.cycle().evicts or there.now < 1020
    assert there.running_gangs() == {"high", "b0"}


@pytest.mark.parametrize("guarantee", [0, 8])
def test_guaranteed_work_reclaims_from_low_work_of_its_tenant(guarantee: int) -> None:
    there = Cluster([make_node("n0")], [make_quota("a", guarantee, limit=None)])
    there.quotas = tuple(replace(each, preempts=False) for each in there.quotas)
    there.add(make_gang("low", "a", [8], band=LOW, priority=5000))
    there.cycle()
    there.add(make_gang("guaranteed", "a", [8], priority=0))
    there.run_for(16)
    assert there.running_gangs() == {"guaranteed"}


def test_equal_priority_never_preempts() -> None:
    there = full()
    there.add(high(priority=0, created=1.0))
    there.run_for(4 * 3600, step=600)
    assert "high" not in there.running_gangs()


def test_a_lower_priority_never_preempts() -> None:
    there = full(priority=2000)
    there.add(high())
    there.run_for(60, step=5)
    assert "high" not in there.running_gangs()


@pytest.mark.parametrize("who", ["gang", "tenant"])
def test_preemption_can_be_disabled(who: str) -> None:
    there = full()
    there.quotas = tuple(replace(each, preempts=who != "tenant") for each in there.quotas)
    there.add(high(preempts=who != "gang"))
    there.run_for(60, step=5)
    assert there.running_gangs() == {"old0", "old1"}
    assert reports_by_gang(there.cycle())["high"].code is PendingReason.QUOTA


@pytest.mark.parametrize("waited", [0, 4 * 3600])
@pytest.mark.parametrize("guarantee", [0, 8])
@pytest.mark.parametrize("band", [GUARANTEED, LOW])
def test_non_preempting_gang_does_not_block_equal_preemptor(band: Band, guarantee: int, waited: int) -> None:
    there = Cluster([make_node("n0"), make_node("n1")], [make_quota("a", guarantee)])
    there.add(*(make_gang(f"old{number}", "a", [8], band=band) for number in range(2)))
    there.cycle()
    there.add(high(band=band, preempts=False))
    there.run_for(max(1, waited), step=max(1, waited // 4))
    there.add(high("urgent", band=band, created=there.now))
    there.run_for(16)
    assert "urgent" in there.running_gangs()


@pytest.mark.parametrize(("priority", "starts"), [(1000, False), (1001, True)])
def test_later_gangs_of_same_rank_do_not_preempt_before_aged_gang(priority: int, starts: bool) -> None:
    there = full(limit=None)
    there.add(make_gang("b0", "b", [8]), high("big", sizes=(8, 8, 8)))
    there.pool = replace(there.pool, nodes=(*there.pool.nodes, make_node("n2")))
    there.run_for(4 * 3600, step=3600)
    there.add(high("small", sizes=(8,), priority=priority))
    there.run_for(16)
    assert ("small" in there.running_gangs()) is starts


def test_only_gangs_of_same_tenant_are_evicted() -> None:
    there = Cluster([make_node("n0"), make_node("n1")], [make_quota("a"), make_quota("b")])
    there.add(make_gang("b0", "b", [8]), make_gang("old", "a", [8]))
    there.cycle()
    there.add(high(sizes=(8, 8)))
    there.run_for(60, step=5)
    assert there.running_gangs() == {"b0", "old"}, "whoever of its own goes, it does not fit"


def test_surplus_is_evicted_before_whole_gangs() -> None:
    there = Cluster([make_node(f"n{at}") for at in range(3)], [make_quota("a", limit=24)])
    there.add(make_gang("pair", "a", [4, 4]), make_gang("elastic", "a", [4] * 4, minimum=2, elastic=True))
    there.run_for(3)
    there.add(high("one", sizes=(4,)))
    decisions = there.cycle()
    assert [(evict.gang, evict.whole) for evict in decisions.evicts] == [("elastic", False)]
    there.run_for(16)
    there.add(high("two", sizes=(8, 8)))
    evicted = {evict.gang for evict in there.cycle().evicts}
    assert "pair" in evicted or "elastic" in evicted
    there.run_for(20)
    assert {"one", "two"} <= there.running_gangs()


def test_victims_with_smallest_loss_are_chosen() -> None:
    there = full()
    there.gangs["old1"] = replace(there.gangs["old1"], checkpoint=there.now - 1)
    there.add(high(sizes=(2, 2)))
    assert [evict.gang for evict in there.cycle().evicts] == ["old1"]


def test_gang_in_minimum_run_time_is_evicted_last() -> None:
    there = full()
    there.gangs["old0"] = replace(there.gangs["old0"], minimum_run=3600.0)
    there.add(high("one"))
    assert [evict.gang for evict in there.cycle().evicts] == ["old1"]
    there.run_for(16)
    there.add(high("two"))
    assert [evict.gang for evict in there.cycle().evicts] == ["old0"]


def test_victims_are_reprieved_when_preemptor_is_deleted() -> None:
    there = full(guarantee=8, limit=8, nodes=1)
    there.add(high())
    there.run_for(4)
    del there.gangs["high"]
    decisions = there.cycle()
    assert [reprieve.gang for reprieve in decisions.reprieves] == ["old0"]
    there.cycle()
    assert there.borrowed_marks("old0") == {False}, "it is inside its guarantee again"


def test_low_gang_preempts_lower_low_gang_only() -> None:
    there = full(band=LOW, priority=-1000)
    there.add(high(band=LOW, priority=-10))
    there.run_for(16)
    assert "high" in there.running_gangs()
    there.add(make_gang("other", "a", [8], priority=0))
    there.run_for(20)
    there.add(high("top", band=LOW, priority=10**6))
    there.run_for(20)
    assert "other" in there.running_gangs()


def test_gang_is_not_evicted_for_gang_that_it_may_preempt() -> None:
    """Else each would evict the other for ever: pods of 1 spread over nodes fit no cell of 8, but use up the limit."""
    quotas = [make_quota("a", 8, limit=8, cells=(8,)), make_quota("b")]
    there = Cluster([make_node("n0"), make_node("n1", 4), make_node("n2", 4)], quotas)
    there.add(make_gang("b0", "b", [2]), make_gang("b1", "b", [2]), make_gang("old", "a", [8]))
    there.run_for(3)
    there.add(high(sizes=(2, 2, 2), required_level=""))
    there.run_for(40)
    assert "high" in there.running_gangs()
    for _ in range(30):
        assert not there.cycle().evicts
        there.advance(5)


def test_preemptor_reports_waiting_for_eviction() -> None:
    there = full()
    there.add(high())
    there.cycle()
    hold = reports_by_gang(there.cycle())["high"]
    assert (hold.code, hold.message) == (PendingReason.EVICTION, "starts on 1 node when 1 pod has terminated")


def test_victims_are_notified_once() -> None:
    there = full()
    there.add(high())
    first = there.cycle()
    there.advance(3)
    assert not there.cycle().evicts
    pods = there.gangs[first.evicts[0].gang].pods
    assert [pod.state for pod in pods] == [PodState.NOTIFIED]


def test_lost_plans_are_recreated() -> None:
    there = full(guarantee=8, limit=8, nodes=1, others=1)
    there.add(high())
    there.cycle()
    there.cache = None
    there.gangs = {name: replace(each, plan=None) for name, each in there.gangs.items()}
    there.advance(3)
    assert not there.cycle().evicts
    there.run_for(14)
    assert there.running_gangs() == {"high", "b0"}


def test_tenant_without_quota_preempts_nothing() -> None:
    one: tuple[Quota, ...] = (make_quota("b"),)
    there = Cluster([make_node("n0")], one)
    there.add(high())
    assert reports_by_gang(there.cycle())["high"].code is PendingReason.QUOTA


def with_reservation(*, run: float | None, guarantee: int = 0) -> Cluster:
    """c's gang of 16 waits for b's, which ends at 2000; on the other node runs old of tenant a, for `run` seconds."""
    there = Cluster([make_node("n0"), make_node("n1")], [make_quota("a", guarantee), make_quota("b"), make_quota("c")])
    there.add(make_gang("b0", "b", [8], run_limit=1000.0), make_gang("old", "a", [8], run_limit=run))
    there.run_for(3)
    there.add(make_gang("big", "c", [8, 8]))
    there.run_for(3)
    return there


@pytest.mark.parametrize(
    ("run", "starts"),
    [
        (None, False),  # it may run beyond the start of big
        (900.0, True),
        (990.0, False),  # it ends before the start of big only without the notice
    ],
)
def test_reserved_capacity_is_preempted_only_by_gangs_that_end_in_time(run: float | None, starts: bool) -> None:
    there = with_reservation(run=500.0)
    there.add(high(run_limit=run))
    there.run_for(16)
    assert ("high" in there.running_gangs()) is starts


def test_victims_are_not_spared_on_capacity_that_other_tenant_awaits() -> None:
    there = Cluster([make_node("n0")], [make_quota("a", 6), make_quota("b")])
    there.add(make_gang("lower", "a", [2]), make_gang("borrows", "b", [4]))
    there.cycle()
    there.add(make_gang("inside", "a", [4]))
    there.cycle()
    there.add(make_gang("waits", "b", [2], priority=1))
    assert {"inside", "waits"} == there.cycle().plans.keys()
    there.advance(1)
    there.add(make_gang("high", "a", [2], priority=2))

    decisions = there.cycle()

    assert [evict.gang for evict in decisions.evicts] == ["lower"]
    assert {"inside", "waits", "high"} == decisions.plans.keys() == there.cycle().plans.keys()
    there.run_for(16)
    assert there.running_gangs() == {"inside", "waits", "high"}


def test_unreserved_capacity_is_preempted() -> None:
    there = with_reservation(run=None)
    there.add(high())
    there.run_for(16)
    assert there.running_gangs() == {"b0", "high"}


def test_guarantee_does_not_wait_for_reservation() -> None:
    there = with_reservation(run=500.0, guarantee=8)
    assert there.borrowed_marks("old") == {False}
    there.add(high())
    there.run_for(16)
    assert there.running_gangs() == {"b0", "high"}
    assert there.borrowed_marks("high") == {False}


def test_backfilled_capacity_does_not_pass_to_preemptor() -> None:
    """Without a known end, capacity is reserved for an aged gang; low elastic work runs there."""
    there = Cluster([make_node("n0"), make_node("n1")], [make_quota("a"), make_quota("b"), make_quota("c")])
    there.add(make_gang("b0", "b", [8]), make_gang("b1", "b", [8]))
    there.run_for(3)
    there.add(make_gang("big", "c", [8, 8]))
    there.run_for(2 * 3600, step=600)
    del there.gangs["b1"]
    there.add(make_gang("lent", "a", [8], band=LOW, elastic=True))
    there.run_for(3)
    assert {pod.behind for pod in there.gangs["lent"].pods} == {"big"}
    there.add(high())
    there.run_for(60)
    assert there.running_gangs() == {"b0", "lent"}
    del there.gangs["b0"]
    there.run_for(16)
    assert "big" in there.running_gangs()


@pytest.mark.parametrize("guarantee", [0, 8])
def test_surplus_does_not_suffice_if_it_frees_only_limit(guarantee: int) -> None:
    quotas = [make_quota("a", guarantee, limit=16)]
    there = Cluster([make_node("n0"), make_node("n1", 4)], quotas)
    there.add(make_gang("old", "a", [8, 4], minimum=1, elastic=True, band=LOW))
    there.run_for(3)
    assert len(there.placed_nodes("old")) == 2
    there.add(high())
    there.run_for(16)
    assert there.placed_nodes("high") == {"high-0": "n0"}
