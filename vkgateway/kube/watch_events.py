"""Splits the bytes of a watch into events without decoding the objects."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from vkgateway.kube import errors

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
