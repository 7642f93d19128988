"""Compute namespace of a tenant's namespace, and its isolation objects."""

from collections.abc import Sequence

from vkgateway.model.names import (
    NAME_ANNOTATION,
    NAMESPACE_ANNOTATION,
    POD_SERVICE_ACCOUNT,
    TENANT_LABEL,
    UID_ANNOTATION,
    compute_namespace,
)
from vkgateway.model.objects import Object
from vkgateway.translate.context import TenantContext
from vkgateway.translate.network_policies import isolation_policies


def namespace_objects(
    tenant: TenantContext,
    namespace: str,
    uid: str,
    *,
    policies: Sequence[Object] | None = None,
) -> list[Object]:
    """Return the compute namespace of a tenant's namespace, followed by the objects in it.

    `uid` is the tenant namespace's. `policies` are the network policies, by default those of a tenant without its own.
    """
    name = compute_namespace(tenant.name, namespace)
    marks = {"labels": {TENANT_LABEL: tenant.name}, "annotations": _ownership_annotations(namespace, uid)}
    level = tenant.pod_security
    labels = {
        TENANT_LABEL: tenant.name,
        "pod-security.kubernetes.io/enforce": level,
        "pod-security.kubernetes.io/enforce-version": "latest",
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": name, "labels": labels, "annotations": marks["annotations"]},
        },
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": POD_SERVICE_ACCOUNT, "namespace": name, **marks},
            "automountServiceAccountToken": False,
        },
        *(isolation_policies(tenant, namespace, uid).documents if policies is None else policies),
    ]


def _ownership_annotations(namespace: str, uid: str) -> dict[str, str]:
    return {NAMESPACE_ANNOTATION: namespace, NAME_ANNOTATION: namespace, UID_ANNOTATION: uid}
