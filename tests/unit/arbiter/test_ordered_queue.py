"""Queue order computed at once equals the order computed step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from tests.unit.arbiter.plain_queue import queue_order
from tests.unit.arbiter.simulated_cluster import KEY, LOW, make_gang
from vkgateway.scheduler.core.capacity.node_fit import FloatArray, IntArray
from vkgateway.scheduler.core.queueing import pending_table as module
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang, read_pending_gang
from vkgateway.scheduler.core.queueing.pending_table import PendingTable
from vkgateway.scheduler.core.queueing.queue_order import QueueOrder
from vkgateway.scheduler.core.snapshot import Band, Policy, PoolKey

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
        self.gangs = sorted(
            (pending for pending in found if isinstance(pending, PendingGang)),
            key=lambda pending_gang: pending_gang.gang.id,
        )
        self._fate = {pending.gang.id: random.choice(("booked", "failed", "failed", "kept")) for pending in self.gangs}
        self._clears = {pending.gang.id for pending in self.gangs if random.random() < 0.1}
        self._part = {pending.gang.id: random.choice((0.0, 0.5, 1.0)) for pending in self.gangs}
        """Return the part of a tenant's share that counts for aged gangs."""
        self._grows = random.choice((0.0, 0.25, 0.01))
        self.shares: dict[tuple[str, PoolKey], float] = {}
        self.looked: list[str] = []
        self.booked = 0

    def share_of(self, pending: PendingGang) -> float:
        share = self.shares.get((pending.tenant, pending.allowed_pools[0]), 0.0)
        return share * self._part[pending.gang.id] if NOW - pending.gang.created >= POLICY.age_cap else share

    def shares_of(self, at: IntArray) -> FloatArray:
        return np.array([self.share_of(self.gangs[index]) for index in at.tolist()])

    def look(self, pending: PendingGang, *, give_up: Callable[[], None], hope_again: Callable[[], None]) -> None:
        self.looked.append(pending.gang.id)
        fate = self._fate[pending.gang.id]
        if fate == "booked":
            self.booked += 1
            for pool in pending.allowed_pools[:1]:
                self.shares[pending.tenant, pool] = self.shares.get((pending.tenant, pool), 0.0) + self._grows
            if pending.gang.id in self._clears:
                hope_again()
        elif fate == "failed":
            give_up()


def stepwise_order(line: RandomQueue) -> list[str]:
    """Return the order that considers each gang in turn."""
    order: list[str] = []
    hopeless: set[object] = set()
    for pending in queue_order(line.gangs, line.share_of, POLICY, NOW):
        order.append(pending.gang.id)
        alike = pending.tenant, pending.equivalence_class, NOW - pending.gang.created >= POLICY.age_cap
        if alike not in hopeless:
            line.look(pending, give_up=lambda alike=alike: hopeless.add(alike), hope_again=hopeless.clear)  # type: ignore[misc]
    return order


def vectorized_order(line: RandomQueue) -> list[str]:
    waiting = PendingTable(line.gangs)
    turn, booked = QueueOrder(waiting, np.arange(len(waiting)), line, POLICY, NOW), line.booked
    while (pending := turn.next_gang(booked=line.booked != booked)) is not None:
        booked = line.booked
        line.look(pending, give_up=turn.skip_class, hope_again=turn.reset_skipped)
    return [waiting.names[index] for index in turn.full_order().tolist()]


@pytest.mark.parametrize("chunk", range(10))
def test_vectorized_order_equals_stepwise_order(chunk: int) -> None:
    for seed in range(chunk * 10, chunk * 10 + 10):
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
        expected = {pending.gang.id: pending for pending in RandomQueue(seed).gangs}
        waiting = PendingTable(expected.values())
        for _ in range(4):
            changed: dict[str, PendingGang | None] = {name: None for name in expected if random.random() < 0.3}
            for name, pending in expected.items():
                if random.random() < 0.3:
                    changed[name] = replace(pending, gang=replace(pending.gang, priority=random.randrange(9)))
            for pending in RandomQueue(random.randrange(1000)).gangs[:5]:
                changed[pending.gang.id] = pending
            changed["never there"] = None
            waiting.apply_changes(changed)
            expected = {name: pending for name, pending in {**expected, **changed}.items() if pending is not None}
            _check_table(waiting, expected)


def test_numbers_of_removed_classes_are_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SPARE", 4)
    waiting = PendingTable()
    for seed in range(60):
        expected = {
            pending.gang.id: replace(pending, equivalence_class=100 * seed + pending.equivalence_class)
            for pending in RandomQueue(seed).gangs
        }
        waiting.apply_changes({**dict.fromkeys(waiting.names), **expected})
        _check_table(waiting, expected)
    assert waiting.alike_count < 500


def _check_table(waiting: PendingTable, expected: dict[str, PendingGang]) -> None:
    gangs = [expected[name] for name in sorted(expected)]
    assert (waiting.pending_gangs, waiting.names) == (gangs, sorted(expected))
    assert waiting.base_priorities.tolist() == [gang.gang.priority for gang in gangs]
    assert waiting.created_times.tolist() == [gang.gang.created for gang in gangs]
    assert waiting.equivalence_classes.tolist() == [gang.equivalence_class for gang in gangs]
    assert waiting.is_low.tolist() == [gang.gang.band is Band.LOW for gang in gangs]
    names = {number: name for name, number in waiting.tenants.items()}
    assert [names[number] for number in waiting.tenant_numbers.tolist()] == [gang.tenant for gang in gangs]
    by_pools = {(number, gang.allowed_pools) for number, gang in zip(waiting.pool_numbers.tolist(), gangs, strict=True)}
    assert len(by_pools) == len({number for number, _ in by_pools}) == len({pools for _, pools in by_pools})
    alike = {
        (number, gang.tenant, gang.equivalence_class)
        for number, gang in zip(waiting.alike_numbers.tolist(), gangs, strict=True)
    }
    assert len(alike) == len({number for number, _, _ in alike}) == len({(name, kind) for _, name, kind in alike})
    assert max(waiting.alike_numbers.tolist(), default=-1) < waiting.alike_count
    left = waiting.mask_without([*sorted(expected)[::2], "never there"])
    assert [waiting.names[index] for index in np.flatnonzero(left).tolist()] == sorted(expected)[1::2]
