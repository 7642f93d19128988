"""Work queue that is fair among tenants, processes each key in one worker at a time, and backs off after failures.

Tenants with ready keys alternate, so that ten thousand keys of one tenant delay the first key of another by one key. A
tenant may occupy only some of the workers, so that an unresponsive server cannot occupy all of them.
"""

from __future__ import annotations

import asyncio
import random as random_module
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any, Generic, Protocol, TypeVar

import structlog

from vkgateway.api.errors import ConflictError, UnavailableError, VkgatewayError
from vkgateway.kube.backoff import Backoff, Random
from vkgateway.kube.errors import ApiError, Unreachable
from vkgateway.runtime.metrics import DEFECT, RETRIES

log = structlog.get_logger(__name__)

K = TypeVar("K", bound=Hashable)
Handler = Callable[[str, K], Awaitable[float | None]]
"""Processes a key of a tenant, and may return the delay in seconds until it processes the key again."""
ErrorHandler = Callable[[str, K, Exception], Awaitable[None]]
"""Reports the failure of a handler, before the key is retried. It must not raise."""


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call."""


class TimerService(Protocol):
    """Time and timers: an event loop, or a test's replacement."""

    def time(self) -> float:
        """Return the current time in seconds."""

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Timer:
        """Schedule a call in `delay` seconds."""


class _TenantQueue(Generic[K]):
    """The keys of one tenant."""

    __slots__ = (
        "failures",
        "in_round",
        "keys_left",
        "max_running",
        "queued",
        "ready",
        "running",
        "timers",
        "weight",
    )

    def __init__(self, weight: int, *, share: int | None) -> None:
        self.ready: deque[K] = deque()
        self.queued: set[K] = set()
        self.running: dict[K, bool] = {}
        """Keys in progress. True if the key was added again during its processing."""
        self.timers: dict[K, tuple[float, Timer]] = {}
        self.failures: dict[K, int] = {}
        self.max_running = share
        """Limit of the keys in progress, None without a limit."""
        self.weight = weight
        self.keys_left = 0
        """Keys that the tenant may still process in this round."""
        self.in_round = False
        """Whether the tenant is part of the round."""

    def is_idle(self) -> bool:
        return not (self.queued or self.running or self.timers or self.failures or self.in_round)

    def has_work(self) -> bool:
        return bool(self.ready) and (self.max_running is None or len(self.running) < self.max_running)

    def start_next(self) -> K:
        """Return the next ready key, which is in progress from now on."""
        if self.keys_left <= 0:
            self.keys_left = self.weight
        key = self.ready.popleft()
        self.queued.discard(key)
        self.running[key] = False
        self.keys_left -= 1
        return key


