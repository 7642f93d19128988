"""Properties of the ledger of usage, for random pods, counts and changes of leader."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.usage.records import at, used
from vkgateway.tenants.usage.ledger import MonthUsage, UsageLedger
from vkgateway.tenants.usage.log import GroupKey, sum_usage
from vkgateway.tenants.usage.records import UsageRecord

START = at("2026-11-29 00:00")
_SECONDS = st.integers(min_value=0, max_value=4 * 86_400)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[float, float, float]]:
    """Return the start, the promotion and the end of each pod, in seconds after `START`."""
    found = []
    for _ in range(draw(st.integers(1, 5))):
        start, promotion, end = sorted(draw(st.tuples(_SECONDS, _SECONDS, _SECONDS)))
        found.append((float(start), float(promotion), float(end)))
    return found


def records_until(pods: list[tuple[float, float, float]], since: float, now: float) -> list[UsageRecord]:
    """Return the records of a gateway between two times: promotions, ends, and interim records of running pods."""
    found = []
    for number, (start, promotion, end) in enumerate(pods):
        name, begin = f"p{number}", START + start
        if since < promotion <= now and promotion > start:
            found.append(used(name, begin, START + promotion, borrowed=True))
        if since < end <= now:
            found.append(used(name, begin, START + end, borrowed=end <= promotion))
        elif start < now < end:
            found.append(used(name, begin, START + now, borrowed=now <= promotion))
    return found


@given(histories(), st.lists(_SECONDS, max_size=12))
def test_sums_equal_those_of_the_log(pods: list[tuple[float, float, float]], counts: list[int]) -> None:
    ledger, log, last = UsageLedger(), list[UsageRecord](), -1.0
    for now in [*sorted(map(float, counts)), 5 * 86_400.0]:
        records = records_until(pods, last, now)
        ledger.count(records)
        log += records
        last = now
    by: list[GroupKey] = ["day", "tenant", "pool", "computeCluster", "band", "resource"]
    expected = sum_usage(log, since=0, until=START + 10 * 86_400, by=by)
    found = ledger.daily_usage(START + 5 * 86_400, days=31)
    assert [each.day for each in found] == [total.by["day"] for total in expected]
    for each, total in zip(found, expected, strict=True):
        assert [each.hours, each.borrowed] == pytest.approx([total.hours, total.borrowed_hours])


@given(histories(), st.lists(_SECONDS, min_size=1, max_size=12), st.sets(st.integers(0, 11)))
def test_changes_of_leader_count_nothing_twice(
    pods: list[tuple[float, float, float]], counts: list[int], takeovers: set[int]
) -> None:
    """Each leader stores the sums when it counts. Another one knows nothing but these."""
    ledger, stored, last = UsageLedger(), dict[str, bytes](), -1.0
    for number, now in enumerate([*sorted(map(float, counts)), 5 * 86_400.0]):
        ledger.count(records_until(pods, last, now))
        for month in ledger.take_changed(START + now):
            stored[month.month] = msgspec.json.encode(month)
        if number in takeovers:
            ledger = UsageLedger()
            ledger.load(msgspec.json.decode(text, type=MonthUsage) for text in stored.values())
        last = now
    found = sum(each.hours for each in ledger.daily_usage(START + 5 * 86_400, days=31))
    assert found == pytest.approx(sum(end - start for start, _, end in pods) * 8 / 3600)
