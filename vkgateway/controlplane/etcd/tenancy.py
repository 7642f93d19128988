"""Who may read which keys of the shared etcd: one user, role and closed key range for each cluster in it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING

import structlog

from vkgateway.controlplane.etcd.errors import EtcdAuthDisabled, EtcdError, EtcdExists, EtcdNotFound
from vkgateway.controlplane.etcd.ranges import KeyRange
from vkgateway.model.names import tenant_etcd_prefix

if TYPE_CHECKING:  # the names below are wanted by many who never speak to etcd, and gRPC takes long to load
    from vkgateway.controlplane.etcd.client import EtcdClient

ROOT_USER = "root"
COMPUTE_USER = "compute"
COMPUTE_PREFIX = "/compute"

_log = structlog.get_logger(__name__)


def tenant_user(tenant: str) -> str:
    """Name of a tenant's user and role, and the common name of its API server's etcd certificate."""
    return f"tenant-{tenant}"


def tenant_keys(tenant: str) -> KeyRange:
    """Return the range that holds all of a tenant's keys."""
    return KeyRange.for_prefix(tenant_etcd_prefix(tenant))


class Tenancy:
    """Gives each cluster its part of etcd and takes it back; every step may be repeated.

    A change to users or roles makes etcd refuse calls of others that are on their way at that moment, so what
    already is as it should be is not written again, and changes are made one at a time.
    """

    def __init__(self, client: EtcdClient) -> None:
        self._client = client
        self._change_lock = asyncio.Lock()

    async def ensure_auth(self) -> None:
        """Make the root user, the compute cluster's user and range, and enforce them.

        The caller's certificate must be that of `root`. Until this has run, any certificate of etcd's
        authority can read everything, so nothing else may be issued one before.
        """
        if not await self._client.auth_enabled():
            async with self._change_lock:
                await _ignore_error(EtcdExists, self._client.add_user(ROOT_USER))
                await _ignore_error(EtcdExists, self._client.add_role(ROOT_USER))
                await self._client.grant_role(ROOT_USER, role=ROOT_USER)
                await self._client.enable_auth()
            _log.info("etcd now enforces users and roles")
        await self._ensure_access(COMPUTE_USER, keys=KeyRange.for_prefix(COMPUTE_PREFIX))

    async def ensure_tenant(self, tenant: str) -> bool:
        """Give a tenant its user, role and key range; nothing happens where it has them. Says whether it had no user.

        Raises:
            EtcdOpen: etcd enforces no users and roles, so that every tenant could read every other's keys.
        """
        if not await self._client.auth_enabled():  # asked each time: another etcd may be there by now, from a backup
            raise EtcdAuthDisabled(
                "etcd does not enforce users and roles: every tenant could read every other's keys",
                hint="make a user and role root, then run: etcdctl auth enable",
            )
        return await self._ensure_access(tenant_user(tenant), keys=tenant_keys(tenant))

    async def remove_tenant(self, tenant: str) -> int:
        """Take a tenant's user and role, then its keys; how many keys there were.

        The user goes first, so that an API server that still runs cannot write after its keys are gone.
        """
        user = tenant_user(tenant)
        async with self._change_lock:
            await _ignore_error(EtcdNotFound, self._client.delete_user(user))
            await _ignore_error(EtcdNotFound, self._client.delete_role(user))
        return await self._client.delete_range(tenant_keys(tenant))

    async def list_tenants(self) -> list[str]:
        """List the tenants that have a user here, by name."""
        start = tenant_user("")
        return sorted(user.removeprefix(start) for user in await self._client.list_users() if user.startswith(start))

    async def block_writes(self, tenant: str) -> None:
        """Let a tenant read its keys and not write; it stays so until `allow_writes`, whatever else is made sure of."""
        await self._grant_range(tenant, write=False)

    async def allow_writes(self, tenant: str) -> None:
        """Let a tenant write again; nothing happens for one that is gone."""
        await self._grant_range(tenant, write=True)

    async def blocked_tenants(self) -> list[str]:
        """List the tenants that may not write, by name."""
        return [tenant for tenant in await self.list_tenants() if not await self._can_write(tenant)]

    async def tenant_size(self, tenant: str) -> int:
        """Add up the bytes of a tenant's keys and values; reads all of them."""
        return await self._client.measure_size(tenant_keys(tenant))

    async def _grant_range(self, tenant: str, *, write: bool) -> None:
        async with self._change_lock:
            grant = self._client.grant_range(tenant_user(tenant), keys=tenant_keys(tenant), write=write)
            await _ignore_error(EtcdNotFound, grant)

    async def _can_write(self, tenant: str) -> bool:
        try:
            ranges = await self._client.ranges_of(tenant_user(tenant))
        except EtcdNotFound:
            return True
        return ranges.get(tenant_keys(tenant), True)

    async def _ensure_access(self, user: str, *, keys: KeyRange) -> bool:
        async with self._change_lock:
            await self._ensure_role(user, keys=keys)
            return await self._ensure_user(user)

    async def _ensure_role(self, role: str, *, keys: KeyRange) -> None:
        try:
            ranges = await self._client.ranges_of(role)
        except EtcdNotFound:
            await self._client.add_role(role)
            ranges = {}
        for other in (other for other in ranges if other != keys):
            await self._client.revoke_range(role, keys=other)
        if keys not in ranges:
            await self._client.grant_range(role, keys=keys)

    async def _ensure_user(self, user: str) -> bool:
        """Whether there was none."""
        try:
            roles, missing = await self._client.roles_of(user), False
        except EtcdNotFound:
            await self._client.add_user(user)
            roles, missing = [], True
        for other in (other for other in roles if other != user):
            await self._client.revoke_role(user, role=other)
        if user not in roles:
            await self._client.grant_role(user, role=user)
        return missing


async def _ignore_error(expected: type[EtcdError], call: Awaitable[None]) -> None:
    """Make the call; `expected` says that it was so already."""
    try:
        await call
    except expected:
        return
