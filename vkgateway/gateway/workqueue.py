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
ReconcileResult = float | None | Literal["done"]
"""Seconds after which to look again unasked; None for only when woken; DONE when there is nothing left to look at."""

ReconcileFunc = Callable[[str], Awaitable[ReconcileResult]]
ErrorHandler = Callable[[str, Exception], Awaitable[None]]


class ObjectWorker:
    """Runs `reconcile` for one object whenever woken, never twice at once.

    Wake-ups during a run lead to one more run. A run that raises is repeated after a growing, jittered delay;
    `on_error` hears of it first.
    """

    def __init__(self, name: str, reconcile: ReconcileFunc, *, on_error: ErrorHandler, backoff: Backoff) -> None:
        self.name = name
        self._reconcile = reconcile
        self._on_error = on_error
        self._backoff = backoff
        self._triggered = asyncio.Event()
        self._failures = 0

    def trigger(self) -> None:
        """Ask for a look; cheap, from anywhere in the event loop."""
        self._triggered.set()

    async def run(self) -> None:
        """Work until the object is done with, or until cancelled."""
        while True:
            self._triggered.clear()
            outcome = await self._reconcile_once()
            if outcome == DONE:
                if self._triggered.is_set():
                    continue
                return
            await self._wait_requeue(outcome)

    async def _wait_requeue(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._triggered.wait()
        except TimeoutError:
            return

    async def _reconcile_once(self) -> ReconcileResult:
        try:
            outcome = await self._reconcile(self.name)
        except Exception as error:  # noqa: BLE001 - one object's trouble is never another's
            return await self._handle_error(error)
        self._failures = 0
        return outcome

    async def _handle_error(self, error: Exception) -> float:
        expected = isinstance(error, VkgatewayError)
        log.warning("will be tried again", object=self.name, error=str(error), exc_info=not expected)
        try:
            await self._on_error(self.name, error)
        except Exception as second:  # noqa: BLE001 - telling of trouble must not end the worker
            log.warning("trouble could not be told", object=self.name, error=str(second))
        self._failures += 1
        asked = error.retry_after if isinstance(error, errors.ApiError) else None
        return self._backoff.delay_after(self._failures, at_least=asked)


class WorkQueue:
    """The workers of one kind of objects: one each, started when first woken, gone when done."""

    def __init__(
        self, kind: str, reconcile: ReconcileFunc, *, on_error: ErrorHandler, backoff: Backoff | None = None
    ) -> None:
        self._kind = kind
        self._reconcile = reconcile
        self._on_error = on_error
        self._backoff = backoff or Backoff(base=0.4, cap=30.0)
        self._workers: dict[str, ObjectWorker] = {}
        self._group: asyncio.TaskGroup | None = None

    def __len__(self) -> int:
        """How many objects are being looked after."""
        return len(self._workers)

    def enqueue(self, name: str) -> None:
        """Have an object looked at."""
        worker = self._workers.get(name)
        if worker is None:
            worker = ObjectWorker(name, self._reconcile, on_error=self._on_error, backoff=self._backoff)
            self._workers[name] = worker
            if self._group is not None:
                self._start_worker(worker)
        worker.trigger()

    def enqueue_all(self) -> None:
        """Have every object looked at."""
        for worker in self._workers.values():
            worker.trigger()

    async def run(self) -> None:
        """Work until cancelled; what was woken before starts now."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for worker in self._workers.values():
                self._start_worker(worker)
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self._group = None

    def _start_worker(self, worker: ObjectWorker) -> None:
        assert self._group is not None
        self._group.create_task(self._run_worker(worker), name=f"{self._kind}/{worker.name}")

    async def _run_worker(self, worker: ObjectWorker) -> None:
        try:
            await worker.run()
        finally:
            del self._workers[worker.name]
