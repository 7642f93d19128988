"""Server-sent events, each compressed once for all of its readers.

A stream of gzip is a header and blocks of deflate (RFC 1951, RFC 1952). Blocks of an event refer to nothing before it,
so the same blocks continue the stream of each reader.
"""

from __future__ import annotations

import asyncio
import zlib
from typing import Final

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
    return zipping.compress(plain) + zipping.flush(zlib.Z_FULL_FLUSH)


PING: Final = Event("", b": no change\n\n")
"""A comment, so that proxies keep the connection."""
