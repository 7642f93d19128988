"""Tests of the ledger of usage: each moment of a pod counts once, in its UTC day, also after a change of leader."""

from __future__ import annotations

import msgspec
import pytest

from tests.unit.usage.records import GPU, HOUR, at, used
from vkgateway.tenants.usage.ledger import MAX_ROWS, MonthUsage, UsageLedger

NOON = at("2026-11-26 12:00")


def hours_by_day(ledger: UsageLedger, now: float, **fields: object) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in ledger.daily_usage(now, days=31):
        if all(getattr(each, name) == value for name, value in fields.items()):
            found[each.day] = found.get(each.day, 0.0) + each.hours
    return found


def taken_over(ledger: UsageLedger, now: float) -> UsageLedger:
    """Return the ledger of another leader, which loads what was stored."""
    stored = msgspec.json.decode(msgspec.json.encode(ledger.take_changed(now)), type=list[MonthUsage])
    found = UsageLedger()
    found.load(stored)
    return found


def test_overlapping_records_of_pod_count_once() -> None:
    ledger = UsageLedger()
    for minutes in (10, 20, 60):
        ledger.count([used("p", NOON, NOON + minutes * 60)])
    ledger.count([used("p", NOON, NOON + HOUR / 2)])
    assert hours_by_day(ledger, NOON + HOUR) == {"2026-11-26": pytest.approx(8)}


def test_pod_over_midnight_is_split() -> None:
    ledger = UsageLedger()
    start = at("2026-11-30 22:00")
    ledger.count([used("p", start, start + 3 * HOUR)])
    assert hours_by_day(ledger, start + 3 * HOUR) == {"2026-11-30": pytest.approx(16), "2026-12-01": pytest.approx(8)}
    assert ledger.month_hours("alpha", "2026-11", resource=GPU) == pytest.approx(16)
    assert ledger.month_hours("alpha", "2026-12", resource=GPU, pool="a100") == pytest.approx(8)
    assert ledger.month_hours("alpha", "2026-12", resource=GPU, pool="v100") == 0


def test_promotion_splits() -> None:
    ledger = UsageLedger()
    ledger.count([used("p", NOON, NOON + HOUR, borrowed=True)])
    ledger.count([used("p", NOON, NOON + 3 * HOUR)])
    (found,) = ledger.daily_usage(NOON + 3 * HOUR, days=1)
    assert [found.hours, found.borrowed] == pytest.approx([24, 8])


def test_lost_work_counts_in_its_days() -> None:
    ledger = UsageLedger()
    midnight = at("2026-11-26 00:00")
    ledger.count([used("p", midnight - HOUR, midnight)])
    ledger.count([used("p", midnight - HOUR, midnight + HOUR, lost=1.5 * HOUR)])
    days = ledger.daily_usage(midnight + HOUR, days=2)
    assert [each.hours for each in days] == pytest.approx([8, 8])
    assert [each.lost for each in days] == pytest.approx([4, 8])


def test_recreated_pod_of_same_name_counts_again() -> None:
    ledger = UsageLedger()
    ledger.count([used("p", NOON, NOON + HOUR), used("p", NOON + 2 * HOUR, NOON + 3 * HOUR)])
    assert hours_by_day(ledger, NOON + 3 * HOUR) == {"2026-11-26": pytest.approx(16)}


def test_next_leader_counts_nothing_twice_and_continues() -> None:
    ledger = UsageLedger()
    ledger.count([used("p", NOON, NOON + HOUR), used("gone", NOON, NOON + HOUR / 2)])
    after = taken_over(ledger, NOON + HOUR)
    after.count([used("p", NOON, NOON + 2 * HOUR), used("new", NOON + HOUR, NOON + 2 * HOUR)])
    assert hours_by_day(after, NOON + 2 * HOUR) == {"2026-11-26": pytest.approx(8 + 4 + 8 + 8)}


