"""Writes of one condition of a tenant pod, without changing the conditions of other writers."""

from __future__ import annotations

from datetime import datetime

import msgspec

from vkgateway.kube import errors, resources
from vkgateway.kube.client import Client
from vkgateway.sync.views.pods import TenantPodView
from vkgateway.translate.to_tenant import condition_status


async def set_condition(
    client: Client, view: TenantPodView, kind: str, *, status: str, reason: str, message: str, now: datetime
) -> None:
    """Set a condition of a pod if it differs. A pod that was deleted, or replaced by another of its name, is left
    alone.
    """
    standing = msgspec.json.decode(view.status)
    patch = condition_status(standing, kind, status=status, reason=reason, message=message, now=now)
    if patch is None:
        return
    metadata = view.metadata
    changed = [entry for entry in patch["conditions"] if entry["type"] == kind]
    try:
        await client.patch(
            resources.PODS,
            metadata.name,
            {"metadata": {"uid": metadata.uid}, "status": {"conditions": changed}},
            namespace=metadata.namespace,
            subresource="status",
            kind="strategic",
            metadata_only=True,
        )
    except (errors.NotFound, errors.Conflict):
        return
