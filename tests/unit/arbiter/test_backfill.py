"""Reservations of the first waiting gang, and backfill by other gangs."""

from __future__ import annotations

from tests.unit.arbiter.simulated_cluster import (
    LOW,
    make_cluster,
    make_gang,
    make_quota,
    reports_by_gang,
)
from vkgateway.scheduler.core.decisions import PendingReason


def test_gang_backfills_only_if_it_ends_in_time() -> None:
    cluster = make_cluster(2, make_quota("a"), make_quota("b"))
    cluster.add(make_gang("runs", "a", [8], run_limit=100.0))
    cluster.cycle()
    cluster.add(
        make_gang("wide", "a", [8, 8], created=1.0),
        make_gang("long", "a", [8], created=2.0, run_limit=500.0),
    )

    reports = reports_by_gang(cluster.cycle())

    assert cluster.running_gangs() == {"runs"}
    assert reports["long"].code is PendingReason.RESERVATION
    assert (
        reports["long"].message == "capacity is free, but reserved for wide, which is ahead and starts in about 2 min"
    )
    assert reports["long"].behind == "wide"
    assert reports["wide"].earliest == cluster.now + 100
    assert reports["wide"].place == 1
    cluster.add(make_gang("short", "a", [8], created=3.0, run_limit=50.0))
    cluster.cycle()
    assert cluster.running_gangs() == {"runs", "short"}


def test_low_gang_backfills_until_reserved_start() -> None:
    cluster = make_cluster(2, make_quota("a"), make_quota("b"))
    cluster.add(make_gang("runs", "a", [8], run_limit=100.0))
    cluster.run_times["runs"] = 100.0
    cluster.cycle()
    arrival = cluster.now
    cluster.add(make_gang("wide", "a", [8, 8], created=1.0), make_gang("low", "a", [8], band=LOW))

    [admit] = cluster.cycle().admits

    assert (admit.gang, admit.behind) == ("low", "wide")
    # The start is known as before: the gang that backfills is evicted for it.
    report = reports_by_gang(cluster.cycle())["wide"]
    assert (report.earliest, report.likely) == (arrival + 100, arrival + 100)
    cluster.run_for(90)
    assert cluster.running_gangs() == {"runs", "low"}
    cluster.run_for(30)
    assert cluster.start_times["wide"] == arrival + 115
    assert cluster.running_gangs() == {"wide"}


def test_backfill_is_not_evicted_for_other_borrowing_gang() -> None:
    cluster = make_cluster(2, make_quota("a"), make_quota("b"))
    cluster.keep_low()
    cluster.add(make_gang("runs", "a", [8], run_limit=100.0))
    cluster.cycle()
    cluster.add(make_gang("wide", "a", [8, 8], created=1.0), make_gang("low", "a", [8], band=LOW))
    cluster.cycle()
    del cluster.gangs["wide"]
    cluster.add(make_gang("other", "a", [8]))

    assert not cluster.cycle().evicts
    assert cluster.running_gangs() == {"runs", "low"}


def test_gang_with_long_minimum_run_does_not_backfill() -> None:
    cluster = make_cluster(2, make_quota("a"), make_quota("b"))
    cluster.add(make_gang("runs", "a", [8], run_limit=100.0))
    cluster.cycle()
    cluster.add(make_gang("wide", "a", [8, 8], created=1.0), make_gang("low", "a", [8], band=LOW, minimum_run=200.0))

    assert reports_by_gang(cluster.cycle())["low"].code is PendingReason.RESERVATION


def test_surplus_backfills_and_shrinks_in_time() -> None:
    cluster = make_cluster(2, make_quota("a"), make_quota("b"))
    cluster.add(
        make_gang("runs", "a", [8], run_limit=100.0),
        make_gang("elastic", "b", [4, 4], elastic=True, minimum=1, band=LOW),
    )
    cluster.run_times["runs"] = 100.0
    cluster.cycle()
    cluster.add(make_gang("wide", "a", [8, 4], created=1.0))

    cluster.run_for(50)

    assert len(cluster.placed_nodes("elastic")) == 2
    cluster.run_for(70)
    assert cluster.running_gangs() == {"wide", "elastic"}
    assert len(cluster.placed_nodes("elastic")) == 1


def test_gang_outside_reservation_starts() -> None:
    cluster = make_cluster(3, make_quota("a"))
    cluster.add(make_gang("runs", "a", [8], run_limit=100.0), make_gang("ever", "a", [4]))
    cluster.cycle()
    cluster.add(make_gang("wide", "a", [8, 8], created=1.0), make_gang("small", "a", [4], created=2.0))

    cluster.cycle()

    assert cluster.running_gangs() == {"runs", "ever", "small"}


def test_aged_gang_is_not_passed_forever() -> None:
    cluster = make_cluster(2, make_quota("a"), make_quota("b"))
    cluster.add(make_gang("wide", "a", [8, 8], band=LOW, created=1.0))
    cluster.now = 900.0
    for index in range(600):
        cluster.add(make_gang(f"small{index}", "b", [4], band=LOW))
        cluster.run_times[f"small{index}"] = 25.0
        cluster.cycle()
        cluster.advance(10)
        if "wide" in cluster.start_times:
            break

    assert "wide" in cluster.start_times
