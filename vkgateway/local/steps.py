"""Steps with dependencies: each starts as soon as those it needs are done, so what is independent runs side by side."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from vkgateway.model.errors import VkgatewayError


class Report(Protocol):
    """Takes what is told to the user: the call says what happens now, `done` what is finished."""

    def __call__(self, text: str) -> None:
        """Say what happens now."""

    def done(self, text: str) -> None:
        """Say that something is finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One idempotent piece of work; `run` may return a remark for the user, None says nothing special."""

    name: str
    title: str
    run: Callable[[], Awaitable[str | None]]
    needs: tuple[str, ...] = ()


async def run_steps(steps: Sequence[Step], *, report: Report, clock: Callable[[], float] = time.monotonic) -> None:
    """Run all steps; the first failure stops the others and is raised as it is.

    Raises:
        ValueError: a step needs one that is not there or comes later in `steps`.
    """
    done = {step.name: asyncio.Event() for step in steps}
    _check_order(steps)
    running: list[str] = []

    async def run(step: Step) -> None:
        for name in step.needs:
            await done[name].wait()
        started = clock()
        running.append(step.title)
        report(", ".join(running))
        remark = await step.run()
        running.remove(step.title)
        report.done(f"{step.title}: {remark or 'ready'} ({clock() - started:.1f} s)")
        done[step.name].set()
        if running:
            report(", ".join(running))

    try:
        async with asyncio.TaskGroup() as group:
            for step in steps:
                group.create_task(run(step), name=f"step {step.name}")
    except BaseExceptionGroup as failures:
        raise _first_cause(failures) from failures


def _check_order(steps: Sequence[Step]) -> None:
    known: set[str] = set()
    for step in steps:
        if missing := set(step.needs) - known:
            raise ValueError(f"step {step.name!r} needs {sorted(missing)}, which do not come before it")
        known.add(step.name)


def _first_cause(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Of several failures, the first that was raised on purpose: the others often follow from it."""
    flat: list[BaseException] = []
    pending: list[BaseException] = [failures]
    while pending:
        failure = pending.pop(0)
        if isinstance(failure, BaseExceptionGroup):
            pending.extend(failure.exceptions)
        else:
            flat.append(failure)
    return next((failure for failure in flat if isinstance(failure, VkgatewayError)), flat[0])
