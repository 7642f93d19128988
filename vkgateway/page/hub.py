"""Live documents: one for each kind of reader, refreshed while it has readers, and its changes for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import time
import zlib
from collections import deque
from collections.abc import AsyncGenerator
from functools import cache
from typing import Any, Final

import msgspec
import structlog

from vkgateway.page.documents import Audience, Document, Rows
from vkgateway.page.facts import Observation, PageSource, build_facts
from vkgateway.page.history import STEP_SECONDS, History
from vkgateway.page.views import Facts, platform_document, tenant_document
from vkgateway.scheduler.core.reasons.report import build_summary

REFRESH_SECONDS: Final = 1.0
"""Shortest time between two refreshes."""
SHARE: Final = 0.1
"""Largest share of the time that refreshes take."""
PING_SECONDS: Final = 15.0
"""Time without changes after which a reader gets a comment, so that proxies keep the connection."""
_MOST_DELTAS: Final = 60
"""Changes that a slow reader may miss before it gets the whole document again."""
_log = structlog.get_logger(__name__)


class _LiveDocument:
    """Document of one kind of reader with its last changes."""

    def __init__(self) -> None:
        self.document: Document | None = None
        self.readers = 0
        self.number = 0
        """Number of changes so far."""
        self._deltas: deque[Event] = deque(maxlen=_MOST_DELTAS)
        self._state: Event | None = None
        self._encoding = asyncio.Lock()
        self._changed = asyncio.Event()

    def update(self, document: Document, delta: bytes | None) -> None:
        """Replace the document, and wake the readers if it changed."""
        self.document = document
        self._state = None
        if delta is None:
            return
        self.number += 1
        self._deltas.append(Event("delta", delta))
        self._changed.set()
        self._changed = asyncio.Event()

    async def whole_state(self) -> tuple[int, Event]:
        """Return the number of changes so far and the whole document, encoded once for all readers that join."""
        async with self._encoding:
            number, document = self.number, self.document
            assert document is not None
            if self._state is not None:
                return number, self._state
            state = Event("state", await asyncio.to_thread(document.encode))
            if self.document is document:  # not replaced during the encoding: `number` belongs to both
                self._state = state
            return number, state

    def deltas_since(self, number: int) -> list[Event] | None:
        """Return the changes after this number; None: they are not all kept."""
        missed = self.number - number
        return list(self._deltas)[len(self._deltas) - missed :] if missed <= len(self._deltas) else None

    async def wait_changed(self, seconds: float) -> None:
        """Wait for a change, at most this long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()


