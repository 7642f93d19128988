"""Cells of the nominated placement are reserved for an aged gang; later gangs may use the other cells."""

from __future__ import annotations

import pytest

from tests.unit.arbiter.placed_gangs import place_gang
from tests.unit.arbiter.simulated_cluster import LOW, Cluster, make_gang, make_node, make_quota, reports_by_gang
from vkgateway.arbiter.decisions import PendingReason
from vkgateway.arbiter.snapshot import Gang

NOW = 100_000.0


def waits_for_later(*, old: bool = True, **later: object) -> Cluster:
    """Of c's cells of 8, one holds old (4), the other later (1), which aged (8) awaits; low work fills the rest."""
    there = Cluster([make_node(f"n{at}") for at in range(4)], [make_quota("c", 16), make_quota("d")], now=NOW)
    if old:
        there.add(place_gang(make_gang("old", "c", [4], created=NOW - 20_000), ["n0"], borrowed=False))
    there.add(
        place_gang(make_gang("later", "c", [1], created=NOW - 1800, **later), ["n1"], borrowed=False),
        *(
            place_gang(make_gang(f"low{at}", "d", [size], created=NOW - 9000, band=LOW), [f"n{at}"], borrowed=True)
            for at, size in enumerate((4, 7, 8, 8))
        ),
        make_gang("aged", "c", [8], created=NOW - 7200),
    )
    return there


def small(name: str = "small", size: int = 1, **fields: object) -> Gang:
    return make_gang(name, "c", [size], **{"created": NOW - 600, **fields})


@pytest.mark.parametrize("size", [1, 4])
def test_later_gang_uses_cell_that_gang_ahead_cannot_use(size: int) -> None:
    there = waits_for_later()
    there.add(small(size=size))
    there.run_for(16)
    assert there.placed_nodes("small") == {"small-0": "n0"}
    assert there.borrowed_marks("small") == {False}


def test_later_gangs_do_not_use_reserved_cells() -> None:
    there = waits_for_later()
    there.add(*(small(f"small{at}", 4) for at in range(3)))
    there.run_for(60)
    inside = {
        name for name in there.running_gangs() if name.startswith("small") and there.borrowed_marks(name) == {False}
    }
    assert inside == {"small0"}, "the others would be in the cell that later leaves to aged"
    hold = reports_by_gang(there.cycle())["small1"]
    assert (hold.code, hold.behind) == (PendingReason.RESERVATION, "aged")
    assert hold.message == (
        "the rest of the guarantee in pool.compute is reserved for aged, which is ahead and has waited for long"
    )


def test_gang_ahead_starts_when_awaited_usage_ends() -> None:
    there = waits_for_later()
    for at in range(20):
        there.add(small(f"small{at}", 1 + at % 4, created=there.now))
        there.run_for(16)
    assert "aged" not in there.running_gangs()
    del there.gangs["later"]
    there.run_for(16)
    assert there.borrowed_marks("aged") == {False}


@pytest.mark.parametrize(("run", "starts"), [(500.0, True), (5000.0, False)])
def test_later_gang_backfills_reserved_cells_if_it_ends_in_time(run: float, starts: bool) -> None:
    """Low work that ends frees the capacity, so no eviction is needed."""
    there = waits_for_later(run_limit=3600.0)
    there.add(small("four", 4))
    there.run_for(16)
    there.add(small("brief", 4, run_limit=run))
    there.run_for(16)
    assert ("brief" in there.running_gangs() and there.borrowed_marks("brief") == {False}) is starts
