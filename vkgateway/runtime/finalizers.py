"""Removal of vkgateway's finalizers from pods and volumes, by name: finalizers of others stay."""

from __future__ import annotations

from vkgateway.api.objects import Meta
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import Resource


async def remove_finalizers(client: Client, resource: Resource, seen: Meta, *finalizers: str) -> None:
    """Remove finalizers from a pod or a volume in one request, which does not depend on the version that was `seen`.

    The object may not exist any more. Raises Conflict if another object has its name. Only built-in kinds support this
    patch (strategic merge patch).
    """
    change = {"metadata": {"uid": seen.uid, "$deleteFromPrimitiveList/finalizers": list(finalizers)}}
    try:
        await client.patch(
            resource, seen.name, change, kind="strategic", namespace=seen.namespace or None, metadata_only=True
        )
    except errors.NotFound:
        return