class _IdleWorkers:
    """Workers that wait for a ready key."""

    def __init__(self) -> None:
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            # Pass the wake-up on to the next waiting worker.
            if waiter.done() and not waiter.cancelled():
                self.wake_one()
            raise

    def wake_one(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return


class FairQueue(Generic[K]):
    """Queue of keys by tenant. For one thread.

    `per_tenant` limits the keys of one tenant that are in progress (None: no limit). A tenant with weight 2 processes
    two keys per round; the default weight is 1. `timers` is the running event loop by default.
    """

    def __init__(
        self,
        *,
        per_tenant: int | None = None,
        backoff: Backoff | None = None,
        weights: Mapping[str, int] | None = None,
        random: Random = random_module.random,
        timers: TimerService | None = None,
    ) -> None:
        self._per_tenant = per_tenant
        self._backoff = backoff or Backoff(base=0.05, cap=60.0, random=random)
        self._weights = weights or {}
        self._timers = timers
        self._tenants: dict[str, _TenantQueue[K]] = {}
        self._round: deque[str] = deque()
        self._idle_workers = _IdleWorkers()

    @property
    def is_working(self) -> bool:
        """Whether a key is ready or in progress; keys that were added with a delay do not count before."""
        return any(tenant.queued or tenant.running for tenant in self._tenants.values())

    def __len__(self) -> int:
        """Return the number of ready keys."""
        return sum(len(tenant.ready) for tenant in self._tenants.values())

    def ready_count(self, tenant: str) -> int:
        """Return the number of a tenant's ready keys."""
        tenant_queue = self._tenants.get(tenant)
        return len(tenant_queue.ready) if tenant_queue is not None else 0

    def add(self, tenant: str, key: K, *, delay: float = 0.0) -> None:
        """Add a key, to be processed in `delay` seconds at the latest.

        Adding a ready key has no effect. A key in progress is processed again afterwards. The shorter of two delays
        counts.
        """
        tenant_queue = self._tenants.get(tenant)
        if tenant_queue is None:
            weight = max(1, self._weights.get(tenant, 1))
            tenant_queue = self._tenants[tenant] = _TenantQueue(weight, share=self._per_tenant)
        if delay > 0:
            self._add_later(tenant, tenant_queue, key, delay)
            return
        if tenant_queue.timers and (waiting := tenant_queue.timers.pop(key, None)) is not None:
            waiting[1].cancel()
        if key in tenant_queue.running:
            tenant_queue.running[key] = True
        elif key not in tenant_queue.queued:
            tenant_queue.queued.add(key)
            tenant_queue.ready.append(key)
            self._join_round(tenant, tenant_queue)

    def _add_later(self, tenant: str, tenant_queue: _TenantQueue[K], key: K, delay: float) -> None:
        if key in tenant_queue.queued or tenant_queue.running.get(key):
            return
        timers = self._timers or asyncio.get_running_loop()
        due = timers.time() + delay
        waiting = tenant_queue.timers.get(key)
        if waiting is not None:
            if waiting[0] <= due:
                return
            waiting[1].cancel()
        tenant_queue.timers[key] = due, timers.call_later(delay, self._add_due, tenant, key)

    def _add_due(self, tenant: str, key: K) -> None:
        tenant_queue = self._tenants.get(tenant)
        if tenant_queue is not None and tenant_queue.timers.pop(key, None) is not None:
            self.add(tenant, key)

    async def get(self) -> tuple[str, K]:
        """Wait for the next key and return it with its tenant. The caller must call `done`."""
        while not self._round:
            await self._idle_workers.wait()
        tenant = self._round[0]
        tenant_queue = self._tenants[tenant]
        key = tenant_queue.start_next()
        if not tenant_queue.has_work():
            self._round.popleft()
            tenant_queue.in_round, tenant_queue.keys_left = False, 0
        elif tenant_queue.keys_left == 0:
            self._round.rotate(-1)
        return tenant, key

    def done(self, tenant: str, key: K) -> None:
        """End the processing of a key. A key that was added during its processing becomes ready again."""
        tenant_queue = self._tenants.get(tenant)
        if tenant_queue is None:
            return
        if tenant_queue.running.pop(key, False) and key not in tenant_queue.queued:
            tenant_queue.queued.add(key)
            tenant_queue.ready.append(key)
        self._join_round(tenant, tenant_queue)
        if tenant_queue.is_idle():
            del self._tenants[tenant]

    def add_rate_limited(self, tenant: str, key: K, *, at_least: float | None = None) -> float:
        """Add a key after a failure, with a delay that grows with consecutive failures. Return the delay."""
        tenant_queue = self._tenants.get(tenant)
        if tenant_queue is None:
            return 0.0
        failures = tenant_queue.failures[key] = tenant_queue.failures.get(key, 0) + 1
        delay = self._backoff.delay_after(failures, at_least=at_least)
        self.add(tenant, key, delay=delay)
        return delay

    def forget(self, tenant: str, key: K) -> None:
        """Reset the failures of a key after success."""
        tenant_queue = self._tenants.get(tenant)
        if tenant_queue is None:
            return
        if tenant_queue.max_running != self._per_tenant and tenant_queue.max_running is not None:
            tenant_queue.max_running += 1
        if tenant_queue.failures:
            tenant_queue.failures.pop(key, None)

    def reduce_share(self, tenant: str) -> None:
        """Halve the tenant's limit of keys in progress, down to one, after a server did not respond.

        Each success (`forget`) raises the limit by one.
        """
        tenant_queue = self._tenants.get(tenant)
        if tenant_queue is not None and tenant_queue.max_running is not None:
            tenant_queue.max_running = max(1, tenant_queue.max_running // 2)

    def num_requeues(self, tenant: str, key: K) -> int:
        """Return the number of consecutive failures of a key."""
        tenant_queue = self._tenants.get(tenant)
        return tenant_queue.failures.get(key, 0) if tenant_queue is not None else 0

    def drop_tenant(self, tenant: str) -> None:
        """Remove all waiting keys of a tenant. Keys in progress are completed."""
        tenant_queue = self._tenants.get(tenant)
        if tenant_queue is None:
            return
        for _, timer in tenant_queue.timers.values():
            timer.cancel()
        tenant_queue.timers.clear()
        tenant_queue.failures.clear()
        tenant_queue.ready.clear()
        tenant_queue.queued.clear()
        tenant_queue.running = dict.fromkeys(tenant_queue.running, False)
        if tenant_queue.in_round:
            self._round.remove(tenant)
            tenant_queue.in_round, tenant_queue.keys_left = False, 0
        if tenant_queue.is_idle():
            del self._tenants[tenant]

    def close(self) -> None:
        """Remove all keys and cancel their timers, when no worker runs any more."""
        for tenant in list(self._tenants):
            self.drop_tenant(tenant)
        self._tenants.clear()

    def _join_round(self, tenant: str, tenant_queue: _TenantQueue[K]) -> None:
        """Add the tenant to the round if it has ready keys, and wake a waiting worker."""
        if not tenant_queue.has_work():
            return
        if not tenant_queue.in_round:
            tenant_queue.in_round = True
            self._round.append(tenant)
        self._idle_workers.wake_one()


async def _log_failure(tenant: str, key: object, error: Exception) -> None:
    """Log a failure that time alone doesn't end. Errors of other types are defects, logged with a traceback."""
    if isinstance(error, ApiError):
        if not error.is_transient:
            log.warning("refused", tenant=tenant, key=key, error=error.message)
    elif not isinstance(error, (ConflictError, UnavailableError)):
        log.error("defect", tenant=tenant, key=key, exc_info=error)


async def run_workers(
    queue: FairQueue[K],
    handler: Handler[K],
    *,
    concurrency: int | None,
    name: str = "worker",
    on_error: ErrorHandler[K] = _log_failure,
) -> None:
    """Process the keys of a queue until cancelled; the queue is empty then. Without `concurrency`, no ready key waits.

    If `handler` raises, the key is retried with back-off, and not before the delay that the server requests.
    """
    try:
        async with asyncio.TaskGroup() as group:
            if concurrency is None:
                while True:
                    tenant, key = await queue.get()
                    group.create_task(_process(queue, handler, on_error, tenant, key), name=f"{name}/{key}")
            for number in range(concurrency):
                group.create_task(_run_worker(queue, handler, on_error), name=f"{name}-{number}")
    finally:
        queue.close()


async def _run_worker(queue: FairQueue[K], handler: Handler[K], on_error: ErrorHandler[K]) -> None:
    while True:
        await _process(queue, handler, on_error, *await queue.get())


async def _process(queue: FairQueue[K], handler: Handler[K], on_error: ErrorHandler[K], tenant: str, key: K) -> None:
    try:
        delay = await handler(tenant, key)
    except Exception as error:  # noqa: BLE001 - a failure with one object must not affect other objects
        await on_error(tenant, key, error)
        queue.add_rate_limited(tenant, key, at_least=error.retry_after if isinstance(error, ApiError) else None)
        if isinstance(error, Unreachable):
            queue.reduce_share(tenant)
    else:
        queue.forget(tenant, key)
        if delay is not None:
            queue.add(tenant, key, delay=delay)
    finally:
        queue.done(tenant, key)


class ObjectQueue:
    """Objects of the management cluster that a controller reconciles, each in its own sub-queue.

    They don't share the workers of a `WorkerPool`: a Tenant takes minutes until its control plane is ready, and its
    removal waits until those workers have left its pods. `reconcile` may return the seconds until the object is
    reconciled again. `on_error` is called before the retry.
    """

    def __init__(
        self,
        kind: str,
        reconcile: Callable[[str], Awaitable[float | None]],
        *,
        on_error: Callable[[str, Exception], Awaitable[None]] | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self._kind = kind
        self._reconcile = reconcile
        self._on_error = on_error
        self._queue: FairQueue[str] = FairQueue(backoff=backoff or Backoff(base=0.4, cap=30.0))

    def enqueue(self, *names: str) -> None:
        """Request a reconciliation of objects; cheap, callable from anywhere in the event loop."""
        for name in names:
            self._queue.add(name, name)

    async def run(self) -> None:
        """Reconcile until cancelled; objects that were enqueued before start now."""
        await run_workers(
            self._queue,
            lambda _, name: self._reconcile(name),
            concurrency=None,
            name=self._kind,
            on_error=self._handle_error,
        )

    async def _handle_error(self, _tenant: str, name: str, error: Exception) -> None:
        expected = isinstance(error, VkgatewayError)
        log.warning(
            "reconciliation failed; retrying", object=name, error=str(error), exc_info=None if expected else error
        )
        if not expected:
            RETRIES.labels(DEFECT).inc()
        if self._on_error is not None:
            try:
                await self._on_error(name, error)
            except Exception as second:  # noqa: BLE001 - a failed error handler must not end the worker
                log.warning("error handler failed", object=name, error=str(second))
