"""Both protocols of remote commands, as clients send them, in fragments of any size."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkgateway_platform.embedded.hollow.kubelet.framing import (
    CHANNELS,
    LONGEST_FRAME,
    BrokenProtocolError,
    Event,
    Framing,
)
from vkgateway_platform.embedded.hollow.kubelet.spdy import DICTIONARY, Spdy
from vkgateway_platform.embedded.hollow.kubelet.websocket import WebSocket, accept_key


class SpdyClient:
    """Sends what kubectl sends."""

    def __init__(self) -> None:
        self.deflate = zlib.compressobj(zdict=DICTIONARY)
        self.streams: dict[str, int] = {}

    def open(self, kind: str, *, flags: int = 0) -> bytes:
        stream = self.streams[kind] = 2 * len(self.streams) + 1
        name, value = b"streamtype", kind.encode()
        block = struct.pack(">II", 1, len(name)) + name + struct.pack(">I", len(value)) + value
        packed = self.deflate.compress(block) + self.deflate.flush(zlib.Z_SYNC_FLUSH)
        return self.control(1, struct.pack(">IIH", stream, 0, 0) + packed, flags=flags)

    def data(self, kind: str, data: bytes, *, last: bool = False) -> bytes:
        return struct.pack(">IB", self.streams[kind], int(last)) + len(data).to_bytes(3, "big") + data

    def control(self, kind: int, payload: bytes, *, flags: int = 0) -> bytes:
        return struct.pack(">HHB", 0x8003, kind, flags) + len(payload).to_bytes(3, "big") + payload


def websocket_frame(opcode: int, payload: bytes, *, final: bool = True, mask: bytes = b"\x01\x02\x03\x04") -> bytes:
    length = len(payload)
    size = bytes((0x80 | length,)) if length < 126 else bytes((0x80 | 126,)) + length.to_bytes(2, "big")
    masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
    return bytes((opcode | (0x80 if final else 0),)) + size + mask + masked


def cut(framing: Framing, data: bytes, size: int) -> list[Event]:
    """Pass the bytes in pieces of `size`."""
    return [event for start in range(0, len(data), size) for event in framing.receive_data(data[start : start + size])]


@given(st.lists(st.binary(max_size=300), max_size=5), st.integers(1, 700))
def test_spdy_input_arrives_complete(pieces: list[bytes], size: int) -> None:
    client, server = SpdyClient(), Spdy()
    sent = client.open("error") + client.open("stdin")
    sent += b"".join(client.data("stdin", piece) for piece in pieces) + client.data("stdin", b"", last=True)
    events = cut(server, sent, size)
    assert server.open_channels == {"error", "stdin"}
    assert b"".join(event.data for event in events) == b"".join(pieces)
    assert [event.last for event in events] == [False] * len(pieces) + [True]


@given(st.lists(st.binary(max_size=300), max_size=5), st.integers(1, 700))
def test_websocket_input_arrives_complete(pieces: list[bytes], size: int) -> None:
    server = WebSocket()
    sent = b"".join(websocket_frame(2, b"\x00" + piece) for piece in pieces) + websocket_frame(2, b"\xff\x00")
    events = cut(server, sent, size)
    assert b"".join(event.data for event in events) == b"".join(pieces)
    assert events[-1] == Event("stdin", last=True)


@given(st.binary(max_size=2000))
def test_garbage_raises_broken_protocol_error(data: bytes) -> None:
    for server in (Spdy(), WebSocket()):
        try:
            server.receive_data(data)
        except BrokenProtocolError:
            continue


def test_streams_are_replied_to_and_pings_answered() -> None:
    client, server = SpdyClient(), Spdy()
    ping = client.control(6, b"\0\0\0\1")
    server.receive_data(client.open("stdout") + ping)
    replies = server.take_replies()
    assert replies.startswith(b"\x80\x03\x00\x02")
    assert replies.endswith(ping)
    assert zlib.decompressobj(zdict=DICTIONARY).decompress(replies[12 : -len(ping)]) == b"\0\0\0\0"
    assert server.take_replies() == b""


def test_spdy_output_is_sent_on_open_streams() -> None:
    client, server = SpdyClient(), Spdy()
    server.receive_data(client.open("stdout"))
    assert server.encode_frame("stdout", b"hi") == b"\0\0\0\1\0\0\0\2hi"
    assert server.encode_frame("stderr", b"hi") == b""


@pytest.mark.parametrize("length", [0, 5, 200, 70_000])
def test_websocket_output_has_its_length(length: int) -> None:
    frame = WebSocket().encode_frame("stderr", b"x" * length)
    assert frame[0] == 0x82
    assert frame.endswith(b"\x02" + b"x" * length)


def test_websocket_fragments_and_pings_are_handled() -> None:
    server = WebSocket()
    sent = (websocket_frame(2, b"\x00a", final=False), websocket_frame(9, b"here"), websocket_frame(0, b"b"))
    assert server.receive_data(b"".join(sent)) == [Event("stdin", b"ab")]
    assert server.take_replies() == b"\x8a\x04here"


@pytest.mark.parametrize(
    "sent",
    [
        b"\0\0\0\1\0" + (LONGEST_FRAME + 1).to_bytes(3, "big"),
        SpdyClient().open("shell"),
        SpdyClient().control(1, b"\0\0\0\1"),
        SpdyClient().control(1, b"\0\0\0\1" + b"\0" * 6 + b"no headers"),
    ],
)
def test_broken_spdy_frames_are_refused(sent: bytes) -> None:
    with pytest.raises(BrokenProtocolError):
        Spdy().receive_data(sent)


def test_channel_cannot_be_opened_twice() -> None:
    client, server = SpdyClient(), Spdy()
    server.receive_data(client.open("stdin"))
    with pytest.raises(BrokenProtocolError):
        server.receive_data(client.open("stdin"))


@pytest.mark.parametrize(
    "sent",
    [
        b"\x82\x05hello",
        b"\x82\xff" + (LONGEST_FRAME + 1).to_bytes(8, "big") + b"mask",
        websocket_frame(2, bytes((len(CHANNELS),))),
        websocket_frame(8, b""),
    ],
)
def test_broken_or_closed_websockets_are_refused(sent: bytes) -> None:
    with pytest.raises(BrokenProtocolError):
        WebSocket().receive_data(sent)


def test_accept_key_matches_the_standard() -> None:
    """RFC 6455, section 1.3."""
    assert accept_key("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
