"""Nodes of guaranteed and borrowing gangs: shared and filled before pods are evicted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.arbiter.simulated_cluster import (
    KEY,
    LOW,
    Cluster,
    gpu_shape,
    make_cluster,
    make_gang,
    make_node,
    make_quota,
)
from vkgateway.scheduler.core.snapshot import Band, Gang, PodState, Shape


def test_no_eviction_if_free_nodes_hold_the_guarantees() -> None:
    cluster = Cluster(
        [make_node("n0"), make_node("n1", rack="r1"), make_node("n2")], [make_quota("a", 12), make_quota("b", 4)]
    )
    cluster.add(make_gang("one", "a", [4, 2], band=LOW))
    cluster.cycle()
    cluster.add(make_gang("two", "b", [1, 4], band=LOW))
    cluster.cycle()
    cluster.add(make_gang("first", "a", [2] * 4), make_gang("second", "b", [2] * 2))

    decisions = cluster.cycle()

    assert not decisions.evicts
    assert {"first", "second"} <= cluster.running_gangs()
    assert cluster.borrowed_marks("first") == cluster.borrowed_marks("second") == {False}


@pytest.mark.parametrize("band", [LOW, Band.GUARANTEED])
def test_borrowing_pod_prefers_node_without_guaranteed_pods(band: Band) -> None:
    """There it would take what the next guaranteed pod could use at once."""
    cluster = make_cluster(2, make_quota("a", 8), make_quota("b"))
    cluster.add(make_gang("half", "a", [4]))
    cluster.cycle()
    cluster.add(make_gang("fills", "b", [4], band=LOW))
    cluster.gangs["fills"] = borrowing_on(cluster.gangs["fills"], "n1")
    cluster.add(make_gang("one", "b", [4], band=band))

    cluster.cycle()

    assert cluster.placed_nodes("half") == {"half-0": "n0"}
    assert cluster.placed_nodes("one") == {"one-0": "n1"}
    cluster.add(make_gang("other", "c", [4]))
    assert not cluster.cycle().evicts


def borrowing_on(one: Gang, on: str) -> Gang:
    """Return the gang running on this node and borrowing."""
    pods = (replace(pod, state=PodState.PLACED, pool=KEY, node=on, borrowed=True) for pod in one.pods)
    return replace(one, pods=tuple(pods))


def test_guaranteed_pod_is_placed_near_other_nodes_of_its_tenant() -> None:
    cluster = Cluster(
        [make_node("n0", rack="r0"), make_node("n1", rack="r1"), make_node("n2", rack="r1")], [make_quota("a", 16)]
    )
    cluster.add(guaranteed_on(make_gang("first", "a", [8]), "n2"))
    cluster.add(make_gang("second", "a", [8]))

    cluster.cycle()

    assert cluster.placed_nodes("second") == {"second-0": "n1"}


@pytest.mark.parametrize("band", [LOW, Band.GUARANTEED])
def test_borrowing_gang_prefers_nodes_without_guaranteed_pods(band: Band) -> None:
    cluster = make_cluster(5, make_quota("a", 16), make_quota("b"))
    for at in (0, 2):
        cluster.add(guaranteed_on(make_gang(f"half{at}", "a", [4]), f"n{at}"))
    for at in (1, 3, 4):
        cluster.add(borrowing_on(make_gang(f"fills{at}", "b", [4], band=LOW), f"n{at}"))
    cluster.add(make_gang("two", "b", [4, 4], band=band), make_gang("more", "b", [4, 4], band=band, created=1001.0))

    cluster.cycle()

    assert cluster.placed_nodes("two") == {"two-0": "n1", "two-1": "n3"}
    assert cluster.placed_nodes("more") == {"more-0": "n0", "more-1": "n4"}


def test_guaranteed_gang_is_placed_near_other_nodes_of_its_tenant() -> None:
    cluster = Cluster([make_node(f"n{at}", rack=f"r{at % 2}") for at in range(6)], [make_quota("a", 24)])
    cluster.add(guaranteed_on(make_gang("first", "a", [8]), "n3"))
    cluster.add(make_gang("second", "a", [8, 8]))

    cluster.cycle()

    assert cluster.placed_nodes("second") == {"second-0": "n1", "second-1": "n5"}


def guaranteed_on(one: Gang, on: str) -> Gang:
    """Return the gang running on this node inside its tenant's guarantee."""
    return replace(one, pods=tuple(replace(pod, borrowed=False) for pod in borrowing_on(one, on).pods))


@pytest.mark.parametrize(
    ("sizes", "guarantee"), [([4, 1], 8), ([2, 4, 1, 1], 8), ([2, 1], 4), ([gpu_shape(1, 40), 2], 4)]
)
def test_pods_of_several_sizes_share_an_idle_node(sizes: list[int | Shape], guarantee: int) -> None:
    cluster = make_cluster(2, make_quota("a", guarantee), make_quota("b", 8))
    cluster.add(make_gang("low", "b", [8 - largest_size(sizes)], band=LOW))
    cluster.cycle()
    cluster.add(make_gang("mixed", "a", sizes))

    decisions = cluster.cycle()

    assert not decisions.evicts
    assert set(cluster.placed_nodes("mixed").values()) == {"n1"}


def largest_size(sizes: list[int | Shape]) -> int:
    return max(each for each in sizes if isinstance(each, int))


def test_pods_of_several_sizes_fill_several_nodes() -> None:
    cluster = make_cluster(3, make_quota("a", 16), make_quota("b", 8))
    cluster.add(make_gang("low", "b", [3], band=LOW))
    cluster.cycle()
    cluster.add(make_gang("mixed", "a", [5, 5, 2, 2, 1, 1]))

    decisions = cluster.cycle()

    assert not decisions.evicts
    assert set(cluster.placed_nodes("mixed").values()) == {"n1", "n2"}
