"""Removal of vkgateway's finalizers from pods and volumes, by name: finalizers of others stay."""

from __future__ import annotations

from collections.abc import Mapping

from vkgateway.api.objects import Meta, decode_object
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


_MAX_TRIES = 5
"""The watch cache is often older than the gateway's last write, so a second attempt is common."""


async def add_finalizer(
    client: Client, resource: Resource, seen: Meta, finalizer: str, *, annotations: Mapping[str, str] | None = None
) -> Meta:
    """Add a finalizer and annotations, and return the stored metadata.

    `seen` is the metadata from the watch cache. Raises NotFound if the object was deleted or replaced, and Conflict if
    concurrent writes do not stop.
    """
    extra = {"annotations": annotations} if annotations else {}
    return await _patch_finalizers(client, resource, seen, finalizer, present=True, extra=extra)


async def remove_finalizer(client: Client, resource: Resource, seen: Meta, finalizer: str) -> None:
    """Remove a finalizer if the object still exists. Raises Conflict if concurrent writes do not stop."""
    try:
        await _patch_finalizers(client, resource, seen, finalizer, present=False, extra={})
    except errors.NotFound:
        return


async def _patch_finalizers(
    client: Client, resource: Resource, seen: Meta, finalizer: str, *, present: bool, extra: Mapping[str, object]
) -> Meta:
    tries = 0
    while True:
        tries += 1
        finalizers = [other for other in seen.finalizers if other != finalizer] + [finalizer] * present
        version = {"uid": seen.uid, "resourceVersion": seen.resource_version}
        change = {"metadata": {**version, "finalizers": finalizers or None, **extra}}
        try:
            return decode_object(await client.patch(resource, seen.name, change)).metadata
        except errors.Conflict:
            if tries == _MAX_TRIES:
                raise
            seen = await _read_metadata(client, resource, seen)


async def _read_metadata(client: Client, resource: Resource, seen: Meta) -> Meta:
    found = decode_object(await client.get(resource, seen.name)).metadata
    if found.uid != seen.uid:
        raise errors.NotFound(f"{resource.kind} {seen.name} was replaced by a new object", status=404)
    return found
