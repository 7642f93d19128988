"""Controller of space in the shared etcd: compacts, defragments, and blocks tenants that fill the store."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from vkgateway.kube.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:  # gRPC takes long to load
    from vkgateway.planes.etcd.client import EtcdMaintenance, MemberStatus
    from vkgateway.planes.etcd.tenancy import Tenancy

_log = structlog.get_logger(__name__)

COMPACTION_SHARE: Final = 0.4
"""Share of the quota in use above which history is compacted early and tenants are measured."""
BLOCKING_SHARE: Final = 0.6
"""Share above which the tenants that grow are blocked; to find them takes time, while the store fills further."""
URGENT_SHARE: Final = 0.8
"""Share above which the first measurement already blocks a tenant: the largest one, since growth is unknown."""
UNBLOCKING_SHARE: Final = 0.5
"""Share below which blocked tenants may write again."""
_SIGNIFICANT_SHARE: Final = 0.02
"""Share of the quota by which usage must change before the controller acts."""
_SIGNIFICANT_GROWTH: Final = 0.002
"""Share of the quota by which a tenant must grow to count as one that fills the store."""
_FILE_LIMIT_SHARE: Final = 0.95
"""Share of the quota at which the file, free pages included, is about to stop all writes."""
_FREED_SECONDS: Final = 0.5
"""Seconds after a compaction until etcd counts the pages as free, a commit or two later."""


@dataclass(frozen=True, slots=True)
class StoreUsage:
    """Usage of the store in bytes; `quota` is 0 if there is none or etcd does not report it (before 3.6)."""

    in_use: int
    file_size: int
    quota: int

    @classmethod
    def from_status(cls, status: MemberStatus) -> StoreUsage:
        """Return the usage in a member's status."""
        return cls(in_use=status.size_in_use, file_size=status.size, quota=max(0, status.quota))

    @property
    def used_share(self) -> float:
        """Return the share of the quota in use; 0 if the quota is unknown."""
        return self.in_use / self.quota if self.quota else 0.0

    @property
    def significant_bytes(self) -> float:
        """Return the change in bytes from which the controller acts."""
        return _SIGNIFICANT_SHARE * self.quota

    @property
    def is_nearly_full(self) -> bool:
        """Return whether the file, free pages included, is about to stop all writes."""
        return self.quota > 0 and self.file_size >= _FILE_LIMIT_SHARE * self.quota


