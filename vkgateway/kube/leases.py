"""Lease objects, and the Leases that are heartbeats of nodes."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec

from vkgateway.api.objects import Meta
from vkgateway.api.times import render_micro_time
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import LEASES

NODE_LEASE_NAMESPACE: Final = "kube-node-lease"
"""The namespace where the node lifecycle controller looks for heartbeats."""


class LeaseSpec(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """`spec` of a Lease; the times are RFC 3339 with microseconds."""

    holder_identity: str = ""
    lease_duration_seconds: int = 0
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int = 0


class Lease(msgspec.Struct, kw_only=True, rename="camel"):
    """A Lease."""

    metadata: Meta
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)


decode_lease: Final = msgspec.json.Decoder(Lease).decode


async def renew_node_lease(
    client: Client, node: str, *, now: datetime, duration: int = 40, owner_uid: str = "", timeout: float = 10
) -> None:
    """Renew the Lease of a node, and create it if necessary, owned by the Node with `owner_uid`."""
    spec = LeaseSpec(holder_identity=node, lease_duration_seconds=duration, renew_time=render_micro_time(now))
    try:
        await client.patch(LEASES, node, {"spec": spec}, namespace=NODE_LEASE_NAMESPACE, timeout=timeout)
    except errors.NotFound:
        metadata: dict[str, Any] = {"name": node, "namespace": NODE_LEASE_NAMESPACE}
        if owner_uid:
            owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": owner_uid}
            metadata["ownerReferences"] = [owner]
        await client.create(LEASES, lease_document(metadata, spec), namespace=NODE_LEASE_NAMESPACE, timeout=timeout)


def lease_document(metadata: dict[str, Any], spec: LeaseSpec) -> dict[str, Any]:
    """Return a Lease as a document to write."""
    return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}
