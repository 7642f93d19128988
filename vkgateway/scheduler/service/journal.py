"""Writes scheduling cycles to the decision log after their dispatch, so that no decision waits for the disk."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

import structlog

from vkgateway.scheduler.core.decisions import Decisions
from vkgateway.scheduler.core.snapshot import Snapshot

log = structlog.get_logger(__name__)

_MAX_SNAPSHOTS: Final = 16
"""Maximum number of waiting cycles with snapshots; of further ones, only the decisions are logged."""

Write = Callable[[Snapshot | None, Decisions, float], None]


class Journal:
    """Writer of cycles: calls `write` for one cycle after another, in a thread, in the order of the decisions."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._cycles: deque[tuple[Snapshot | None, Decisions, float]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._is_finished = False

    def add_cycle(self, snapshot: Snapshot, decisions: Decisions, now: float) -> None:
        """Log a cycle soon. Without effect after `finish`: the decisions are not carried out any more."""
        if self._is_finished:
            return
        self._cycles.append((snapshot if len(self._cycles) < _MAX_SNAPSHOTS else None, decisions, now))
        if self._task is None:
            self._task = asyncio.create_task(self._write_pending(), name="arbiter/journal")

    async def close(self) -> None:
        """Wait until all cycles are logged."""
        if self._task is not None:
            await self._task

    async def finish(self) -> None:
        """Wait until all cycles are logged, and log no further ones."""
        self._is_finished = True
        await self.close()

    async def _write_pending(self) -> None:
        try:
            while self._cycles:
                await self._write_cycle(*self._cycles.popleft())
        finally:
            self._task = None

    async def _write_cycle(self, snapshot: Snapshot | None, decisions: Decisions, now: float) -> None:
        try:
            await asyncio.to_thread(self._write, snapshot, decisions, now)
        except Exception:
            log.exception("scheduling cycle not logged")
