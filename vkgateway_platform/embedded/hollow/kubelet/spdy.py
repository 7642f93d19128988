"""SPDY/3.1, the server's side, as far as remote commands need it. Pure.

Each channel is a stream that the client opens, with the header `streamtype`. There is no flow control: no Kubernetes
client uses it.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from vkgateway_platform.embedded.hollow.kubelet.framing import (
    CHANNELS,
    LONGEST_FRAME,
    BrokenProtocolError,
    Channel,
    Event,
)

_HEAD: Final = 8
_FIN: Final = 1
_VERSION: Final = 3
_SYN_STREAM, _SYN_REPLY, _RST_STREAM, _PING, _GOAWAY = 1, 2, 3, 6, 7
_STREAMS_MAX: Final = len(CHANNELS)
_HEADERS_MAX: Final = 16 * 1024
_KNOWN_HEADERS: Final = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow "
    "authorization cache-control connection content-base content-encoding content-language content-length "
    "content-location content-md5 content-range content-type date etag expect expires from host if-match "
    "if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma "
    "proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade "
    "user-agent vary via warning www-authenticate method get status"
)
_KNOWN_VALUES: Final = ("200 OK", "version", "HTTP/1.1", "url", "public", "set-cookie", "keep-alive", "origin")
_KNOWN_REST: Final = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 Non-Authoritative "
    "Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 Not Found500 "
    "Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec "
    "00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,application/xml,"
    "application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8"
    "charset=iso-8859-1,utf-,*,enq=0."
)
DICTIONARY: Final = (
    b"".join(struct.pack(">I", len(word)) + word.encode() for word in (*_KNOWN_HEADERS.split(), *_KNOWN_VALUES))
    + _KNOWN_REST.encode()
)
"""Initial dictionary of header compression: section 2.6.10.1 of the SPDY/3 draft."""


class Spdy:
    """The frames of one connection."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._out = bytearray()
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)
        self._deflate = zlib.compressobj(zdict=DICTIONARY)
        self._channels: dict[int, Channel] = {}

    @property
    def open_channels(self) -> frozenset[Channel]:
        """The channels that the client has opened."""
        return frozenset(self._channels.values())

    def receive_data(self, data: bytes) -> list[Event]:
        """Parse bytes from the network. Raises BrokenProtocolError."""
        self._held += data
        events: list[Event] = []
        while len(self._held) >= _HEAD:
            length = int.from_bytes(self._held[5:8], "big")
            if length > LONGEST_FRAME:
                raise BrokenProtocolError(f"a frame of {length} bytes")
            if len(self._held) < _HEAD + length:
                break
            head, payload = bytes(self._held[:_HEAD]), bytes(self._held[_HEAD : _HEAD + length])
            del self._held[: _HEAD + length]
            events += self._handle_control(head, payload) if head[0] & 0x80 else self._data_events(head, payload)
        return events

    def take_replies(self) -> bytes:
        """Return the replies to the client's control frames, and clear them."""
        out = bytes(self._out)
        self._out.clear()
        return out

    def encode_frame(self, channel: Channel, data: bytes) -> bytes:
        """Return the bytes that carry `data` on a channel; none if the client has not opened it."""
        stream = self._stream_id(channel)
        return _data_frame(stream, data) if stream else b""

    def closing_frames(self) -> bytes:
        """Return the frames that close all streams and the connection."""
        ends = b"".join(_data_frame(stream, b"", flags=_FIN) for stream in self._channels)
        return ends + _control_frame(_GOAWAY, struct.pack(">II", max(self._channels, default=0), 0))

    def _stream_id(self, channel: Channel) -> int:
        return next((stream for stream, name in self._channels.items() if name == channel), 0)

    def _data_events(self, head: bytes, payload: bytes) -> list[Event]:
        channel = self._channels.get(int.from_bytes(head[:4], "big"))
        return [] if channel is None else [Event(channel, payload, last=bool(head[4] & _FIN))]

    def _handle_control(self, head: bytes, payload: bytes) -> list[Event]:
        kind = int.from_bytes(head[2:4], "big")
        if kind == _SYN_STREAM:
            return self._open_stream(head[4], payload)
        if kind == _PING:
            self._out += head + payload
        elif kind == _RST_STREAM and len(payload) >= 4:
            channel = self._channels.get(int.from_bytes(payload[:4], "big") & 0x7FFFFFFF)
            return [] if channel is None else [Event(channel, last=True)]
        return []

    def _open_stream(self, flags: int, payload: bytes) -> list[Event]:
        if len(payload) < 10:
            raise BrokenProtocolError("a stream is opened by a frame that is too short")
        stream = int.from_bytes(payload[:4], "big") & 0x7FFFFFFF
        channel = self._read_headers(payload[10:]).get("streamtype", "")
        if (
            channel not in CHANNELS
            or channel in self.open_channels
            or len(self._channels) >= _STREAMS_MAX
            or not stream
        ):
            raise BrokenProtocolError(f"stream {stream} is of type {channel[:32]!r}")
        self._channels[stream] = channel
        block = self._deflate.compress(struct.pack(">I", 0)) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        self._out += _control_frame(_SYN_REPLY, struct.pack(">I", stream) + block)
        return [Event(channel, last=True)] if flags & _FIN else []

    def _read_headers(self, block: bytes) -> dict[str, str]:
        try:
            text = self._inflate.decompress(block, _HEADERS_MAX)
        except zlib.error as error:
            raise BrokenProtocolError(f"headers cannot be read: {error}") from error
        if self._inflate.unconsumed_tail:
            raise BrokenProtocolError("headers are too long")
        words, position = [], 4
        while position + 4 <= len(text):
            end = position + 4 + int.from_bytes(text[position : position + 4], "big")
            words.append(text[position + 4 : end].decode("latin-1"))
            position = end
        return {name.lower(): value for name, value in zip(words[::2], words[1::2], strict=False)}


def _data_frame(stream: int, data: bytes, *, flags: int = 0) -> bytes:
    return struct.pack(">IB", stream, flags) + len(data).to_bytes(3, "big") + data


def _control_frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">HHB", 0x8000 | _VERSION, kind, 0) + len(payload).to_bytes(3, "big") + payload
