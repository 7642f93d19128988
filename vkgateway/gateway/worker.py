"""One serial, level-triggered worker an object: wake it and it looks again; what fails is tried again later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Literal

import structlog

from vkgateway.kube import errors
from vkgateway.kube.backoff import Backoff
from vkgateway.model.errors import VkgatewayError

log = structlog.get_logger(__name__)

DONE: Final = "done"
Outcome = float | None | Literal["done"]
"""Seconds after which to look again unasked; None for only when woken; DONE when there is nothing left to look at."""

Reconcile = Callable[[str], Awaitable[Outcome]]
OnError = Callable[[str, Exception], Awaitable[None]]


class Worker:
    """Runs `reconcile` for one object whenever woken, never twice at once.

    Wake-ups during a run lead to one more run. A run that raises is repeated after a growing, jittered delay;
    `on_error` hears of it first.
    """

    def __init__(self, name: str, reconcile: Reconcile, *, on_error: OnError, backoff: Backoff) -> None:
        self.name = name
        self._reconcile = reconcile
        self._on_error = on_error
        self._backoff = backoff
        self._woken = asyncio.Event()
        self._failures = 0

    def wake(self) -> None:
        """Ask for a look; cheap, from anywhere in the event loop."""
        self._woken.set()

    async def run(self) -> None:
        """Work until the object is done with, or until cancelled."""
        while True:
            self._woken.clear()
            outcome = await self._once()
            if outcome == DONE:
                if self._woken.is_set():
                    continue
                return
            await self._pause(outcome)

    async def _pause(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return

    async def _once(self) -> Outcome:
        try:
            outcome = await self._reconcile(self.name)
        except Exception as error:  # noqa: BLE001 - one object's trouble is never another's
            return await self._failed(error)
        self._failures = 0
        return outcome

    async def _failed(self, error: Exception) -> float:
        expected = isinstance(error, VkgatewayError)
        log.warning("will be tried again", object=self.name, error=str(error), exc_info=not expected)
        try:
            await self._on_error(self.name, error)
        except Exception as second:  # noqa: BLE001 - telling of trouble must not end the worker
            log.warning("trouble could not be told", object=self.name, error=str(second))
        self._failures += 1
        asked = error.retry_after if isinstance(error, errors.ApiError) else None
        return self._backoff.delay(self._failures, at_least=asked)


class Fleet:
    """The workers of one kind of objects: one each, started when first woken, gone when done."""

    def __init__(self, kind: str, reconcile: Reconcile, *, on_error: OnError, backoff: Backoff | None = None) -> None:
        self._kind = kind
        self._reconcile = reconcile
        self._on_error = on_error
        self._backoff = backoff or Backoff(base=0.4, cap=30.0)
        self._workers: dict[str, Worker] = {}
        self._group: asyncio.TaskGroup | None = None

    def __len__(self) -> int:
        """How many objects are being looked after."""
        return len(self._workers)

    def wake(self, name: str) -> None:
        """Have an object looked at."""
        worker = self._workers.get(name)
        if worker is None:
            worker = Worker(name, self._reconcile, on_error=self._on_error, backoff=self._backoff)
            self._workers[name] = worker
            if self._group is not None:
                self._start(worker)
        worker.wake()

    def wake_all(self) -> None:
        """Have every object looked at."""
        for worker in self._workers.values():
            worker.wake()

    async def run(self) -> None:
        """Work until cancelled; what was woken before starts now."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for worker in self._workers.values():
                self._start(worker)
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self._group = None

    def _start(self, worker: Worker) -> None:
        assert self._group is not None
        self._group.create_task(self._work(worker), name=f"{self._kind}/{worker.name}")

    async def _work(self, worker: Worker) -> None:
        try:
            await worker.run()
        finally:
            del self._workers[worker.name]
