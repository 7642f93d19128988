"""Owner records of tenants in fake compute clusters."""

from __future__ import annotations

from tests.fakes.apiserver import FakeApiServer
from vkgateway.api.names import GATEWAY_LABEL, SYSTEM_NAMESPACE, TENANT_LABEL, tenant_owner_name
from vkgateway.kube.resources import CONFIG_MAPS, NAMESPACES


def record_owner(server: FakeApiServer, tenant: str, gateway: str) -> None:
    """Create the owner record of a tenant, as a gateway does."""
    if server.store.find(NAMESPACES, SYSTEM_NAMESPACE) is None:
        server.store.create(NAMESPACES, {"metadata": {"name": SYSTEM_NAMESPACE}})
    labels = {TENANT_LABEL: tenant, GATEWAY_LABEL: gateway}
    server.store.create(
        CONFIG_MAPS, {"metadata": {"name": tenant_owner_name(tenant), "labels": labels}}, SYSTEM_NAMESPACE
    )


def recorded_owner(server: FakeApiServer, tenant: str) -> str | None:
    """Return the owner of a tenant, None without a record."""
    found = server.store.find(CONFIG_MAPS, tenant_owner_name(tenant), SYSTEM_NAMESPACE)
    return found["metadata"]["labels"][GATEWAY_LABEL] if found is not None else None


def delete_record(server: FakeApiServer, tenant: str) -> None:
    """Delete the record of a tenant, as an admin may."""
    server.store.delete(CONFIG_MAPS, tenant_owner_name(tenant), SYSTEM_NAMESPACE)
