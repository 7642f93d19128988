"""A response of server-sent events, which ends when the reader leaves or may not read any more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import msgspec

from vkgateway.kube.byte_stream import ByteStream
from vkgateway.page.access import RefusedError
from vkgateway.page.hub import GZIP_HEADER, Event
from vkgateway.page.static_files import SECURITY_HEADERS

CHECK_SECONDS: Final = 30.0
"""Seconds between two checks of the reader's access."""
CHANGED: Final = 409
"""Status of a check if the reader now sees something else."""
_SEND_SECONDS: Final = 30.0
"""Seconds in which a reader must take an event."""
_HEAD: Final = (
    ("content-type", "text/event-stream"),
    ("cache-control", "no-store"),
    ("x-accel-buffering", "no"),
    ("x-content-type-options", "nosniff"),
    ("connection", "close"),
    *SECURITY_HEADERS,
)


class EventStream:
    """Response on a connection that carries nothing else afterwards. `zipped`: events are compressed."""

    def __init__(self, stream: ByteStream, *, zipped: bool) -> None:
        self._stream = stream
        self._zipped = zipped

    async def send(self, events: AsyncIterator[Event], *, check: Callable[[], Awaitable[object]]) -> None:
        """Send events until the connection ends, or until `check`, called regularly, raises RefusedError.

        With 401 and 403, the session is over. With 409, the reader may connect again.
        """
        self._write_head()
        checked = time.monotonic()
        async for event in events:
            if self._stream.is_lost or self._stream.has_ended:
                return
            if time.monotonic() - checked > CHECK_SECONDS:
                checked = time.monotonic()
                refused = await _refusal(check)
                if refused is not None:
                    if refused.status != CHANGED:
                        await self._write(Event("end", msgspec.json.encode(refused.problem)))
                    return
            await self._write(event)

    def _write_head(self) -> None:
        headers = [*_HEAD, ("content-encoding", "gzip")] if self._zipped else _HEAD
        self._stream.write("\r\n".join(["HTTP/1.1 200 OK", *(f"{k}: {v}" for k, v in headers), "", ""]).encode())
        if self._zipped:
            self._stream.write(GZIP_HEADER)

    async def _write(self, event: Event) -> None:
        """Write and wait until the reader has taken enough. Raises OSError at the end of the connection."""
        data = event.plain
        if self._zipped:
            data = await event.zipped()
        async with asyncio.timeout(_SEND_SECONDS):
            self._stream.write(data)
            await self._stream.drain()


async def _refusal(check: Callable[[], Awaitable[object]]) -> RefusedError | None:
    """Return why the stream ends; None while the reader may read."""
    try:
        await check()
    except RefusedError as error:
        return error if error.status in (401, 403, CHANGED) else None
    return None
