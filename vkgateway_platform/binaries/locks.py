"""Locks between processes, one file each."""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from vkgateway.api.errors import ConflictError

_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class ProcessLocks:
    """Named locks in a directory. The kernel releases a lock when its process exits in any way."""

    folder: Path

    @contextlib.asynccontextmanager
    async def hold(self, name: str, *, report: Callable[[str], None], wait: bool = True) -> AsyncIterator[bool]:
        """Hold a lock against other processes; yield whether it had to wait for one.

        Raises:
            ConflictError: another process holds the lock, and `wait` is False.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._lock_file(name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            waited = await _acquire_lock(descriptor, name, report=report, wait=wait)
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            yield waited
        finally:
            os.close(descriptor)

    @contextlib.asynccontextmanager
    async def hold_slot(self, name: str, *, slots: int, report: Callable[[str], None]) -> AsyncIterator[None]:
        """Hold one of `slots` locks of a name, whichever is free first."""
        async with contextlib.AsyncExitStack() as taken:
            if not await self._take_slot(taken, name, slots=slots, report=report):
                report(f"{name}: waiting for one of {slots} running builds")
                while not await self._take_slot(taken, name, slots=slots, report=report):  # noqa: ASYNC110 - processes
                    await asyncio.sleep(_POLL_SECONDS)
            yield

    async def _take_slot(
        self, taken: contextlib.AsyncExitStack, name: str, *, slots: int, report: Callable[[str], None]
    ) -> bool:
        for number in range(slots):
            with contextlib.suppress(ConflictError):
                await taken.enter_async_context(self.hold(f"{name}-{number}", report=report, wait=False))
                return True
        return False

    @contextlib.contextmanager
    def try_lock(self, name: str) -> Iterator[None]:
        """Hold an existing lock. Raises BlockingIOError if another process holds it, FileNotFoundError if it is new."""
        descriptor = os.open(self._lock_file(name), os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def try_all(self) -> Iterator[None]:
        """Hold every existing lock. Raises BlockingIOError if another process holds one."""
        with contextlib.ExitStack() as held:
            for file in self.folder.glob("*.lock"):
                held.enter_context(self.try_lock(file.stem))
            yield

    def _lock_file(self, name: str) -> Path:
        return self.folder / f"{name}.lock"


async def _acquire_lock(descriptor: int, name: str, *, report: Callable[[str], None], wait: bool) -> bool:
    waited = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 20, 0).decode(errors="replace") or "?"
            if not wait:
                raise ConflictError(f"{name}: process {holder} works on it") from None
            if not waited:
                report(f"{name}: waiting for process {holder}, which works on it")
            waited = True
            await asyncio.sleep(_POLL_SECONDS)
        else:
            return waited
