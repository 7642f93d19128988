"""A response of server-sent events, which ends when the reader leaves or may not read any more."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import msgspec

from vkgateway.kube.byte_stream import ByteStream
from vkgateway.page.access import RefusedError
from vkgateway.page.static_files import SECURITY_HEADERS

CHECK_SECONDS: Final = 30.0
"""Seconds between two checks of the reader's access."""
_SEND_SECONDS: Final = 30.0
"""Seconds in which a reader must take an event."""
_LEVEL: Final = 5
_GZIP_WBITS: Final = 31
_HEAD: Final = (
    ("content-type", "text/event-stream"),
    ("cache-control", "no-store"),
    ("x-accel-buffering", "no"),
    ("x-content-type-options", "nosniff"),
    ("connection", "close"),
    *SECURITY_HEADERS,
)


class EventStream:
    """Response on a connection that carries nothing else afterwards. `zipped`: each event is compressed when sent."""

    def __init__(self, stream: ByteStream, *, zipped: bool) -> None:
        self._stream = stream
        self._zip = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_WBITS) if zipped else None

    async def send(self, events: AsyncIterator[bytes], *, check: Callable[[], Awaitable[object]]) -> None:
        """Send events until the connection ends, or until `check`, called regularly, raises RefusedError."""
        self._write_head()
        checked = time.monotonic()
        async for data in events:
            if self._stream.is_lost or self._stream.has_ended:
                return
            if time.monotonic() - checked > CHECK_SECONDS:
                checked = time.monotonic()
                if (end := await _final_event(check)) is not None:
                    await self._write(end)
                    return
            await self._write(data)

    def _write_head(self) -> None:
        headers = [*_HEAD, ("content-encoding", "gzip")] if self._zip is not None else _HEAD
        self._stream.write("\r\n".join(["HTTP/1.1 200 OK", *(f"{k}: {v}" for k, v in headers), "", ""]).encode())

    async def _write(self, data: bytes) -> None:
        """Write and wait until the reader has taken enough. Raises OSError at the end of the connection."""
        if self._zip is not None:
            data = await asyncio.to_thread(self._compress, data) if len(data) > 1 << 16 else self._compress(data)
        async with asyncio.timeout(_SEND_SECONDS):
            self._stream.write(data)
            await self._stream.drain()

    def _compress(self, data: bytes) -> bytes:
        assert self._zip is not None
        return self._zip.compress(data) + self._zip.flush(zlib.Z_SYNC_FLUSH)


async def _final_event(check: Callable[[], Awaitable[object]]) -> bytes | None:
    """Return the last event if the reader has lost access; None while it may read."""
    try:
        await check()
    except RefusedError as error:
        if error.status in (401, 403):
            return b"event: end\ndata: " + msgspec.json.encode(error.problem) + b"\n\n"
    return None
