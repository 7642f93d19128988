"""A finalizer on an object is put on and taken off; what others put there meanwhile stays."""

from __future__ import annotations

from collections.abc import Mapping

from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import Resource
from vkgateway.model.objects import Meta, decode_object

_MAX_TRIES = 5
"""What a watch shows is often older than a write of our own, so a second one is usual."""


async def add_finalizer(
    client: Client, resource: Resource, seen: Meta, finalizer: str, *, annotations: Mapping[str, str] | None = None
) -> Meta:
    """Put a finalizer on, and annotations with it; returns the metadata that is stored then.

    `seen` is what a watch shows. Raises NotFound where the object is gone, also if another has its name by now, and
    Conflict where others write it without end.
    """
    more = {"annotations": annotations} if annotations else {}
    return await _patch_finalizers(client, resource, seen, finalizer, held=True, more=more)


async def remove_finalizer(client: Client, resource: Resource, seen: Meta, finalizer: str) -> None:
    """Take a finalizer off, if the object is still there. Raises Conflict where others write it without end."""
    try:
        await _patch_finalizers(client, resource, seen, finalizer, held=False, more={})
    except errors.NotFound:
        return


async def _patch_finalizers(
    client: Client, resource: Resource, seen: Meta, finalizer: str, *, held: bool, more: Mapping[str, object]
) -> Meta:
    tries = 0
    while True:
        tries += 1
        finalizers = [one for one in seen.finalizers if one != finalizer] + [finalizer] * held
        version = {"uid": seen.uid, "resourceVersion": seen.resource_version}
        change = {"metadata": {**version, "finalizers": finalizers or None, **more}}
        try:
            return decode_object(await client.patch(resource, seen.name, change)).metadata
        except errors.Conflict:
            if tries == _MAX_TRIES:
                raise
            seen = await _read_metadata(client, resource, seen)


async def _read_metadata(client: Client, resource: Resource, seen: Meta) -> Meta:
    found = decode_object(await client.get(resource, seen.name)).metadata
    if found.uid != seen.uid:
        raise errors.NotFound(f"{resource.kind} {seen.name} is another one by now", status=404)
    return found
