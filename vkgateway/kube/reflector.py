"""Keeps a typed, narrow copy of one kind's objects in memory, by list and watch, and tells what changed.

The rules are those of the Kubernetes API concepts page
(https://kubernetes.io/docs/reference/using-api/api-concepts/): "Efficient detection of changes", "Streaming
lists", "Watch bookmarks" and "410 Gone responses".
"""

from __future__ import annotations

import asyncio
import random as random_module
from collections.abc import Awaitable, Callable
from typing import Final, Generic, Protocol, TypeVar

import msgspec
import structlog

from vkgateway.kube import errors
from vkgateway.kube.backoff import Random
from vkgateway.kube.client import Client
from vkgateway.kube.following import Following, Key
from vkgateway.kube.requests import Params
from vkgateway.kube.resources import Resource
from vkgateway.kube.streams import Stream
from vkgateway.kube.watchstream import LineSplitter, split_event
from vkgateway.model.objects import Meta, ObjectView

log = structlog.get_logger(__name__)

INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"
_PROOF: Final = 1.0
"""Seconds of a resumed watch without an error after which nothing can have been missed.

A server that no longer knows the resource version says so at once, in the status or as the first event.
"""
_WATCH: Final = 300
"""Seconds that a watch is asked to last; up to twice as many, so that a server that restarted is not asked by everybody
at the same moment ever after."""
_UNENDED: Final = 60.0
"""Seconds beyond its time after which a watch that the server has not ended is given up."""
_UNREADABLE: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""What decoding may raise; the second where values are nested by the thousand, as `managedFields` may be."""
_VERSION_ONLY: Final = msgspec.json.Decoder(ObjectView).decode


class HasMetadata(Protocol):
    """What the narrow struct of any kind must have."""

    @property
    def metadata(self) -> Meta:
        """The object's metadata; name, namespace, UID and resource version are needed."""


T = TypeVar("T", bound=HasMetadata)


