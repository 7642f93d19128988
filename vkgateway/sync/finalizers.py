"""Our finalizers on pods and volumes come off by name: what others put there, and when, is no matter."""

from __future__ import annotations

from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import Resource
from vkgateway.model.objects import Meta


async def remove_finalizers(client: Client, resource: Resource, seen: Meta, *finalizers: str) -> None:
    """Take finalizers off a pod or a volume in one request, however old what is `seen` of it; it may be gone.

    Raises Conflict where another has its name by now. Only kinds of Kubernetes' own can be patched so
    (strategic merge patch).
    """
    change = {"metadata": {"uid": seen.uid, "$deleteFromPrimitiveList/finalizers": list(finalizers)}}
    try:
        await client.patch(
            resource, seen.name, change, kind="strategic", namespace=seen.namespace or None, metadata_only=True
        )
    except errors.NotFound:
        return
