"""The work queue: fairness, one worker per key, no lost keys, back-off."""

from __future__ import annotations

import asyncio
import functools
import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.machine import patience
from vkgateway.kube.backoff import Backoff
from vkgateway.kube.errors import Forbidden, TooManyRequests
from vkgateway.runtime.workqueue import FairQueue, run_workers


@dataclass(order=True)
class _Call:
    due: float
    number: int
    callback: Callable[[], object] = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.cancelled = True


class FakeTimers:
    """Timers of a `TimerService` whose time passes only in `advance`."""

    def __init__(self) -> None:
        self.now = 0.0
        self._calls: list[_Call] = []
        self._number = 0

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> _Call:
        self._number += 1
        call = _Call(self.now + delay, self._number, functools.partial(callback, *args))
        heapq.heappush(self._calls, call)
        return call

    def advance(self, seconds: float) -> None:
        until = self.now + seconds
        while self._calls and self._calls[0].due <= until:
            call = heapq.heappop(self._calls)
            self.now = call.due
            if not call.cancelled:
                call.callback()
        self.now = until

    @property
    def pending(self) -> int:
        return sum(not call.cancelled for call in self._calls)


def make(clock: FakeTimers | None = None, **options: object) -> FairQueue[str]:
    clock = clock or FakeTimers()
    return FairQueue(timers=clock, random=lambda: 1.0, **options)  # type: ignore[arg-type]


async def take(queue: FairQueue[str], count: int, *, finish: bool = True) -> list[str]:
    taken = []
    for _ in range(count):
        async with asyncio.timeout(patience(30)):
            tenant, key = await queue.get()
        taken.append(f"{tenant}/{key}")
        if finish:
            queue.done(tenant, key)
    return taken


async def empty(queue: FairQueue[str]) -> bool:
    getter = asyncio.ensure_future(queue.get())
    for _ in range(3):
        await asyncio.sleep(0)
    if getter.done():
        return False
    getter.cancel()
    await asyncio.gather(getter, return_exceptions=True)
    return True


async def test_many_keys_of_one_tenant_delay_another_by_one_key() -> None:
    queue = make()
    for number in range(10_000):
        queue.add("big", str(number))
    await take(queue, 5)
    queue.add("small", "a")
    assert "small/a" in await take(queue, 2)
    assert len(queue) == 10_000 + 1 - 7


async def test_rounds_follow_weights_and_keep_order_within_tenant() -> None:
    queue = make(weights={"b": 2})
    for tenant in "ab":
        for number in range(3):
            queue.add(tenant, str(number))
    assert await take(queue, 6) == ["a/0", "b/0", "b/1", "a/1", "b/2", "a/2"]


async def test_adding_waiting_key_has_no_effect() -> None:
    queue = make()
    for _ in range(3):
        queue.add("a", "x")
    assert await take(queue, 1) == ["a/x"]
    assert await empty(queue)


async def test_key_in_progress_is_processed_again_after_add() -> None:
    queue = make()
    queue.add("a", "x")
    await take(queue, 1, finish=False)
    queue.add("a", "x")
    queue.add("a", "x")
    assert await empty(queue)
    queue.done("a", "x")
    assert await take(queue, 1) == ["a/x"]
    assert await empty(queue)


async def test_tenant_occupies_only_its_share_of_workers() -> None:
    queue = make(per_tenant=2)
    for number in range(5):
        queue.add("stuck", str(number))
    assert await take(queue, 2, finish=False) == ["stuck/0", "stuck/1"]
    assert await empty(queue)
    queue.add("other", "x")
    assert await take(queue, 1) == ["other/x"]
    queue.done("stuck", "0")
    assert await take(queue, 1, finish=False) == ["stuck/2"]


async def test_delayed_key_becomes_ready_in_time() -> None:
    clock = FakeTimers()
    queue = make(clock)
    queue.add("a", "x", delay=10)
    queue.add("a", "x", delay=20)
    clock.advance(9)
    assert await empty(queue)
    queue.add("a", "x", delay=0.5)
    clock.advance(0.5)
    assert await take(queue, 1) == ["a/x"]
    clock.advance(100)
    assert await empty(queue)
    assert clock.pending == 0


async def test_immediate_add_replaces_delayed_add() -> None:
    clock = FakeTimers()
    queue = make(clock)
    queue.add("a", "x", delay=10)
    queue.add("a", "x")
    assert await take(queue, 1) == ["a/x"]
    clock.advance(10)
    assert await empty(queue)