def test_takeover_between_writes_of_two_months_counts_each_once() -> None:
    ledger = UsageLedger()
    start, end = at("2026-11-30 23:00"), at("2026-12-01 01:00")
    ledger.count([used("p", start, end)])
    november, december = ledger.take_changed(end)
    for stored in ([november], [december], [november, december], []):
        after = UsageLedger()
        after.load(stored)
        after.count([used("p", start, end)])
        assert hours_by_day(after, end) == {"2026-11-30": pytest.approx(8), "2026-12-01": pytest.approx(8)}


def test_what_is_counted_after_the_count_of_running_pods_is_not_counted_again() -> None:
    ledger = UsageLedger()
    ledger.count([used("p", NOON, NOON + HOUR)])
    ledger.count([used("p", NOON, NOON + HOUR + 60, borrowed=True)])  # promoted while the sums are taken
    (stored,) = ledger.take_changed(NOON + HOUR)
    assert stored.through == NOON + HOUR + 60


def test_only_changed_months_are_taken_once() -> None:
    ledger = UsageLedger()
    ledger.count([used("p", NOON, NOON + HOUR)])
    months = ledger.take_changed(NOON + HOUR)
    assert ([each.month for each in months], ledger.take_changed(NOON + HOUR)) == (["2026-11"], [])
    ledger.mark_changed(months)
    assert [each.tenant for each in ledger.take_changed(NOON + HOUR)] == ["alpha"]


def test_rows_of_day_are_bounded() -> None:
    ledger = UsageLedger()
    ledger.count([used(f"p{number}", NOON, NOON + HOUR, pool=f"pool{number}") for number in range(2 * MAX_ROWS)])
    found = ledger.daily_usage(NOON + HOUR, days=1)
    assert len(found) == MAX_ROWS + 1
    assert sum(each.hours for each in found) == pytest.approx(2 * MAX_ROWS * 8)
    (largest,) = [each for each in found if not each.pool]
    assert largest.hours == pytest.approx(MAX_ROWS * 8)


def test_stored_month_fits_an_object() -> None:
    """Names are as long as they can be, on all days of a month."""
    ledger = UsageLedger()
    for day in range(31):
        start = at("2026-12-01 00:00") + day * 86_400
        ledger.count(
            [
                used(f"p{number}", start, start + 0.1 + HOUR / 3, pool=f"{number:031}", computeCluster="c" * 31)
                for number in range(MAX_ROWS + 1)
            ]
        )
    (stored,) = ledger.take_changed(start + 86_400)
    assert len(msgspec.json.encode(stored)) < 1_000_000


def test_old_months_are_forgotten() -> None:
    ledger = UsageLedger()
    ledger.count([used("p", at("2026-08-31 23:00"), at("2026-09-01 01:00"))])
    ledger.forget_before("2026-09")
    assert ledger.month_hours("alpha", "2026-08", resource=GPU) == 0
    assert ledger.month_hours("alpha", "2026-09", resource=GPU) == pytest.approx(8)


def test_one_tenant_sees_only_its_usage() -> None:
    ledger = UsageLedger()
    ledger.count([used("p", NOON, NOON + HOUR), used("p", NOON, NOON + HOUR, tenant="beta")])
    assert [each.tenant for each in ledger.daily_usage(NOON, days=31, tenant="beta")] == ["beta"]
    assert [each.tenant for each in ledger.daily_usage(NOON, days=31)] == ["alpha", "beta"]


def test_tenants_of_one_name_have_sums_of_their_own() -> None:
    ledger = UsageLedger()
    ledger.count([used("p", NOON, NOON + HOUR, tenantUid="first"), used("p", NOON, NOON + HOUR / 2, tenantUid="next")])
    assert ledger.month_hours("alpha", "2026-11", resource=GPU, uid="first") == pytest.approx(8)
    assert ledger.month_hours("alpha", "2026-11", resource=GPU, uid="next") == pytest.approx(4)
    assert [each.tenant_uid for each in ledger.daily_usage(NOON, days=31, tenant="alpha", uid="next")] == ["next"]
    months = ledger.take_changed(NOON + HOUR)
    assert [(each.tenant, each.uid) for each in months] == [("alpha", "first"), ("alpha", "next")]
    after = UsageLedger()
    after.load(months)
    assert after.daily_usage(NOON, days=31) == ledger.daily_usage(NOON, days=31)
