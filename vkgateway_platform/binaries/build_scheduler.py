"""Order of work while several units are fetched concurrently."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from vkgateway_platform.binaries.catalogue import BuildUnit

T = TypeVar("T")


class BuildScheduler:
    """Limits how many units are downloaded and compiled at the same time; a unit waits for the one with which it shares
    libraries.
    """

    def __init__(self, units: Iterable[BuildUnit], *, at_once: int) -> None:
        self._done = {unit.name: asyncio.Event() for unit in units}
        self._downloads = asyncio.Semaphore(at_once)
        self._builds = asyncio.Semaphore(at_once)
        self._library = asyncio.Lock()
        self._has_library = False

    @contextlib.asynccontextmanager
    async def download_slot(self) -> AsyncIterator[None]:
        """Wait for a download slot."""
        async with self._downloads:
            yield

    @contextlib.asynccontextmanager
    async def compile_slot(self, unit: BuildUnit) -> AsyncIterator[None]:
        """Wait for the unit that this one follows, if that is fetched too, and for a build slot."""
        if (before := self._done.get(unit.after)) is not None:
            await before.wait()
        async with self._builds:
            yield

    async def compile_library_once(self, compile_it: Callable[[], Awaitable[None]]) -> None:
        """Compile Go's standard library once; concurrent callers wait for it."""
        async with self._library:
            if not self._has_library:
                await compile_it()
                self._has_library = True

    def mark_done(self, unit: BuildUnit) -> None:
        """Release the units that wait for this one."""
        self._done[unit.name].set()


async def run_together(*work: Coroutine[Any, Any, T]) -> list[T]:
    """Run all concurrently and return their results in order; the first failure cancels the rest and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in work]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
