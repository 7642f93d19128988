"""Server-side apply of documents of any kind, including CustomResourceDefinitions and their objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from vkgateway.api.errors import InputError
from vkgateway.api.names import FIELD_MANAGER
from vkgateway.api.objects import Condition, is_condition_true
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.kube.resources import CRDS, KNOWN_RESOURCES, Resource

Document = dict[str, Any]

_APPLY_ORDER: Final = {"Namespace": 0, "CustomResourceDefinition": 1}
"""Kinds that other documents may depend on. All other kinds follow in their original order."""
_POLL_SECONDS: Final = 0.1


class _ApiResource(msgspec.Struct):
    name: str
    kind: str
    namespaced: bool


class _ApiResources(msgspec.Struct):
    resources: list[_ApiResource] = []


class _Status(msgspec.Struct):
    conditions: list[Condition] | None = None
    """API servers write null before the first condition."""


class _Definition(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


_decode_resources: Final = msgspec.json.Decoder(_ApiResources).decode
_decode_definition: Final = msgspec.json.Decoder(_Definition).decode


class Discovery:
    """Cache of the resources that one API server offers. An unknown kind causes another discovery request."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._resources: dict[tuple[str, str], Resource] = dict(KNOWN_RESOURCES)

    async def get_resource(self, api_version: str, kind: str) -> Resource:
        """Return the resource of `apiVersion` and `kind`. Raises errors.NotFound if the server lacks the kind."""
        found = await self.find_resource(api_version, kind)
        if found is None:
            raise errors.NotFound(
                f"{self._client.name} has no kind {kind} in {api_version}", status=404, reason="NotFound"
            )
        return found

    async def find_resource(self, api_version: str, kind: str) -> Resource | None:
        """Return the resource of `apiVersion` and `kind`, or None if the version lacks the kind.

        Raises:
            NotFound: The server lacks the version.
        """
        if (api_version, kind) not in self._resources:
            await self._load_resources(api_version)
        return self._resources.get((api_version, kind))

    async def _load_resources(self, api_version: str) -> None:
        prefix = f"apis/{api_version}" if "/" in api_version else f"api/{api_version}"
        listed = _decode_resources(await self._client.request("GET", f"/{prefix}"))
        for entry in listed.resources:
            if "/" not in entry.name:
                self._resources[api_version, entry.kind] = Resource(prefix, entry.name, entry.kind, entry.namespaced)


async def apply_objects(
    client: Client,
    docs: Sequence[Document],
    *,
    field_manager: str = FIELD_MANAGER,
    namespace: str = "default",
    timeout: float = 30.0,
    clock: Clock = SYSTEM_CLOCK,
) -> list[bytes]:
    """Apply documents with forced ownership of their fields. Return the stored objects in the order of application.

    Namespaces and CustomResourceDefinitions are applied first. The call waits at most `timeout` seconds until the
    definitions are established and their kinds are served. A namespaced document without a namespace is applied in
    `namespace`.

    Raises InputError for an invalid document, and ApiError if the server refuses a document.
    """
    deadline = clock.monotonic() + timeout
    applier = _Applier(client, Discovery(client), field_manager, namespace, clock, deadline)
    has_definitions = any(doc.get("kind") == CRDS.kind for doc in docs)
    stored = []
    waiting: list[str] = []
    for doc in sorted(docs, key=lambda doc: _APPLY_ORDER.get(str(doc.get("kind")), len(_APPLY_ORDER))):
        if doc.get("kind") != CRDS.kind:
            await applier.wait_until_established(waiting)
            waiting.clear()
        stored.append(await (applier.apply_when_served(doc) if has_definitions else applier.apply_document(doc)))
        if doc["kind"] == CRDS.kind:
            waiting.append(doc["metadata"]["name"])
    await applier.wait_until_established(waiting)
    return stored


@dataclass(frozen=True)
class _Applier:
    """State of one call of `apply_objects`."""

    client: Client
    discovery: Discovery
    field_manager: str
    namespace: str
    clock: Clock
    deadline: float

    async def apply_document(self, doc: Document) -> bytes:
        api_version, kind = doc.get("apiVersion"), doc.get("kind")
        name = (doc.get("metadata") or {}).get("name")
        if not (isinstance(api_version, str) and isinstance(kind, str) and isinstance(name, str) and name):
            raise InputError(
                f"a document needs apiVersion, kind and metadata.name; given {api_version}, {kind}, {name}"
            )
        return await self.client.patch(
            await self.discovery.get_resource(api_version, kind),
            name,
            doc,
            kind="apply",
            namespace=doc["metadata"].get("namespace") or self.namespace,
            field_manager=self.field_manager,
        )

    async def apply_when_served(self, doc: Document) -> bytes:
        """Apply a document and retry while its kind is not served: API servers serve a new kind with a delay."""
        while True:
            try:
                return await self.apply_document(doc)
            except errors.NotFound:
                if self.clock.monotonic() >= self.deadline:
                    raise
                await self.clock.sleep(_POLL_SECONDS)

    async def wait_until_established(self, names: Sequence[str]) -> None:
        """Wait until definitions are established. Raises errors.ServerError at the deadline."""
        for name in names:
            while not _is_established(await self.client.get(CRDS, name)):
                if self.clock.monotonic() >= self.deadline:
                    raise errors.ServerError(
                        f"CustomResourceDefinition {name} at {self.client.name} is not established yet"
                    )
                await self.clock.sleep(_POLL_SECONDS)


def _is_established(body: bytes) -> bool:
    return is_condition_true(_decode_definition(body).status.conditions or (), "Established")
