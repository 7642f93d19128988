"""Reflector: a typed, narrow copy of one kind's objects in memory, updated by list and watch.

The protocol is that of the Kubernetes API concepts page
(https://kubernetes.io/docs/reference/using-api/api-concepts/): "Efficient detection of changes", "Streaming
lists", "Watch bookmarks" and "410 Gone responses".
"""

from __future__ import annotations

import asyncio
import random as random_module
from collections.abc import Callable
from typing import Final, Generic, Literal, Protocol, TypeVar

import msgspec
import structlog

from vkgateway.api.objects import Meta, decode_object
from vkgateway.kube import errors
from vkgateway.kube.backoff import Random
from vkgateway.kube.client import Client
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.kube.list_watch import ListWatch, VersionWentBackError
from vkgateway.kube.resources import Resource
from vkgateway.kube.store_budget import RETRY_SECONDS, StoreFullError
from vkgateway.kube.watch_state import Key, WatchState

log = structlog.get_logger(__name__)

INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"
_RESUME_PROOF_SECONDS: Final = 1.0
"""Seconds without an error after which a resumed watch counts as complete.

A server reports an expired resource version immediately, in the status or as the first event.
"""
_WATCH_SECONDS: Final = 300
"""Minimum of the requested duration of a watch. The duration is random up to twice that, to spread the watches that a
server's restart has synchronized."""
_DECODE_ERRORS: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""Errors of decoding. RecursionError occurs with thousands of nested values, for example in `managedFields`."""


class HasMetadata(Protocol):
    """Interface of the narrow structs of all kinds."""

    @property
    def metadata(self) -> Meta:
        """The object's metadata: at least name, namespace, UID and resource version."""


T = TypeVar("T", bound=HasMetadata)


