"""The workers that all tenants share: one fair queue, one object at a time, failures tried again."""

from __future__ import annotations

from typing import Literal, Protocol

import structlog

from vkgateway.kube.queue import FairQueue, run_workers
from vkgateway.model.errors import ConflictError, UnavailableError

log = structlog.get_logger(__name__)

Item = tuple[Literal["pod", "copy", "namespace", "sweep"], str, str, str]
"""What to look at: its sort, the kind (of copies), the tenant namespace and the name."""

Queue = FairQueue[Item]


class Worked(Protocol):
    """A tenant's reconcilers, as the workers call them."""

    async def handle(self, item: Item) -> None:
        """Look at one thing and do what follows."""


class Engine:
    """Runs the reconcilers of many tenants over one queue.

    One tenant holds at most half of the workers, so that an API server which does not answer cannot hold them all.
    """

    def __init__(self, *, workers: int = 32) -> None:
        self.queue: Queue = FairQueue(per_tenant=max(1, workers // 2))
        self._workers = workers
        self._tenants: dict[str, Worked] = {}

    def add(self, name: str, tenant: Worked) -> None:
        """Work for a tenant from now on."""
        self._tenants[name] = tenant

    def remove(self, name: str) -> None:
        """Forget a tenant and all that waits for it."""
        self._tenants.pop(name, None)
        self.queue.drop(name)

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            await run_workers(self.queue, self._handle, concurrency=self._workers, name="sync")
        finally:
            self.queue.close()

    async def _handle(self, tenant: str, item: Item) -> None:
        reconcilers = self._tenants.get(tenant)
        if reconcilers is None:
            return
        try:
            await reconcilers.handle(item)
        except (ConflictError, UnavailableError) as error:
            # Not a defect: something else must happen first, and the next tries will find it done.
            log.info("waiting", tenant=tenant, item=item, why=str(error))
            self.queue.retry(tenant, item)
