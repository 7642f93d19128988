"""Kueue's queues and what they refer to, in one compute cluster: kinds, writes, and deletion of leftovers."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Mapping, Sequence
from typing import Any, Final

import msgspec
import structlog

from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.clock import Clock
from vkgateway.kube.resources import Resource
from vkgateway.model.api import KUEUE
from vkgateway.model.names import GATEWAY_LABEL, SYSTEM_NAMESPACE, TENANT_LABEL
from vkgateway.model.objects import Meta, Object, ObjectView, decode_object
from vkgateway.modes.kueue.names import API_VERSION
from vkgateway.modes.names import MODE_LABEL
from vkgateway.sync.compute.link import ComputeLink

log = structlog.get_logger(__name__)

PREFIX: Final = f"apis/{API_VERSION}"
WORKLOADS: Final = Resource(PREFIX, "workloads", "Workload")
LOCAL_QUEUES: Final = Resource(PREFIX, "localqueues", "LocalQueue")
CLUSTER_QUEUES: Final = Resource(PREFIX, "clusterqueues", "ClusterQueue", namespaced=False)
COHORTS: Final = Resource(PREFIX, "cohorts", "Cohort", namespaced=False)
FLAVORS: Final = Resource(PREFIX, "resourceflavors", "ResourceFlavor", namespaced=False)
TOPOLOGIES: Final = Resource(PREFIX, "topologies", "Topology", namespaced=False)
_POOL_KINDS: Final = {kind.kind: kind for kind in (LOCAL_QUEUES, CLUSTER_QUEUES, COHORTS, FLAVORS, TOPOLOGIES)}
"""Kinds of pool objects. An object is deleted after the objects that refer to it."""

_REPAIR_SECONDS: Final = 60.0
"""Seconds after which all objects are written again and leftovers are deleted."""

_ObjectKey = tuple[str, str]
"""Kind and name."""


def own_selector(gateway: str) -> str:
    """Return the label selector of the objects of a gateway, by its ID. Other gateways may use the cluster."""
    return f"{MODE_LABEL}={KUEUE},{GATEWAY_LABEL}={gateway}"


def with_owner(document: Object, gateway: str) -> Object:
    """Return an object that names the gateway to which it belongs."""
    metadata = document["metadata"]
    return {**document, "metadata": {**metadata, "labels": {**metadata["labels"], GATEWAY_LABEL: gateway}}}


class _ObjectList(msgspec.Struct):
    items: list[ObjectView] = []


_decode_list: Final = msgspec.json.Decoder(_ObjectList).decode


class PoolQueues:
    """Writer of the queues of all pools of a compute cluster, and of what they refer to."""

    def __init__(self, link: ComputeLink, *, clock: Clock) -> None:
        self.link = link
        self._client = link.client
        self._clock = clock
        self._written: dict[_ObjectKey, bytes] = {}
        """Objects as they were written last."""
        self._own: set[_ObjectKey] = set()
        """Objects that the gateway may write."""
        self._repair_due = 0.0

    async def write(self, wanted: Sequence[Object], *, unsettled: Container[str] | None) -> bool:
        """Write objects that changed, and once a minute all of them; then delete those of removed tenants and pools.

        Objects of `unsettled` tenants stay: their quotas may not be known yet. None: nothing is deleted. Return whether
        nothing must be retried.
        """
        now = self._clock.monotonic()
        repair = now >= self._repair_due
        if repair:
            self._written.clear()
        for document in wanted:
            key = document["kind"], document["metadata"]["name"]
            text = msgspec.json.encode(document, order="deterministic")
            if self._written.get(key) == text:
                continue
            if not await self._apply_object(key, document):
                return False
            self._written[key] = text
        if repair and (unsettled is None or await self._delete_leftovers(unsettled)):
            self._repair_due = now + _REPAIR_SECONDS
        return True

    async def _apply_object(self, key: _ObjectKey, document: Object) -> bool:
        """Write a pool object, unless the object of this name is not of this gateway."""
        kind, metadata = _POOL_KINDS[document["kind"]], document["metadata"]
        try:
            if key not in self._own and not await self._is_ours(kind, metadata):
                log.warning("object of Kueue belongs to others", compute=self.link.name, kind=key[0], name=key[1])
                return True
            self._own.add(key)
            await self._client.patch(
                kind,
                metadata["name"],
                with_owner(document, self.link.gateway.value),
                kind="apply",
                namespace=metadata.get("namespace"),
                metadata_only=True,
            )
        except errors.ApiError as error:
            log.warning("object of Kueue not written", compute=self.link.name, object=key, error=error.message)
            return False
        return True

    async def _is_ours(self, kind: Resource, metadata: Mapping[str, Any]) -> bool:
        """Return whether no object has the name, or one that this gateway created."""
        try:
            found = await self._client.get(kind, metadata["name"], namespace=metadata.get("namespace"))
        except errors.NotFound:
            return True
        labels = decode_object(found).metadata.labels
        return (labels.get(MODE_LABEL), labels.get(GATEWAY_LABEL)) == (KUEUE, self.link.gateway.value)

    async def _delete_leftovers(self, unsettled: Container[str]) -> bool:
        """Delete objects of removed tenants and pools. Kueue delays the deletion while they are in use."""
        try:
            await delete_pool_objects(self.link, keep=self._written.keys(), unsettled=unsettled)
        except errors.ApiError as error:
            log.warning("leftovers of Kueue not deleted", compute=self.link.name, error=error.message)
            return False
        return True


async def delete_everything(link: ComputeLink) -> None:
    """Delete all objects of the gateway at Kueue, after the last pool has left this mode.

    A cluster that does not serve Kueue's API has none, and neither has one whose roles do not name it. Raises ApiError.
    """
    try:
        for found in await _list_objects(link, WORKLOADS):
            await _delete_object(link.client, WORKLOADS, found.metadata)
        await delete_pool_objects(link, keep=())
    except (errors.NotFound, errors.Forbidden):
        return


async def delete_pool_objects(
    link: ComputeLink, *, keep: Container[_ObjectKey], unsettled: Container[str] = ()
) -> None:
    """Delete the gateway's queues, and what they refer to, except those to keep and those of `unsettled` tenants.

    Raises ApiError.
    """
    for kind in _POOL_KINDS.values():
        for found in await _list_objects(link, kind):
            metadata = found.metadata
            if (kind.kind, metadata.name) not in keep and metadata.labels.get(TENANT_LABEL, "") not in unsettled:
                await _delete_object(link.client, kind, metadata)


async def _list_objects(link: ComputeLink, kind: Resource) -> list[ObjectView]:
    """Return the objects of a kind that this gateway created; none while the gateway's ID is unknown."""
    if not link.gateway.value:
        return []
    path = kind.path(SYSTEM_NAMESPACE if kind.namespaced else None)
    params = {"labelSelector": own_selector(link.gateway.value)}
    return _decode_list(await link.client.request("GET", path, params=params)).items


async def _delete_object(client: Client, kind: Resource, metadata: Meta) -> None:
    if metadata.deletion_timestamp is None:
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            await client.delete(kind, metadata.name, namespace=metadata.namespace or None, uid=metadata.uid)
