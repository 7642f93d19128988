"""Server-side apply of whole documents of any kind, definitions of new kinds among them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import CRDS, KNOWN_RESOURCES, Resource
from vkgateway.model.errors import InputError
from vkgateway.model.names import FIELD_MANAGER

Document = dict[str, Any]

_APPLY_ORDER: Final = {"Namespace": 0, "CustomResourceDefinition": 1}
"""What other documents may need to be there before them; the rest keep their order."""
_POLL_SECONDS: Final = 0.1


class _ApiResource(msgspec.Struct):
    name: str
    kind: str
    namespaced: bool


class _ApiResources(msgspec.Struct):
    resources: list[_ApiResource] = []


class _Condition(msgspec.Struct):
    type: str
    status: str


class _Status(msgspec.Struct):
    conditions: list[_Condition] | None = None
    """Servers say null before anything is known of a definition."""


class _Definition(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


_decode_resources: Final = msgspec.json.Decoder(_ApiResources).decode
_decode_definition: Final = msgspec.json.Decoder(_Definition).decode


class Discovery:
    """Finds the resource of a kind at one server; answers are kept, and asked for again where a kind is
    missing.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._resources: dict[tuple[str, str], Resource] = dict(KNOWN_RESOURCES)

    async def get_resource(self, api_version: str, kind: str) -> Resource:
        """The resource of `apiVersion` and `kind`. Raises errors.NotFound where the server does not have
        it.
        """
        found = await self.find_resource(api_version, kind)
        if found is None:
            raise errors.NotFound(
                f"{self._client.name} has no kind {kind} in {api_version}", status=404, reason="NotFound"
            )
        return found

    async def find_resource(self, api_version: str, kind: str) -> Resource | None:
        """Return the resource of `apiVersion` and `kind`, or None where the server has the version without the kind.

        Raises:
            NotFound: the server does not have the version.
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
    discovery: Discovery | None = None,
    timeout: float = 30.0,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> list[bytes]:
    """Apply documents, taking over fields that others own; returns them as stored, in the order they were
    applied.

    Namespaces and definitions go first; the call waits until the definitions are served, at most `timeout`
    seconds, and as long for a kind that is defined but not served yet. A namespaced document without a
    namespace goes into `namespace`. Raises InputError for what is no document, ApiError for what the server
    refuses.
    """
    applier = _Applier(
        client, discovery or Discovery(client), field_manager, namespace, sleep, clock, deadline=clock() + timeout
    )
    defines = any(doc.get("kind") == CRDS.kind for doc in docs)
    stored = []
    waiting: list[str] = []
    for doc in sorted(docs, key=lambda doc: _APPLY_ORDER.get(str(doc.get("kind")), len(_APPLY_ORDER))):
        if doc.get("kind") != CRDS.kind:
            await applier.wait_until_established(waiting)
            waiting.clear()
        stored.append(await (applier.apply_when_served(doc) if defines else applier.apply_document(doc)))
        if doc["kind"] == CRDS.kind:
            waiting.append(doc["metadata"]["name"])
    await applier.wait_until_established(waiting)
    return stored


@dataclass(frozen=True)
class _Applier:
    """One call of `apply_objects`."""

    client: Client
    discovery: Discovery
    field_manager: str
    namespace: str
    sleep: Callable[[float], Awaitable[object]]
    clock: Callable[[], float]
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
        """Apply what may be of a kind that was only just defined: API servers serve it a moment later."""
        while True:
            try:
                return await self.apply_document(doc)
            except errors.NotFound:
                if self.clock() >= self.deadline:
                    raise
                await self.sleep(_POLL_SECONDS)

    async def wait_until_established(self, names: Sequence[str]) -> None:
        """Wait until definitions are served. Raises errors.ServerError naming the first that is not in time."""
        for name in names:
            while not _is_established(await self.client.get(CRDS, name)):
                if self.clock() >= self.deadline:
                    raise errors.ServerError(
                        f"CustomResourceDefinition {name} at {self.client.name} is not established yet"
                    )
                await self.sleep(_POLL_SECONDS)


def _is_established(body: bytes) -> bool:
    conditions = _decode_definition(body).status.conditions or ()
    return any(found.type == "Established" and found.status == "True" for found in conditions)
