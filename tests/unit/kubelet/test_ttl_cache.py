"""The cache keeps values for a time, and bounds each owner without touching others."""

from __future__ import annotations

from tests.fakes.clock import FakeClock
from vkgateway.nodes.ttl_cache import TtlCache


def test_value_is_kept_for_its_lifetime() -> None:
    clock = FakeClock()
    cache = TtlCache(clock, most=9)
    cache.put(("alpha", "a"), 1, seconds=10)
    assert cache.get(("alpha", "a")) == 1
    clock.seconds += 10
    assert cache.get(("alpha", "a")) is None


def test_owner_with_many_entries_displaces_only_its_own() -> None:
    cache = TtlCache(FakeClock(), most=3)
    cache.put(("beta", "b"), 1, seconds=10)
    for number in range(1000):
        cache.put(("alpha", str(number)), number, seconds=10)
    assert cache.get(("beta", "b")) == 1
    assert len(cache) == 4
    assert [cache.get(("alpha", str(number))) for number in (996, 997, 999)] == [None, 997, 999]


def test_expired_entries_of_all_owners_are_dropped() -> None:
    clock = FakeClock()
    cache = TtlCache(clock, most=9)
    cache.put(("alpha", "a"), 1, seconds=10)
    cache.put(("alpha", "b"), 1, seconds=30)
    cache.put(("gone", "a"), 1, seconds=10)
    clock.seconds += 20
    cache.put(("beta", "b"), 1, seconds=10)
    assert len(cache) == 2


def test_tenant_is_forgotten() -> None:
    cache = TtlCache(FakeClock(), most=9)
    cache.put(("alpha", "a"), 1, seconds=10)
    cache.put(("beta", "a"), 2, seconds=10)
    cache.forget_tenant("alpha")
    cache.forget(("gamma", "a"))
    assert (cache.get(("alpha", "a")), cache.get(("beta", "a"))) == (None, 2)
