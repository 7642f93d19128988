"""Steps with dependencies; each starts when its dependencies are done, so independent steps run concurrently."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from vkgateway.api.errors import VkgatewayError
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock


class Report(Protocol):
    """Receives messages for the user: a call announces work, `done` reports a result."""

    def __call__(self, text: str) -> None:
        """Announce work."""

    def done(self, text: str) -> None:
        """Report finished work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One idempotent piece of work; `run` may return a remark for the user."""

    name: str
    title: str
    run: Callable[[], Awaitable[str | None]]
    needs: tuple[str, ...] = ()


async def run_steps(steps: Sequence[Step], *, report: Report, clock: Clock = SYSTEM_CLOCK) -> None:
    """Run all steps; the first failure cancels the others and is raised unchanged.

    Raises:
        ValueError: a step depends on one that does not exist or is later in `steps`.
    """
    done = {step.name: asyncio.Event() for step in steps}
    _check_order(steps)
    running: list[str] = []

    async def run(step: Step) -> None:
        for name in step.needs:
            await done[name].wait()
        started = clock.monotonic()
        running.append(step.title)
        report(", ".join(running))
        remark = await step.run()
        running.remove(step.title)
        report.done(f"{step.title}: {remark or 'ready'} ({clock.monotonic() - started:.1f} s)")
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
    """Return the first deliberate error of several failures; the others often follow from it."""
    flat: list[BaseException] = []
    pending: list[BaseException] = [failures]
    while pending:
        failure = pending.pop(0)
        if isinstance(failure, BaseExceptionGroup):
            pending.extend(failure.exceptions)
        else:
            flat.append(failure)
    return next((failure for failure in flat if isinstance(failure, VkgatewayError)), flat[0])
