"""A part of a guarantee is reserved for an aged gang; later gangs may use the rest. No node is to spare."""

from __future__ import annotations

import pytest

from tests.unit.arbiter.placed_gangs import place_gang
from tests.unit.arbiter.simulated_cluster import LOW, Cluster, make_gang, make_node, make_quota, reports_by_gang
from vkgateway.scheduler.core.decisions import PendingReason
from vkgateway.scheduler.core.snapshot import Gang

NOW = 100_000.0


def cluster_with_aged_gang(*, old: bool = True, **later: object) -> Cluster:
    """Of c's two nodes, one has old (4), the other later (1), which aged (8) awaits; low work fills the rest."""
    cluster = Cluster([make_node(f"n{at}") for at in range(4)], [make_quota("c", 16), make_quota("d", 16)], now=NOW)
    cluster.keep_low()
    if old:
        cluster.add(place_gang(make_gang("old", "c", [4], created=NOW - 20_000), ["n0"], borrowed=False))
    cluster.add(
        place_gang(make_gang("later", "c", [1], created=NOW - 1800, **later), ["n1"], borrowed=False),
        *(
            place_gang(make_gang(f"low{at}", "d", [size], created=NOW - 9000, band=LOW), [f"n{at}"], borrowed=True)
            for at, size in enumerate((4, 7, 8, 8))
        ),
        make_gang("aged", "c", [8], created=NOW - 7200),
    )
    return cluster


def small_gang(name: str = "small", size: int = 1, **fields: object) -> Gang:
    return make_gang(name, "c", [size], **{"created": NOW - 600, **fields})


@pytest.mark.parametrize("size", [1, 4])
def test_later_gang_uses_cell_that_gang_ahead_cannot_use(size: int) -> None:
    cluster = cluster_with_aged_gang()
    cluster.add(small_gang(size=size))
    cluster.run_for(16)
    assert cluster.placed_nodes("small") == {"small-0": "n0"}
    assert cluster.borrowed_marks("small") == {False}


def test_later_gangs_do_not_use_reserved_cells() -> None:
    cluster = cluster_with_aged_gang()
    cluster.add(*(small_gang(f"small{at}", 4) for at in range(3)))
    cluster.run_for(60)
    inside = {
        name for name in cluster.running_gangs() if name.startswith("small") and cluster.borrowed_marks(name) == {False}
    }
    assert inside == {"small0"}, "the others would be in the cell that later leaves to aged"
    report = reports_by_gang(cluster.cycle())["small1"]
    assert (report.code, report.behind) == (PendingReason.RESERVATION, "aged")
    assert report.message == (
        "the rest of the guarantee in pool.compute is reserved for aged, which is ahead and has waited for long"
    )


def test_gang_ahead_starts_when_awaited_usage_ends() -> None:
    cluster = cluster_with_aged_gang()
    for at in range(8):
        cluster.add(small_gang(f"small{at}", 1 + at % 4, created=cluster.now))
        cluster.run_for(16)
    assert "aged" not in cluster.running_gangs()
    del cluster.gangs["later"]
    cluster.run_for(16)
    assert cluster.borrowed_marks("aged") == {False}


@pytest.mark.parametrize(("run", "starts"), [(500.0, True), (5000.0, False)])
def test_later_gang_backfills_reserved_cells_if_it_ends_in_time(run: float, starts: bool) -> None:
    """Low work that ends frees the capacity, so no eviction is needed."""
    cluster = cluster_with_aged_gang(run_limit=3600.0)
    cluster.add(small_gang("four", 4))
    cluster.run_for(16)
    cluster.add(small_gang("brief", 4, run_limit=run))
    cluster.run_for(16)
    assert ("brief" in cluster.running_gangs() and cluster.borrowed_marks("brief") == {False}) is starts
