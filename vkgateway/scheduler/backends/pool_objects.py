"""Queues of one scheduler in one compute cluster, and what they refer to: writes, and deletion of leftovers."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Mapping, Sequence
from typing import Any, Final, Generic

import msgspec
import structlog

from vkgateway.api.names import GATEWAY_LABEL, SYSTEM_NAMESPACE, TENANT_LABEL
from vkgateway.api.objects import Meta, Object, ObjectView, decode_object
from vkgateway.clusters.link import ComputeLink
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.clock import Clock
from vkgateway.kube.resources import Resource
from vkgateway.scheduler.backends.kinds import ModeKinds, View, with_owner
from vkgateway.scheduler.backends.names import MODE_LABEL

log = structlog.get_logger(__name__)

_REPAIR_SECONDS: Final = 60.0
"""Seconds after which all objects are written again and leftovers are deleted."""

_ObjectKey = tuple[str, str]
"""Kind and name."""


class _ObjectList(msgspec.Struct):
    items: list[ObjectView] = []


_decode_list: Final = msgspec.json.Decoder(_ObjectList).decode


class PoolObjects(Generic[View]):
    """Writer of the queues of all pools of a compute cluster, and of what they refer to."""

    def __init__(self, kinds: ModeKinds[View], link: ComputeLink, *, clock: Clock) -> None:
        self._kinds = kinds
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
        kind, metadata = self._kinds.find_kind(document["kind"]), document["metadata"]
        try:
            if key not in self._own and not await self._is_ours(kind, metadata):
                log.warning("object of the scheduler belongs to others", compute=self.link.name, object=key)
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
            log.warning("object of the scheduler not written", compute=self.link.name, object=key, error=error.message)
            return False
        return True

    async def _is_ours(self, kind: Resource, metadata: Mapping[str, Any]) -> bool:
        """Return whether no object has the name, or one that this gateway created."""
        try:
            found = await self._client.get(kind, metadata["name"], namespace=metadata.get("namespace"))
        except errors.NotFound:
            return True
        labels = decode_object(found).metadata.labels
        return (labels.get(MODE_LABEL), labels.get(GATEWAY_LABEL)) == (self._kinds.mode, self.link.gateway.value)

    async def _delete_leftovers(self, unsettled: Container[str]) -> bool:
        """Delete objects of removed tenants and pools. The scheduler may delay the deletion while they are in use."""
        try:
            await delete_pool_objects(self._kinds, self.link, keep=self._written.keys(), unsettled=unsettled)
        except errors.ApiError as error:
            log.warning("leftovers at the scheduler not deleted", compute=self.link.name, error=error.message)
            return False
        return True


async def delete_everything(kinds: ModeKinds[View], link: ComputeLink) -> None:
    """Delete all objects of the gateway at a scheduler, after the last pool has left its mode.

    A cluster that does not serve the scheduler's API has none, and neither has one whose roles do not name it. Raises
    ApiError.
    """
    try:
        for found in await _list_objects(kinds, kinds.attempts, link):
            await _delete_object(link.client, kinds.attempts, found.metadata)
        await delete_pool_objects(kinds, link, keep=())
    except (errors.NotFound, errors.Forbidden):
        return


async def delete_pool_objects(
    kinds: ModeKinds[View], link: ComputeLink, *, keep: Container[_ObjectKey], unsettled: Container[str] = ()
) -> None:
    """Delete the gateway's queues, and what they refer to, except those to keep and those of `unsettled` tenants.

    Raises ApiError.
    """
    for kind in kinds.pool_kinds:
        for found in await _list_objects(kinds, kind, link):
            metadata = found.metadata
            if (kind.kind, metadata.name) not in keep and metadata.labels.get(TENANT_LABEL, "") not in unsettled:
                await _delete_object(link.client, kind, metadata)


async def _list_objects(kinds: ModeKinds[View], kind: Resource, link: ComputeLink) -> list[ObjectView]:
    """Return the objects of a kind that this gateway created; none while the gateway's ID is unknown."""
    if not link.gateway.value:
        return []
    namespace = kinds.namespace or None if kind is kinds.attempts else SYSTEM_NAMESPACE
    path = kind.path(namespace if kind.namespaced else None)
    params = {"labelSelector": kinds.own_selector(link.gateway.value)}
    return _decode_list(await link.client.request("GET", path, params=params)).items


async def _delete_object(client: Client, kind: Resource, metadata: Meta) -> None:
    if metadata.deletion_timestamp is None:
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            await client.delete(kind, metadata.name, namespace=metadata.namespace or None, uid=metadata.uid)
