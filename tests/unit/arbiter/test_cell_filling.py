"""Filling of used cells before the last cell is bound, where the eviction costs less than the cell is worth."""

from __future__ import annotations

import pytest

from tests.unit.arbiter.placed_gangs import place_gang
from tests.unit.arbiter.simulated_cluster import LOW, Cluster, make_gang, make_node, make_quota

NOW = 100_000.0


def cluster_with_used_cell(*, ran: float = 0.0, guarantee: int = 16) -> Cluster:
    """One of a's cells of 8 holds 1 GPU, next to low work of 7 that ran for `ran` seconds; n1 has 1 GPU free."""
    cluster = Cluster(
        [make_node("n0"), make_node("n1"), make_node("n2")], [make_quota("a", guarantee), make_quota("b")], now=NOW
    )
    cluster.add(
        place_gang(make_gang("one", "a", [1], created=NOW - ran - 1), ["n0"], borrowed=False),
        place_gang(make_gang("low0", "b", [7], created=NOW - ran, band=LOW), ["n0"], borrowed=True),
        place_gang(make_gang("low1", "b", [7], created=NOW - ran, band=LOW), ["n1"], borrowed=True),
        place_gang(make_gang("low2", "b", [8], created=NOW - ran, band=LOW), ["n2"], borrowed=True),
    )
    return cluster


@pytest.mark.parametrize(
    ("ran", "guarantee", "on"),
    [
        (60.0, 16, "n0"),  # low work of one minute is evicted, so that a gang of 8 has a cell
        (7200.0, 16, "n1"),  # two hours of 7 GPUs are worth more than 7 idle GPUs for an hour
        (60.0, 24, "n1"),  # another cell of 8 is left
    ],
)
def test_used_cell_is_filled_before_last_cell_is_bound(ran: float, guarantee: int, on: str) -> None:
    cluster = cluster_with_used_cell(ran=ran, guarantee=guarantee)
    cluster.add(make_gang("two", "a", [1]))
    cluster.run_for(16)
    assert cluster.placed_nodes("two") == {"two-0": on}
    assert cluster.borrowed_marks("two") == {False}
    assert len(cluster.derive_cells().bound_cells("a")) == (1 if on == "n0" else 2)


def test_large_gang_starts_within_its_bound() -> None:
    cluster = cluster_with_used_cell()
    cluster.add(make_gang("two", "a", [1]))
    cluster.run_for(16)
    cluster.add(make_gang("big", "a", [8]))
    cluster.run_for(16)
    assert cluster.borrowed_marks("big") == {False}


def test_short_gang_evicts_no_more_than_its_own_work() -> None:
    cluster = cluster_with_used_cell(ran=600.0)
    cluster.add(make_gang("brief", "a", [1], run_limit=60.0))
    cluster.run_for(16)
    assert cluster.placed_nodes("brief") == {"brief-0": "n1"}


def test_free_part_of_used_cell_is_taken_immediately() -> None:
    cluster = cluster_with_used_cell()
    del cluster.gangs["low0"]
    cluster.add(make_gang("two", "a", [1]))
    cluster.cycle()
    assert cluster.placed_nodes("two") == {"two-0": "n0"}
