"""Server-sent events, each compressed once for all of its readers.

A stream of gzip is a header and blocks of deflate (RFC 1951, RFC 1952). Blocks of an event refer to nothing before it,
so the same blocks continue the stream of each reader.
"""

from __future__ import annotations

import zlib
from typing import Final

GZIP_HEADER: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
"""Header of a gzip member without name, time and known system."""
LEVEL: Final = 5
_RAW_WBITS: Final = -15


class Event:
    """An event as it is sent. JSON has no line breaks."""

    def __init__(self, name: str, data: bytes) -> None:
        self.plain = b"event: " + name.encode() + b"\ndata: " + data + b"\n\n" if name else data
        self._zipped: bytes | None = None

    def zipped(self) -> bytes:
        """Return the event as blocks of deflate. May be called in another thread."""
        if self._zipped is None:
            zipping = zlib.compressobj(LEVEL, zlib.DEFLATED, _RAW_WBITS)
            self._zipped = zipping.compress(self.plain) + zipping.flush(zlib.Z_FULL_FLUSH)
        return self._zipped


PING: Final = Event("", b": no change\n\n")
"""A comment, so that proxies keep the connection."""
