"""Queue order computed at once equals the order computed step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from tests.unit.arbiter.plain_queue import queue_order
from tests.unit.arbiter.simulated_cluster import KEY, LOW, make_gang
from vkgateway.arbiter.capacity.node_fit import FloatArray, IntArray
from vkgateway.arbiter.queueing import pending_table as module
from vkgateway.arbiter.queueing.pending_gangs import PendingGang, read_pending_gang
from vkgateway.arbiter.queueing.pending_table import PendingTable
from vkgateway.arbiter.queueing.queue_order import QueueOrder
from vkgateway.arbiter.snapshot import Band, Policy, PoolKey

POLICY = Policy(age_cap=600.0, age_weight=1 / 60)
NOW = 10_000.0
OTHER: PoolKey = ("compute", "other")


class RandomQueue:
    """Random gangs, and the outcome of each when it is considered."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        both: list[tuple[PoolKey, ...]] = [(KEY,), (OTHER,), (OTHER, KEY)]
        self.pools = random.choice((both[:1], both))
        kinds: dict[object, int] = {}
        found = [
            read_pending_gang(
                make_gang(
                    f"g{random.randrange(10**6)}-{number}",
                    random.choice("abcd"),
                    [random.choice((1, 2, 4))],
                    band=random.choice((LOW, Band.GUARANTEED)),
                    priority=random.choice((0, 0, 1)),
                    created=float(random.choice((10, 20, 9_000, 9_500, 9_990)) + random.randrange(3)),
                    pools=random.choice(self.pools),
                ),
                lambda what: kinds.setdefault(what, len(kinds)),
            )
            for number in range(random.randrange(1, 120))
        ]
        self.asks = sorted((ask for ask in found if isinstance(ask, PendingGang)), key=lambda ask: ask.gang.id)
        self._fate = {ask.gang.id: random.choice(("booked", "failed", "failed", "kept")) for ask in self.asks}
        self._clears = {ask.gang.id for ask in self.asks if random.random() < 0.1}
        self._part = {ask.gang.id: random.choice((0.0, 0.5, 1.0)) for ask in self.asks}
        """Return the part of a tenant's share that counts for aged gangs."""
        self._grows = random.choice((0.0, 0.25, 0.01))
        self.shares: dict[tuple[str, PoolKey], float] = {}
        self.looked: list[str] = []
        self.booked = 0

    def share_of(self, ask: PendingGang) -> float:
        share = self.shares.get((ask.tenant, ask.allowed_pools[0]), 0.0)
        return share * self._part[ask.gang.id] if NOW - ask.gang.created >= POLICY.age_cap else share

    def shares_of(self, at: IntArray) -> FloatArray:
        return np.array([self.share_of(self.asks[index]) for index in at.tolist()])

    def look(self, ask: PendingGang, *, give_up: Callable[[], None], hope_again: Callable[[], None]) -> None:
        self.looked.append(ask.gang.id)
        fate = self._fate[ask.gang.id]
        if fate == "booked":
            self.booked += 1
            for pool in ask.allowed_pools[:1]:
                self.shares[ask.tenant, pool] = self.shares.get((ask.tenant, pool), 0.0) + self._grows
            if ask.gang.id in self._clears:
                hope_again()
        elif fate == "failed":
            give_up()


def stepwise_order(line: RandomQueue) -> list[str]:
    """Return the order that considers each gang in turn."""
    order: list[str] = []
    hopeless: set[object] = set()
    for ask in queue_order(line.asks, line.share_of, POLICY, NOW):
        order.append(ask.gang.id)
        alike = ask.tenant, ask.equivalence_class, NOW - ask.gang.created >= POLICY.age_cap
        if alike not in hopeless:
            line.look(ask, give_up=lambda alike=alike: hopeless.add(alike), hope_again=hopeless.clear)  # type: ignore[misc]
    return order


