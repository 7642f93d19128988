"""Deadlines: each future times out at its deadline, and no state remains."""

from __future__ import annotations

import asyncio

import pytest

from vkgateway.kube.http1 import Deadlines


async def _waits(deadlines: Deadlines, seconds: float) -> float:
    loop = asyncio.get_running_loop()
    started = loop.time()
    with pytest.raises(TimeoutError):
        await deadlines.wait(loop.create_future(), until=started + seconds)
    return loop.time() - started


@pytest.mark.parametrize("delays", [(0.02, 0.06), (0.06, 0.02), (0.02, 0.02), (0.0, 0.03)])
async def test_each_future_times_out_at_its_deadline(delays: tuple[float, float]) -> None:
    deadlines = Deadlines()
    waited = await asyncio.gather(*(_waits(deadlines, delay) for delay in delays))
    for seconds, delay in zip(waited, delays, strict=True):
        assert delay - 0.005 <= seconds < delay + 30  # not at the end of all others, nor never
    if waited[0] < delays[1]:  # where the machine stood still until both were due, they end at once
        assert waited[0] < waited[1] or delays[0] >= delays[1]


async def test_result_before_deadline_is_returned() -> None:
    deadlines, loop = Deadlines(), asyncio.get_running_loop()
    soon: asyncio.Future[str] = loop.create_future()
    loop.call_later(0.01, soon.set_result, "here")
    got, waited = await asyncio.gather(deadlines.wait(soon, until=loop.time() + 0.03), _waits(deadlines, 0.06))
    assert got == "here"
    assert waited >= 0.055


async def test_cancelled_future_is_removed() -> None:
    deadlines, loop = Deadlines(), asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    task = asyncio.create_task(deadlines.wait(future, until=loop.time() + 0.02))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.sleep(0.04)
    assert future.cancelled()
