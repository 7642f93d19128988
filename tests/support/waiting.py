"""Waiting for a condition that no event reports: state behind HTTP, in another thread or in another process."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from tests.support.machine import patience, slowness

INTERVAL = 0.005
"""Seconds between two checks by default."""
_TURNS = 20
"""Steps of a chain of tasks and messages within one process."""


async def wait_until(condition: Callable[[], Any], *, seconds: float = 30.0, interval: float = INTERVAL) -> Any:
    """Wait until a condition, which may be asynchronous, is true, and return its value.

    Raises:
        AssertionError: the condition is not true in time. The message contains its last value.
    """
    limit = patience(seconds)
    deadline = asyncio.get_running_loop().time() + limit
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"condition is not true after {limit:g} s: {value!r}")
        await asyncio.sleep(interval)


async def let_pass(seconds: float) -> None:
    """Let time pass in which unwanted work would happen, before a check that it did not.

    The time grows with the slowness of the machine. After it, the event loop turns several times: a process that was
    not scheduled meanwhile still does its work.
    """
    await asyncio.sleep(seconds * slowness())
    for _ in range(_TURNS):
        await asyncio.sleep(0)
