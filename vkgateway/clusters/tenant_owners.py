"""Owners of tenants in a compute cluster: of several gateways, each touches only the objects of its own tenants.

A ConfigMap for each tenant in the gateway's namespace of the compute cluster, the owner record, names the gateway to
which all objects of the tenant belong. API servers create a name only once, so two gateways cannot both own a tenant.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from vkgateway.api.errors import ConflictError
from vkgateway.api.names import GATEWAY_LABEL, SYSTEM_NAMESPACE, TENANT_LABEL, tenant_owner_name
from vkgateway.api.objects import Meta, Object, ObjectView, decode_object
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import CONFIG_MAPS

log = structlog.get_logger(__name__)

_PURPOSE: Final = (
    "The objects of this tenant in this cluster belong to the gateway that the label names. "
    "Delete this ConfigMap only if that gateway no longer exists."
)


class GatewayIdentity:
    """ID of this gateway, the same for all its replicas; empty until the leader has read it."""

    def __init__(self, value: str = "") -> None:
        self.value = value
        self._is_known = asyncio.Event()
        if value:
            self._is_known.set()

    def set(self, value: str) -> None:
        """Set the ID, which never changes afterwards."""
        self.value = value
        self._is_known.set()

    async def wait(self) -> str:
        """Wait until the ID is known, and return it."""
        await self._is_known.wait()
        return self.value


class TenantOwners:
    """Owner records of one compute cluster, from its watch of ConfigMaps.

    Objects that exist without a record when the cluster is listed first belong to the gateway that finds them: older
    versions wrote no records. `on_lost` is called when another client deleted or changed a record of this gateway.
    Without `gateway`, no other gateway uses the cluster, and there are no records.
    """

    def __init__(
        self, cluster: str, client: Client, gateway: GatewayIdentity | None, *, on_lost: Callable[[], None]
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._gateway = gateway
        self._on_lost = on_lost
        self._owners: dict[str, str] = {}
        """IDs of gateways by tenant."""
        self._unrecorded: set[str] | None = None
        """Tenants without a record whose objects belong to this gateway; None until the cluster is listed."""
        self.admitted: set[str] = set()
        """Tenants for which `admits` is known to be true: reconcilers ask for each pod, several times."""

    def is_own(self, tenant: str) -> bool:
        """Return whether a record says that a tenant's objects belong to this gateway."""
        return self._gateway is None or (bool(self._gateway.value) and self._owners.get(tenant) == self._gateway.value)

    def is_foreign(self, tenant: str) -> bool:
        """Return whether a record says that a tenant's objects belong to another gateway; False while this gateway's
        own ID is unknown.
        """
        is_known = self._gateway is not None and bool(self._gateway.value)
        return is_known and tenant in self._owners and not self.is_own(tenant)

    def admits(self, tenant: str) -> bool:
        """Return whether this gateway may change objects of a tenant."""
        if tenant in self.admitted:
            return True
        if self.is_own(tenant) or (self._unrecorded is not None and tenant in self._unrecorded):
            self.admitted.add(tenant)
            return True
        return False

    def cluster_listed(self, tenants: Iterable[str]) -> None:
        """Adopt the tenants of the objects that exist without a record. Only the first call has an effect."""
        if self._unrecorded is None:
            self._unrecorded = set(tenants) - self._owners.keys()

    def record_changed(self, old: ObjectView | None, new: ObjectView | None) -> None:
        """Handle a ConfigMap in the gateway's namespace that was added, changed or deleted."""
        view = new or old
        tenant = view.metadata.labels.get(TENANT_LABEL, "") if view is not None else ""
        if view is None or view.metadata.name != tenant_owner_name(tenant):
            return
        was_own = self.is_own(tenant)
        if new is not None:
            self._set_owner(tenant, _owner_of(new.metadata))
        else:
            self._set_owner(tenant, None)
            if was_own and self._unrecorded is not None:
                self._unrecorded.add(tenant)
        if was_own and not self.is_own(tenant):
            log.warning("the owner record of a tenant was deleted or changed", tenant=tenant, compute=self._cluster)
            self._on_lost()

    async def take(self, tenant: str) -> None:
        """Make this gateway the owner of a tenant's objects. Idempotent; asks the server each time.

        Raises:
            ConflictError: another gateway owns them.
            NotFound: the cluster has no namespace for the record yet.
        """
        if self._gateway is None:
            return
        gateway = await self._gateway.wait()
        owner = await self._read_owner(tenant)
        if owner is None:
            try:
                await self._client.create(CONFIG_MAPS, _owner_record(tenant, gateway), namespace=SYSTEM_NAMESPACE)
                owner = gateway
                log.info("tenant belongs to this gateway", tenant=tenant, compute=self._cluster)
            except errors.AlreadyExists:
                owner = await self._read_owner(tenant) or ""
        self._set_owner(tenant, owner)
        if owner != gateway:
            raise name_taken(tenant, self._cluster)

    async def release(self, tenant: str) -> None:
        """Delete the record of a tenant without objects, if it is this gateway's. Idempotent; raises ApiError."""
        if self._gateway is None or self._owners.get(tenant) != await self._gateway.wait():
            return
        self._set_owner(tenant, None)
        name = tenant_owner_name(tenant)
        try:
            found = decode_object(await self._client.get(CONFIG_MAPS, name, namespace=SYSTEM_NAMESPACE)).metadata
            if _owner_of(found) == self._gateway.value:
                await self._client.delete(CONFIG_MAPS, name, namespace=SYSTEM_NAMESPACE, uid=found.uid)
        except (errors.NotFound, errors.Conflict):
            return

    def _set_owner(self, tenant: str, owner: str | None) -> None:
        """Note the owner in a tenant's record; None if there is no record any more."""
        if owner is None:
            self._owners.pop(tenant, None)
        else:
            self._owners[tenant] = owner
        self.admitted.discard(tenant)
        if self._unrecorded is not None:
            self._unrecorded.discard(tenant)

    async def _read_owner(self, tenant: str) -> str | None:
        """Return the owner in a tenant's record, "" if it names none; None if there is no record."""
        name = tenant_owner_name(tenant)
        try:
            found = decode_object(await self._client.get(CONFIG_MAPS, name, namespace=SYSTEM_NAMESPACE))
        except errors.NotFound:
            return None
        return _owner_of(found.metadata)


def name_taken(tenant: str, cluster: str) -> ConflictError:
    """Return the error of a tenant whose name belongs to another gateway in a compute cluster."""
    return ConflictError(
        f"compute cluster {cluster!r} has a tenant {tenant!r} of another gateway",
        hint="Create this tenant under another name, or delete the other one. If its gateway no longer exists, delete "
        f"the ConfigMap {tenant_owner_name(tenant)} in namespace {SYSTEM_NAMESPACE} of that cluster",
    )


def _owner_of(metadata: Meta) -> str:
    return metadata.labels.get(GATEWAY_LABEL, "")


def _owner_record(tenant: str, gateway: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": tenant_owner_name(tenant),
            "namespace": SYSTEM_NAMESPACE,
            "labels": {TENANT_LABEL: tenant, GATEWAY_LABEL: gateway},
        },
        "data": {"purpose": _PURPOSE},
    }
