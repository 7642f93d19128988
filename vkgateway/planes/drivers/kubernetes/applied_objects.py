"""Objects of control planes: applied if they differ, and watched for changes by other clients."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec
import structlog

from vkgateway.api.names import CONTROL_PLANE_LABEL, FIELD_MANAGER
from vkgateway.api.objects import Meta
from vkgateway.kube.apply import Document, apply_objects
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.kube.resources import (
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    NAMESPACES,
    NETWORK_POLICIES,
    SECRETS,
    SERVICES,
    Resource,
)
from vkgateway.planes.drivers.kubernetes.names import API_SERVER, COMPONENT_LABEL, CONTROL_PLANE, FILES

_log = structlog.get_logger(__name__)

_WATCHED: Final[Sequence[Resource]] = (
    NAMESPACES,
    SECRETS,
    SERVICES,
    NETWORK_POLICIES,
    DISRUPTION_BUDGETS,
    DEPLOYMENTS,
)

_ESSENTIAL: Final = (
    (SECRETS.kind, FILES),
    (SERVICES.kind, API_SERVER),
    (NETWORK_POLICIES.kind, CONTROL_PLANE),
    (DEPLOYMENTS.kind, CONTROL_PLANE),
)
"""Kind and name of the objects without which no control plane is complete."""

_Key = tuple[str, str, str]
"""Kind, namespace and name of an object."""


@dataclass(frozen=True, slots=True)
class _Applied:
    """State of an object as it should be.

    `document` is the digest of the applied document, empty if an earlier process applied it. `fields` is the digest of
    the managed fields at resource version `version`. The labels name tenant and component.
    """

    document: str
    labels: Mapping[str, str]
    fields: str
    version: int


class AppliedObjects:
    """Applies documents with the label `vkgateway.io/control-plane`, and reports when another client changes them.

    `on_change` is called with tenant, component and key of an object that was changed or deleted. While `run` does not
    run, every document is applied and nothing is reported.
    """

    def __init__(self, client: Client, *, on_change: Callable[[str, str, str], None]) -> None:
        self._client = client
        self._on_change = on_change
        self._applied: dict[_Key, _Applied] = {}
        self._in_flight: set[_Key] = set()
        self._reflectors: dict[str, Reflector[ManagedObject]] = {
            resource.kind: Reflector(
                client,
                resource,
                decode=decode_managed,
                on_change=partial(self._observe, resource.kind),
                label_selector=CONTROL_PLANE_LABEL,
            )
            for resource in _WATCHED
        }

    async def run(self) -> None:
        """Watch until cancelled. First, report control planes that lost an object while nothing watched."""
        async with asyncio.TaskGroup() as group:
            for kind, reflector in self._reflectors.items():
                group.create_task(reflector.run(), name=f"control-planes/watch-{kind}")
            for reflector in self._reflectors.values():
                await reflector.wait_until_complete()
            self._report_missing()

    async def apply(self, documents: Iterable[Document]) -> None:
        """Apply the documents that are new, or that differ from the last applied or from the stored ones, in order.

        Raises ApiError if the API server refuses a document.
        """
        for document in documents:
            metadata = document["metadata"]
            key = document["kind"], metadata.get("namespace", ""), metadata["name"]
            digest = hashlib.sha256(msgspec.json.encode(document, order="deterministic")).hexdigest()
            if not self._is_current(key, digest):
                await self._apply(key, document, digest)

    def forget(self, *, namespace: str, name: str = "") -> None:
        """Expect a namespace with all its objects, or the objects of one name in it, to be deleted."""
        for key in [key for key in self._applied if _is_part(key, namespace, name)]:
            del self._applied[key]

    def is_known(self, kind: str, name: str, *, namespace: str) -> bool:
        """Return whether an object was applied or seen, and not forgotten."""
        return (kind, namespace, name) in self._applied

    def forget_object(self, kind: str, name: str, *, namespace: str) -> None:
        """Expect one object to be deleted."""
        self._applied.pop((kind, namespace, name), None)

    async def _apply(self, key: _Key, document: Document, digest: str) -> None:
        self._in_flight.add(key)
        try:
            (body,) = await apply_objects(self._client, [document])
        finally:
            self._in_flight.discard(key)
        stored = decode_managed(body)
        self._applied[key] = _Applied(digest, document["metadata"]["labels"], stored.fields, stored.version)
        if (seen := self._find(key)) is not None:  # another client may have been faster than the answer
            self._check(key, seen)

    def _is_current(self, key: _Key, digest: str) -> bool:
        applied, seen = self._applied.get(key), self._find(key)
        return (
            applied is not None
            and seen is not None
            and (applied.document, applied.fields) == (digest, seen.fields)
            and seen.metadata.deletion_timestamp is None
        )

    def _find(self, key: _Key) -> ManagedObject | None:
        """Return the last seen state of an object; None if it does not exist, or is not known for certain."""
        reflector = self._reflectors.get(key[0])
        return reflector.store.get(key[1:]) if reflector is not None and reflector.is_complete else None

    def _report_missing(self) -> None:
        for namespace in list(self._reflectors[NAMESPACES.kind].store.values()):
            metadata = namespace.metadata
            for kind, name in _ESSENTIAL:
                if metadata.deletion_timestamp is None and self._find((kind, metadata.name, name)) is None:
                    tenant = metadata.labels.get(CONTROL_PLANE_LABEL, "")
                    self._on_change(tenant, CONTROL_PLANE, f"{kind}/{metadata.name}/{name}")

    def _observe(self, kind: str, old: ManagedObject | None, new: ManagedObject | None) -> None:
        view = new or old
        assert view is not None
        key = kind, *view.metadata.key
        if key in self._in_flight:
            return
        if new is not None:
            self._check(key, new)
        elif key in self._applied:
            self._report(key, view, "deleted")

    def _check(self, key: _Key, seen: ManagedObject) -> None:
        """Report an object that is not as it was applied. An object of an earlier process is taken as it is."""
        applied = self._applied.get(key)
        if applied is None:
            if seen.metadata.deletion_timestamp is None:
                self._applied[key] = _Applied("", seen.metadata.labels, seen.fields, seen.version)
        elif seen.version > applied.version and seen.fields != applied.fields:
            self._report(key, seen, "changed")

    def _report(self, key: _Key, view: ManagedObject, what: str) -> None:
        kind, namespace, name = key
        _log.info(
            "another client changed a control plane",
            change=what,
            kind=kind,
            namespace=namespace,
            name=name,
            client=view.other_client,
        )
        labels = self._applied[key].labels
        self._on_change(labels.get(CONTROL_PLANE_LABEL, ""), labels.get(COMPONENT_LABEL, ""), "/".join(key))


def _is_part(key: _Key, namespace: str, name: str) -> bool:
    """Return whether an object is a namespace, or in it and, if given, of that name."""
    kind, place, own_name = key
    if name:
        return (place, own_name) == (namespace, name)
    return place == namespace or (kind, own_name) == (NAMESPACES.kind, namespace)


class _Entry(msgspec.Struct, rename="camel"):
    manager: str = ""
    operation: str = ""
    subresource: str = ""
    time: str = ""
    fields_v1: dict[str, Any] = {}


class _ManagedMeta(Meta, rename="camel"):
    managed_fields: tuple[_Entry, ...] = ()


class _Object(msgspec.Struct):
    metadata: _ManagedMeta


class ManagedObject(msgspec.Struct, frozen=True):
    """Metadata of an object, a digest of the fields that the gateway manages, and the last other client."""

    metadata: Meta
    fields: str
    is_managed: bool = True
    """Whether the gateway has applied the object, and still manages a field of it."""
    other_client: str = ""

    @property
    def version(self) -> int:
        """Resource version as a number, to compare two states of the object (KEP-5504)."""
        return int(self.metadata.resource_version or 0)


_decode: Final = msgspec.json.Decoder(_Object).decode


def decode_managed(body: bytes) -> ManagedObject:
    """Decode an object; its contents are not kept.

    A client that changes or removes a field takes it away from its manager. So another set of managed fields means that
    another client changed one of them, whatever defaults the API server added.
    https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management
    """
    metadata = _decode(body).metadata
    entries, metadata.managed_fields = metadata.managed_fields, ()
    own = [entry for entry in entries if entry.manager == FIELD_MANAGER and entry.operation == "Apply"]
    others = [entry for entry in entries if entry not in own and not entry.subresource]
    fields = msgspec.json.encode([entry.fields_v1 for entry in own], order="deterministic")
    latest = max(others, key=lambda entry: entry.time, default=_Entry())
    return ManagedObject(metadata, hashlib.sha256(fields).hexdigest()[:16], bool(own), latest.manager)
