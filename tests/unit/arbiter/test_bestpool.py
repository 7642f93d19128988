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
from vkgateway.arbiter.capacity.node_resources import NodeResources
from vkgateway.arbiter.decisions import Decisions
from vkgateway.arbiter.phases.pool_choice import measure_fit
from vkgateway.arbiter.snapshot import Gang, Node, PodState, Pool, PoolKey, Quota

BOTH = (KEY, OTHER)


def two(first: int, second: int, *quotas: Quota, sizes: tuple[int, int] = (8, 8)) -> Cluster:
    """Return two pools with these numbers of nodes."""
    nodes = [
        [make_node(f"{letter}{at}", sizes[pool]) for at in range((first, second)[pool])] for pool, letter in _LETTERS
    ]
    return Cluster(nodes[0], quotas, more=nodes[1])


_LETTERS = ((0, "n"), (1, "m"))


def everywhere(tenant: str, first: int = 0, second: int = 0) -> tuple[Quota, Quota]:
    return make_quota(tenant, first), make_quota(tenant, second, pool=OTHER)


def runs(name: str, tenant: str, shapes: list[int], where: PoolKey, *nodes: str, **fields: object) -> Gang:
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
    there = two(2, 1, *everywhere("a", guarantee, guarantee), *everywhere("b"))
    there.add(runs("small", "b", [4], OTHER, "m0"), make_gang("four", "a", [4], pools=BOTH))

    assert pool_of(there.cycle(), "four") == OTHER


def test_pool_with_tightest_fit_is_chosen() -> None:
    there = two(1, 1, *everywhere("a"), *everywhere("b"))
    there.add(runs("x", "b", [1], KEY, "n0"), runs("y", "b", [5], OTHER, "m0"), make_gang("one", "a", [2], pools=BOTH))

    assert pool_of(there.cycle(), "one") == OTHER


@pytest.mark.parametrize("pools", [BOTH, BOTH[::-1]])
def test_tenant_order_decides_among_equal_pools(pools: tuple[PoolKey, ...]) -> None:
    there = two(1, 1, *everywhere("a"))
    there.add(make_gang("one", "a", [2], pools=pools))

    assert pool_of(there.cycle(), "one") == pools[0]


def test_pool_without_quota_is_ignored() -> None:
    there = two(1, 1, *everywhere("a"), *everywhere("b"))
    there.add(runs("used", "b", [6], OTHER, "m0"), make_gang("one", "a", [2], pools=(KEY,)))

    assert pool_of(there.cycle(), "one") == KEY


def test_guarantee_is_preferred_to_tighter_fit() -> None:
    there = two(1, 1, *everywhere("a", 8, 0), *everywhere("b"))
    there.add(runs("used", "b", [6], OTHER, "m0"), make_gang("one", "a", [2], pools=BOTH))

    assert pool_of(there.cycle(), "one") == KEY
    assert there.borrowed_marks("one") == {False}


@pytest.mark.parametrize("pools", [BOTH, BOTH[::-1]])
def test_pool_with_cheapest_victims_is_chosen(pools: tuple[PoolKey, ...]) -> None:
    there = two(1, 1, *everywhere("a", 8, 8), *everywhere("b"))
    there.now = 100_000.0
    there.add(
        runs("long", "b", [8], KEY, "n0", band=LOW),
        runs("short", "b", [8], OTHER, "m0", band=LOW, since=99_990.0),
        make_gang("wants", "a", [8], pools=pools),
    )

    decisions = there.cycle()

    assert [evict.gang for evict in decisions.evicts] == ["short"]
    assert decisions.plans["wants"].pool == OTHER


def test_pool_with_unprotected_victims_is_chosen() -> None:
    there = two(1, 1, *everywhere("a", 8, 8), *everywhere("b"))
    there.now = 100_000.0
    there.add(
        runs("fresh", "b", [8], KEY, "n0", band=LOW, since=99_990.0, minimum_run=60.0),
        runs("long", "b", [8], OTHER, "m0", band=LOW),
        make_gang("wants", "a", [8], pools=BOTH),
    )

    assert [evict.gang for evict in there.cycle().evicts] == ["long"]


def test_no_eviction_while_other_pool_has_free_cells() -> None:
    there = two(1, 1, *everywhere("a", 8, 8), *everywhere("b"))
    there.add(runs("low", "b", [8], KEY, "n0", band=LOW), make_gang("wants", "a", [8], pools=BOTH))

    decisions = there.cycle()

    assert not decisions.evicts
    assert pool_of(decisions, "wants") == OTHER


def test_reservation_is_made_in_pool_that_frees_first() -> None:
    there = two(1, 1, *everywhere("a"), *everywhere("b"))
    there.add(
        runs("slow", "b", [8], KEY, "n0", since=1000.0, run_limit=5000.0),
        runs("quick", "b", [8], OTHER, "m0", since=1000.0, run_limit=300.0),
        make_gang("big", "a", [8], pools=BOTH),
    )

    assert reports_by_gang(there.cycle())["big"].earliest == 1300.0


