"""WebSockets (RFC 6455), the server's side, with the channels of v4.channel.k8s.io and v5.channel.k8s.io. Pure.

The first byte of a message is the channel's number. In version 5 a message of channel 255 closes the channel that its
second byte names.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Final

from vkgateway_platform.embedded.hollow.kubelet.framing import (
    CHANNELS,
    LONGEST_FRAME,
    BrokenProtocolError,
    Channel,
    Event,
)

_KEY: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING = 0, 1, 2, 8, 9
_FINAL, _MASKED = 0x80, 0x80
_CLOSE_CHANNEL: Final = 255


def accept_key(key: str) -> str:
    """Return the header Sec-WebSocket-Accept for a Sec-WebSocket-Key (RFC 6455, section 4.2.2)."""
    return base64.b64encode(hashlib.sha1(key.encode() + _KEY, usedforsecurity=False).digest()).decode()


class WebSocket:
    """The frames of one connection."""

    open_channels: Final = frozenset(CHANNELS)

    def __init__(self) -> None:
        self._held = bytearray()
        self._out = bytearray()
        self._message = bytearray()

    def receive_data(self, data: bytes) -> list[Event]:
        """Parse bytes from the network. Raises BrokenProtocolError."""
        self._held += data
        events: list[Event] = []
        while (frame := self._next_frame()) is not None:
            events += self._handle_frame(*frame)
        return events

    def take_replies(self) -> bytes:
        """Return the replies to pings, and clear them."""
        out = bytes(self._out)
        self._out.clear()
        return out

    def encode_frame(self, channel: Channel, data: bytes) -> bytes:
        """Return the bytes that carry `data` on a channel."""
        return _build_frame(_BINARY, bytes((CHANNELS.index(channel),)) + data)

    def closing_frames(self) -> bytes:
        """Return the closing frame: normal closure."""
        return _build_frame(_CLOSE, (1000).to_bytes(2, "big"))

    def _next_frame(self) -> tuple[int, bool, bytes] | None:
        """Return the next complete frame: opcode, whether it is final, payload."""
        held = self._held
        if len(held) < 2:
            return None
        if not held[1] & _MASKED:
            raise BrokenProtocolError("a client's frame is not masked")
        size = {126: 2, 127: 8}.get(held[1] & 0x7F, 0)
        start = 2 + size + 4
        if len(held) < start:
            return None
        length = int.from_bytes(held[2 : 2 + size], "big") if size else held[1] & 0x7F
        if length > LONGEST_FRAME or len(self._message) + length > LONGEST_FRAME:
            raise BrokenProtocolError(f"a message of {length} bytes")
        if len(held) < start + length:
            return None
        first, mask = held[0], bytes(held[start - 4 : start])
        payload = _apply_mask(bytes(held[start : start + length]), mask)
        del held[: start + length]
        return first & 0x0F, bool(first & _FINAL), payload

    def _handle_frame(self, opcode: int, final: bool, payload: bytes) -> list[Event]:
        if opcode == _PING:
            self._out += _build_frame(10, payload)
        elif opcode == _CLOSE:
            raise BrokenProtocolError("the client has closed the connection")
        elif opcode in (_CONTINUATION, _TEXT, _BINARY):
            self._message += payload
            if final:
                message = bytes(self._message)
                self._message.clear()
                return _message_events(message)
        return []


def _message_events(message: bytes) -> list[Event]:
    if not message:
        return []
    if message[0] == _CLOSE_CHANNEL and len(message) > 1:
        number, data, last = message[1], b"", True
    else:
        number, data, last = message[0], message[1:], False
    if number >= len(CHANNELS):
        raise BrokenProtocolError(f"channel {number}")
    return [Event(CHANNELS[number], data, last=last)]


def _apply_mask(payload: bytes, mask: bytes) -> bytes:
    length = len(payload)
    pattern = (mask * (length // 4 + 1))[:length]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(pattern, "big")).to_bytes(length, "big")


def _build_frame(opcode: int, payload: bytes) -> bytes:
    length = len(payload)
    if length < 126:
        head = bytes((length,))
    elif length < 1 << 16:
        head = bytes((126,)) + length.to_bytes(2, "big")
    else:
        head = bytes((127,)) + length.to_bytes(8, "big")
    return bytes((_FINAL | opcode,)) + head + payload