class QuotaController:
    """Prevents one tenant from filling the store for all; call `check_usage` every few seconds.

    A full store refuses the writes of every tenant. The controller has three stages:

    1. Two fifths in use: it compacts history at each check instead of after minutes. History takes the most space if
    few keys are written often. It also measures every tenant whenever usage has changed.
    2. Three fifths in use: the tenant that grew most may read but not write, then the next one if that was not enough.
    etcd's roles enforce it, so the tenant's admin cannot undo it. Blocked tenants may write again once there is space.
    3. Full all the same: it compacts, and opens the store for writes again.

    `blocked` maps each blocked tenant to its bytes when it was blocked; 0 for one that an earlier gateway process
    blocked.
    """

    def __init__(self, maintenance: EtcdMaintenance, tenancy: Tenancy, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._maintenance = maintenance
        self._tenancy = tenancy
        self._clock = clock
        self.blocked: dict[str, int] = {}
        self._blocked_known = False
        self._last_revision = 0
        """Revision at the last check; earlier ones are history."""
        self._compacted_revision = 0
        """Revision of the last compaction."""
        self._compacted_bytes = 0
        """Bytes in use after the last compaction, or the minimum since then."""
        self._measured_bytes: int | None = None
        """Bytes in use when tenants were last measured; None before the first time since the store became crowded."""
        self._smallest_sizes: dict[str, int] = {}
        """Minimum size of each tenant since then."""

    async def check_usage(self, *, exempt: Collection[str] = ()) -> StoreUsage:
        """Check the usage once and act on it; never block the tenants in `exempt`.

        Raises:
            EtcdError: etcd does not answer, or refuses.
        """
        if self.blocked or not self._blocked_known:
            self.blocked = {tenant: self.blocked.get(tenant, 0) for tenant in await self._tenancy.blocked_tenants()}
            self._blocked_known = True
        for tenant in sorted(self.blocked.keys() & set(exempt)):
            await self._allow_writes(tenant)
        status = await self._maintenance.member_status()
        if status.revision < self._compacted_revision:  # etcd was restored from a backup
            self._last_revision = self._compacted_revision = 0
        status = await (
            self._reopen_writes(status) if status.is_full else self._compact_history(status, clearing=bool(exempt))
        )
        usage = StoreUsage.from_status(status)
        if usage.used_share >= COMPACTION_SHARE:
            await self._limit_growth(usage, exempt=exempt, is_full=status.is_full)
        else:
            self._measured_bytes, self._smallest_sizes = None, {}
        if usage.used_share < UNBLOCKING_SHARE and self.blocked and not status.is_full:
            await self._allow_writes(max(self.blocked, key=lambda tenant: (self.blocked[tenant], tenant)))
        return usage

    async def _compact_history(self, status: MemberStatus, *, clearing: bool) -> MemberStatus:
        """Compact history if the store is crowded and has grown by a step since the last compaction.

        History is what was written before the previous check, or everything above `BLOCKING_SHARE`. With `clearing`,
        tenants delete data, so it always compacts: only then does the freed space show.
        """
        usage, old = StoreUsage.from_status(status), self._last_revision
        self._last_revision = status.revision
        self._compacted_bytes = min(self._compacted_bytes, usage.in_use)
        grown = usage.in_use - self._compacted_bytes >= usage.significant_bytes
        if usage.used_share >= COMPACTION_SHARE and (grown or clearing):
            status = await self._compact_to(
                status, status.revision if grown and usage.used_share >= BLOCKING_SHARE else old
            )
            usage = StoreUsage.from_status(status)
        if usage.is_nearly_full and usage.used_share < BLOCKING_SHARE:
            status = await self._shrink_file(usage)
        return status

    async def _reopen_writes(self, status: MemberStatus) -> MemberStatus:
        """Free space in a store that refuses writes, and clear its alarms if that helped."""
        status = await self._compact_to(status, status.revision)
        status = await self._shrink_file(StoreUsage.from_status(status))
        if not StoreUsage.from_status(status).is_nearly_full:
            await self._maintenance.allow_writes()
            _log.warning("the full datastore accepts writes again", **_log_fields(StoreUsage.from_status(status)))
        return await self._maintenance.member_status()

    async def _compact_to(self, status: MemberStatus, revision: int) -> MemberStatus:
        if revision <= self._compacted_revision:
            return status
        await self._maintenance.compact(revision)
        self._compacted_revision = revision
        await self._clock.sleep(_FREED_SECONDS)
        status = await self._maintenance.member_status()
        self._compacted_bytes = status.size_in_use
        return status

    async def _shrink_file(self, usage: StoreUsage) -> MemberStatus:
        """Return free pages to the file system if there are enough of them to matter."""
        if usage.file_size - usage.in_use >= _SIGNIFICANT_SHARE * (usage.quota or usage.file_size):
            _log.warning("defragmenting the datastore, which serves no requests meanwhile", **_log_fields(usage))
            await self._maintenance.defragment()
        return await self._maintenance.member_status()

    async def _limit_growth(self, usage: StoreUsage, *, exempt: Collection[str], is_full: bool) -> None:
        """Measure all tenants if usage has changed, and block the one that fills the store if it is nearly full."""
        previous = self._measured_bytes
        first, change = previous is None, usage.in_use - (previous or 0)
        if abs(change) < usage.significant_bytes and (not is_full or self.blocked):
            return
        sizes = {tenant: await self._tenancy.tenant_size(tenant) for tenant in await self._tenancy.list_tenants()}
        self._measured_bytes = usage.in_use
        self._smallest_sizes = {
            tenant: min(self._smallest_sizes.get(tenant, size if first else 0), size) for tenant, size in sizes.items()
        }
        if is_full or (change > 0 and usage.used_share >= (URGENT_SHARE if first else BLOCKING_SHARE)):
            await self._block_one(sizes, usage, exempt=exempt, always=first or is_full)

    async def _block_one(
        self, sizes: Mapping[str, int], usage: StoreUsage, *, exempt: Collection[str], always: bool
    ) -> None:
        """Block the tenant that grew most. If no tenant grew and `always` is true, block the largest one.

        If the largest tenant is already blocked or exempt, it explains the usage, and no other tenant is blocked.
        """
        growth = {tenant: size - self._smallest_sizes[tenant] for tenant, size in sizes.items()}
        available = sizes.keys() - self.blocked.keys() - set(exempt)
        growing = {tenant for tenant in available if growth[tenant] >= _SIGNIFICANT_GROWTH * usage.quota}
        selected = max(growing, key=lambda tenant: (growth[tenant], sizes[tenant]), default="")
        if not growing and always:
            selected = max(sizes, key=sizes.__getitem__, default="")
        if selected not in available:
            _log.error("the datastore fills up, but no tenant that grows can be blocked", **_log_fields(usage))
            return
        await self._tenancy.block_writes(selected)
        self.blocked[selected] = sizes[selected]
        size = sizes[selected] >> 20
        _log.error(
            "writes of a tenant that fills the datastore blocked", tenant=selected, mib=size, **_log_fields(usage)
        )

    async def _allow_writes(self, tenant: str) -> None:
        await self._tenancy.allow_writes(tenant)
        self.blocked.pop(tenant, None)  # the tenant may have been removed meanwhile
        _log.warning("writes of a tenant are allowed again", tenant=tenant)


def _log_fields(usage: StoreUsage) -> Mapping[str, int]:
    return {"in_use_mib": usage.in_use >> 20, "file_mib": usage.file_size >> 20, "quota_mib": usage.quota >> 20}
