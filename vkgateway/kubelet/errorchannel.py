"""Watches the error channel of a WebSocket from the compute API server, where it may speak of its nodes.

With the protocol v5.channel.k8s.io an API server agrees to the upgrade first and calls the node's kubelet then; where
that fails it sends the address it called on the error channel. SPDY and WebSockets that a kubelet answers itself
never do: there the refusal comes as an ordinary answer, before the upgrade.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from vkgateway.kube.upgrade import Headers

_ERROR_CHANNEL: Final = b"\x03"
"""First byte of its frames: `StreamErr` in k8s.io/apimachinery/pkg/util/remotecommand/constants.go."""
_MAX_FRAME_BYTES: Final = 64 * 1024
_CONNECTION_WORDS: Final = re.compile(r"\w://|\d{1,3}(?:\.\d{1,3}){3}:\d|\]:\d+|\bdial tcp\b|\bx509\b")


def is_needed(headers: Headers) -> bool:
    """Whether the answer to an upgrade agreed to the protocol with which this is needed."""
    return any(name == "sec-websocket-protocol" and "v5.channel.k8s.io" in value for name, value in headers)


class ErrorChannelFilter:
    """Called with bytes of server frames as they come, returns those to pass on; `generic` replaces bad messages."""

    def __init__(self, *, generic: str, namespaces: tuple[str, str]) -> None:
        self._generic_message = generic
        self._compute_namespace, self._tenant_namespace = namespaces
        self._buffer = bytearray()
        self._pass_through_bytes = 0
        """Bytes of the current frame that are still to come and no concern of ours."""

    def __call__(self, data: bytes) -> bytes:
        """Pass bytes on; only heads of frames, and frames of the error channel, wait until they are whole."""
        if self._pass_through_bytes >= len(data) and not self._buffer:
            self._pass_through_bytes -= len(data)
            return data
        self._buffer += data
        out = bytearray()
        while self._buffer and self._process_next(out):
            pass
        return bytes(out)

    def _process_next(self, out: bytearray) -> bool:
        """Move one piece from what is held to `out`; false if more bytes are needed first."""
        if self._pass_through_bytes:
            return self._pass_through(out)
        found = parse_frame_lengths(self._buffer)
        if found is None:
            return False
        head, length = found
        ours = 0 < length <= _MAX_FRAME_BYTES and bytes(self._buffer[head : head + 1]) in (b"", _ERROR_CHANNEL)
        if not ours:
            self._pass_through_bytes = head + length
            return True
        if len(self._buffer) < head + length:
            return False
        out += self._redact_frame(bytes(self._buffer[: head + length]), head)
        del self._buffer[: head + length]
        return True

    def _pass_through(self, out: bytearray) -> bool:
        count = min(self._pass_through_bytes, len(self._buffer))
        out += self._buffer[:count]
        del self._buffer[:count]
        self._pass_through_bytes -= count
        return True

    def _redact_frame(self, frame: bytes, head: int) -> bytes:
        """The frame as it is, or a new one if its Status speaks of connections below."""
        try:
            status: dict[str, Any] = msgspec.json.decode(frame[head + 1 :], type=dict[str, Any])
        except msgspec.DecodeError:
            return frame
        message = str(status.get("message", "")).replace(self._compute_namespace, self._tenant_namespace)
        cleaned = self._generic_message if _CONNECTION_WORDS.search(message) else message
        if cleaned == status.get("message", ""):
            return frame
        status = {key: value for key, value in status.items() if key != "details"} | {"message": cleaned}
        return _build_frame(frame[0], _ERROR_CHANNEL + msgspec.json.encode(status))


def parse_frame_lengths(held: bytearray) -> tuple[int, int] | None:
    """Bytes of a frame's head and of its payload, None while the head is not all there.

    RFC 6455, section 5.2; servers do not mask.
    """
    if len(held) < 2:
        return None
    head = {126: 4, 127: 10}.get(held[1] & 0x7F, 2)
    if len(held) < head:
        return None
    return head, held[1] & 0x7F if head == 2 else int.from_bytes(held[2:head], "big")


def _build_frame(first: int, payload: bytes) -> bytes:
    if len(payload) < 126:
        return bytes((first, len(payload))) + payload
    return bytes((first, 126)) + len(payload).to_bytes(2, "big") + payload
