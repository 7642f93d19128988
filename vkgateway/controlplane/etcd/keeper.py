"""Keeps room in the shared etcd: forgets history early, has files shrink, and stops who fills it from writing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:  # gRPC takes long to load
    from vkgateway.controlplane.etcd.client import EtcdClient, Status
    from vkgateway.controlplane.etcd.tenancy import Tenancy

_log = structlog.get_logger(__name__)

_DEFAULT_QUOTA: Final = 2 << 30
"""etcd's own, where it does not tell which it has."""
CROWDED: Final = 0.4
"""The share of the quota in use from which on history is forgotten early."""
FULL: Final = 0.6
"""From which on those that fill it are held: to find them takes a while, in which it fills further."""
ROOMY: Final = 0.5
"""Below which they may write again."""
_STEP: Final = 0.02
"""The share of the quota by which the store, or a tenant, must have grown for it to matter."""
_BRIM: Final = 0.95
"""The share of the quota at which the file, free pages and all, is about to end all writes."""
_FREED_SECONDS: Final = 0.5
"""After a compaction: pages count as free a commit or two later."""


@dataclass(frozen=True, slots=True)
class Room:
    """How full the store is, in bytes."""

    in_use: int
    file: int
    quota: int

    @classmethod
    def of(cls, status: Status) -> Room:
        """Read it from a member's status."""
        return cls(in_use=status.size_in_use, file=status.size, quota=status.quota or _DEFAULT_QUOTA)

    @property
    def share(self) -> float:
        """What of the quota is in use."""
        return self.in_use / self.quota


class Keeper:
    """Sees to it that no tenant can fill the store for all; `look` is to be called every few seconds.

    A store that is full takes no writes of anybody's. So, once two fifths of it are in use, what keys were before is
    forgotten after one look instead of minutes: it takes the most room where few keys are written often. Once three
    fifths are in use, the tenant that grew most since the last time may read and not write (etcd's own roles say so,
    whatever its admin does), and the next one if that was not enough. They are released when there is room again.

    `held` tells the bytes that each held tenant had when it was found; 0 for those held by a gateway before this one.
    """

    def __init__(
        self, client: EtcdClient, tenancy: Tenancy, *, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    ) -> None:
        self._client = client
        self._tenancy = tenancy
        self._sleep = sleep
        self.held: dict[str, int] = {}
        self._known = False
        self._sizes: dict[str, int] = {}
        self._seen = 0
        """The revision at the last look: what was before it is old."""
        self._forgotten = 0
        """The revision of the last compaction."""
        self._compacted_at = 0
        self._measured_at = 0
        """Bytes in use after the last compaction, and at the last look at who has them."""

    async def look(self, *, exempt: Collection[str] = ()) -> Room:
        """Look once and do what is needed; tenants in `exempt` may write in any case.

        Raises:
            EtcdError: etcd does not answer, or refuses.
        """
        if self.held or not self._known:
            self.held = {tenant: self.held.get(tenant, 0) for tenant in await self._tenancy.held()}
            self._known = True
        for tenant in sorted(self.held.keys() & set(exempt)):
            await self._release(tenant)
        status = await self._client.status()
        status = await self._forget(status, clearing=bool(self.held or exempt))
        status = await self._shrink(status)
        room = Room.of(status)
        if room.share >= CROWDED:
            await self._watch_growth(room, exempt=exempt)
        elif self._sizes:
            self._sizes, self._measured_at = {}, 0
        if room.share < ROOMY and self.held:
            await self._release(max(self.held, key=lambda tenant: (self.held[tenant], tenant)))
        return room

    async def _forget(self, status: Status, *, clearing: bool) -> Status:
        """Compact what is older than the last look, or all of it: where the store is crowded and has grown since, or
        somebody is at clearing it up, which shows only then.
        """
        room = Room.of(status)
        before = status.revision if status.is_full or room.share >= FULL else self._seen
        self._seen = status.revision
        self._compacted_at = min(self._compacted_at, room.in_use)
        grown = room.in_use - self._compacted_at >= _STEP * room.quota
        if before <= self._forgotten or not (status.is_full or (room.share >= CROWDED and (grown or clearing))):
            return status
        await self._client.compact(before)
        self._forgotten = before
        await self._sleep(_FREED_SECONDS)
        status = await self._client.status()
        self._compacted_at = status.size_in_use
        return status

    async def _shrink(self, status: Status) -> Status:
        """Give free pages back where the file itself is what is about to end all writes, or has done so."""
        room = Room.of(status)
        if room.share >= (_BRIM if status.is_full else FULL) or not (status.is_full or room.file >= _BRIM * room.quota):
            return status
        _log.warning("the datastore's file is written anew; it answers nobody meanwhile", **_megabytes(room))
        await self._client.defragment()
        if status.is_full:
            await self._client.allow_writes()
        return await self._client.status()

    async def _watch_growth(self, room: Room, *, exempt: Collection[str]) -> None:
        """Measure who has the room, at first and whenever it grew; hold who grew most, once it is nearly used up."""
        if room.in_use - self._measured_at < _STEP * room.quota:
            return
        before, self._sizes = self._sizes, await self._measure()
        self._measured_at = room.in_use
        if room.share < FULL:
            return
        grown = {tenant: size - before.get(tenant, 0) for tenant, size in self._sizes.items()}
        free = [tenant for tenant in grown if tenant not in self.held and tenant not in exempt]
        worst = max(free, key=lambda tenant: (grown[tenant], self._sizes[tenant]), default=None)
        if worst is None or grown[worst] < _STEP * room.quota:
            _log.error("the datastore fills up, and not by tenants that could be held", **_megabytes(room))
            return
        await self._tenancy.hold(worst)
        self.held[worst] = self._sizes[worst]
        size = self._sizes[worst] >> 20
        _log.error("a tenant fills the datastore and may not write now", tenant=worst, mib=size, **_megabytes(room))

    async def _measure(self) -> dict[str, int]:
        return {tenant: await self._tenancy.size(tenant) for tenant in await self._tenancy.tenants()}

    async def _release(self, tenant: str) -> None:
        await self._tenancy.release(tenant)
        del self.held[tenant]
        _log.warning("a tenant may write to the datastore again", tenant=tenant)


def _megabytes(room: Room) -> Mapping[str, int]:
    return {"in_use_mib": room.in_use >> 20, "file_mib": room.file >> 20, "quota_mib": room.quota >> 20}
