"""A work queue that is fair among tenants, runs one worker an object at a time and remembers failures.

Fair means: tenants with something to do take turns, so ten thousand keys of one tenant delay another's first
by one turn; and a tenant may hold only part of the workers, so that a server which does not answer cannot
hold them all.
"""

from __future__ import annotations

import asyncio
import random as random_module
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, Protocol, TypeVar

import structlog

from vkgateway.kube.backoff import Backoff, Random
from vkgateway.kube.errors import ApiError, Unreachable
from vkgateway.model.errors import ConflictError, UnavailableError

log = structlog.get_logger(__name__)

K = TypeVar("K", bound=Hashable)


class Timer(Protocol):
    """A call that can be taken back."""

    def cancel(self) -> None:
        """Take it back."""


class _TenantQueue(Generic[K]):
    """One tenant's part of the queue."""

    __slots__ = (
        "failures",
        "in_round",
        "max_running",
        "queued",
        "ready",
        "running",
        "timers",
        "turns_left",
        "weight",
    )

    def __init__(self, weight: int, *, share: int | None) -> None:
        self.ready: deque[K] = deque()
        self.queued: set[K] = set()
        self.running: dict[K, bool] = {}
        """Keys at work; true where the key was added again meanwhile."""
        self.timers: dict[K, tuple[float, Timer]] = {}
        self.failures: dict[K, int] = {}
        self.max_running = share
        """Keys that may be at work now; None without a bound."""
        self.weight = weight
        self.turns_left = 0
        """Keys that it may still give in this round."""
        self.in_round = False
        """Whether it stands in the queue's round."""

    def is_idle(self) -> bool:
        return not (self.queued or self.running or self.timers or self.failures or self.in_round)


