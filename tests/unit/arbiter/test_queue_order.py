"""Queue order of gangs."""

from __future__ import annotations

from collections.abc import Iterator

from tests.unit.arbiter.plain_queue import queue_order
from tests.unit.arbiter.simulated_cluster import LOW, make_gang
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang, read_pending_gang
from vkgateway.scheduler.core.snapshot import Gang, Policy

POLICY = Policy(age_cap=600.0, age_weight=1 / 60)
NOW = 10_000.0


def pending_gangs_of(*gangs: Gang) -> list[PendingGang]:
    found = [read_pending_gang(each) for each in gangs]
    return [gang for gang in found if isinstance(gang, PendingGang)]


def ordered_ids(*gangs: Gang) -> list[str]:
    return [pending.gang.id for pending in queue_order(pending_gangs_of(*gangs), lambda _: 0.0, POLICY, NOW)]


def test_band_precedes_priority() -> None:
    assert ordered_ids(make_gang("low", "a", [1], band=LOW, priority=9), make_gang("high", "a", [1])) == ["high", "low"]


def test_age_adds_priority_up_to_cap() -> None:
    waits = make_gang("waits", "a", [1], priority=0, created=NOW - 600)
    assert ordered_ids(make_gang("new", "a", [1], priority=9, created=NOW), waits) == ["waits", "new"]
    assert ordered_ids(make_gang("new", "a", [1], priority=11, created=NOW), waits) == ["new", "waits"]
    waits_for_ever = make_gang("waits", "a", [1], priority=0, created=0.0)
    assert ordered_ids(make_gang("new", "a", [1], priority=11, created=NOW), waits_for_ever) == ["new", "waits"]


def test_negative_age_counts_as_zero() -> None:
    assert ordered_ids(make_gang("b", "a", [1], created=NOW + 999), make_gang("c", "a", [1], created=NOW)) == ["c", "b"]


def test_tenant_with_new_usage_moves_back() -> None:
    shares = {"a": 0.0, "b": 0.5}

    def turns() -> Iterator[str]:
        every = pending_gangs_of(
            *(make_gang(f"{tenant}{index}", tenant, [1], created=1.0) for tenant in "ab" for index in range(3))
        )
        for pending_gang in queue_order(every, lambda pending: shares[pending.tenant], POLICY, NOW):
            yield pending_gang.gang.id
            shares[pending_gang.tenant] += 0.3

    assert list(turns()) == ["a0", "a1", "b0", "a2", "b1", "b2"]
