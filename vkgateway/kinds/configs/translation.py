"""Compute copies of ConfigMaps and Secrets: names kept, ownership marked, contents unchanged but for device keys."""

from typing import Literal

from vkgateway.api.names import COMPUTE_ROOT_CA, TENANT_ROOT_CA, compute_metadata
from vkgateway.api.objects import Object
from vkgateway.kinds.context import TenantContext
from vkgateway.kinds.pods.translation.containers import without_device_keys

SERVICE_ACCOUNT_TOKEN_TYPE = "kubernetes.io/service-account-token"  # noqa: S105 - a type's name, no secret


def compute_name(kind: Literal["configmaps", "secrets"], name: str) -> str:
    """Return the name of the copy of a tenant's object. Only the root certificate ConfigMap is renamed."""
    return COMPUTE_ROOT_CA if kind == "configmaps" and name == TENANT_ROOT_CA else name


def forward_config_map(source: Object, *, tenant: TenantContext, namespace: str) -> Object:
    """Return the compute copy of a ConfigMap in the tenant's `namespace`.

    Labels and annotations are not copied: nothing in the compute cluster reads them, and kubectl stores whole copies of
    the data in one.
    """
    copy = {"apiVersion": "v1", "kind": "ConfigMap", **_permitted(source, tenant)}
    metadata = source["metadata"]
    copy["metadata"] = compute_metadata(tenant.name, namespace, metadata["name"], metadata["uid"])
    copy["metadata"]["name"] = compute_name("configmaps", metadata["name"])
    return copy


def forward_secret(source: Object, *, tenant: TenantContext, namespace: str) -> Object:
    """Return the compute copy of a Secret in the tenant's `namespace`.

    A service account token becomes Opaque. With its type, the compute cluster's token controller would fill or delete
    it.
    """
    copy = {"apiVersion": "v1", "kind": "Secret", **_permitted(source, tenant)}
    metadata = source["metadata"]
    copy["metadata"] = compute_metadata(tenant.name, namespace, metadata["name"], metadata["uid"])
    if source.get("type") == SERVICE_ACCOUNT_TOKEN_TYPE:
        copy["type"] = "Opaque"
    return copy


def _permitted(source: Object, tenant: TenantContext) -> Object:
    """Return an object without the keys that `envFrom` would make variables that give devices."""
    return source if tenant.pod_security == "privileged" else without_device_keys(source)