async def test_consecutive_failures_back_off_until_success() -> None:
    clock = FakeTimers()
    queue = make(clock, backoff=Backoff(base=1, cap=8, random=lambda: 1.0))
    queue.add("a", "x")
    delays = []
    for _ in range(6):
        await take(queue, 1, finish=False)
        delays.append(queue.add_rate_limited("a", "x"))
        queue.done("a", "x")
        clock.advance(delays[-1])
    assert delays == [1, 2, 4, 8, 8, 8]
    assert queue.num_requeues("a", "x") == 6
    await take(queue, 1, finish=False)
    assert queue.add_rate_limited("a", "x", at_least=30) == 30
    queue.forget("a", "x")
    assert queue.num_requeues("a", "x") == 0


async def test_dropped_tenant_leaves_no_state() -> None:
    clock = FakeTimers()
    queue = make(clock)
    for key in "xyz":
        queue.add("a", key)
    queue.add("b", "k")
    queue.add("a", "later", delay=5)
    await take(queue, 1, finish=False)
    queue.add("a", "x")
    queue.drop_tenant("a")
    queue.done("a", "x")
    clock.advance(5)
    assert await take(queue, 1) == ["b/k"]
    assert await empty(queue)
    assert queue._tenants == {}


async def test_cancelled_worker_passes_wake_up_on() -> None:
    queue = make()
    first, second = asyncio.ensure_future(queue.get()), asyncio.ensure_future(queue.get())
    await asyncio.sleep(0)
    queue.add("a", "x")
    first.cancel()
    async with asyncio.timeout(patience(30)):
        assert await second == ("a", "x")
    await asyncio.gather(first, return_exceptions=True)


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.sampled_from(["add", "later", "take", "done"]))
    )
)
def test_every_key_is_processed_and_never_concurrently(steps: list[tuple[str, str, str]]) -> None:
    async def play() -> None:
        clock = FakeTimers()
        queue = make(clock, per_tenant=2)
        working: set[tuple[str, str]] = set()
        wanted: set[tuple[str, str]] = set()
        for tenant, key, step in steps:
            if step == "add":
                queue.add(tenant, key)
                wanted.add((tenant, key))
            elif step == "later":
                queue.add(tenant, key, delay=3)
                wanted.add((tenant, key))
            elif step == "take" and queue._round:
                got = await queue.get()
                assert got not in working
                working.add(got)
                wanted.discard(got)
                assert sum(other == got[0] for other, _ in working) <= 2
            elif step == "done" and (tenant, key) in working:
                working.discard((tenant, key))
                queue.done(tenant, key)
        for tenant, key in working:
            queue.done(tenant, key)
        clock.advance(3)
        while queue._round:
            tenant, key = await queue.get()
            wanted.discard((tenant, key))
            queue.done(tenant, key)
        assert not wanted
        assert queue._tenants == {}

    asyncio.run(play())


async def test_workers_retry_failures_and_repeat_on_request() -> None:
    clock = FakeTimers()
    queue = make(clock, backoff=Backoff(base=1, cap=8, random=lambda: 1.0))
    calls: list[str] = []
    outcomes: dict[str, list[Exception | float | None]] = {
        "ok": [None],
        "again": [5.0, None],
        "busy": [TooManyRequests("busy", status=429, retry_after=7), None],
        "no": [Forbidden("no", status=403), None],
        "defect": [KeyError("x"), None],
    }

    async def handle(tenant: str, key: str) -> float | None:
        calls.append(key)
        outcome = outcomes[key].pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def settle() -> list[str]:
        for _ in range(20):
            await asyncio.sleep(0)
        done, calls[:] = sorted(calls), []
        return done

    workers = asyncio.create_task(run_workers(queue, handle, concurrency=2))
    for key in outcomes:
        queue.add("a", key)
    assert await settle() == sorted(outcomes)
    clock.advance(1)
    assert await settle() == ["defect", "no"]
    clock.advance(4)
    assert await settle() == ["again"]
    clock.advance(2)
    assert await settle() == ["busy"]
    assert queue._tenants == {}
    workers.cancel()
    with pytest.raises(asyncio.CancelledError):
        await workers


def test_backoff_is_bounded_jittered_and_respects_minimum() -> None:
    low, high = Backoff(base=1, cap=60, random=lambda: 0.0), Backoff(base=1, cap=60, random=lambda: 1.0)
    assert [low.delay_after(n) for n in (1, 2, 3)] == [0.5, 1, 2]
    assert [high.delay_after(n) for n in (1, 2, 3)] == [1, 2, 4]
    assert high.delay_after(10_000) == 60
    assert high.delay_after(1, at_least=90) == 90
