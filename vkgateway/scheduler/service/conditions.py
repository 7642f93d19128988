"""Writes of one condition of a tenant pod, without changing the conditions of other writers."""

from __future__ import annotations

import msgspec

from vkgateway.kinds.pods.translation.to_tenant import condition_status
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kube import errors, resources
from vkgateway.runtime.views.pods import TenantPodView


async def set_condition(
    scope: TenantScope, view: TenantPodView, kind: str, *, status: str, reason: str, message: str
) -> bool:
    """Set a condition of a pod if it differs; return whether it was set. A pod that was deleted, or replaced by another
    of its name, is left alone.
    """
    standing = msgspec.json.decode(view.status)
    patch = condition_status(standing, kind, status=status, reason=reason, message=message, now=scope.clock.now())
    if patch is None:
        return False
    metadata = view.metadata
    changed = [entry for entry in patch["conditions"] if entry["type"] == kind]
    try:
        await scope.client.patch(
            resources.PODS,
            metadata.name,
            {"metadata": {"uid": metadata.uid}, "status": {"conditions": changed}},
            namespace=metadata.namespace,
            subresource="status",
            kind="strategic",
            metadata_only=True,
        )
    except (errors.NotFound, errors.Conflict):
        return False
    return True


def has_condition(view: TenantPodView, kind: str) -> bool:
    """Return whether a pod has a condition, whatever its status."""
    # Called for each pod that is read, and few have the condition: most statuses need not be decoded.
    return kind.encode() in view.status and any(
        entry["type"] == kind for entry in msgspec.json.decode(view.status).get("conditions") or ()
    )