class Reflector(Generic[T]):
    """Copy of the objects of one kind at one server, updated until `run` is cancelled.

    `decode` gets the JSON of an object. `on_change(old, new)` is called in order for each change: `(None, new)` for an
    added object, `(old, None)` for a deleted one, where `old` is its last known state. If another object of the same
    name replaces an object, the deletion is reported before the addition. The callback must neither block nor raise.

    `is_complete` means that `store` contains all objects of the server, except for events in transit. It is false until
    the first list is complete, and from the loss of the watch until no event can be missing. A single lost connection
    that is re-created immediately does not count. An object that `decode` refuses keeps `is_complete` false.

    If the client has a budget (`StoreBudget`), objects beyond it are not kept, and `is_complete` stays false. `weight`
    is the memory of a decoded object in terms of its JSON: 1 if little is decoded, 8 for plain dictionaries.

    `on_complete()` is called each time `is_complete` becomes true. `on_reachable(False, reason)` is called when the
    watch fails, `on_reachable(True, "")` when it works again.
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
        weight: int = 8,
        page_size: int = 500,
        inactivity: float = 150.0,
        random: Random = random_module.random,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.store: dict[Key, T] = {}
        self.relist_count = 0
        self._client = client
        self._list_watch = ListWatch(
            client, resource, namespace=namespace, label_selector=label_selector, field_selector=field_selector
        )
        self._decode = decode
        self._on_change = on_change
        self._weight = weight
        self._sizes: dict[Key, int] = {}
        """Counted sizes of the kept objects; in a list, of those that were listed."""
        self._page_size = page_size
        self._inactivity = inactivity
        self._random = random
        self._clock = clock
        self.state = WatchState(on_reachable=on_reachable, on_complete=on_complete, random=random)
        self._resource_version = ""
        self._listed_keys: set[Key] | None = None
        self._server_restored = False
        """Whether the server's datastore was restored from a backup, so that resource versions are not unique."""

    @property
    def is_complete(self) -> bool:
        """Whether `store` contains all objects, so that a missing object does not exist."""
        return self.state.complete_event.is_set()

    async def wait_until_complete(self) -> None:
        """Wait until `is_complete` is true."""
        await self.state.complete_event.wait()

    async def run(self) -> None:
        """List and watch until cancelled, and retry after failures."""
        try:
            await self._run()
        finally:
            self._release_sizes()

    async def _run(self) -> None:
        while True:
            try:
                if not self._resource_version and not self._client.streaming_lists:
                    await self._list_all(self._page_size)
                await self._run_watch()
            except errors.Gone as error:
                self._server_restored |= isinstance(error, VersionWentBackError)
                self._resource_version = ""
                if delay := self.state.handle_expired(asyncio.get_running_loop().time()):
                    await self._clock.sleep(delay)
            except StoreFullError as error:
                # What has been deleted meanwhile shows only in a list.
                self._resource_version = ""
                self.state.mark_stale()
                await self._clock.sleep(max(RETRY_SECONDS, self._handle_failure(error)))
            except errors.ApiError as error:
                await self._clock.sleep(self._handle_failure(error))
            except _DECODE_ERRORS as error:
                failure = errors.ServerError(f"{self._list_watch.description}: {error}", status=500)
                await self._clock.sleep(self._handle_failure(failure))

    # -- listing ---------------------------------------------------------------------------------------------------

    async def _list_all(self, limit: int) -> None:
        """List in pages of `limit` objects, and in one page if the continue token expires."""
        self._begin_list()
        version = ""
        # A list after a failure must be consistent with the datastore.
        cached = self._client.single_server and not self.relist_count
        try:
            async for page in self._list_watch.list_pages(limit=limit, cached=cached):
                version = page.metadata.resource_version
                for item in page.items:
                    self._store_object(bytes(item))
        except errors.Gone:
            if not limit:
                raise
        else:
            self._finish_list(version)
            return
        await self._list_all(0)

    def _begin_list(self) -> None:
        self._listed_keys = set()
        self._release_sizes()
        self.state.unreadable_keys.clear()

    def _finish_list(self, version: str) -> None:
        """Complete the list: remove the objects that it does not contain."""
        listed, self._listed_keys = self._listed_keys or set(), None
        for key in [key for key in self.store if key not in listed]:
            self._on_change(self.store.pop(key), None)
        self._resource_version, self._server_restored = version, False
        self.relist_count += 1
        if self._client.store_budget is not None:
            self._client.store_budget.list_completed()
        self.state.mark_complete()

    # -- watching --------------------------------------------------------------------------------------------------

    async def _run_watch(self) -> None:
        """Run one watch from the known version, or with a streaming list if no version is known."""
        starting = not self._resource_version
        if starting:
            self._begin_list()
        elif not self.state.is_current:
            await self._list_watch.check_version(self._resource_version)
        splitter = LineSplitter()
        loop = asyncio.get_running_loop()
        started_at, version_before = loop.time(), self._resource_version
        proof_timer: asyncio.TimerHandle | None = None
        try:
            seconds = _WATCH_SECONDS + int(_WATCH_SECONDS * self._random())
            async with self._list_watch.open_watch(
                self._resource_version, seconds=seconds, inactivity=self._inactivity
            ) as stream:
                if not starting:
                    proof_timer = loop.call_later(_RESUME_PROOF_SECONDS, self.state.mark_complete)
                while chunk := await self._list_watch.read_chunk(stream):
                    for line in splitter.feed(chunk):
                        stream.sends_bookmarks |= self._handle_event(line)
        except errors.ApiError as error:
            if starting and error.status in (400, 422):
                self._client.streaming_lists = False
                return
            raise
        finally:
            if proof_timer is not None:
                proof_timer.cancel()
        if self._listed_keys is not None:
            raise errors.Unreachable(f"{self._list_watch.description}: the list ended before its end marker")
        had_events = self._resource_version != version_before
        await self._clock.sleep(self.state.handle_watch_end(duration=loop.time() - started_at, had_events=had_events))

    def _handle_event(self, line: bytes) -> bool:
        """Process an event. Return whether it is a bookmark of a server that sends bookmarks regularly."""
        kind, body = split_event(line)
        if kind == "ERROR":
            raise errors.from_event(body, what=self._list_watch.description)
        if kind == "BOOKMARK":
            return self._handle_bookmark(body)
        version = self._delete_object(body) if kind == "DELETED" else self._store_object(body)
        # A streaming list is ordered by name, so that the objects' versions are not the watch's version.
        if self._listed_keys is None:
            self._resource_version = version
            if not self.state.is_current:
                self.state.mark_complete()
        return False

    def _handle_bookmark(self, body: bytes) -> bool:
        metadata = decode_object(body).metadata
        if self._listed_keys is None:
            self._resource_version = metadata.resource_version
            self.state.mark_complete()
            return True
        if metadata.annotations.get(INITIAL_EVENTS_END) == "true":
            self._finish_list(metadata.resource_version)
            return False
        # A server without streaming lists ignores the parameters, and never sends the end marker.
        self._client.streaming_lists = False
        raise errors.Gone(f"{self._list_watch.description}: no streaming lists", status=410)

    # -- the store -------------------------------------------------------------------------------------------------

    def _store_object(self, body: bytes) -> str:
        """Store a listed, added or modified object. Return its resource version."""
        try:
            new = self._decode(body)
        except _DECODE_ERRORS as error:
            return self._handle_unreadable(body, error)
        metadata = new.metadata
        key = metadata.namespace, metadata.name
        self._count_size(key, len(body))
        if self._listed_keys is not None:
            self._listed_keys.add(key)
        self.state.mark_readable(key)
        old = self.store.get(key)
        if old is not None:
            before = old.metadata
            if before.uid != metadata.uid:  # re-created while no watch was open: handlers must see the deletion
                del self.store[key]
                self._on_change(old, None)
                old = None
            elif before.resource_version == metadata.resource_version and not self._server_restored:
                return metadata.resource_version
        self.store[key] = new
        self._on_change(old, new)
        return metadata.resource_version

    def _delete_object(self, body: bytes) -> str:
        """Remove an object that was deleted or no longer matches the selectors. Return the event's resource version."""
        metadata = decode_object(body).metadata
        key = metadata.namespace, metadata.name
        self.state.mark_readable(key)
        old = self.store.get(key)
        if old is None:
            self._count_size(key, None)  # one that could not be decoded
        elif old.metadata.uid == metadata.uid:
            del self.store[key]
            self._count_size(key, None)
            try:
                old = self._decode(body)
            except _DECODE_ERRORS as error:
                log.warning("object cannot be decoded", kind=self._list_watch.resource.kind, key=key, error=str(error))
            self._on_change(old, None)
        return metadata.resource_version

    def _count_size(self, key: Key, size: int | None) -> None:
        """Count an object with the size of its JSON, or None that is not kept any longer. Raises StoreFullError."""
        budget = self._client.store_budget
        if budget is None:
            return
        before = self._sizes.get(key)
        after = None if size is None else size * self._weight
        budget.change(
            objects=(after is not None) - (before is not None),
            size=(after or 0) - (before or 0),
            what=self._list_watch.description,
        )
        if after is None:
            self._sizes.pop(key, None)
        else:
            self._sizes[key] = after

    def _release_sizes(self) -> None:
        if self._sizes and self._client.store_budget is not None:
            size = sum(self._sizes.values())
            self._client.store_budget.change(objects=-len(self._sizes), size=-size, what=self._list_watch.description)
        self._sizes = {}

    def _handle_unreadable(self, body: bytes, error: Exception) -> str:
        """Keep the last known state of an object that cannot be decoded, and mark the store as incomplete."""
        metadata = decode_object(body).metadata
        key = metadata.namespace, metadata.name
        self._count_size(key, 0)
        if self._listed_keys is not None:
            self._listed_keys.add(key)
        self.state.mark_unreadable(key)
        kind = self._list_watch.resource.kind
        log.error("object cannot be decoded", server=self._client.name, kind=kind, key=key, error=str(error))
        return metadata.resource_version

    def _handle_failure(self, error: errors.ApiError) -> float:
        """Note a failure. Return the delay before the next attempt, in seconds."""
        delay = self.state.handle_failure(error.message, at_least=error.retry_after)
        if self.state.should_relist and error.status:
            self._resource_version = ""
        return delay