@pytest.mark.parametrize("pools", [BOTH, BOTH[::-1]])
def test_surplus_is_reclaimed_in_pool_with_fewest_victims_and_best_fit(pools: tuple[PoolKey, ...]) -> None:
    there = two(1, 1, *everywhere("a"), *everywhere("b"))
    there.add(
        runs("ones", "b", [4, 1, 1, 1, 1], KEY, *["n0"] * 5, elastic=True, minimum=1),
        runs("wide", "b", [4, 4], OTHER, "m0", "m0", elastic=True, minimum=1),
        make_gang("wants", "a", [3], pools=pools),
    )

    decisions = there.cycle()

    assert {evict.gang for evict in decisions.evicts} == {"ones"}
    assert sum(len(evict.pods) for evict in decisions.evicts) == 3


def test_fit_counts_broken_nodes_and_remaining_units() -> None:
    room = NodeResources(
        Pool(key=KEY, nodes=(Node(name="w", allocatable={GPU: 8000}), make_node("h")), governed=(GPU,))
    )
    one = make_gang("one", "a", [4, 2])
    room.add_pods("h", one.pods[0].shape)

    assert measure_fit(room, one.pods, {"one-0": "w", "one-1": "w"}) == (1, 2000)
    assert measure_fit(room, one.pods, {"one-0": "h", "one-1": "w"}) == (1, 6000)
    assert measure_fit(room, one.pods[:1], {"one-0": "h"}) == (0, 0)


def test_partly_notified_gang_starts_no_pod_in_other_pool() -> None:
    there = two(1, 1, *everywhere("a", 8, 0), *everywhere("b"))
    there.add(runs("low", "b", [8], KEY, "n0", band=LOW), make_gang("wants", "a", [8]))
    there.cycle()
    low = there.gangs["low"]
    more = make_gang("low", "b", [8, 4]).pods[1]
    there.gangs["low"] = replace(low, pods=(*low.pods, more), pools=BOTH, minimum=1)

    assert not there.cycle().admits
    del there.gangs["wants"]
    there.cycle()
    assert there.placed_nodes("low") == {"low-0": "n0"}


def test_planned_gang_starts_in_other_pool_that_becomes_free() -> None:
    there = two(1, 1, *everywhere("a", 8, 8), *everywhere("b"))
    there.add(
        runs("x", "b", [1] * 8, KEY, *["n0"] * 8, band=LOW, elastic=True, minimum=1),
        runs("y", "b", [8], OTHER, "m0", band=LOW, restart_cost=100.0),
        make_gang("wants", "a", [7], pools=BOTH),
    )
    assert {evict.gang for evict in there.cycle().evicts} == {"x"}
    del there.gangs["y"]
    there.advance(2)

    decisions = there.cycle()

    assert pool_of(decisions, "wants") == OTHER
    assert there.borrowed_marks("wants") == {False}
    assert [len(reprieve.pods) for reprieve in decisions.reprieves] == [7]
    there.advance(60)
    assert not there.cycle().admits
    assert len(there.placed_nodes("x")) == 8


def borrows_with_a_plan() -> Cluster:
    """Return a cluster in which a borrowing gang waits for evicted surplus in one pool; the other pool is full."""
    there = two(1, 1, *everywhere("a"), *everywhere("b"))
    surplus = runs("wide", "b", [4, 4], KEY, "n0", "n0", elastic=True, minimum=1, band=LOW)
    there.add(
        surplus, runs("full", "b", [8], OTHER, "m0", band=LOW), make_gang("wants", "a", [4], pools=BOTH, band=LOW)
    )
    plans = there.cycle().plans
    assert plans["wants"].pool == KEY
    assert plans["wants"].borrowed
    return there


def test_planned_borrowing_gang_starts_in_other_pool_that_becomes_free() -> None:
    there = borrows_with_a_plan()
    del there.gangs["full"]
    there.advance(1)

    decisions = there.cycle()

    assert pool_of(decisions, "wants") == OTHER
    assert [each.gang for each in decisions.reprieves] == ["wide"]
    assert not decisions.plans


def test_planned_gang_switches_pool_in_queue_order() -> None:
    there = borrows_with_a_plan()
    del there.gangs["full"]
    there.add(make_gang("first", "a", [8], pools=(OTHER,), band=LOW, priority=9))
    there.advance(1)

    decisions = there.cycle()

    assert pool_of(decisions, "first") == OTHER
    assert decisions.plans["wants"].pool == KEY


def test_gang_does_not_switch_to_pool_that_evicts_it_again() -> None:
    there = borrows_with_a_plan()
    there.gangs["full"] = runs("full", "b", [4], OTHER, "m0", band=LOW, run_limit=300.0, since=there.now)
    there.add(make_gang("large", "a", [8], pools=(OTHER,), band=LOW, priority=9))
    there.advance(1)

    assert there.cycle().plans["wants"].pool == KEY
