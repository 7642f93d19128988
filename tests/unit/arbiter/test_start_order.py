"""Order in which gangs start, by age, band and fair share; each cycle decides once."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tests.unit.arbiter.simulated_cluster import (
    KEY,
    LOW,
    Cluster,
    make_cluster,
    make_gang,
    make_node,
    make_quota,
    reports_by_gang,
)
from tests.unit.arbiter.story_invariants import INVARIANTS
from vkgateway.scheduler.core.cycle import decide
from vkgateway.scheduler.core.decisions import PendingReason
from vkgateway.scheduler.core.snapshot import Gang, Pod, PodState, PreemptionPlan


def ps_job(number: int) -> Gang:
    """Return a gang of two parameter servers and four workers: six GPUs."""
    return make_gang(f"job{number}", "a", {"ps": (2, 1), "worker": (4, 1)}, role_minimum={"ps": 2, "worker": 4})


@pytest.mark.parametrize("count", [1, 2, 5])
def test_gangs_start_all_or_nothing(count: int) -> None:
    cluster = make_cluster(3, make_quota("a"), size=4)
    for number in range(count):
        cluster.add(ps_job(number))
        cluster.run_times[f"job{number}"] = 20

    cluster.cycle()

    assert len(cluster.running_gangs()) == min(2, count)
    assert all(len(cluster.placed_nodes(name)) == 6 for name in cluster.running_gangs())
    cluster.run_for(100)
    assert len(cluster.start_times) == count


def test_older_of_equal_gangs_starts_first() -> None:
    cluster = make_cluster(1, make_quota("a"))
    cluster.add(make_gang("young", "a", [8], created=900.0), make_gang("old", "a", [8], created=800.0))

    reports = reports_by_gang(cluster.cycle())

    assert cluster.running_gangs() == {"old"}
    assert reports["young"].code is PendingReason.ROOM
    assert reports["young"].place == 1


def test_idle_capacity_is_shared_by_weight() -> None:
    cluster = make_cluster(3, make_quota("a", weight=2.0), make_quota("b"), size=4)
    for index in range(12):
        cluster.add(make_gang(f"a{index:02}", "a", [1], band=LOW), make_gang(f"b{index:02}", "b", [1], band=LOW))

    cluster.cycle()

    running = [name[0] for name in cluster.running_gangs()]
    assert (running.count("a"), running.count("b")) == (8, 4)


def test_negative_weight_has_smallest_share() -> None:
    cluster = make_cluster(1, make_quota("a", weight=-1.0), make_quota("b"))
    cluster.add(*(make_gang(f"{tenant}{index}", tenant, [1], band=LOW) for tenant in "ab" for index in range(8)))

    cluster.cycle()

    assert sum(name.startswith("b") for name in cluster.running_gangs()) >= 7


def test_guaranteed_band_borrows_before_low_band() -> None:
    cluster = make_cluster(1, make_quota("a"))
    cluster.add(make_gang("low", "a", [8], band=LOW, created=1.0, priority=5), make_gang("high", "a", [8], created=2.0))

    cluster.cycle()

    assert cluster.running_gangs() == {"high"}


def test_replacement_pod_rejoins_its_gang() -> None:
    cluster = make_cluster(2, make_quota("a", 4), make_quota("b"))
    cluster.add(make_gang("team", "a", [2, 2]))
    cluster.cycle()
    pods = cluster.gangs["team"].pods
    renewed = replace(pods[1], uid="again", state=PodState.WAITING, node="", pool=None)
    cluster.gangs["team"] = replace(cluster.gangs["team"], pods=(pods[0], renewed))

    [admit] = cluster.cycle().admits

    assert admit.nodes.keys() == {"again"}


@pytest.mark.parametrize("planned", [False, True])
def test_replacement_pod_waits_while_gang_is_evicted(planned: bool) -> None:
    cluster = Cluster([make_node("n0"), make_node("n1", 4)], [make_quota("a", 8), make_quota("b")])
    cluster.add(make_gang("pair", "b", [4, 4], band=LOW))
    cluster.cycle()
    assert cluster.placed_nodes("pair") == {"pair-0": "n0", "pair-1": "n1"}
    first, second = cluster.gangs["pair"].pods
    pods = (first, Pod(uid="second", shape=second.shape, rank=1))
    plan = PreemptionPlan(pool=KEY, nodes={"second": "n1"}, borrowed=True, created=cluster.now) if planned else None
    cluster.gangs["pair"] = replace(cluster.gangs["pair"], pods=pods, plan=plan)
    cluster.add(make_gang("high", "a", [8]))

    decisions = decide(cluster.snapshot(), cluster.now)

    assert [evict.pods for evict in decisions.evicts] == [("pair-0",)]
    assert not decisions.admits
    assert reports_by_gang(decisions)["pair"].code is PendingReason.MEMBERS


def test_second_cycle_without_news_decides_nothing() -> None:
    cluster = make_cluster(3, make_quota("a", 8), make_quota("b", 8), make_quota("c"))
    cluster.add(*(make_gang(f"low{index}", "c", [4], band=LOW) for index in range(6)))
    cluster.cycle()
    cluster.add(make_gang("one", "a", [4, 4]), make_gang("two", "b", [2] * 4), make_gang("three", "c", [2]))
    assert cluster.cycle().evicts

    again = cluster.cycle()

    assert (again.admits, again.evicts, again.reprieves) == ((), (), ())
    assert reports_by_gang(again)["one"].code is PendingReason.EVICTION


def test_cycle_never_starts_and_evicts_same_gang() -> None:
    """In this story eight rounds were not enough: the same decisions started and evicted one gang."""
    story, check = INVARIANTS["nobody_starves"](Random(38))
    check(story)
