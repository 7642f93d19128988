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
from vkgateway.kube.requests import Params
from vkgateway.kube.resources import Resource
from vkgateway.kube.response_streams import ResponseStream
from vkgateway.kube.watch_events import LineSplitter, split_event
from vkgateway.kube.watch_state import Key, WatchState
from vkgateway.model.objects import Meta, ObjectView

log = structlog.get_logger(__name__)

INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"
_RESUME_PROOF_SECONDS: Final = 1.0
"""Seconds of a resumed watch without an error after which nothing can have been missed.

A server that no longer knows the resource version says so at once, in the status or as the first event.
"""
_WATCH_SECONDS: Final = 300
"""Seconds that a watch is asked to last; up to twice as many, so that a server that restarted is not asked by everybody
at the same moment ever after."""
_OVERDUE_SECONDS: Final = 60.0
"""Seconds beyond its time after which a watch that the server has not ended is given up."""
_DECODE_ERRORS: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""What decoding may raise; the second where values are nested by the thousand, as `managedFields` may be."""
_decode_metadata: Final = msgspec.json.Decoder(ObjectView).decode


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

    `is_complete` says that `store` holds everything the server has (but for what is on its way this moment):
    false until the first list is done, and from the moment the watch is lost until it is shown that nothing
    was missed. One lost connection that can be made anew at once changes nothing. `on_reachable(False, why)`
    comes when the server cannot be followed, `on_reachable(True, "")` when it can again, `on_complete()` each
    time `is_complete` becomes true; an object that `decode` refuses keeps it false, since it is not known what
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
        self.store: dict[Key, T] = {}
        self.relist_count = 0
        self._client = client
        self._resource = resource
        self._path: Final = resource.path(namespace)
        self._description: Final = f"GET {self._path} at {client.name}"
        self._namespace = namespace
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._decode = decode
        self._on_change = on_change
        self._page_size = page_size
        self._inactivity = inactivity
        self._random = random
        self._sleep = sleep
        self._state = WatchState(on_reachable=on_reachable, on_complete=on_complete, random=random)
        self._resource_version = ""
        self._listed_keys: set[Key] | None = None
        self._server_restored = False
        """The server went back, and gives versions a second time: that of an object does not tell one from another."""

    @property
    def is_complete(self) -> bool:
        """Whether `store` is all there is, so that what is missing in it may be taken for gone."""
        return self._state.complete_event.is_set()

    @property
    def is_reachable(self) -> bool:
        """Whether the server can be followed, as was told last."""
        return self._state.is_reachable

    @property
    def unreadable_keys(self) -> set[Key]:
        """Objects that `decode` refuses."""
        return self._state.unreadable_keys

    async def wait_until_complete(self) -> None:
        """Wait until `is_complete` is true."""
        await self._state.complete_event.wait()

    async def run(self) -> None:
        """List and watch until cancelled; every failure of the server is retried."""
        while True:
            try:
                if not self._resource_version and not self._client.streaming_lists:
                    await self._list_all()
                await self._run_watch()
            except errors.Gone:
                self._resource_version = ""
                if wait := self._state.handle_expired(asyncio.get_running_loop().time()):
                    await self._sleep(wait)
            except errors.ApiError as error:
                await self._sleep(self._handle_failure(error))
            except _DECODE_ERRORS as error:
                strange = errors.ServerError(f"{self._description}: {error}", status=500)
                await self._sleep(self._handle_failure(strange))

    # -- listing ---------------------------------------------------------------------------------------------------

    async def _list_all(self) -> None:
        """Everything, page by page; a list that outlives its continue token is taken again in one piece."""
        try:
            await self._list_pages(self._page_size)
        except errors.Gone:
            await self._list_pages(0)

    async def _list_pages(self, limit: int) -> None:
        self._begin_list()
        version = ""
        async for page in self._client.list_pages(
            self._resource,
            namespace=self._namespace,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            limit=limit,
            # Later ones are about what went wrong: then it is the store's word that counts.
            cached=self._client.single_server and not self.relist_count,
        ):
            version = page.metadata.resource_version
            for item in page.items:
                self._store_object(bytes(item))
        self._finish_list(version)

    def _begin_list(self) -> None:
        self._listed_keys = set()
        self.unreadable_keys.clear()

    def _finish_list(self, version: str) -> None:
        """All is listed: what was not seen is gone."""
        seen, self._listed_keys = self._listed_keys or set(), None
        for key in [key for key in self.store if key not in seen]:
            self._on_change(self.store.pop(key), None)
        self._resource_version, self._server_restored = version, False
        self.relist_count += 1
        self._state.mark_complete()

    # -- watching --------------------------------------------------------------------------------------------------

    async def _run_watch(self) -> None:
        """One watch until its end, from the version known or, in a streaming list, from nothing."""
        starting = not self._resource_version
        if starting:
            self._begin_list()
        elif not self._state.is_current:
            await self._check_version()
        splitter = LineSplitter()
        loop = asyncio.get_running_loop()
        begun, before = loop.time(), self._resource_version
        proof: asyncio.TimerHandle | None = None
        try:
            seconds = _WATCH_SECONDS + int(_WATCH_SECONDS * self._random())
            async with self._client.open_watch(
                self._path,
                self._watch_params(starting, seconds),
                inactivity=self._inactivity,
                longest=seconds + _OVERDUE_SECONDS,
            ) as stream:
                if not starting:
                    proof = loop.call_later(_RESUME_PROOF_SECONDS, self._state.mark_complete)
                while chunk := await self._read_chunk(stream):
                    for line in splitter.feed(chunk):
                        stream.sends_bookmarks |= self._handle_event(line)
        except errors.ApiError as error:
            if starting and error.status in (400, 422):
                self._client.streaming_lists = False
                return
            raise
        finally:
            if proof is not None:
                proof.cancel()
        if self._listed_keys is not None:
            raise errors.Unreachable(f"{self._description}: the list ended half way")
        await self._sleep(
            self._state.handle_watch_end(lasted=loop.time() - begun, told=self._resource_version != before)
        )

    async def _check_version(self) -> None:
        """Raise Gone where the server is behind what we know: its store was restored from a backup while it was away.

        A watch from a version that is yet to come is no error to a server. It is silent until that version comes, and
        tells nothing of what was undone.
        """
        answer = await self._client.request("GET", self._path, params={"limit": 1})
        version = _decode_metadata(answer).metadata.resource_version
        if version.isdigit() and self._resource_version.isdigit() and int(version) < int(self._resource_version):
            self._server_restored = True
            raise errors.Gone(f"{self._description}: went back from {self._resource_version} to {version}", status=410)

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
            params["resourceVersion"] = self._resource_version
        if self._label_selector:
            params["labelSelector"] = self._label_selector
        if self._field_selector:
            params["fieldSelector"] = self._field_selector
        return params

    async def _read_chunk(self, stream: ResponseStream) -> bytes:
        try:
            return await stream.read()
        except OSError as error:
            raise self._client.unreachable_error("GET", self._path, error) from error

    def _handle_event(self, line: bytes) -> bool:
        """Take in one event; whether it is a bookmark of a server that goes on sending them."""
        kind, body = split_event(line)
        if kind == "ERROR":
            raise errors.from_event(body, what=self._description)
        if kind == "BOOKMARK":
            return self._handle_bookmark(body)
        version = self._delete_object(body) if kind == "DELETED" else self._store_object(body)
        # While the list streams in, objects come in the order of their names: their versions say nothing.
        if self._listed_keys is None:
            self._resource_version = version
            if not self._state.is_current:
                self._state.mark_complete()
        return False

    def _handle_bookmark(self, body: bytes) -> bool:
        metadata = _decode_metadata(body).metadata
        if self._listed_keys is None:
            self._resource_version = metadata.resource_version
            self._state.mark_complete()
            return True
        if metadata.annotations.get(INITIAL_EVENTS_END) == "true":
            self._finish_list(metadata.resource_version)
            return False
        # A server from before streaming lists took the parameters for air and will never say that it is done.
        self._client.streaming_lists = False
        raise errors.Gone(f"{self._description}: no streaming lists", status=410)

    # -- the store -------------------------------------------------------------------------------------------------

    def _store_object(self, body: bytes) -> str:
        """Take in an object that was listed, added or changed; returns its resource version."""
        try:
            new = self._decode(body)
        except _DECODE_ERRORS as error:
            return self._handle_unreadable(body, error)
        metadata = new.metadata
        key = metadata.namespace, metadata.name
        if self._listed_keys is not None:
            self._listed_keys.add(key)
        self._state.mark_readable(key)
        old = self.store.get(key)
        if old is not None:
            before = old.metadata
            if before.uid != metadata.uid:
                del self.store[key]
                self._on_change(old, None)
                old = None
            elif before.resource_version == metadata.resource_version and not self._server_restored:
                return metadata.resource_version
        self.store[key] = new
        self._on_change(old, new)
        return metadata.resource_version

    def _delete_object(self, body: bytes) -> str:
        """Forget an object that was deleted or left the selection; returns the event's resource version."""
        metadata = _decode_metadata(body).metadata
        key = metadata.namespace, metadata.name
        self._state.mark_readable(key)
        old = self.store.get(key)
        if old is not None and old.metadata.uid == metadata.uid:
            del self.store[key]
            try:
                old = self._decode(body)
            except _DECODE_ERRORS as error:
                log.warning("object unreadable", kind=self._resource.kind, key=key, error=str(error))
            self._on_change(old, None)
        return metadata.resource_version

    def _handle_unreadable(self, body: bytes, error: Exception) -> str:
        """Keep what was known of an object that says what we do not understand, and trust in nothing's
        absence.
        """
        metadata = _decode_metadata(body).metadata
        key = metadata.namespace, metadata.name
        if self._listed_keys is not None:
            self._listed_keys.add(key)
        self._state.mark_unreadable(key)
        log.error("object unreadable", server=self._client.name, kind=self._resource.kind, key=key, error=str(error))
        return metadata.resource_version

    def _handle_failure(self, error: errors.ApiError) -> float:
        """Note a failure; returns the seconds to wait before the next try."""
        wait = self._state.handle_failure(error.message, at_least=error.retry_after)
        if self._state.should_relist and error.status:
            self._resource_version = ""
        return wait