def vectorized_order(line: RandomQueue) -> list[str]:
    waiting = PendingTable(line.asks)
    turn, booked = QueueOrder(waiting, np.arange(len(waiting)), line, POLICY, NOW), line.booked
    while (ask := turn.next_gang(booked=line.booked != booked)) is not None:
        booked = line.booked
        line.look(ask, give_up=turn.skip_class, hope_again=turn.reset_skipped)
    return [waiting.names[index] for index in turn.full_order().tolist()]


@pytest.mark.parametrize("chunk", range(10))
def test_vectorized_order_equals_stepwise_order(chunk: int) -> None:
    for seed in range(chunk * 30, chunk * 30 + 30):
        first, second = RandomQueue(seed), RandomQueue(seed)
        assert vectorized_order(first) == stepwise_order(second), f"seed {seed}"
        assert first.looked == second.looked, f"seed {seed}"
        assert first.shares == second.shares, f"seed {seed}"


def test_empty_queue() -> None:
    turn = QueueOrder(PendingTable(), np.arange(0), RandomQueue(0), POLICY, NOW)
    assert turn.next_gang(booked=False) is None
    assert turn.full_order().tolist() == []


def test_pending_gangs_are_sorted_by_name() -> None:
    random = Random(1)
    for seed in range(50):
        expected = {ask.gang.id: ask for ask in RandomQueue(seed).asks}
        waiting = PendingTable(expected.values())
        for _ in range(4):
            changed: dict[str, PendingGang | None] = {name: None for name in expected if random.random() < 0.3}
            for name, ask in expected.items():
                if random.random() < 0.3:
                    changed[name] = replace(ask, gang=replace(ask.gang, priority=random.randrange(9)))
            for ask in RandomQueue(random.randrange(1000)).asks[:5]:
                changed[ask.gang.id] = ask
            changed["never there"] = None
            waiting.apply_changes(changed)
            expected = {name: ask for name, ask in {**expected, **changed}.items() if ask is not None}
            _check_table(waiting, expected)


def test_numbers_of_removed_classes_are_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SPARE", 4)
    waiting = PendingTable()
    for seed in range(60):
        expected = {
            ask.gang.id: replace(ask, equivalence_class=100 * seed + ask.equivalence_class)
            for ask in RandomQueue(seed).asks
        }
        waiting.apply_changes({**dict.fromkeys(waiting.names), **expected})
        _check_table(waiting, expected)
    assert waiting.alike_count < 500


def _check_table(waiting: PendingTable, expected: dict[str, PendingGang]) -> None:
    asks = [expected[name] for name in sorted(expected)]
    assert (waiting.pending_gangs, waiting.names) == (asks, sorted(expected))
    assert waiting.base_priorities.tolist() == [ask.gang.priority for ask in asks]
    assert waiting.created_times.tolist() == [ask.gang.created for ask in asks]
    assert waiting.equivalence_classes.tolist() == [ask.equivalence_class for ask in asks]
    assert waiting.is_low.tolist() == [ask.gang.band is Band.LOW for ask in asks]
    names = {number: name for name, number in waiting.tenants.items()}
    assert [names[number] for number in waiting.tenant_numbers.tolist()] == [ask.tenant for ask in asks]
    by_pools = {(number, ask.allowed_pools) for number, ask in zip(waiting.pool_numbers.tolist(), asks, strict=True)}
    assert len(by_pools) == len({number for number, _ in by_pools}) == len({pools for _, pools in by_pools})
    alike = {
        (number, ask.tenant, ask.equivalence_class)
        for number, ask in zip(waiting.alike_numbers.tolist(), asks, strict=True)
    }
    assert len(alike) == len({number for number, _, _ in alike}) == len({(name, kind) for _, name, kind in alike})
    assert max(waiting.alike_numbers.tolist(), default=-1) < waiting.alike_count
    left = waiting.mask_without([*sorted(expected)[::2], "never there"])
    assert [waiting.names[index] for index in np.flatnonzero(left).tolist()] == sorted(expected)[1::2]
