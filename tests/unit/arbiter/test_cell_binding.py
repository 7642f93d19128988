"""Binding of cells to nodes: cells are shared, filled and moved before pods are evicted."""

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
from vkgateway.arbiter.snapshot import Band, Gang, PodState, Shape


def test_no_eviction_if_cell_can_bind_to_free_node() -> None:
    there = Cluster(
        [make_node("n0"), make_node("n1", rack="r1"), make_node("n2")], [make_quota("a", 12), make_quota("b", 4)]
    )
    there.add(make_gang("one", "a", [4, 2], band=LOW))
    there.cycle()
    there.add(make_gang("two", "b", [1, 4], band=LOW))
    there.cycle()
    there.add(make_gang("first", "a", [2] * 4), make_gang("second", "b", [2] * 2))

    decisions = there.cycle()

    assert not decisions.evicts
    assert {"first", "second"} <= there.running_gangs()
    assert there.borrowed_marks("first") == there.borrowed_marks("second") == {False}


@pytest.mark.parametrize("band", [LOW, Band.GUARANTEED])
def test_borrowing_pod_prefers_node_without_cells(band: Band) -> None:
    """Elsewhere it would have to go as soon as the other half of the cell is wanted."""
    there = make_cluster(2, make_quota("a", 8), make_quota("b"))
    there.add(make_gang("half", "a", [4]))
    there.cycle()
    there.add(make_gang("fills", "b", [4], band=LOW))
    there.gangs["fills"] = borrowing_on(there.gangs["fills"], "n1")
    there.add(make_gang("one", "b", [4], band=band))

    there.cycle()

    assert there.placed_nodes("half") == {"half-0": "n0"}
    assert there.placed_nodes("one") == {"one-0": "n1"}
    there.add(make_gang("other", "c", [4]))
    assert not there.cycle().evicts


def borrowing_on(one: Gang, on: str) -> Gang:
    """It runs there, and borrows."""
    pods = (replace(pod, state=PodState.PLACED, pool=KEY, node=on, borrowed=True) for pod in one.pods)
    return replace(one, pods=tuple(pods))


def test_cell_is_bound_near_other_cells_of_tenant() -> None:
    there = Cluster(
        [make_node("n0", rack="r0"), make_node("n1", rack="r1"), make_node("n2", rack="r1")], [make_quota("a", 16)]
    )
    there.add(guaranteed_on(make_gang("first", "a", [8]), "n2"))
    there.add(make_gang("second", "a", [8]))

    there.cycle()

    assert there.placed_nodes("second") == {"second-0": "n1"}


@pytest.mark.parametrize("band", [LOW, Band.GUARANTEED])
def test_borrowing_gang_prefers_nodes_without_cells(band: Band) -> None:
    there = make_cluster(5, make_quota("a", 16), make_quota("b"))
    for at in (0, 2):
        there.add(guaranteed_on(make_gang(f"half{at}", "a", [4]), f"n{at}"))
    for at in (1, 3, 4):
        there.add(borrowing_on(make_gang(f"fills{at}", "b", [4], band=LOW), f"n{at}"))
    there.add(make_gang("two", "b", [4, 4], band=band), make_gang("more", "b", [4, 4], band=band, created=1001.0))

    there.cycle()

    assert there.placed_nodes("two") == {"two-0": "n1", "two-1": "n3"}
    assert there.placed_nodes("more") == {"more-0": "n0", "more-1": "n4"}


def test_cells_of_gang_are_bound_near_other_cells_of_tenant() -> None:
    there = Cluster([make_node(f"n{at}", rack=f"r{at % 2}") for at in range(6)], [make_quota("a", 24)])
    there.add(guaranteed_on(make_gang("first", "a", [8]), "n3"))
    there.add(make_gang("second", "a", [8, 8]))

    there.cycle()

    assert there.placed_nodes("second") == {"second-0": "n1", "second-1": "n5"}


def guaranteed_on(one: Gang, on: str) -> Gang:
    """It runs there, inside its tenant's cells."""
    return replace(one, pods=tuple(replace(pod, borrowed=False) for pod in borrowing_on(one, on).pods))


@pytest.mark.parametrize(
    ("sizes", "guarantee"), [([4, 1], 8), ([2, 4, 1, 1], 8), ([2, 1], 4), ([gpu_shape(1, 40), 2], 4)]
)
def test_pods_of_several_sizes_share_cell_on_idle_node(sizes: list[int | Shape], guarantee: int) -> None:
    there = make_cluster(2, make_quota("a", guarantee), make_quota("b"))
    there.add(make_gang("low", "b", [8 - largest_size(sizes)], band=LOW))
    there.cycle()
    there.add(make_gang("mixed", "a", sizes))

    decisions = there.cycle()

    assert not decisions.evicts
    assert set(there.placed_nodes("mixed").values()) == {"n1"}


def largest_size(sizes: list[int | Shape]) -> int:
    return max(each for each in sizes if isinstance(each, int))


def test_pods_of_several_sizes_fill_several_cells() -> None:
    there = make_cluster(3, make_quota("a", 16), make_quota("b"))
    there.add(make_gang("low", "b", [3], band=LOW))
    there.cycle()
    there.add(make_gang("mixed", "a", [5, 5, 2, 2, 1, 1]))

    decisions = there.cycle()

    assert not decisions.evicts
    assert set(there.placed_nodes("mixed").values()) == {"n1", "n2"}


def test_cells_of_other_tenant_are_exchanged_before_eviction() -> None:
    there = make_cluster(2, make_quota("a", 12), make_quota("b"), make_quota("c", 4))
    for name, tenant, on, band in (
        ("one", "a", "n0", Band.GUARANTEED),
        ("two", "a", "n1", Band.GUARANTEED),
        ("low", "b", "n0", LOW),
    ):
        one = make_gang(name, tenant, [4], band=band, created=500.0)
        placed = replace(one.pods[0], state=PodState.PLACED, node=on, pool=KEY, borrowed=band is LOW, since=900.0)
        there.add(replace(one, pods=(placed,)))
    assert there.derive_cells().bound_cells("a") == {"n0": (4,), "n1": (8,)}
    there.add(make_gang("high", "c", [4]))

    decisions = there.cycle()

    assert not decisions.evicts
    assert there.placed_nodes("high") == {"high-0": "n1"}
    assert there.borrowed_marks("high") == {False}
    assert there.derive_cells().bound_cells("a") == {"n0": (8,), "n1": (4,)}
