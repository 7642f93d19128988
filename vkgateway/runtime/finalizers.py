"""Addition and removal of vkgateway's finalizers: finalizers that others add or remove meanwhile stay as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vkgateway.api.objects import Meta, decode_object
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import Resource

_CORE: Final = "api/v1"
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
    return await _patch_finalizers(client, resource, seen, (finalizer,), present=True, extra=extra)


async def remove_finalizer(client: Client, resource: Resource, seen: Meta, *finalizers: str) -> None:
    """Remove finalizers if the object still exists.

    Raises Conflict if concurrent writes do not stop, or if another pod or volume has the name.
    """
    try:
        if resource.prefix == _CORE:
            # By name, whatever version was seen: that of a pod is often out of date, and each pod ends with this write.
            change = {"metadata": {"uid": seen.uid, "$deleteFromPrimitiveList/finalizers": list(finalizers)}}
            namespace = seen.namespace or None
            await client.patch(resource, seen.name, change, kind="strategic", namespace=namespace, metadata_only=True)
        else:
            # Custom resources have no strategic merge patch.
            await _patch_finalizers(client, resource, seen, finalizers, present=False, extra={})
    except errors.NotFound:
        return


async def _patch_finalizers(
    client: Client,
    resource: Resource,
    seen: Meta,
    names: tuple[str, ...],
    *,
    present: bool,
    extra: Mapping[str, object],
) -> Meta:
    tries = 0
    while True:
        tries += 1
        finalizers = [other for other in seen.finalizers if other not in names] + [*names] * present
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
