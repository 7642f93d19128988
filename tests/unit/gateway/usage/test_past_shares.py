"""Past shares in the stored usage: they survive the gateway, and belong to the UID of a Tenant."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fakes.clock import EPOCH, FakeClock
from tests.unit.arbiter.borrowed_pool import placed_pod
from tests.unit.arbiter.simulated_cluster import make_gang, make_node
from tests.unit.usage.records import GPU, HOUR, MemoryStore, at, used
from vkgateway.scheduler.core.snapshot import Gang, Pool, Quota, Snapshot
from vkgateway.tenants.usage.monitor import UsageMonitor
from vkgateway.tenants.usage.past_shares import PastShareKeeper

NOON = at("2026-11-26 12:00")
POOL = ("local", "a100")
DAY = 24 * HOUR


class Gateway:
    """Gateway that follows past shares, with the store of an earlier one."""

    def __init__(self, store: MemoryStore, *, half_life: float = HOUR, uid: str = "1", now: float = NOON) -> None:
        self.clock = FakeClock(now, origin=EPOCH)
        self.uid = uid
        self.shares = PastShareKeeper(half_life, uid_of=lambda tenant: self.uid if tenant == "alpha" else "")
        self.monitor = UsageMonitor(store, clock=self.clock, past_shares=self.shares)

    def average(self, now: float, *gangs: Gang) -> float:
        """Return the past share of alpha at a cycle."""
        pool = Pool(key=POOL, nodes=(make_node("n0"), make_node("n1")), governed=(GPU,))
        self.shares.observe(Snapshot(pools=(pool,), quotas=(Quota(tenant="alpha", pool=POOL),), gangs=gangs), now)
        found = self.shares.shares
        return found[0].average_at(now, HOUR) if found else 0.0


def running() -> Gang:
    """Return a gang on one of two nodes."""
    gang = make_gang("alpha/g", "alpha", [8])
    return replace(gang, pods=(replace(placed_pod("p", "n0", 8), pool=POOL),))


async def stored_after_an_hour(*, half_life: float = HOUR) -> MemoryStore:
    """Return the store of a gateway that stopped after alpha borrowed half of the pool for an hour."""
    store = MemoryStore()
    gateway = Gateway(store, half_life=half_life)
    await gateway.monitor.load()
    gateway.average(NOON, running())
    gateway.monitor.count([used("p", NOON, NOON + HOUR, borrowed=True, tenantUid="1")])
    gateway.average(NOON + HOUR)
    gateway.clock.seconds += HOUR
    await gateway.monitor.save()
    return store


async def test_past_survives_a_restart() -> None:
    gateway = Gateway(await stored_after_an_hour())
    await gateway.monitor.load()
    assert gateway.average(NOON + HOUR) == pytest.approx(0.25)
    assert gateway.average(NOON + 2 * HOUR) == pytest.approx(0.125)


async def test_past_may_be_loaded_after_the_first_cycle() -> None:
    gateway = Gateway(await stored_after_an_hour())
    assert gateway.average(NOON + HOUR) == 0
    await gateway.monitor.load()
    assert gateway.average(NOON + 2 * HOUR) == pytest.approx(0.125)


async def test_new_tenant_of_the_name_starts_at_nothing() -> None:
    gateway = Gateway(await stored_after_an_hour(), uid="2")
    await gateway.monitor.load()
    assert gateway.average(NOON + HOUR) == 0


async def test_name_passes_to_another_tenant_while_the_gateway_runs() -> None:
    gateway = Gateway(MemoryStore())
    await gateway.monitor.load()
    gateway.average(NOON, running())
    assert gateway.average(NOON + HOUR) > 0
    gateway.uid = "2"
    assert gateway.average(NOON + HOUR) == 0


@pytest.mark.parametrize("before", [0.0, 2 * HOUR])
async def test_without_stored_shares_days_of_usage_count(before: float) -> None:
    """The half-life was set or changed: 8 of 13 times 16 GPU-hours of this day were borrowed."""
    gateway = Gateway(await stored_after_an_hour(half_life=before), now=NOON + HOUR)
    await gateway.monitor.load()
    of_today = 8 / (13 * 16)
    assert gateway.average(NOON + HOUR) == pytest.approx(of_today * (1 - 2**-13))


async def test_unchanged_shares_are_stored_once_in_each_month() -> None:
    store = await stored_after_an_hour()
    gateway = Gateway(store)
    await gateway.monitor.load()
    gateway.average(NOON + HOUR)
    store.months.clear()
    await gateway.monitor.save()
    assert not store.months
    gateway.clock.seconds += 6 * DAY
    await gateway.monitor.save()
    assert [month for _, _, month in store.months] == ["2026-12"]
    again = Gateway(store, now=gateway.clock.time())
    await again.monitor.load()
    assert again.average(NOON + 2 * HOUR) == pytest.approx(0.125)


async def test_without_half_life_nothing_is_stored() -> None:
    store = await stored_after_an_hour(half_life=0.0)
    (month,) = await store.load()
    assert month.shares is None
