"""Filter for the error channel of WebSockets, in which the compute API server may expose its nodes.

With the protocol v5.channel.k8s.io, an API server accepts the upgrade before it calls the node's kubelet. If the call
fails, the API server sends the kubelet's address on the error channel. With SPDY and with WebSockets that a kubelet
answers, the refusal is an ordinary response before the upgrade.
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
    """Return whether the response to an upgrade selects the protocol that needs the filter."""
    return any(name == "sec-websocket-protocol" and "v5.channel.k8s.io" in value for name, value in headers)


class ErrorChannelFilter:
    """Filter for bytes of the server's frames. `generic` replaces messages with connection details."""

    def __init__(self, *, generic: str, namespaces: tuple[str, str]) -> None:
        self._generic_message = generic
        self._compute_namespace, self._tenant_namespace = namespaces
        self._buffer = bytearray()
        self._pass_through_bytes = 0
        """Remaining bytes of the current frame that pass unchanged."""

    def __call__(self, data: bytes) -> bytes:
        """Return the bytes to pass on. Heads of frames and frames of the error channel are buffered until complete."""
        if self._pass_through_bytes >= len(data) and not self._buffer:
            self._pass_through_bytes -= len(data)
            return data
        self._buffer += data
        out = bytearray()
        while self._buffer and self._process_next(out):
            pass
        return bytes(out)

    def _process_next(self, out: bytearray) -> bool:
        """Move a part of the buffer to `out`. Return False if more bytes are needed."""
        if self._pass_through_bytes:
            return self._pass_through(out)
        lengths = parse_frame_lengths(self._buffer)
        if lengths is None:
            return False
        head, length = lengths
        is_error = 0 < length <= _MAX_FRAME_BYTES and bytes(self._buffer[head : head + 1]) in (b"", _ERROR_CHANNEL)
        if not is_error:
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
        """Return the frame, or a new frame if its Status contains connection details."""
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


def parse_frame_lengths(data: bytearray) -> tuple[int, int] | None:
    """Return the lengths of a frame's head and payload, or None while the head is incomplete.

    RFC 6455, section 5.2; servers do not mask.
    """
    if len(data) < 2:
        return None
    head = {126: 4, 127: 10}.get(data[1] & 0x7F, 2)
    if len(data) < head:
        return None
    return head, data[1] & 0x7F if head == 2 else int.from_bytes(data[2:head], "big")


def _build_frame(first: int, payload: bytes) -> bytes:
    if len(payload) < 126:
        return bytes((first, len(payload))) + payload
    return bytes((first, 126)) + len(payload).to_bytes(2, "big") + payload
