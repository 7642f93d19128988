"""Workers shared by all tenants: one fair queue, one worker per object, retries after failures."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

import structlog

from vkgateway.api.errors import ConflictError, UnavailableError
from vkgateway.kube.errors import ApiError
from vkgateway.runtime.metrics import DEFECT, RETRIES, request_seconds
from vkgateway.runtime.requests import ReconcileRequest, RequestQueue
from vkgateway.runtime.workqueue import FairQueue, run_workers

log = structlog.get_logger(__name__)


class RequestHandler(Protocol):
    """Reconcilers of a tenant, as called by the workers."""

    async def handle_request(self, request: ReconcileRequest) -> None:
        """Handle one request of the tenant."""


class WorkerPool:
    """Workers that run the reconcilers of many tenants over one queue.

    One tenant uses at most an eighth of the workers. A tenant's API server may never answer, and its webhooks may take
    half a minute per write; a few such tenants must not block all workers.
    """

    def __init__(self, *, workers: int = 128) -> None:
        self.queue: RequestQueue = FairQueue(per_tenant=max(1, workers // 8))
        self._workers = workers
        self._tenants: dict[str, RequestHandler] = {}
        self._active: dict[str, int] = {}
        self._drained: dict[str, asyncio.Event] = {}

    def add_tenant(self, name: str, tenant: RequestHandler) -> None:
        """Accept requests of a tenant from now on."""
        self._tenants[name] = tenant

    def remove_tenant(self, name: str) -> None:
        """Drop a tenant and its queued requests; running handlers continue, see `wait_drained`."""
        self._tenants.pop(name, None)
        self.queue.drop_tenant(name)

    async def wait_drained(self, name: str) -> None:
        """Wait until no worker handles a request of a removed tenant.

        Until then, handlers may still create objects of the tenant. The wait is bounded by the request timeout.
        """
        if name in self._active:
            await self._drained.setdefault(name, asyncio.Event()).wait()

    async def run(self) -> None:
        """Process requests until cancelled."""
        await run_workers(self.queue, self._handle_request, concurrency=self._workers, name="sync")

    async def _handle_request(self, tenant: str, request: ReconcileRequest) -> None:
        reconcilers = self._tenants.get(tenant)
        if reconcilers is None:
            return
        self._active[tenant] = self._active.get(tenant, 0) + 1
        started = time.perf_counter()
        try:
            await reconcilers.handle_request(request)
        except (ConflictError, UnavailableError) as error:
            # No defect: the request waits for another change, and a later retry succeeds.
            log.info("waiting", tenant=tenant, request=request, why=str(error))
            RETRIES.labels(type(error).__name__).inc()
            if tenant in self._tenants:
                raise
        except Exception as error:
            RETRIES.labels(type(error).__name__ if isinstance(error, ApiError) else DEFECT).inc()
            if tenant not in self._tenants:
                log.info("request ended with its tenant", tenant=tenant, request=request, error=str(error))
                return
            raise
        finally:
            request_seconds(request.kind).observe(time.perf_counter() - started)
            self._request_done(tenant)

    def _request_done(self, tenant: str) -> None:
        left = self._active[tenant] - 1
        if left:
            self._active[tenant] = left
            return
        del self._active[tenant]
        if (drained := self._drained.pop(tenant, None)) is not None:
            drained.set()
