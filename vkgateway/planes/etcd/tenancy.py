"""Access control in the shared etcd: one user, role and closed key range for each cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING

import structlog

from vkgateway.api.names import tenant_etcd_prefix
from vkgateway.planes.etcd.errors import EtcdAuthDisabled, EtcdDenied, EtcdError, EtcdExists, EtcdNotFound
from vkgateway.planes.etcd.ranges import KeyRange

if TYPE_CHECKING:  # many modules import this one without etcd, and gRPC takes long to load
    from vkgateway.planes.etcd.client import EtcdClient

ROOT_USER = "root"
ROOT_CERTIFICATE_HINT = "Set datastore.cert to a certificate of etcd's user root: its common name is root"
COMPUTE_USER = "compute"
COMPUTE_PREFIX = "/compute"

_log = structlog.get_logger(__name__)


def tenant_user(tenant: str) -> str:
    """Return the name of a tenant's etcd user and role, and the common name of its API server's etcd certificate."""
    return f"tenant-{tenant}"


def tenant_keys(tenant: str) -> KeyRange:
    """Return the range of all keys of a tenant."""
    return KeyRange.for_prefix(tenant_etcd_prefix(tenant))


class Tenancy:
    """Creates and deletes the user, role and keys of each cluster; every step may be repeated.

    A change of users or roles makes etcd reject concurrent requests of others. So nothing is written that is already
    correct, and changes are made one at a time.
    """

    def __init__(self, client: EtcdClient) -> None:
        self._keys, self._auth = client.keys, client.auth
        self._change_lock = asyncio.Lock()

    async def ensure_root(self) -> None:
        """Create the root user, then enable authentication.

        The caller's certificate must be that of `root`. Before this call, any certificate of etcd's CA can read all
        keys, so no other may be issued earlier.
        """
        if await self._is_enabled():
            return
        async with self._change_lock:
            await _ignore_error(EtcdExists, self._auth.add_user(ROOT_USER))
            await _ignore_error(EtcdExists, self._auth.add_role(ROOT_USER))
            await self._auth.grant_role(ROOT_USER, role=ROOT_USER)
            await self._auth.enable()
        _log.info("etcd authentication enabled")

    async def ensure_compute(self) -> None:
        """Ensure that the embedded platform's compute control plane has its user, role and key range."""
        await self._ensure_access(COMPUTE_USER, keys=KeyRange.for_prefix(COMPUTE_PREFIX))

    async def require_auth(self) -> None:
        """Raise EtcdAuthDisabled if authentication is disabled."""
        if not await self._is_enabled():
            raise EtcdAuthDisabled(
                "etcd has no users and roles: every tenant could read the keys of all others",
                hint="Set datastore.enableAuth, or create a user and a role root, then run: etcdctl auth enable",
            )

    async def _is_enabled(self) -> bool:
        try:
            return await self._auth.is_enabled()
        except EtcdNotFound as error:  # etcd takes the user from the certificate
            message = f"etcd has no user for the gateway's client certificate: {error}"
            raise EtcdDenied(message, hint=ROOT_CERTIFICATE_HINT) from error

    async def ensure_tenant(self, tenant: str) -> bool:
        """Ensure that a tenant has its user, role and key range; return whether the user is new.

        Raises:
            EtcdAuthDisabled: authentication is disabled, so that every tenant could read the keys of all others.
        """
        await self.require_auth()  # checked each time: etcd may have been restored from a backup
        return await self._ensure_access(tenant_user(tenant), keys=tenant_keys(tenant))

    async def remove_tenant(self, tenant: str) -> int:
        """Delete a tenant's user and role, then its keys; return the number of keys.

        The user is deleted first, so that a running API server cannot write after its keys are deleted.
        """
        user = tenant_user(tenant)
        async with self._change_lock:
            await _ignore_error(EtcdNotFound, self._auth.delete_user(user))
            await _ignore_error(EtcdNotFound, self._auth.delete_role(user))
        return await self._keys.delete_range(tenant_keys(tenant))

    async def list_tenants(self) -> list[str]:
        """Return the names of the tenants that have a user, sorted."""
        start = tenant_user("")
        return sorted(user.removeprefix(start) for user in await self._auth.list_users() if user.startswith(start))

    async def block_writes(self, tenant: str) -> None:
        """Block a tenant's writes until `allow_writes`; `ensure_tenant` does not undo it."""
        await self._grant_range(tenant, write=False)

    async def allow_writes(self, tenant: str) -> None:
        """Let a tenant write again; no error if the tenant was removed."""
        await self._grant_range(tenant, write=True)

    async def blocked_tenants(self) -> list[str]:
        """Return the names of the tenants that may not write, sorted."""
        return [tenant for tenant in await self.list_tenants() if not await self._can_write(tenant)]

    async def tenant_size(self, tenant: str) -> int:
        """Return the total bytes of a tenant's keys and values; reads all of them."""
        return await self._keys.measure_range(tenant_keys(tenant))

    async def _grant_range(self, tenant: str, *, write: bool) -> None:
        async with self._change_lock:
            grant = self._auth.grant_range(tenant_user(tenant), keys=tenant_keys(tenant), write=write)
            await _ignore_error(EtcdNotFound, grant)

    async def _can_write(self, tenant: str) -> bool:
        try:
            ranges = await self._auth.ranges_of(tenant_user(tenant))
        except EtcdNotFound:
            return True
        return ranges.get(tenant_keys(tenant), True)

    async def _ensure_access(self, user: str, *, keys: KeyRange) -> bool:
        async with self._change_lock:
            await self._ensure_role(user, keys=keys)
            return await self._ensure_user(user)

    async def _ensure_role(self, role: str, *, keys: KeyRange) -> None:
        try:
            ranges = await self._auth.ranges_of(role)
        except EtcdNotFound:
            await self._auth.add_role(role)
            ranges = {}
        for other in (other for other in ranges if other != keys):
            await self._auth.revoke_range(role, keys=other)
        if keys not in ranges:
            await self._auth.grant_range(role, keys=keys)

    async def _ensure_user(self, user: str) -> bool:
        """Add a user; return whether it is new."""
        try:
            roles, missing = await self._auth.roles_of(user), False
        except EtcdNotFound:
            await self._auth.add_user(user)
            roles, missing = [], True
        for other in (other for other in roles if other != user):
            await self._auth.revoke_role(user, role=other)
        if user not in roles:
            await self._auth.grant_role(user, role=user)
        return missing


async def _ignore_error(expected: type[EtcdError], call: Awaitable[None]) -> None:
    """Await the call; ignore `expected`, which means that nothing had to change."""
    try:
        await call
    except expected:
        return
