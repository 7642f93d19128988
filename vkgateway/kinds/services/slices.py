"""EndpointSlices that the gateway manages in compute clusters: comparison, writing and deletion."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from vkgateway.api.errors import ConflictError
from vkgateway.api.objects import Meta, Object
from vkgateway.clusters.link import ComputeLink
from vkgateway.kinds.services.translation import SliceView, decode_slice
from vkgateway.kube import errors, resources


async def write_slice(
    link: ComputeLink, wanted: Object, known: SliceView | None, *, owned: Callable[[Meta], bool], only_new: bool = False
) -> None:
    """Write an EndpointSlice if it differs from `known`, its last seen state.

    An existing slice that the watch has not shown yet must be `owned`; with `only_new` it stays unchanged.

    Raises:
        ConflictError: an object of another owner has its name.
        ApiError: the compute cluster cannot be asked now, or refuses the slice.
    """
    namespace, name = wanted["metadata"]["namespace"], wanted["metadata"]["name"]
    if known is not None and is_same_slice(known, wanted):
        return
    if known is None:
        try:
            await link.client.create(resources.ENDPOINT_SLICES, wanted, namespace=namespace)
            return
        except errors.AlreadyExists:
            if only_new:
                return
            known = decode_slice(await link.client.get(resources.ENDPOINT_SLICES, name, namespace=namespace))
        if not owned(known.metadata):
            raise ConflictError(f"endpointslices/{name}: the name is taken in the compute cluster")
    metadata = wanted["metadata"] | {"uid": known.metadata.uid, "resourceVersion": known.metadata.resource_version}
    try:
        await link.client.replace(resources.ENDPOINT_SLICES, name, wanted | {"metadata": metadata}, namespace=namespace)
    except errors.Invalid:  # the address type is immutable
        await delete_slice(link, known.metadata)
        raise


async def delete_slice(link: ComputeLink, metadata: Meta) -> None:
    """Delete an EndpointSlice, unless it was deleted or replaced. Raises ApiError."""
    try:
        await link.client.delete(
            resources.ENDPOINT_SLICES, metadata.name, namespace=metadata.namespace, uid=metadata.uid
        )
    except (errors.NotFound, errors.Conflict):
        return


def is_same_slice(view: SliceView, wanted: Object) -> bool:
    """Return whether a slice has the address type, endpoints and ports of another slice's document."""
    content = _canonical_json(view.address_type, view.endpoints or [], view.ports or [])
    return content == _canonical_json(wanted["addressType"], wanted["endpoints"], wanted["ports"])


def _canonical_json(address_type: str, endpoints: list[Object], ports: list[Object]) -> bytes:
    return msgspec.json.encode([address_type, endpoints, ports], order="deterministic")
