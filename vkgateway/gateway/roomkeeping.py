"""Has the tenants' shared datastore looked after, and tells whom it holds so that the others can go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import structlog

from vkgateway.controlplane.etcd.keeper import Room
from vkgateway.gateway.metrics import measure_datastore
from vkgateway.gateway.status import Verdict, failing, passed
from vkgateway.model.api import Tenant
from vkgateway.model.errors import VkgatewayError
from vkgateway.model.names import WRITABLE_ANNOTATION

log = structlog.get_logger(__name__)

LOOK_SECONDS = 10.0
"""At 50 MB a second, which is what one API server can have written, that is 500 MB between two looks."""


class Datastore(Protocol):
    """The part of `controlplane.etcd.keeper.Keeper` that is used here."""

    @property
    def held(self) -> Mapping[str, int]:
        """The tenants that may not write, and what they had when that was found, in bytes."""

    async def look(self, *, exempt: Collection[str]) -> Room:
        """Look once, and make room where it is short."""


class RoomKeeping:
    """Looks at the datastore every ten seconds; a look that fails is only told in the log.

    `tenants` are all there are; one that carries the annotation `vkgateway.io/writable` may write in any case.
    `on_change` hears of each tenant of which something else is true now.
    """

    def __init__(
        self,
        datastore: Datastore,
        *,
        tenants: Callable[[], Collection[Tenant]],
        on_change: Callable[[str], None],
    ) -> None:
        self._datastore = datastore
        self._tenants = tenants
        self._on_change = on_change
        self._held: dict[str, Verdict] | None = None

    def verdict(self, tenant: str) -> Verdict | None:
        """Say whether a tenant may write; None before the first look."""
        return None if self._held is None else self._held.get(tenant, _WRITABLE)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.look()
            except VkgatewayError as error:
                log.warning("the datastore was not looked at", error=str(error))

    async def look(self) -> None:
        """Look once, and tell what is new."""
        exempt = [one.metadata.name for one in self._tenants() if one.metadata.annotations.get(WRITABLE_ANNOTATION)]
        room = await self._datastore.look(exempt=exempt)
        held = self._datastore.held
        measure_datastore(in_use=room.in_use, file=room.file, quota=room.quota, held=len(held))
        before = self._held or {}
        self._held = {tenant: before.get(tenant) or _held(size, room) for tenant, size in held.items()}
        for tenant in before.keys() ^ self._held.keys():
            self._on_change(tenant)


_WRITABLE = passed("Writable", "its API server may write")


def _held(size: int, room: Room) -> Verdict:
    whole = f"{_gib(room.in_use)} of {_gib(room.quota)} of the shared datastore are in use"
    share = f"; it has {_gib(size)} of it, and grew most" if size else ""
    hint = f"Let it write with the annotation {WRITABLE_ANNOTATION}, have objects deleted, and take that away again"
    return failing("DatastoreFull", f"its API server may read and not write: {whole}{share}. {hint}")


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
