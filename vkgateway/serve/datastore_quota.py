"""Monitor of the space in the tenants' shared datastore, which blocks writes of tenants that fill it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import structlog

from vkgateway.api.errors import VkgatewayError
from vkgateway.api.names import WRITABLE_ANNOTATION
from vkgateway.api.types import Tenant
from vkgateway.clusters.status import Verdict, false_verdict, true_verdict
from vkgateway.planes.etcd.quota import COMPACTION_SHARE, StoreUsage
from vkgateway.tenants.metrics import measure_datastore

log = structlog.get_logger(__name__)

CHECK_SECONDS = 10.0
LOW_SPACE_CHECK_SECONDS = 3.0
"""At 20 MB a second, more than one API server was measured to write, 60 MB arrive between two checks."""


class Datastore(Protocol):
    """The part of `etcd.quota.QuotaController` that is used here."""

    @property
    def blocked(self) -> Mapping[str, int]:
        """Bytes used by each tenant whose writes are blocked, when they were blocked."""

    async def check_usage(self, *, exempt: Collection[str]) -> StoreUsage:
        """Check the usage once, and free space if it is low."""


class DatastoreMonitor:
    """Monitor that checks the datastore every ten seconds, or every three while space is low.

    `tenants` returns all tenants, None while unknown. A tenant with the annotation `vkgateway.io/writable: "true"` is
    never blocked. `on_change` is called for each tenant whose verdict changed. A failed check is only logged.
    """

    def __init__(
        self,
        datastore: Datastore,
        *,
        tenants: Callable[[], Collection[Tenant] | None],
        on_change: Callable[[str], None],
    ) -> None:
        self._datastore = datastore
        self._tenants = tenants
        self._on_change = on_change
        self._usage: StoreUsage | None = None
        self._verdicts: dict[str, Verdict] = {}

    def write_verdict(self, tenant: str) -> Verdict | None:
        """Return whether a tenant may write; None before the first check."""
        if self._usage is None:
            return None
        return self._verdicts.get(tenant, _WRITABLE) if tenant in self._datastore.blocked else _WRITABLE

    async def run(self) -> None:
        """Check periodically until cancelled."""
        while True:
            await asyncio.sleep(
                LOW_SPACE_CHECK_SECONDS if self._usage and self._usage.used_share >= COMPACTION_SHARE else CHECK_SECONDS
            )
            try:
                await self.check_datastore()
            except VkgatewayError as error:
                log.warning("datastore check failed", error=str(error))
            except Exception:  # the gateway continues without it
                log.exception("datastore check failed")

    async def check_datastore(self) -> None:
        """Check the datastore once and report changes; does nothing until all tenants are known."""
        tenants = self._tenants()
        if tenants is None:
            return
        exempt = [
            tenant.metadata.name for tenant in tenants if tenant.metadata.annotations.get(WRITABLE_ANNOTATION) == "true"
        ]
        try:
            self._usage = await self._datastore.check_usage(exempt=exempt)
        finally:
            self._notify_changes()

    def _notify_changes(self) -> None:
        usage, blocked, previous = self._usage, self._datastore.blocked, self._verdicts
        if usage is None:
            return
        measure_datastore(in_use=usage.in_use, file=usage.file_size, quota=usage.quota, blocked=len(blocked))
        self._verdicts = {
            tenant: previous.get(tenant) or _blocked_verdict(size, usage) for tenant, size in blocked.items()
        }
        for tenant in previous.keys() ^ self._verdicts.keys():
            self._on_change(tenant)


_WRITABLE = true_verdict("Writable", "the API server may write")


def _blocked_verdict(size: int, usage: StoreUsage) -> Verdict:
    total = f"{_format_gib(usage.in_use)} of {_format_gib(usage.quota)} of the shared datastore are in use"
    share = f"; this tenant uses {_format_gib(size)} and grew most" if size else ""
    hint = f"Set the annotation {WRITABLE_ANNOTATION}=true, delete objects, and remove the annotation"
    return false_verdict("DatastoreFull", f"the API server is read-only: {total}{share}. {hint}")


def _format_gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
