"""Pods of a compute cluster that vkgateway does not own, as far as they use resources of its nodes."""

from __future__ import annotations

from typing import Final

import msgspec

from vkgateway.api.names import TENANT_LABEL
from vkgateway.api.objects import Meta, Object
from vkgateway.api.requests import MilliResources, pod_requests

LABEL_SELECTOR: Final = f"!{TENANT_LABEL}"
FIELD_SELECTOR: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"


class _Parts(msgspec.Struct, gc=False):
    metadata: Meta
    spec: Object = {}


class UnmanagedPodView(msgspec.Struct, gc=False):
    """Unmanaged pod that is bound to a node; `requests` are in thousandths."""

    metadata: Meta
    node: str
    requests: MilliResources


_parts = msgspec.json.Decoder(_Parts)


def decode_unmanaged_pod(data: bytes) -> UnmanagedPodView:
    """Decode a pod from the bytes of its JSON object."""
    parts = _parts.decode(data)
    metadata = Meta(
        name=parts.metadata.name,
        namespace=parts.metadata.namespace,
        uid=parts.metadata.uid,
        resource_version=parts.metadata.resource_version,
    )
    return UnmanagedPodView(metadata, parts.spec.get("nodeName") or "", pod_requests({"spec": parts.spec}))
