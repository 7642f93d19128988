"""Server-side apply of whole documents of any kind, definitions of new kinds among them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from vkgateway.kube import errors
from vkgateway.kube.client import FIELD_MANAGER, Client
from vkgateway.kube.resources import CRDS, KNOWN, Resource
from vkgateway.model.errors import InputError

Document = dict[str, Any]

_FIRST: Final = {"Namespace": 0, "CustomResourceDefinition": 1}
"""What other documents may need to be there before them; the rest keep their order."""
_POLL: Final = 0.1


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
        self._found: dict[tuple[str, str], Resource] = dict(KNOWN)

    async def resource(self, api_version: str, kind: str) -> Resource:
        """The resource of `apiVersion` and `kind`. Raises errors.NotFound where the server does not have
        it.
        """
        found = self._found.get((api_version, kind))
        if found is None:
            await self._load(api_version)
            found = self._found.get((api_version, kind))
        if found is None:
            raise errors.NotFound(
                f"{self._client.name} has no kind {kind} in {api_version}", status=404, reason="NotFound"
            )
        return found

    async def _load(self, api_version: str) -> None:
        prefix = f"apis/{api_version}" if "/" in api_version else f"api/{api_version}"
        listed = _decode_resources(await self._client.request("GET", f"/{prefix}"))
        for entry in listed.resources:
            if "/" not in entry.name:
                self._found[api_version, entry.kind] = Resource(prefix, entry.name, entry.kind, entry.namespaced)


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
    discovery = discovery or Discovery(client)
    until = clock() + timeout
    stored = []
    waiting: list[str] = []
    ordered = sorted(docs, key=lambda doc: _FIRST.get(str(doc.get("kind")), len(_FIRST)))
    for doc in ordered:
        if waiting and doc.get("kind") != CRDS.kind:
            await _established(client, waiting, until=until, sleep=sleep, clock=clock)
            waiting = []
        while True:
            try:
                stored.append(await _apply(client, discovery, doc, field_manager, namespace))
                break
            except errors.NotFound:
                # A kind just defined is served by each API server a moment later, by others later still.
                if clock() >= until or not any(other.get("kind") == CRDS.kind for other in docs):
                    raise
                await sleep(_POLL)
        if doc["kind"] == CRDS.kind:
            waiting.append(doc["metadata"]["name"])
    await _established(client, waiting, until=until, sleep=sleep, clock=clock)
    return stored


async def _apply(client: Client, discovery: Discovery, doc: Document, field_manager: str, namespace: str) -> bytes:
    api_version, kind, name = doc.get("apiVersion"), doc.get("kind"), (doc.get("metadata") or {}).get("name")
    if not (isinstance(api_version, str) and isinstance(kind, str) and isinstance(name, str) and name):
        raise InputError(f"a document needs apiVersion, kind and metadata.name; given {api_version}, {kind}, {name}")
    resource = await discovery.resource(api_version, kind)
    return await client.patch(
        resource,
        name,
        doc,
        kind="apply",
        namespace=doc["metadata"].get("namespace") or namespace,
        field_manager=field_manager,
    )


async def _established(
    client: Client,
    names: Sequence[str],
    *,
    until: float,
    sleep: Callable[[float], Awaitable[object]],
    clock: Callable[[], float],
) -> None:
    """Wait until definitions are served. Raises errors.ServerError at the deadline, naming the first that is
    not.
    """
    for name in names:
        while True:
            definition = _decode_definition(await client.get(CRDS, name))
            if any(c.type == "Established" and c.status == "True" for c in definition.status.conditions or ()):
                break
            if clock() >= until:
                raise errors.ServerError(f"CustomResourceDefinition {name} at {client.name} is not established yet")
            await sleep(_POLL)
