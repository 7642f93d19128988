"""Eviction notice: shorter for pods that have hardly run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.arbiter.placed_gangs import place_gang
from tests.unit.arbiter.simulated_cluster import (
    KEY,
    LOW,
    OTHER,
    Cluster,
    make_gang,
    make_node,
    make_quota,
    reports_by_gang,
    with_pod_pools,
)
from vkgateway.scheduler.core.preemption.notice import notice_seconds, notice_start
from vkgateway.scheduler.core.snapshot import Gang

BRIEF = {"notice": 10.0, "brief_run": 60.0, "brief_notice": 2.0}


def low_gang(*since: float, **fields: object) -> Gang:
    """Return low work on the nodes n0, n1, ... with these start times."""
    one = make_gang("lent", "b", [8] * len(since), **{"band": LOW, **BRIEF, **fields})
    one = place_gang(one, [f"n{number}" for number in range(len(since))], borrowed=True)
    return replace(one, pods=tuple(replace(pod, since=time) for pod, time in zip(one.pods, since, strict=True)))


@pytest.mark.parametrize(
    ("fields", "since", "notice"),
    [
        ({}, [990.0], 2.0),
        ({}, [940.0], 10.0),
        ({}, [990.0, 100.0], 10.0),
        ({"brief_notice": 30.0}, [990.0], 10.0),
        ({"brief_run": 0.0}, [1000.0], 10.0),
    ],
    ids=["brief", "as long as that", "one of them for longer", "never longer than the notice", "not set"],
)
def test_young_pods_get_brief_notice(fields: dict[str, float], since: list[float], notice: float) -> None:
    one = low_gang(*since, **fields)
    assert notice_seconds(one, one.pods, 1000.0) == notice
    notified_pods = [replace(pod, deadline=1000.0 + notice) for pod in one.pods]
    assert notice_start(one, notified_pods) == 1000.0


@pytest.mark.parametrize(("since", "notice"), [(990.0, 2.0), (500.0, 10.0)])
def test_deadline_and_forecast_use_notice(since: float, notice: float) -> None:
    cluster = Cluster([make_node("n0")], [make_quota("a", 8), make_quota("b")], [low_gang(since)])
    cluster.add(make_gang("owner", "a", [8]))
    decisions = cluster.cycle()
    (evict,) = decisions.evicts
    assert evict.deadline == cluster.now + notice
    assert reports_by_gang(decisions)["owner"].earliest == evict.deadline + 5.0
    cluster.run_for(notice + 5.0)
    assert "owner" in cluster.running_gangs()


def test_surplus_notice_depends_on_evicted_pods() -> None:
    cluster = Cluster(
        [make_node("n0"), make_node("n1")],
        [make_quota("a", 8), make_quota("b")],
        [low_gang(100.0, 990.0, minimum=1, elastic=True)],
    )
    cluster.add(make_gang("owner", "a", [8]))
    (evict,) = cluster.cycle().evicts
    assert evict.pods == ("lent-1",)
    assert evict.deadline == cluster.now + 2.0


def test_notice_of_multi_pool_gang_depends_on_oldest_pod() -> None:
    quotas = [make_quota("a", 8), make_quota("b"), make_quota("b", pool=OTHER)]
    cluster = Cluster([make_node("n0")], quotas, more=[make_node("m0")])
    cluster.add(with_pod_pools(make_gang("both", "b", [8, 8], band=LOW, **BRIEF), (KEY,), (OTHER,)))
    cluster.cycle()
    first, second = cluster.gangs["both"].pods
    cluster.gangs["both"] = replace(cluster.gangs["both"], pods=(first, replace(second, since=100.0)))
    cluster.advance(5)
    cluster.add(make_gang("owner", "a", [8]))
    decisions = cluster.cycle()
    assert {evict.deadline for evict in decisions.evicts} == {cluster.now + 10.0}


def test_second_notice_after_reprieve_starts_over() -> None:
    cluster = Cluster([make_node("n0")], [make_quota("a", 8), make_quota("b")], [low_gang(990.0)])
    cluster.add(make_gang("owner", "a", [8]))
    cluster.cycle()
    cluster.gangs.pop("owner")
    cluster.advance(1)
    assert cluster.cycle().reprieves
    cluster.advance(60)
    cluster.add(make_gang("again", "a", [8]))
    (evict,) = cluster.cycle().evicts
    assert evict.deadline == cluster.now + 10.0
