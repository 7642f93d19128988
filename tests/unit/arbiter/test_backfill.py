"""Reservations of the first waiting gang, and backfill by other gangs."""

from __future__ import annotations

from tests.unit.arbiter.simulated_cluster import (
    LOW,
    make_cluster,
    make_gang,
    make_quota,
    reports_by_gang,
)
from vkgateway.arbiter.decisions import PendingReason


def test_gang_backfills_only_if_it_ends_in_time() -> None:
    there = make_cluster(2, make_quota("a"), make_quota("b"))
    there.add(make_gang("runs", "a", [8], run_limit=100.0))
    there.cycle()
    there.add(
        make_gang("wide", "a", [8, 8], created=1.0),
        make_gang("long", "a", [8], created=2.0, run_limit=500.0),
    )

    holds = reports_by_gang(there.cycle())

    assert there.running_gangs() == {"runs"}
    assert holds["long"].code is PendingReason.RESERVATION
    assert holds["long"].message == "capacity is free, but reserved for wide, which is ahead and starts in about 2 min"
    assert holds["long"].behind == "wide"
    assert holds["wide"].earliest == there.now + 100
    assert holds["wide"].place == 1
    there.add(make_gang("short", "a", [8], created=3.0, run_limit=50.0))
    there.cycle()
    assert there.running_gangs() == {"runs", "short"}


def test_low_gang_backfills_until_reserved_start() -> None:
    there = make_cluster(2, make_quota("a"), make_quota("b"))
    there.add(make_gang("runs", "a", [8], run_limit=100.0))
    there.run_times["runs"] = 100.0
    there.cycle()
    came = there.now
    there.add(make_gang("wide", "a", [8, 8], created=1.0), make_gang("low", "a", [8], band=LOW))

    [admit] = there.cycle().admits

    assert (admit.gang, admit.behind) == ("low", "wide")
    # When it starts is known as before: whoever runs in its place goes for it.
    hold = reports_by_gang(there.cycle())["wide"]
    assert (hold.earliest, hold.likely) == (came + 100, came + 100)
    there.run_for(90)
    assert there.running_gangs() == {"runs", "low"}
    there.run_for(30)
    assert there.start_times["wide"] == came + 115
    assert there.running_gangs() == {"wide"}


def test_backfill_is_not_evicted_for_other_borrowing_gang() -> None:
    there = make_cluster(2, make_quota("a"), make_quota("b"))
    there.add(make_gang("runs", "a", [8], run_limit=100.0))
    there.cycle()
    there.add(make_gang("wide", "a", [8, 8], created=1.0), make_gang("low", "a", [8], band=LOW))
    there.cycle()
    del there.gangs["wide"]
    there.add(make_gang("other", "a", [8]))

    assert not there.cycle().evicts
    assert there.running_gangs() == {"runs", "low"}


def test_gang_with_long_minimum_run_does_not_backfill() -> None:
    there = make_cluster(2, make_quota("a"), make_quota("b"))
    there.add(make_gang("runs", "a", [8], run_limit=100.0))
    there.cycle()
    there.add(make_gang("wide", "a", [8, 8], created=1.0), make_gang("low", "a", [8], band=LOW, minimum_run=200.0))

    assert reports_by_gang(there.cycle())["low"].code is PendingReason.RESERVATION


def test_surplus_backfills_and_shrinks_in_time() -> None:
    there = make_cluster(2, make_quota("a"), make_quota("b"))
    there.add(
        make_gang("runs", "a", [8], run_limit=100.0),
        make_gang("elastic", "b", [4, 4], elastic=True, minimum=1, band=LOW),
    )
    there.run_times["runs"] = 100.0
    there.cycle()
    there.add(make_gang("wide", "a", [8, 4], created=1.0))

    there.run_for(50)

    assert len(there.placed_nodes("elastic")) == 2
    there.run_for(70)
    assert there.running_gangs() == {"wide", "elastic"}
    assert len(there.placed_nodes("elastic")) == 1


def test_gang_outside_reservation_starts() -> None:
    there = make_cluster(3, make_quota("a"))
    there.add(make_gang("runs", "a", [8], run_limit=100.0), make_gang("ever", "a", [4]))
    there.cycle()
    there.add(make_gang("wide", "a", [8, 8], created=1.0), make_gang("small", "a", [4], created=2.0))

    there.cycle()

    assert there.running_gangs() == {"runs", "ever", "small"}


def test_aged_gang_is_not_passed_forever() -> None:
    there = make_cluster(2, make_quota("a"), make_quota("b"))
    there.add(make_gang("wide", "a", [8, 8], band=LOW, created=1.0))
    there.now = 900.0
    for index in range(600):
        there.add(make_gang(f"small{index}", "b", [4], band=LOW))
        there.run_times[f"small{index}"] = 25.0
        there.cycle()
        there.advance(10)
        if "wide" in there.start_times:
            break

    assert "wide" in there.start_times
