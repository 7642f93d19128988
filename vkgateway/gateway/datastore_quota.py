"""Has the tenants' shared datastore looked after, and tells whom it holds so that the others can go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import structlog

from vkgateway.controlplane.etcd.quota import COMPACTION_SHARE, StoreUsage
from vkgateway.gateway.metrics import measure_datastore
from vkgateway.gateway.status import Verdict, false_verdict, true_verdict
from vkgateway.model.api import Tenant
from vkgateway.model.errors import VkgatewayError
from vkgateway.model.names import WRITABLE_ANNOTATION

log = structlog.get_logger(__name__)

CHECK_SECONDS = 10.0
LOW_SPACE_CHECK_SECONDS = 3.0
"""At 20 MB a second, which is more than one API server was seen to write, that is 60 MB between two looks."""


class Datastore(Protocol):
    """The part of `controlplane.etcd.keeper.Keeper` that is used here."""

    @property
    def blocked(self) -> Mapping[str, int]:
        """The tenants that may not write, and what they had when that was found, in bytes."""

    async def check_usage(self, *, exempt: Collection[str]) -> StoreUsage:
        """Look once, and make room where it is short."""


class DatastoreMonitor:
    """Looks at the datastore every ten seconds, or three; a look that fails is only told in the log.

    `tenants` are all there are, None while that is not known; one with the annotation `vkgateway.io/writable: "true"`
    may write in any case. `on_change` hears of each tenant of which something else is true now.
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
        """Say whether a tenant may write; None before the first look."""
        if self._usage is None:
            return None
        return self._verdicts.get(tenant, _WRITABLE) if tenant in self._datastore.blocked else _WRITABLE

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(
                LOW_SPACE_CHECK_SECONDS if self._usage and self._usage.used_share >= COMPACTION_SHARE else CHECK_SECONDS
            )
            try:
                await self.check_datastore()
            except VkgatewayError as error:
                log.warning("the datastore was not looked at", error=str(error))
            except Exception:  # tenants' work goes on without it
                log.exception("the datastore was not looked at")

    async def check_datastore(self) -> None:
        """Look once, and tell what is new; not before all tenants are known."""
        tenants = self._tenants()
        if tenants is None:
            return
        exempt = [one.metadata.name for one in tenants if one.metadata.annotations.get(WRITABLE_ANNOTATION) == "true"]
        try:
            self._usage = await self._datastore.check_usage(exempt=exempt)
        finally:
            self._notify_changes()

    def _notify_changes(self) -> None:
        room, held, before = self._usage, self._datastore.blocked, self._verdicts
        if room is None:
            return
        measure_datastore(in_use=room.in_use, file=room.file_size, quota=room.quota, held=len(held))
        self._verdicts = {tenant: before.get(tenant) or _blocked_verdict(size, room) for tenant, size in held.items()}
        for tenant in before.keys() ^ self._verdicts.keys():
            self._on_change(tenant)


_WRITABLE = true_verdict("Writable", "its API server may write")


def _blocked_verdict(size: int, room: StoreUsage) -> Verdict:
    whole = f"{_format_gib(room.in_use)} of {_format_gib(room.quota)} of the shared datastore are in use"
    share = f"; it has {_format_gib(size)} of it, and grew most" if size else ""
    hint = f"Annotate it with {WRITABLE_ANNOTATION}=true, have objects deleted, and take the annotation away again"
    return false_verdict("DatastoreFull", f"its API server may read and not write: {whole}{share}. {hint}")


def _format_gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