class Reflector(Generic[T]):
    """One watch over one kind at one server, for ever.

    `decode` gets the JSON bytes of one object. `on_change(old, new)` is called in order for each change:
    `(None, new)` for what appeared, `(old, None)` for what went (`old` being the last state known of it); an
    object that was replaced by another of the same name goes before the other appears. It must neither wait
    nor raise.

    `complete` says that `items` holds everything the server has (but for what is on its way this moment):
    false until the first list is done, and from the moment the watch is lost until it is shown that nothing
    was missed. One lost connection that can be made anew at once changes nothing. `on_reachable(False, why)`
    comes when the server cannot be followed, `on_reachable(True, "")` when it can again, `on_complete()` each
    time `complete` becomes true; an object that `decode` refuses keeps it false, since it is not known what
    that object says.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        *,
        decode: Callable[[bytes], T],
        on_change: Callable[[T | None, T | None], None],
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        on_reachable: Callable[[bool, str], None] | None = None,
        on_complete: Callable[[], None] | None = None,
        page_size: int = 500,
        inactivity: float = 150.0,
        random: Random = random_module.random,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.items: dict[Key, T] = {}
        self.relists = 0
        self._client = client
        self._resource = resource
        self._path: Final = resource.path(namespace)
        self._what: Final = f"GET {self._path} at {client.name}"
        self._namespace = namespace
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._decode = decode
        self._on_change = on_change
        self._page_size = page_size
        self._inactivity = inactivity
        self._random = random
        self._sleep = sleep
        self._following = Following(on_reachable=on_reachable, on_complete=on_complete, random=random)
        self._version = ""
        self._seen: set[Key] | None = None
        self._restored = False
        """The server went back, and gives versions a second time: that of an object does not tell one from another."""

    @property
    def complete(self) -> bool:
        """Whether `items` is all there is, so that what is missing in it may be taken for gone."""
        return self._following.complete.is_set()

    @property
    def reachable(self) -> bool:
        """Whether the server can be followed, as was told last."""
        return self._following.reachable

    @property
    def unreadable(self) -> set[Key]:
        """Objects that `decode` refuses."""
        return self._following.unreadable

    async def wait_complete(self) -> None:
        """Wait until `complete` is true."""
        await self._following.complete.wait()

    async def run(self) -> None:
        """List and watch until cancelled; every failure of the server is retried."""
        while True:
            try:
                if not self._version and not self._client.streaming_lists:
                    await self._list()
                await self._watch()
            except errors.Gone:
                self._version = ""
                if wait := self._following.outdated(asyncio.get_running_loop().time()):
                    await self._sleep(wait)
            except errors.ApiError as error:
                await self._sleep(self._failed(error))
            except _UNREADABLE as error:
                strange = errors.ServerError(f"{self._what}: {error}", status=500)
                await self._sleep(self._failed(strange))

    # -- listing ---------------------------------------------------------------------------------------------------

    async def _list(self) -> None:
        """Everything, page by page; a list that outlives its continue token is taken again in one piece."""
        try:
            await self._list_pages(self._page_size)
        except errors.Gone:
            await self._list_pages(0)

    async def _list_pages(self, limit: int) -> None:
        self._begin()
        version = ""
        async for page in self._client.pages(
            self._resource,
            namespace=self._namespace,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            limit=limit,
            # Later ones are about what went wrong: then it is the store's word that counts.
            cached=self._client.single_server and not self.relists,
        ):
            version = page.metadata.resource_version
            for item in page.items:
                self._put(bytes(item))
        self._end(version)

    def _begin(self) -> None:
        self._seen = set()
        self.unreadable.clear()

    def _end(self, version: str) -> None:
        """All is listed: what was not seen is gone."""
        seen, self._seen = self._seen or set(), None
        for key in [key for key in self.items if key not in seen]:
            self._on_change(self.items.pop(key), None)
        self._version, self._restored = version, False
        self.relists += 1
        self._following.settle()

    # -- watching --------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """One watch until its end, from the version known or, in a streaming list, from nothing."""
        starting = not self._version
        if starting:
            self._begin()
        elif not self._following.known:
            await self._check_version()
        splitter = LineSplitter()
        loop = asyncio.get_running_loop()
        begun, before = loop.time(), self._version
        proof: asyncio.TimerHandle | None = None
        try:
            seconds = _WATCH + int(_WATCH * self._random())
            async with self._client.stream(
                self._path,
                self._watch_params(starting, seconds),
                inactivity=self._inactivity,
                longest=seconds + _UNENDED,
            ) as stream:
                if not starting:
                    proof = loop.call_later(_PROOF, self._following.settle)
                while chunk := await self._read(stream):
                    for line in splitter.feed(chunk):
                        stream.regular |= self._event(line)
        except errors.ApiError as error:
            if starting and error.status in (400, 422):
                self._client.streaming_lists = False
                return
            raise
        finally:
            if proof is not None:
                proof.cancel()
        if self._seen is not None:
            raise errors.Unreachable(f"{self._what}: the list ended half way")
        await self._sleep(self._following.ended(lasted=loop.time() - begun, told=self._version != before))

    async def _check_version(self) -> None:
        """Raise Gone where the server is behind what we know: its store was restored from a backup while it was away.

        A watch from a version that is yet to come is no error to a server. It is silent until that version comes, and
        tells nothing of what was undone.
        """
        answer = await self._client.request("GET", self._path, params={"limit": 1})
        version = _VERSION_ONLY(answer).metadata.resource_version
        if version.isdigit() and self._version.isdigit() and int(version) < int(self._version):
            self._restored = True
            raise errors.Gone(f"{self._what}: went back from {self._version} to {version}", status=410)

    def _watch_params(self, starting: bool, seconds: int) -> Params:
        params: dict[str, str | int | bool] = {
            "watch": True,
            "allowWatchBookmarks": True,
            "timeoutSeconds": seconds,
        }
        if starting:
            params["sendInitialEvents"] = True
            params["resourceVersionMatch"] = "NotOlderThan"
        else:
            params["resourceVersion"] = self._version
        if self._label_selector:
            params["labelSelector"] = self._label_selector
        if self._field_selector:
            params["fieldSelector"] = self._field_selector
        return params

    async def _read(self, stream: Stream) -> bytes:
        try:
            return await stream.read()
        except OSError as error:
            raise self._client.unreachable("GET", self._path, error) from error

    def _event(self, line: bytes) -> bool:
        """Take in one event; whether it is a bookmark of a server that goes on sending them."""
        kind, body = split_event(line)
        if kind == "ERROR":
            raise errors.from_event(body, what=self._what)
        if kind == "BOOKMARK":
            return self._bookmark(body)
        version = self._drop(body) if kind == "DELETED" else self._put(body)
        # While the list streams in, objects come in the order of their names: their versions say nothing.
        if self._seen is None:
            self._version = version
            if not self._following.known:
                self._following.settle()
        return False

    def _bookmark(self, body: bytes) -> bool:
        metadata = _VERSION_ONLY(body).metadata
        if self._seen is None:
            self._version = metadata.resource_version
            self._following.settle()
            return True
        if metadata.annotations.get(INITIAL_EVENTS_END) == "true":
            self._end(metadata.resource_version)
            return False
        # A server from before streaming lists took the parameters for air and will never say that it is done.
        self._client.streaming_lists = False
        raise errors.Gone(f"{self._what}: no streaming lists", status=410)

    # -- the store -------------------------------------------------------------------------------------------------

    def _put(self, body: bytes) -> str:
        """Take in an object that was listed, added or changed; returns its resource version."""
        try:
            new = self._decode(body)
        except _UNREADABLE as error:
            return self._unreadable(body, error)
        metadata = new.metadata
        key = metadata.namespace, metadata.name
        if self._seen is not None:
            self._seen.add(key)
        self._following.relieve(key)
        old = self.items.get(key)
        if old is not None:
            before = old.metadata
            if before.uid != metadata.uid:
                del self.items[key]
                self._on_change(old, None)
                old = None
            elif before.resource_version == metadata.resource_version and not self._restored:
                return metadata.resource_version
        self.items[key] = new
        self._on_change(old, new)
        return metadata.resource_version

    def _drop(self, body: bytes) -> str:
        """Forget an object that was deleted or left the selection; returns the event's resource version."""
        metadata = _VERSION_ONLY(body).metadata
        key = metadata.namespace, metadata.name
        self._following.relieve(key)
        old = self.items.get(key)
        if old is not None and old.metadata.uid == metadata.uid:
            del self.items[key]
            try:
                old = self._decode(body)
            except _UNREADABLE as error:
                log.warning("object unreadable", kind=self._resource.kind, key=key, error=str(error))
            self._on_change(old, None)
        return metadata.resource_version

    def _unreadable(self, body: bytes, error: Exception) -> str:
        """Keep what was known of an object that says what we do not understand, and trust in nothing's
        absence.
        """
        metadata = _VERSION_ONLY(body).metadata
        key = metadata.namespace, metadata.name
        if self._seen is not None:
            self._seen.add(key)
        self._following.doubt(key)
        log.error("object unreadable", server=self._client.name, kind=self._resource.kind, key=key, error=str(error))
        return metadata.resource_version

    def _failed(self, error: errors.ApiError) -> float:
        """Note a failure; returns the seconds to wait before the next try."""
        wait = self._following.failed(error.message, at_least=error.retry_after)
        if self._following.doubted and error.status:
            self._version = ""
        return wait