EventType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]

_MAX_LINE_BYTES: Final = 8 * 1024 * 1024
"""Size limit of a line, above the size limit of requests to API servers (3 MiB), and so of objects."""


class _Event(msgspec.Struct):
    type: EventType
    object: msgspec.Raw


_decode_event = msgspec.json.Decoder(_Event).decode

_EVENT_TYPES: Final[tuple[EventType, ...]] = ("MODIFIED", "ADDED", "DELETED", "BOOKMARK")
_EVENT_PREFIXES: Final = tuple((kind, b'{"type":"%s","object":' % kind.encode()) for kind in _EVENT_TYPES)


class LineSplitter:
    """Splitter of arbitrary chunks into lines. Each byte is copied at most twice, regardless of a line's length."""

    def __init__(self) -> None:
        self._partial_line: list[bytes] = []
        self._partial_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that this chunk completes, without newlines and without empty lines.

        Raises errors.ServerError for a line over 8 MiB.
        """
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if lines and self._partial_line:
            self._partial_line.append(lines[0])
            lines[0] = b"".join(self._partial_line)
            self._partial_line, self._partial_bytes = [], 0
        if rest:
            self._partial_line.append(rest)
            self._partial_bytes += len(rest)
            if self._partial_bytes > _MAX_LINE_BYTES:
                raise errors.ServerError(f"a line of the watch is longer than {_MAX_LINE_BYTES} bytes", status=500)
        return [line for line in lines if line]


def split_event(line: bytes) -> tuple[EventType, bytes]:
    """Return an event's type and the JSON of its object. Raises msgspec.DecodeError for anything but a watch event.

    API servers write the type, then the object, without spaces. So the object is a slice, and the line is not scanned.
    Any other JSON form is decoded.
    """
    for kind, head in _EVENT_PREFIXES:
        if line.startswith(head) and line.endswith(b"}}"):
            return kind, line[len(head) : -1]
    event = _decode_event(line)
    return event.type, bytes(event.object)