class FairQueue(Generic[K]):
    """Keys to look at, by tenant. Not for several threads.

    `per_tenant` bounds how many keys of one tenant are at work at once (None: no bound). A tenant with weight
    2 gives two keys where others give one. `clock` and `call_later` are the event loop's unless a test brings
    its own.
    """

    def __init__(
        self,
        *,
        per_tenant: int | None = None,
        backoff: Backoff | None = None,
        weights: Callable[[str], int] = lambda _tenant: 1,
        random: Random = random_module.random,
        clock: Callable[[], float] | None = None,
        call_later: Callable[[float, Callable[[], None]], Timer] | None = None,
    ) -> None:
        self._per_tenant = per_tenant
        self._backoff = backoff or Backoff(base=0.05, cap=60.0, random=random)
        self._weights = weights
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._call_later = call_later or (lambda delay, call: asyncio.get_running_loop().call_later(delay, call))
        self._tenants: dict[str, _TenantQueue[K]] = {}
        self._round: deque[str] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._is_closed = False

    def __len__(self) -> int:
        """Keys that are ready to be worked on now."""
        return sum(len(tenant.ready) for tenant in self._tenants.values())

    def ready_count(self, tenant: str) -> int:
        """A tenant's keys that are ready."""
        part = self._tenants.get(tenant)
        return len(part.ready) if part is not None else 0

    def add(self, tenant: str, key: K, *, delay: float = 0.0) -> None:
        """Have a key looked at, in `delay` seconds at the latest.

        Adding what is waiting changes nothing; what is at work now is looked at once more afterwards. Of two
        delays the shorter counts.
        """
        part = self._tenants.get(tenant)
        if part is None:
            part = self._tenants[tenant] = _TenantQueue(max(1, self._weights(tenant)), share=self._per_tenant)
        if delay > 0:
            self._add_later(tenant, part, key, delay)
            return
        if part.timers and (waiting := part.timers.pop(key, None)) is not None:
            waiting[1].cancel()
        if key in part.running:
            part.running[key] = True
        elif key not in part.queued:
            part.queued.add(key)
            part.ready.append(key)
            self._join_round(tenant, part)

    def _add_later(self, tenant: str, part: _TenantQueue[K], key: K, delay: float) -> None:
        if key in part.queued or part.running.get(key):
            return
        due = self._clock() + delay
        waiting = part.timers.get(key)
        if waiting is not None:
            if waiting[0] <= due:
                return
            waiting[1].cancel()
        part.timers[key] = due, self._call_later(delay, lambda: self._add_due(tenant, key))

    def _add_due(self, tenant: str, key: K) -> None:
        part = self._tenants.get(tenant)
        if part is not None and part.timers.pop(key, None) is not None:
            self.add(tenant, key)

    async def get(self) -> tuple[str, K]:
        """The next key, by turns among the tenants; whoever takes it must call `done`."""
        while not self._round:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                # Somebody else must get the call that was meant for us.
                if waiter.done() and not waiter.cancelled():
                    self._wake_waiter()
                raise
        return self._pop_next()

    def _pop_next(self) -> tuple[str, K]:
        tenant = self._round[0]
        part = self._tenants[tenant]
        if part.turns_left <= 0:
            part.turns_left = part.weight
        key = part.ready.popleft()
        part.queued.discard(key)
        part.running[key] = False
        part.turns_left -= 1
        if not self._has_work(part):
            self._round.popleft()
            part.in_round, part.turns_left = False, 0
        elif part.turns_left == 0:
            self._round.rotate(-1)
        return tenant, key

    def done(self, tenant: str, key: K) -> None:
        """The work on a key has ended; it is looked at again if it was added meanwhile."""
        part = self._tenants.get(tenant)
        if part is None:
            return
        if part.running.pop(key, False) and key not in part.queued:
            part.queued.add(key)
            part.ready.append(key)
        self._join_round(tenant, part)
        if part.is_idle():
            del self._tenants[tenant]

    def add_rate_limited(self, tenant: str, key: K, *, at_least: float | None = None) -> float:
        """Have a key looked at again after a failure, later with each failure in a row; returns the delay."""
        part = self._tenants.get(tenant)
        if part is None:
            return 0.0
        failures = part.failures[key] = part.failures.get(key, 0) + 1
        delay = self._backoff.delay_after(failures, at_least=at_least)
        self.add(tenant, key, delay=delay)
        return delay

    def forget(self, tenant: str, key: K) -> None:
        """The key was dealt with: its failures no longer count."""
        part = self._tenants.get(tenant)
        if part is None:
            return
        if part.max_running != self._per_tenant and part.max_running is not None:
            part.max_running += 1
        if part.failures:
            part.failures.pop(key, None)

    def reduce_share(self, tenant: str) -> None:
        """A key of the tenant met a server that does not answer: fewer may wait for it, until some get through.

        Each time half as many keys are at work at once, down to one; each key dealt with (`forget`) makes it one more.
        """
        part = self._tenants.get(tenant)
        if part is not None and part.max_running is not None:
            part.max_running = max(1, part.max_running // 2)

    def num_requeues(self, tenant: str, key: K) -> int:
        """How often in a row the key has failed."""
        part = self._tenants.get(tenant)
        return part.failures.get(key, 0) if part is not None else 0

    def drop_tenant(self, tenant: str) -> None:
        """Forget everything that waits for a tenant; what is at work ends as it may."""
        part = self._tenants.get(tenant)
        if part is None:
            return
        for _, timer in part.timers.values():
            timer.cancel()
        part.timers.clear()
        part.failures.clear()
        part.ready.clear()
        part.queued.clear()
        part.running = dict.fromkeys(part.running, False)
        if part.in_round:
            self._round.remove(tenant)
            part.in_round, part.turns_left = False, 0
        if part.is_idle():
            del self._tenants[tenant]

    def close(self) -> None:
        """Take back everything that waits, timers included."""
        for tenant in list(self._tenants):
            self.drop_tenant(tenant)

    def _has_work(self, part: _TenantQueue[K]) -> bool:
        return bool(part.ready) and (part.max_running is None or len(part.running) < part.max_running)

    def _join_round(self, tenant: str, part: _TenantQueue[K]) -> None:
        """Give the tenant its place in the round, if it has something to give, and wake one who waits."""
        if not self._has_work(part):
            return
        if not part.in_round:
            part.in_round = True
            self._round.append(tenant)
        self._wake_waiter()

    def _wake_waiter(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return


async def run_workers(
    queue: FairQueue[K],
    handler: Callable[[str, K], Awaitable[float | None]],
    *,
    concurrency: int,
    name: str = "worker",
) -> None:
    """Work on the queue until cancelled.

    `handler` may return seconds after which it wants to see the key again. Where it raises, the key is
    retried with back-off, never sooner than the server asked; what is neither an ApiError nor says that something
    else must happen first (ConflictError, UnavailableError) is a defect and is logged with its trace.
    """
    async with asyncio.TaskGroup() as group:
        for number in range(concurrency):
            group.create_task(_run_worker(queue, handler), name=f"{name}-{number}")


async def _run_worker(queue: FairQueue[K], handler: Callable[[str, K], Awaitable[float | None]]) -> None:
    while True:
        tenant, key = await queue.get()
        try:
            again = await handler(tenant, key)
        except ApiError as error:
            queue.add_rate_limited(tenant, key, at_least=error.retry_after)
            if isinstance(error, Unreachable):
                queue.reduce_share(tenant)
            if not error.is_transient:
                log.warning("refused", tenant=tenant, key=key, error=error.message)
        except (ConflictError, UnavailableError):
            queue.add_rate_limited(tenant, key)
        except Exception:  # one object's defect must not stop the work on all others
            queue.add_rate_limited(tenant, key)
            log.exception("defect", tenant=tenant, key=key)
        else:
            queue.forget(tenant, key)
            if again is not None:
                queue.add(tenant, key, delay=again)
        finally:
            queue.done(tenant, key)
