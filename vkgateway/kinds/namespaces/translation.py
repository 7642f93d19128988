"""Compute namespace of a tenant's namespace, and its isolation objects."""

from collections.abc import Sequence

from vkgateway.api.names import POD_SERVICE_ACCOUNT, compute_metadata
from vkgateway.api.objects import Object
from vkgateway.kinds.context import TenantContext
from vkgateway.kinds.policies.translation import isolation_policies


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
    metadata = compute_metadata(tenant.name, namespace, namespace, uid)
    labels = metadata["labels"] | {
        "pod-security.kubernetes.io/enforce": tenant.pod_security,
        "pod-security.kubernetes.io/enforce-version": "latest",
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": metadata["namespace"],
                "labels": labels,
                "annotations": metadata["annotations"],
            },
        },
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": metadata | {"name": POD_SERVICE_ACCOUNT},
            "automountServiceAccountToken": False,
        },
        *(isolation_policies(tenant, namespace, uid).documents if policies is None else policies),
    ]
