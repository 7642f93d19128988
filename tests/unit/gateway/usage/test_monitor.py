"""Tests of the monitor of usage and budgets."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import pytest

from tests.fakes.clock import EPOCH, FakeClock
from tests.unit.usage.records import GPU, HOUR, MemoryStore, at, used
from vkgateway.api.types import TenantBudget
from vkgateway.tenants.usage.budgets import BudgetState, UsageReport
from vkgateway.tenants.usage.monitor import COUNT_SECONDS, SAVE_SECONDS, UsageMonitor
from vkgateway.tenants.usage.records import UsageRecord

NOON = at("2026-11-26 12:00")
A100 = ("local", "a100")


class Platform:
    """A monitor with a clock, a pod that runs, and a budget."""

    def __init__(self, store: MemoryStore, *, hours: float = 8.0, now: float = NOON) -> None:
        self.clock = FakeClock(now, origin=EPOCH)
        self.store = store
        self.budget = (TenantBudget(resource=GPU, hours=hours),)
        self.pods = {"p": NOON}
        self.changed: list[str] = []
        self.stops = 0
        self.uids: dict[str, str] = {}
        self.monitor = UsageMonitor(
            store,
            clock=self.clock,
            running=self.running,
            budgets_of=lambda tenant: self.budget if tenant == "alpha" else (),
            tenants=lambda: ["alpha", "beta"],
            uid_of=lambda tenant: self.uids.get(tenant, ""),
            on_change=self.changed.append,
            on_stop=self.stop,
        )

    def running(self, now: float) -> list[UsageRecord]:
        uid = self.uids.get("alpha", "")
        return [used(pod, start, now, tenantUid=uid) for pod, start in self.pods.items()]

    def stop(self) -> None:
        self.stops += 1

    def used_hours(self) -> float:
        return sum(each.hours for each in self.monitor.report().days)

    async def run_for(self, seconds: float) -> None:
        """Run the monitor until at least these seconds have passed."""
        end = self.clock.seconds + seconds
        running = asyncio.create_task(self.monitor.run())
        while self.clock.seconds < end:  # noqa: ASYNC110 - the clock has no event
            await asyncio.sleep(0.001)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    async def pass_time(self, seconds: float) -> None:
        self.clock.seconds += seconds
        now = await asyncio.to_thread(self.monitor.count_running)
        self.monitor.update_budgets(now)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


async def test_used_up_budget_stops_borrowing_and_higher_one_lifts_that(store: MemoryStore) -> None:
    there = Platform(store, hours=8)
    await there.monitor.load()
    assert there.monitor.stopped_borrowing("alpha", A100) == {}
    await there.pass_time(HOUR * 0.9)
    assert (there.changed, there.monitor.stopped_borrowing("alpha", A100)) == (["alpha"], {})
    await there.pass_time(HOUR * 0.1)
    assert (there.changed, there.stops) == (["alpha"] * 2, 2)
    assert there.monitor.stopped_borrowing("alpha", A100) == {GPU: 8}
    assert there.monitor.stopped_borrowing("beta", A100) == {}
    there.budget = (TenantBudget(resource=GPU, hours=100),)
    verdict = there.monitor.verdict_for("alpha", None)
    assert verdict is not None
    assert (verdict.reason, there.stops) == ("WithinBudget", 3)
    assert there.monitor.stopped_borrowing("alpha", A100) == {}


async def test_next_month_lifts_stop(store: MemoryStore) -> None:
    there = Platform(store, hours=8)
    await there.monitor.load()
    await there.pass_time(HOUR)
    del there.pods["p"]
    there.clock.seconds = at("2026-12-01 00:00")
    there.monitor.update_budgets(there.clock.time())
    assert there.monitor.stopped_borrowing("alpha", A100) == {}
    assert there.stops == 1


async def test_next_leader_knows_sums_and_stop_before_it_counts(store: MemoryStore) -> None:
    there = Platform(store)
    await there.monitor.load()
    await there.pass_time(HOUR)
    await there.monitor.save()
    after = Platform(store, now=NOON + HOUR + 30)
    assert after.monitor.stopped_borrowing("alpha", A100) == {}
    await after.monitor.load()
    assert after.monitor.stopped_borrowing("alpha", A100) == {GPU: 8}
    await after.pass_time(HOUR)
    assert after.used_hours() == pytest.approx(8 * (2 + 30 / HOUR))


async def test_records_before_load_are_counted_after_it(store: MemoryStore) -> None:
    there = Platform(store)
    there.monitor.count([used("ended", NOON - HOUR, NOON)])
    assert there.used_hours() == 0
    await there.monitor.load()
    assert there.used_hours() == pytest.approx(8)


async def test_failed_load_keeps_condition_and_is_repeated(store: MemoryStore) -> None:
    there = Platform(store)
    store.is_down = True
    await there.monitor.load()
    previous = there.monitor.verdict_for("alpha", None)
    assert previous is None
    store.is_down = False
    await there.run_for(COUNT_SECONDS)
    assert there.monitor.verdict_for("alpha", None) is not None


async def test_failed_write_is_repeated(store: MemoryStore) -> None:
    there = Platform(store)
    await there.monitor.load()
    await there.pass_time(60)
    store.is_down = True
    with pytest.raises(Exception, match="down"):
        await there.monitor.save()
    store.is_down = False
    await there.monitor.save()
    assert store.saves == 1
    await there.monitor.save()
    assert store.saves == 1, "nothing changed"


async def test_months_are_deleted_when_they_are_old(store: MemoryStore) -> None:
    there = Platform(store, now=at("2026-08-31 23:59"))
    there.pods = {"p": at("2026-08-31 20:00")}
    await there.monitor.load()
    await there.monitor.save()
    assert set(store.months) == {("alpha", "", "2026-08")}
    after = Platform(store, now=at("2026-11-01 00:10"))
    after.pods = {}
    await after.monitor.load()
    await after.monitor.save()
    assert not store.months


def test_report_is_bounded_and_encodes() -> None:
    there = Platform(MemoryStore())
    for days in (-1, 0, 31, 9999):
        assert msgspec.json.decode(there.monitor.encode_report("", days), type=UsageReport).days == []
    (budget,) = msgspec.json.decode(there.monitor.encode_report("alpha", 1), type=UsageReport).budgets
    assert (budget.state, budget.used, budget.budget) == (BudgetState.OK, 0, 8)
    assert msgspec.json.decode(there.monitor.encode_report("beta", 1), type=UsageReport).budgets == []


async def test_sums_are_written_once_in_a_minute(store: MemoryStore) -> None:
    there = Platform(store, hours=1e6)
    await there.monitor.load()
    begun = there.clock.seconds
    await there.run_for(10 * SAVE_SECONDS)
    assert 8 <= store.saves <= (there.clock.seconds - begun) / SAVE_SECONDS


async def test_tenant_with_the_name_of_a_deleted_one_starts_at_zero(store: MemoryStore) -> None:
    there = Platform(store, hours=8)
    there.uids["alpha"] = "first"
    await there.monitor.load()
    await there.pass_time(HOUR)
    assert there.monitor.stopped_borrowing("alpha", A100) == {GPU: 8}

    there.uids["alpha"] = "second"
    there.pods = {"p": NOON + HOUR}
    assert there.monitor.stopped_borrowing("alpha", A100) == {}
    await there.pass_time(HOUR / 2)
    await there.monitor.save()
    assert [(each.tenant_uid, each.hours) for each in there.monitor.report(tenant="alpha").days] == [("second", 4)]
    assert [use.used for use in there.monitor.report(tenant="alpha").budgets] == [4]
    assert {each.tenant_uid for each in there.monitor.report().days} == {"first", "second"}
    assert set(store.months) == {("alpha", "first", "2026-11"), ("alpha", "second", "2026-11")}

    after = Platform(store, hours=8, now=NOON + 2 * HOUR)
    after.uids = there.uids
    await after.monitor.load()
    assert [use.used for use in after.monitor.report(tenant="alpha").budgets] == [4]


async def test_sums_without_uid_are_those_of_the_tenant_of_the_name(store: MemoryStore) -> None:
    there = Platform(store, hours=8)
    await there.monitor.load()
    await there.pass_time(HOUR)
    await there.monitor.save()
    for _ in range(2):
        after = Platform(store, hours=8, now=NOON + HOUR)
        after.uids = {"alpha": "first"}
        after.pods = {}
        await after.monitor.load()
        assert after.monitor.stopped_borrowing("alpha", A100) == {GPU: 8}
        assert [each.hours for each in after.monitor.report(tenant="alpha").days] == [8]
        await after.monitor.save()
    assert set(store.months) == {("alpha", "", "2026-11"), ("alpha", "first", "2026-11")}
