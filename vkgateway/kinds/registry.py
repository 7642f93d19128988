"""The registry of one tenant's reconcilers: the kind of request that each handles, and the sources that it watches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Protocol, TypeVarTuple, Unpack

from vkgateway.kinds.sources import Source, Watches
from vkgateway.runtime.metrics import request_seconds
from vkgateway.runtime.requests import K, ReconcileRequest, RequestKind, WorkQueue

Ts = TypeVarTuple("Ts")
Run = Callable[[], Coroutine[Any, Any, None]]


class Reconciler(Protocol):
    """What the registry needs of a reconciler."""

    def set_up(self, registry: Registry) -> None:
        """Register the kind of request that it handles, and the sources that it watches."""


class Cache(Protocol):
    """What the registry needs of the tenant's cache."""

    @property
    def is_complete(self) -> bool:
        """Whether all of the tenant's objects are known."""


class Registry:
    """Dispatches reconcile requests to reconcilers, and changes to the handlers that watch for them."""

    def __init__(self, watches: Watches, work_queue: WorkQueue, cache: Cache) -> None:
        self._watches = watches
        self._cache = cache
        self._work_queue = work_queue
        self._handlers: dict[str, tuple[RequestKind[Any], Callable[[Any], Awaitable[float | None]]]] = {}
        self._tasks: dict[str, Run] = {}

    def set_up(self, reconcilers: Iterable[Reconciler]) -> None:
        """Register reconcilers. The handlers of a source run in this order."""
        for reconciler in reconcilers:
            reconciler.set_up(self)

    def for_(self, kind: RequestKind[K], reconcile: Callable[[K], Awaitable[float | None]]) -> Registry:
        """Register `reconcile` as the handler of a kind of request.

        `reconcile` may return a number of seconds, after which the object is reconciled again.
        """
        assert kind.name not in self._handlers, f"two reconcilers for requests of kind {kind.name}"
        self._handlers[kind.name] = kind, reconcile
        request_seconds(kind.name)  # so that the metric has every kind from the start
        return self

    def watches(self, source: Source[*Ts], handler: Callable[[Unpack[Ts]], None]) -> Registry:
        """Register a handler for the changes of a source; the handler requests reconciles."""
        self._watches.add(source, handler)
        return self

    def watches_each(self, sources: Iterable[Source[()]], handler: Callable[[], None]) -> Registry:
        """Register a handler for the changes of several sources."""
        for source in sources:
            self._watches.add(source, handler)
        return self

    def runs(self, name: str, run: Run) -> Registry:
        """Register a task that runs as long as the reconcilers, such as a watch that only one reconciler needs."""
        self._tasks[name] = run
        return self

    def background_tasks(self) -> dict[str, Run]:
        """Return the tasks of all reconcilers by name."""
        return dict(self._tasks)

    async def handle_request(self, request: ReconcileRequest) -> None:
        """Reconcile an object; nothing is reconciled before all of the tenant's objects are known."""
        if not self._cache.is_complete:
            return
        kind, reconcile = self._handlers[request.kind]
        requeue_after = await reconcile(request.key)
        if requeue_after is not None:
            self._work_queue.enqueue(kind, request.key, requeue_after)
