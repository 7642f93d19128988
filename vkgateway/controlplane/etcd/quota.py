"""Keeps room in the shared etcd: forgets history early, has files shrink, and stops who fills it from writing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:  # gRPC takes long to load
    from vkgateway.controlplane.etcd.client import EtcdClient, MemberStatus
    from vkgateway.controlplane.etcd.tenancy import Tenancy

_log = structlog.get_logger(__name__)

COMPACTION_SHARE: Final = 0.4
"""The share of the quota in use from which on history is forgotten early, and tenants are measured as they grow."""
BLOCKING_SHARE: Final = 0.6
"""From which on those that fill it are held: to find them takes a while, in which it fills further."""
URGENT_SHARE: Final = 0.8
"""From which on the largest is held where it is not known who grew."""
UNBLOCKING_SHARE: Final = 0.5
"""Below which they may write again."""
_SIGNIFICANT_SHARE: Final = 0.02
"""The share of the quota by which the store must have changed for it to matter."""
_SIGNIFICANT_GROWTH: Final = 0.002
"""The share of the quota by which a tenant must have grown to be one of those that fill it."""
_FILE_LIMIT_SHARE: Final = 0.95
"""The share of the quota at which the file, free pages and all, is about to end all writes."""
_FREED_SECONDS: Final = 0.5
"""After a compaction: pages count as free a commit or two later."""


@dataclass(frozen=True, slots=True)
class StoreUsage:
    """How full the store is, in bytes; `quota` is 0 where there is none, or etcd does not tell (before 3.6)."""

    in_use: int
    file_size: int
    quota: int

    @classmethod
    def from_status(cls, status: MemberStatus) -> StoreUsage:
        """Read it from a member's status."""
        return cls(in_use=status.size_in_use, file_size=status.size, quota=max(0, status.quota))

    @property
    def used_share(self) -> float:
        """What of the quota is in use; 0 where that is not known."""
        return self.in_use / self.quota if self.quota else 0.0

    @property
    def significant_bytes(self) -> float:
        """The bytes that matter."""
        return _SIGNIFICANT_SHARE * self.quota

    @property
    def is_nearly_full(self) -> bool:
        """Whether the file is about to end all writes, however much of it is free."""
        return self.quota > 0 and self.file_size >= _FILE_LIMIT_SHARE * self.quota