class PageHub:
    """Documents of all kinds of readers."""

    def __init__(self, source: PageSource) -> None:
        self._source = source
        self._live: dict[Audience, _LiveDocument] = {}
        self._observed: Observation | None = None
        self._facts: Facts | None = None
        self._refreshing = asyncio.Lock()
        self._wanted = asyncio.Event()
        self.history = History()

    async def run(self) -> None:
        """Refresh the documents that are read, and sample the history, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._refresh_live(), name="page-refresh")
            group.create_task(self._sample_history(), name="page-history")

    async def read(self, audience: Audience) -> Document:
        """Return the current document."""
        async with self._refreshing:
            facts = await self._collect()
        return await asyncio.to_thread(_build_document, facts, audience)

    async def follow(self, audience: Audience) -> AsyncGenerator[Event, None]:
        """Yield the document and then its changes as server-sent events, with comments in between, without end."""
        live = self._live.setdefault(audience, _LiveDocument())
        live.readers += 1
        try:
            if live.document is None:
                await self._refresh(audience, live)
            self._wanted.set()
            number = -1
            while True:
                missed = live.deltas_since(number) if number >= 0 else None
                if missed is None:
                    number, state = await live.whole_state()
                    yield state
                else:
                    number = live.number
                    for event in missed or (PING,):
                        yield event
                if live.number == number:  # else the document changed while the reader took the last events
                    await live.wait_changed(PING_SECONDS)
        finally:
            live.readers -= 1
            if not live.readers:
                self._live.pop(audience, None)

    async def _refresh_live(self) -> None:
        while True:
            if not self._live:
                self._wanted.clear()
                self._observed = self._facts = None  # they hold a whole cycle
                await self._wanted.wait()
            started = time.perf_counter()
            for audience, live in list(self._live.items()):
                await self._refresh(audience, live)
            await asyncio.sleep(max(REFRESH_SECONDS, (time.perf_counter() - started) / SHARE))

    async def _refresh(self, audience: Audience, live: _LiveDocument) -> None:
        async with self._refreshing:
            facts = await self._collect()
            if live.document is not None and live.document.time == facts.time:
                return
            old = live.document

            def build() -> tuple[Document, bytes | None]:
                new = _build_document(facts, audience)
                return new, encode_delta(old, new) if old is not None else None

            live.update(*await asyncio.to_thread(build))

    async def _collect(self) -> Facts:
        """Return the facts; the last ones if nothing has changed."""
        observed = self._source.observe()
        if self._facts is None or self._observed is None or not observed.same_as(self._observed):
            names = self._source.pod_names
            self._facts = await asyncio.to_thread(lambda: build_facts(observed, names()))
            self._observed = observed
        return self._facts

    async def _sample_history(self) -> None:
        while True:
            observed = self._source.observe()
            cycle = observed.cycle
            if cycle is not None:
                uids = {name: tenant.metadata.uid for name, tenant in observed.tenants.items()}
                self.history.add_sample(await asyncio.to_thread(build_summary, *cycle), observed.time, uids=uids)
            await asyncio.sleep(STEP_SECONDS)


def _build_document(facts: Facts, audience: Audience) -> Document:
    if not audience.tenant:
        return platform_document(facts)
    return tenant_document(facts, audience.tenant, audience.namespaces)


_Delta = dict[str, dict[str, Any]]


def encode_delta(old: Document, new: Document) -> bytes | None:
    """Return new rows, changed fields and keys of removed rows as JSON; None: only the time changed.

    A place in the queue that moves changes one field of each row behind it, so of a known row only the changed fields
    are sent.
    """
    added: _Delta = {}
    changed: _Delta = {}
    removed: dict[str, list[str]] = {}
    for name in dict.fromkeys((*new.sections, *old.sections)):
        before, after = old.sections.get(name, {}), new.sections.get(name, {})
        _compare_rows(before, after, added.setdefault(name, {}), changed.setdefault(name, {}))
        removed[name] = [key for key in before if key not in after]
    if old.leading == new.leading and not any((*added.values(), *changed.values(), *removed.values())):
        return None
    delta = {
        "time": new.time,
        "leading": new.leading,
        "set": {name: rows for name, rows in added.items() if rows},
        "change": {name: rows for name, rows in changed.items() if rows},
        "remove": {name: keys for name, keys in removed.items() if keys},
    }
    return msgspec.json.encode(delta)


def _compare_rows(before: Rows, after: Rows, added: dict[str, Any], changed: dict[str, Any]) -> None:
    for key, row in after.items():
        known = before.get(key)
        if known is row:
            continue
        if known is None or type(known) is not type(row):
            added[key] = row
        elif fields := _changed_fields(known, row):
            changed[key] = fields


def _changed_fields(old: msgspec.Struct, new: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of a row that differ, by their encoded names."""
    return {
        encoded: value
        for name, encoded in _field_names(type(new))
        if (value := getattr(new, name)) != getattr(old, name)
    }


@cache
def _field_names(kind: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    """Return the names of the fields of a row in Python and in JSON."""
    return tuple((field.name, field.encode_name) for field in msgspec.structs.fields(kind))


GZIP_HEADER: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
"""Header of a gzip member without name, time and known system."""
LEVEL: Final = 5
_RAW_WBITS: Final = -15
_SMALL_BYTES: Final = 1 << 16
"""Larger events are compressed in a thread."""


class Event:
    """A server-sent event. JSON has no line breaks."""

    def __init__(self, name: str, data: bytes) -> None:
        self.plain = b"event: " + name.encode() + b"\ndata: " + data + b"\n\n" if name else data
        self._zipped: bytes | None = None
        self._zipping = asyncio.Lock()

    async def zipped(self) -> bytes:
        """Return the event as blocks of deflate. All readers wake at the same moment, and one of them compresses."""
        if self._zipped is None and len(self.plain) <= _SMALL_BYTES:
            self._zipped = _deflate(self.plain)
        if self._zipped is None:
            async with self._zipping:
                if self._zipped is None:
                    self._zipped = await asyncio.to_thread(_deflate, self.plain)
        return self._zipped


def _deflate(plain: bytes) -> bytes:
    zipping = zlib.compressobj(LEVEL, zlib.DEFLATED, _RAW_WBITS)
    # A stream of gzip is a header and blocks of deflate (RFC 1951, RFC 1952). Blocks of an event refer to nothing
    # before it, so the same blocks continue the stream of each reader.
    return zipping.compress(plain) + zipping.flush(zlib.Z_FULL_FLUSH)


PING: Final = Event("", b": no change\n\n")
"""A comment, so that proxies keep the connection."""
