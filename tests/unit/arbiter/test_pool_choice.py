"""Choice of the best pool for a gang that may run in several."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.arbiter.simulated_cluster import (
    GPU,
    KEY,
    LOW,
    OTHER,
    Cluster,
    make_gang,
    make_node,
    make_quota,
    reports_by_gang,
)
from vkgateway.scheduler.core.capacity.node_resources import NodeResources
from vkgateway.scheduler.core.decisions import Decisions
from vkgateway.scheduler.core.phases.pool_choice import measure_fit
from vkgateway.scheduler.core.snapshot import Gang, Node, PodState, Pool, PoolKey, Quota

BOTH = (KEY, OTHER)


def make_two_pools(first: int, second: int, *quotas: Quota, sizes: tuple[int, int] = (8, 8)) -> Cluster:
    """Return two pools with these numbers of nodes."""
    nodes = [
        [make_node(f"{letter}{at}", sizes[pool]) for at in range((first, second)[pool])] for pool, letter in _LETTERS
    ]
    return Cluster(nodes[0], quotas, more=nodes[1])


_LETTERS = ((0, "n"), (1, "m"))


def quotas_in_both(tenant: str, first: int = 0, second: int = 0) -> tuple[Quota, Quota]:
    return make_quota(tenant, first), make_quota(tenant, second, pool=OTHER)


def borrowing_gang(name: str, tenant: str, shapes: list[int], where: PoolKey, *nodes: str, **fields: object) -> Gang:
    """Return a running gang that borrows."""
    since = float(fields.pop("since", 0.0))  # type: ignore[arg-type]
    one = make_gang(name, tenant, shapes, pools=(where,), **fields)
    pods = tuple(
        replace(pod, state=PodState.PLACED, pool=where, node=on, borrowed=True, since=since)
        for pod, on in zip(one.pods, nodes, strict=True)
    )
    return replace(one, pods=pods)


def pool_of(decisions: Decisions, name: str) -> PoolKey:
    return next(admit.pool for admit in decisions.admits if admit.gang == name)


@pytest.mark.parametrize("guarantee", [0, 8])
def test_used_node_of_other_pool_is_preferred_to_whole_node(guarantee: int) -> None:
    cluster = make_two_pools(2, 1, *quotas_in_both("a", guarantee, guarantee), *quotas_in_both("b"))
    cluster.add(borrowing_gang("small", "b", [4], OTHER, "m0"), make_gang("four", "a", [4], pools=BOTH))

    assert pool_of(cluster.cycle(), "four") == OTHER


def test_pool_with_tightest_fit_is_chosen() -> None:
    cluster = make_two_pools(1, 1, *quotas_in_both("a"), *quotas_in_both("b"))
    cluster.add(
        borrowing_gang("x", "b", [1], KEY, "n0"),
        borrowing_gang("y", "b", [5], OTHER, "m0"),
        make_gang("one", "a", [2], pools=BOTH),
    )

    assert pool_of(cluster.cycle(), "one") == OTHER


@pytest.mark.parametrize("pools", [BOTH, BOTH[::-1]])
def test_tenant_order_decides_among_equal_pools(pools: tuple[PoolKey, ...]) -> None:
    cluster = make_two_pools(1, 1, *quotas_in_both("a"))
    cluster.add(make_gang("one", "a", [2], pools=pools))

    assert pool_of(cluster.cycle(), "one") == pools[0]


def test_pool_without_quota_is_ignored() -> None:
    cluster = make_two_pools(1, 1, *quotas_in_both("a"), *quotas_in_both("b"))
    cluster.add(borrowing_gang("used", "b", [6], OTHER, "m0"), make_gang("one", "a", [2], pools=(KEY,)))

    assert pool_of(cluster.cycle(), "one") == KEY


def test_guarantee_is_preferred_to_tighter_fit() -> None:
    cluster = make_two_pools(1, 1, *quotas_in_both("a", 8, 0), *quotas_in_both("b"))
    cluster.add(borrowing_gang("used", "b", [6], OTHER, "m0"), make_gang("one", "a", [2], pools=BOTH))

    assert pool_of(cluster.cycle(), "one") == KEY
    assert cluster.borrowed_marks("one") == {False}


@pytest.mark.parametrize("pools", [BOTH, BOTH[::-1]])
def test_pool_with_cheapest_victims_is_chosen(pools: tuple[PoolKey, ...]) -> None:
    cluster = make_two_pools(1, 1, *quotas_in_both("a", 8, 8), *quotas_in_both("b"))
    cluster.now = 100_000.0
    cluster.add(
        borrowing_gang("long", "b", [8], KEY, "n0", band=LOW),
        borrowing_gang("short", "b", [8], OTHER, "m0", band=LOW, since=99_990.0),
        make_gang("wants", "a", [8], pools=pools),
    )

    decisions = cluster.cycle()

    assert [evict.gang for evict in decisions.evicts] == ["short"]
    assert decisions.plans["wants"].pool == OTHER


def test_pool_with_unprotected_victims_is_chosen() -> None:
    cluster = make_two_pools(1, 1, *quotas_in_both("a", 8, 8), *quotas_in_both("b"))
    cluster.now = 100_000.0
    cluster.add(
        borrowing_gang("fresh", "b", [8], KEY, "n0", band=LOW, since=99_990.0, minimum_run=60.0),
        borrowing_gang("long", "b", [8], OTHER, "m0", band=LOW),
        make_gang("wants", "a", [8], pools=BOTH),
    )

    assert [evict.gang for evict in cluster.cycle().evicts] == ["long"]


def test_no_eviction_while_other_pool_has_free_cells() -> None:
    cluster = make_two_pools(1, 1, *quotas_in_both("a", 8, 8), *quotas_in_both("b"))
    cluster.add(borrowing_gang("low", "b", [8], KEY, "n0", band=LOW), make_gang("wants", "a", [8], pools=BOTH))

    decisions = cluster.cycle()

    assert not decisions.evicts
    assert pool_of(decisions, "wants") == OTHER


def test_reservation_is_made_in_pool_that_frees_first() -> None:
    cluster = make_two_pools(1, 1, *quotas_in_both("a"), *quotas_in_both("b"))
    cluster.add(
        borrowing_gang("slow", "b", [8], KEY, "n0", since=1000.0, run_limit=5000.0),
        borrowing_gang("quick", "b", [8], OTHER, "m0", since=1000.0, run_limit=300.0),
        make_gang("big", "a", [8], pools=BOTH),
    )

    assert reports_by_gang(cluster.cycle())["big"].earliest == 1300.0


@pytest.mark.parametrize("pools", [BOTH, BOTH[::-1]])
def test_surplus_is_reclaimed_in_pool_with_fewest_victims_and_best_fit(pools: tuple[PoolKey, ...]) -> None:
    cluster = make_two_pools(1, 1, *quotas_in_both("a"), *quotas_in_both("b"))
    cluster.add(
        borrowing_gang("ones", "b", [4, 1, 1, 1, 1], KEY, *["n0"] * 5, elastic=True, minimum=1),
        borrowing_gang("wide", "b", [4, 4], OTHER, "m0", "m0", elastic=True, minimum=1),
        make_gang("wants", "a", [3], pools=pools),
    )

    decisions = cluster.cycle()

    assert {evict.gang for evict in decisions.evicts} == {"ones"}
    assert sum(len(evict.pods) for evict in decisions.evicts) == 3


def test_fit_counts_broken_nodes_and_remaining_units() -> None:
    resources = NodeResources(
        Pool(key=KEY, nodes=(Node(name="w", allocatable={GPU: 8000}), make_node("h")), governed=(GPU,))
    )
    one = make_gang("one", "a", [4, 2])
    resources.add_pods("h", one.pods[0].shape)

    assert measure_fit(resources, one.pods, {"one-0": "w", "one-1": "w"}) == (1, 2000)
    assert measure_fit(resources, one.pods, {"one-0": "h", "one-1": "w"}) == (1, 6000)
    assert measure_fit(resources, one.pods[:1], {"one-0": "h"}) == (0, 0)


def test_partly_notified_gang_starts_no_pod_in_other_pool() -> None:
    cluster = make_two_pools(1, 1, *quotas_in_both("a", 8, 0), *quotas_in_both("b"))
    cluster.add(borrowing_gang("low", "b", [8], KEY, "n0", band=LOW), make_gang("wants", "a", [8]))
    cluster.cycle()
    low = cluster.gangs["low"]
    more = make_gang("low", "b", [8, 4]).pods[1]
    cluster.gangs["low"] = replace(low, pods=(*low.pods, more), pools=BOTH, minimum=1)

    assert not cluster.cycle().admits
    del cluster.gangs["wants"]
    cluster.cycle()
    assert cluster.placed_nodes("low") == {"low-0": "n0"}


def test_planned_gang_starts_in_other_pool_that_becomes_free() -> None:
    cluster = make_two_pools(1, 1, *quotas_in_both("a", 8, 8), *quotas_in_both("b"))
    cluster.add(
        borrowing_gang("x", "b", [1] * 8, KEY, *["n0"] * 8, band=LOW, elastic=True, minimum=1),
        borrowing_gang("y", "b", [8], OTHER, "m0", band=LOW, restart_cost=100.0),
        make_gang("wants", "a", [7], pools=BOTH),
    )
    assert {evict.gang for evict in cluster.cycle().evicts} == {"x"}
    del cluster.gangs["y"]
    cluster.advance(2)

    decisions = cluster.cycle()

    assert pool_of(decisions, "wants") == OTHER
    assert cluster.borrowed_marks("wants") == {False}
    assert [len(reprieve.pods) for reprieve in decisions.reprieves] == [7]
    cluster.advance(60)
    assert not cluster.cycle().admits
    assert len(cluster.placed_nodes("x")) == 8


def cluster_with_borrowing_plan() -> Cluster:
    """Return a cluster in which a borrowing gang waits for evicted surplus in one pool; the other pool is full."""
    cluster = make_two_pools(1, 1, *quotas_in_both("a"), *quotas_in_both("b"))
    surplus = borrowing_gang("wide", "b", [4, 4], KEY, "n0", "n0", elastic=True, minimum=1, band=LOW)
    cluster.add(
        surplus,
        borrowing_gang("full", "b", [8], OTHER, "m0", band=LOW),
        make_gang("wants", "a", [4], pools=BOTH, band=LOW),
    )
    plans = cluster.cycle().plans
    assert plans["wants"].pool == KEY
    assert plans["wants"].borrowed
    return cluster


def test_planned_borrowing_gang_starts_in_other_pool_that_becomes_free() -> None:
    cluster = cluster_with_borrowing_plan()
    del cluster.gangs["full"]
    cluster.advance(1)

    decisions = cluster.cycle()

    assert pool_of(decisions, "wants") == OTHER
    assert [each.gang for each in decisions.reprieves] == ["wide"]
    assert not decisions.plans


def test_planned_gang_switches_pool_in_queue_order() -> None:
    cluster = cluster_with_borrowing_plan()
    del cluster.gangs["full"]
    cluster.add(make_gang("first", "a", [8], pools=(OTHER,), band=LOW, priority=9))
    cluster.advance(1)

    decisions = cluster.cycle()

    assert pool_of(decisions, "first") == OTHER
    assert decisions.plans["wants"].pool == KEY


def test_gang_does_not_switch_to_pool_that_evicts_it_again() -> None:
    cluster = cluster_with_borrowing_plan()
    cluster.gangs["full"] = borrowing_gang("full", "b", [4], OTHER, "m0", band=LOW, run_limit=300.0, since=cluster.now)
    cluster.add(make_gang("large", "a", [8], pools=(OTHER,), band=LOW, priority=9))
    cluster.advance(1)

    assert cluster.cycle().plans["wants"].pool == KEY
