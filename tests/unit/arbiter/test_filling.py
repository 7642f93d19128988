"""Filling of used cells before the last cell is bound, where the eviction costs less than the cell is worth."""

from __future__ import annotations

import pytest

from tests.unit.arbiter.placed import runs
from tests.unit.arbiter.sim import LOW, Cluster, gang, node, quota

NOW = 100_000.0


def one_cell_in_use(*, ran: float = 0.0, guarantee: int = 16) -> Cluster:
    """One of a's cells of 8 holds 1 GPU, next to low work of 7 that ran for `ran` seconds; n1 has 1 GPU free."""
    there = Cluster([node("n0"), node("n1"), node("n2")], [quota("a", guarantee), quota("b")], now=NOW)
    there.add(
        runs(gang("one", "a", [1], created=NOW - ran - 1), ["n0"], borrowed=False),
        runs(gang("low0", "b", [7], created=NOW - ran, band=LOW), ["n0"], borrowed=True),
        runs(gang("low1", "b", [7], created=NOW - ran, band=LOW), ["n1"], borrowed=True),
        runs(gang("low2", "b", [8], created=NOW - ran, band=LOW), ["n2"], borrowed=True),
    )
    return there


@pytest.mark.parametrize(
    ("ran", "guarantee", "on"),
    [
        (60.0, 16, "n0"),  # low work of one minute is evicted, so that a gang of 8 has a cell
        (7200.0, 16, "n1"),  # two hours of 7 GPUs are worth more than 7 idle GPUs for an hour
        (60.0, 24, "n1"),  # another cell of 8 is left
    ],
)
def test_used_cell_is_filled_before_last_cell_is_bound(ran: float, guarantee: int, on: str) -> None:
    there = one_cell_in_use(ran=ran, guarantee=guarantee)
    there.add(gang("two", "a", [1]))
    there.settle(16)
    assert there.placed("two") == {"two-0": on}
    assert there.borrowed("two") == {False}
    assert len(there.cells().bound_cells("a")) == (1 if on == "n0" else 2)


def test_large_gang_starts_within_its_bound() -> None:
    there = one_cell_in_use()
    there.add(gang("two", "a", [1]))
    there.settle(16)
    there.add(gang("big", "a", [8]))
    there.settle(16)
    assert there.borrowed("big") == {False}


def test_short_gang_evicts_no_more_than_its_own_work() -> None:
    there = one_cell_in_use(ran=600.0)
    there.add(gang("brief", "a", [1], run_limit=60.0))
    there.settle(16)
    assert there.placed("brief") == {"brief-0": "n1"}


def test_free_part_of_used_cell_is_taken_immediately() -> None:
    there = one_cell_in_use()
    del there.gangs["low0"]
    there.add(gang("two", "a", [1]))
    there.cycle()
    assert there.placed("two") == {"two-0": "n0"}