class QuotaController:
    """Sees to it that no tenant can fill the store for all; `check_usage` is to be called every few seconds.

    A store that is full takes no writes of anybody's. So, once two fifths of it are in use, what keys were before is
    forgotten after one look instead of minutes: it takes the most room where few keys are written often. From then on
    it is measured what each tenant has, whenever that matters. Once three fifths are in use, the tenant that grew most
    since may read and not write (etcd's own roles say so, whatever its admin does), and the next one if that was not
    enough. They are released when there is room again. Where a store has filled all the same it is opened again.

    `blocked` tells the bytes that each held tenant had when it was found; 0 for those held by a gateway before this
    one.
    """

    def __init__(
        self, client: EtcdClient, tenancy: Tenancy, *, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    ) -> None:
        self._client = client
        self._tenancy = tenancy
        self._sleep = sleep
        self.blocked: dict[str, int] = {}
        self._blocked_known = False
        self._last_revision = 0
        """The revision at the last look: what was before it is old."""
        self._compacted_revision = 0
        """The revision of the last compaction."""
        self._compacted_bytes = 0
        """Bytes in use after the last compaction, or the least since."""
        self._measured_bytes: int | None = None
        """Bytes in use when tenants were last measured; None: not since the store was crowded."""
        self._smallest_sizes: dict[str, int] = {}
        """The least that each tenant had since then."""

    async def check_usage(self, *, exempt: Collection[str] = ()) -> StoreUsage:
        """Look once and do what is needed; tenants in `exempt` may write in any case.

        Raises:
            EtcdError: etcd does not answer, or refuses.
        """
        if self.blocked or not self._blocked_known:
            self.blocked = {tenant: self.blocked.get(tenant, 0) for tenant in await self._tenancy.blocked_tenants()}
            self._blocked_known = True
        for tenant in sorted(self.blocked.keys() & set(exempt)):
            await self._allow_writes(tenant)
        status = await self._client.member_status()
        if status.revision < self._compacted_revision:  # etcd was put back from a backup
            self._last_revision = self._compacted_revision = 0
        status = await (
            self._reopen_writes(status) if status.is_full else self._compact_history(status, clearing=bool(exempt))
        )
        room = StoreUsage.from_status(status)
        if room.used_share >= COMPACTION_SHARE:
            await self._limit_growth(room, exempt=exempt, stuck=status.is_full)
        else:
            self._measured_bytes, self._smallest_sizes = None, {}
        if room.used_share < UNBLOCKING_SHARE and self.blocked and not status.is_full:
            await self._allow_writes(max(self.blocked, key=lambda tenant: (self.blocked[tenant], tenant)))
        return room

    async def _compact_history(self, status: MemberStatus, *, clearing: bool) -> MemberStatus:
        """Compact where the store is crowded: all that is old, where it has grown by a step since, and as well while
        somebody is at `clearing` up, which shows only then.
        """
        room, old = StoreUsage.from_status(status), self._last_revision
        self._last_revision = status.revision
        self._compacted_bytes = min(self._compacted_bytes, room.in_use)
        grown = room.in_use - self._compacted_bytes >= room.significant_bytes
        if room.used_share >= COMPACTION_SHARE and (grown or clearing):
            status = await self._compact_to(
                status, status.revision if grown and room.used_share >= BLOCKING_SHARE else old
            )
            room = StoreUsage.from_status(status)
        if room.is_nearly_full and room.used_share < BLOCKING_SHARE:
            status = await self._shrink_file(room)
        return status

    async def _reopen_writes(self, status: MemberStatus) -> MemberStatus:
        """Make what room there is in a store that takes no writes any more, and let writes in if there is some."""
        status = await self._compact_to(status, status.revision)
        status = await self._shrink_file(StoreUsage.from_status(status))
        if not StoreUsage.from_status(status).is_nearly_full:
            await self._client.allow_writes()
            _log.warning(
                "the datastore was full, and takes writes again", **_log_fields(StoreUsage.from_status(status))
            )
        return await self._client.member_status()

    async def _compact_to(self, status: MemberStatus, revision: int) -> MemberStatus:
        if revision <= self._compacted_revision:
            return status
        await self._client.compact(revision)
        self._compacted_revision = revision
        await self._sleep(_FREED_SECONDS)
        status = await self._client.member_status()
        self._compacted_bytes = status.size_in_use
        return status

    async def _shrink_file(self, room: StoreUsage) -> MemberStatus:
        """Give free pages of the file back, where there are so many that it matters."""
        if room.file_size - room.in_use >= _SIGNIFICANT_SHARE * (room.quota or room.file_size):
            _log.warning("the datastore's file is written anew; it answers nobody meanwhile", **_log_fields(room))
            await self._client.defragment()
        return await self._client.member_status()

    async def _limit_growth(self, room: StoreUsage, *, exempt: Collection[str], stuck: bool) -> None:
        """Measure who has the room whenever that has changed; hold who grew most, once it is nearly used up."""
        first = self._measured_bytes is None
        changed = first or abs(room.in_use - (self._measured_bytes or 0)) >= room.significant_bytes
        if not changed and (not stuck or self.blocked):
            return
        sizes = {tenant: await self._tenancy.tenant_size(tenant) for tenant in await self._tenancy.list_tenants()}
        self._measured_bytes = room.in_use
        self._smallest_sizes = {
            tenant: min(self._smallest_sizes.get(tenant, size if first else 0), size) for tenant, size in sizes.items()
        }
        urgent = stuck or room.used_share >= URGENT_SHARE
        if room.used_share < BLOCKING_SHARE or (first and not urgent):
            return
        grown = {tenant: size - self._smallest_sizes[tenant] for tenant, size in sizes.items()}
        little = _SIGNIFICANT_GROWTH * room.quota
        free = [tenant for tenant in sizes if tenant not in self.blocked and tenant not in exempt]
        worst = max(free, key=lambda one: (grown[one] if grown[one] >= little else 0, sizes[one]), default="")
        if not worst or (grown[worst] < little and not urgent):
            _log.error("the datastore fills up, and not by tenants that could be held", **_log_fields(room))
            return
        await self._tenancy.block_writes(worst)
        self.blocked[worst] = sizes[worst]
        size = sizes[worst] >> 20
        _log.error("a tenant fills the datastore and may not write now", tenant=worst, mib=size, **_log_fields(room))

    async def _allow_writes(self, tenant: str) -> None:
        await self._tenancy.allow_writes(tenant)
        self.blocked.pop(tenant, None)  # it may have been removed meanwhile
        _log.warning("a tenant may write to the datastore again", tenant=tenant)


def _log_fields(room: StoreUsage) -> Mapping[str, int]:
    return {"in_use_mib": room.in_use >> 20, "file_mib": room.file_size >> 20, "quota_mib": room.quota >> 20}
