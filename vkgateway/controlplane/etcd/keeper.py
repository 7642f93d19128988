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

CROWDED: Final = 0.4
"""The share of the quota in use from which on history is forgotten early, and tenants are measured as they grow."""
FULL: Final = 0.6
"""From which on those that fill it are held: to find them takes a while, in which it fills further."""
URGENT: Final = 0.8
"""From which on the largest is held where it is not known who grew."""
ROOMY: Final = 0.5
"""Below which they may write again."""
_STEP: Final = 0.02
"""The share of the quota by which the store must have changed for it to matter."""
_LITTLE: Final = 0.002
"""The share of the quota by which a tenant must have grown to be one of those that fill it."""
_BRIM: Final = 0.95
"""The share of the quota at which the file, free pages and all, is about to end all writes."""
_FREED_SECONDS: Final = 0.5
"""After a compaction: pages count as free a commit or two later."""


@dataclass(frozen=True, slots=True)
class Room:
    """How full the store is, in bytes; `quota` is 0 where there is none, or etcd does not tell (before 3.6)."""

    in_use: int
    file: int
    quota: int

    @classmethod
    def of(cls, status: Status) -> Room:
        """Read it from a member's status."""
        return cls(in_use=status.size_in_use, file=status.size, quota=max(0, status.quota))

    @property
    def share(self) -> float:
        """What of the quota is in use; 0 where that is not known."""
        return self.in_use / self.quota if self.quota else 0.0

    @property
    def step(self) -> float:
        """The bytes that matter."""
        return _STEP * self.quota

    @property
    def at_the_brim(self) -> bool:
        """Whether the file is about to end all writes, however much of it is free."""
        return self.quota > 0 and self.file >= _BRIM * self.quota


class Keeper:
    """Sees to it that no tenant can fill the store for all; `look` is to be called every few seconds.

    A store that is full takes no writes of anybody's. So, once two fifths of it are in use, what keys were before is
    forgotten after one look instead of minutes: it takes the most room where few keys are written often. From then on
    it is measured what each tenant has, whenever that matters. Once three fifths are in use, the tenant that grew most
    since may read and not write (etcd's own roles say so, whatever its admin does), and the next one if that was not
    enough. They are released when there is room again. Where a store has filled all the same it is opened again.

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
        self._seen = 0
        """The revision at the last look: what was before it is old."""
        self._forgotten = 0
        """The revision of the last compaction."""
        self._compacted_at = 0
        """Bytes in use after the last compaction, or the least since."""
        self._measured_at: int | None = None
        """Bytes in use when tenants were last measured; None: not since the store was crowded."""
        self._least: dict[str, int] = {}
        """The least that each tenant had since then."""

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
        if status.revision < self._forgotten:  # etcd was put back from a backup
            self._seen = self._forgotten = 0
        status = await (self._reopen(status) if status.is_full else self._forget(status, clearing=bool(exempt)))
        room = Room.of(status)
        if room.share >= CROWDED:
            await self._watch_growth(room, exempt=exempt, stuck=status.is_full)
        else:
            self._measured_at, self._least = None, {}
        if room.share < ROOMY and self.held and not status.is_full:
            await self._release(max(self.held, key=lambda tenant: (self.held[tenant], tenant)))
        return room

    async def _forget(self, status: Status, *, clearing: bool) -> Status:
        """Compact where the store is crowded: all that is old, where it has grown by a step since, and as well while
        somebody is at `clearing` up, which shows only then.
        """
        room, old = Room.of(status), self._seen
        self._seen = status.revision
        self._compacted_at = min(self._compacted_at, room.in_use)
        grown = room.in_use - self._compacted_at >= room.step
        if room.share >= CROWDED and (grown or clearing):
            status = await self._compact(status, status.revision if grown and room.share >= FULL else old)
            room = Room.of(status)
        if room.at_the_brim and room.share < FULL:
            status = await self._shrink(room)
        return status

    async def _reopen(self, status: Status) -> Status:
        """Make what room there is in a store that takes no writes any more, and let writes in if there is some."""
        status = await self._compact(status, status.revision)
        status = await self._shrink(Room.of(status))
        if not Room.of(status).at_the_brim:
            await self._client.allow_writes()
            _log.warning("the datastore was full, and takes writes again", **_megabytes(Room.of(status)))
        return await self._client.status()

    async def _compact(self, status: Status, revision: int) -> Status:
        if revision <= self._forgotten:
            return status
        await self._client.compact(revision)
        self._forgotten = revision
        await self._sleep(_FREED_SECONDS)
        status = await self._client.status()
        self._compacted_at = status.size_in_use
        return status

    async def _shrink(self, room: Room) -> Status:
        """Give free pages of the file back, where there are so many that it matters."""
        if room.file - room.in_use >= _STEP * (room.quota or room.file):
            _log.warning("the datastore's file is written anew; it answers nobody meanwhile", **_megabytes(room))
            await self._client.defragment()
        return await self._client.status()

    async def _watch_growth(self, room: Room, *, exempt: Collection[str], stuck: bool) -> None:
        """Measure who has the room whenever that has changed; hold who grew most, once it is nearly used up."""
        first = self._measured_at is None
        changed = first or abs(room.in_use - (self._measured_at or 0)) >= room.step
        if not changed and (not stuck or self.held):
            return
        sizes = {tenant: await self._tenancy.size(tenant) for tenant in await self._tenancy.tenants()}
        self._measured_at = room.in_use
        self._least = {
            tenant: min(self._least.get(tenant, size if first else 0), size) for tenant, size in sizes.items()
        }
        urgent = stuck or room.share >= URGENT
        if room.share < FULL or (first and not urgent):
            return
        grown = {tenant: size - self._least[tenant] for tenant, size in sizes.items()}
        little = _LITTLE * room.quota
        free = [tenant for tenant in sizes if tenant not in self.held and tenant not in exempt]
        worst = max(free, key=lambda one: (grown[one] if grown[one] >= little else 0, sizes[one]), default="")
        if not worst or (grown[worst] < little and not urgent):
            _log.error("the datastore fills up, and not by tenants that could be held", **_megabytes(room))
            return
        await self._tenancy.hold(worst)
        self.held[worst] = sizes[worst]
        size = sizes[worst] >> 20
        _log.error("a tenant fills the datastore and may not write now", tenant=worst, mib=size, **_megabytes(room))

    async def _release(self, tenant: str) -> None:
        await self._tenancy.release(tenant)
        self.held.pop(tenant, None)  # it may have been removed meanwhile
        _log.warning("a tenant may write to the datastore again", tenant=tenant)


def _megabytes(room: Room) -> Mapping[str, int]:
    return {"in_use_mib": room.in_use >> 20, "file_mib": room.file >> 20, "quota_mib": room.quota >> 20}
