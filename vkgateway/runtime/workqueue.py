"""Work queue with one serial, level-triggered worker per object; failures are retried with backoff."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Literal

import structlog

from vkgateway.api.errors import VkgatewayError
from vkgateway.kube import errors
from vkgateway.kube.backoff import Backoff
from vkgateway.runtime.metrics import DEFECT, RETRIES

log = structlog.get_logger(__name__)

DONE: Final = "done"
ReconcileResult = float | None | Literal["done"]
"""Seconds until the next reconciliation; None: only when triggered; DONE: the object is finished."""

ReconcileFunc = Callable[[str], Awaitable[ReconcileResult]]
ErrorHandler = Callable[[str, Exception], Awaitable[None]]


class ObjectWorker:
    """Worker that runs `reconcile` for one object when triggered, never concurrently.

    Triggers during a run cause one more run. A run that raises is repeated after a growing delay with jitter;
    `on_error` is called first.
    """

    def __init__(self, name: str, reconcile: ReconcileFunc, *, on_error: ErrorHandler, backoff: Backoff) -> None:
        self.name = name
        self._reconcile = reconcile
        self._on_error = on_error
        self._backoff = backoff
        self._triggered = asyncio.Event()
        self._failures = 0

    def trigger(self) -> None:
        """Request a reconciliation; cheap, callable from anywhere in the event loop."""
        self._triggered.set()

    async def run(self) -> None:
        """Run until the object is finished or the task is cancelled."""
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
        except Exception as error:  # noqa: BLE001 - a failure must not affect other objects
            return await self._handle_error(error)
        self._failures = 0
        return outcome

    async def _handle_error(self, error: Exception) -> float:
        expected = isinstance(error, VkgatewayError)
        log.warning("reconciliation failed; retrying", object=self.name, error=str(error), exc_info=not expected)
        if not expected:
            RETRIES.labels(DEFECT).inc()
        try:
            await self._on_error(self.name, error)
        except Exception as second:  # noqa: BLE001 - a failed error handler must not end the worker
            log.warning("error handler failed", object=self.name, error=str(second))
        self._failures += 1
        retry_after = error.retry_after if isinstance(error, errors.ApiError) else None
        return self._backoff.delay_after(self._failures, at_least=retry_after)


class WorkQueue:
    """Workers of one kind of object: one per object, started at the first trigger, removed when done."""

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
        """Return the number of objects with a worker."""
        return len(self._workers)

    def enqueue(self, name: str) -> None:
        """Request a reconciliation of an object."""
        worker = self._workers.get(name)
        if worker is None:
            worker = ObjectWorker(name, self._reconcile, on_error=self._on_error, backoff=self._backoff)
            self._workers[name] = worker
            if self._group is not None:
                self._start_worker(worker)
        worker.trigger()

    def enqueue_all(self) -> None:
        """Request a reconciliation of every object."""
        for worker in self._workers.values():
            worker.trigger()

    async def run(self) -> None:
        """Run until cancelled; objects that were enqueued before start now."""
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
