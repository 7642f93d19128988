"""Cuts the bytes of a watch into events without decoding the objects in them."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from vkgateway.kube import errors

EventType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]

_MAX_LINE_BYTES: Final = 64 * 1024 * 1024
"""No API server keeps objects anywhere near this; a peer that sends more than this as one line is none."""


class _Event(msgspec.Struct):
    type: EventType
    object: msgspec.Raw


_decode_event = msgspec.json.Decoder(_Event).decode

_EVENT_TYPES: Final[tuple[EventType, ...]] = ("MODIFIED", "ADDED", "DELETED", "BOOKMARK")
_EVENT_PREFIXES: Final = tuple((kind, b'{"type":"%s","object":' % kind.encode()) for kind in _EVENT_TYPES)


class LineSplitter:
    """Turns chunks, cut anywhere, into whole lines; each byte is copied at most twice, however long a line
    is.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._held_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that this chunk completes, without their newlines; empty lines are left out.

        Raises errors.ServerError where a line grows past 64 MiB.
        """
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if lines and self._pieces:
            self._pieces.append(lines[0])
            lines[0] = b"".join(self._pieces)
            self._pieces, self._held_bytes = [], 0
        if rest:
            self._pieces.append(rest)
            self._held_bytes += len(rest)
            if self._held_bytes > _MAX_LINE_BYTES:
                raise errors.ServerError(f"a line of the watch is longer than {_MAX_LINE_BYTES} bytes", status=500)
        return [line for line in lines if line]


def split_event(line: bytes) -> tuple[EventType, bytes]:
    """An event's type and the JSON bytes of its object. Raises msgspec.DecodeError where it is no watch
    event.

    API servers write the type first, then the object, with no space between: then the object is a slice and
    nothing needs to be scanned. Whoever writes it otherwise is understood too.
    """
    for kind, head in _EVENT_PREFIXES:
        if line.startswith(head) and line.endswith(b"}}"):
            return kind, line[len(head) : -1]
    event = _decode_event(line)
    return event.type, bytes(event.object)
