"""The error channel: compute addresses never pass, all other bytes do."""

from __future__ import annotations

import json
import time

from hypothesis import given
from hypothesis import strategies as st

from vkgateway.nodes.errorchannel import ErrorChannelFilter, is_needed

GENERIC = "exec of pod default/web cannot be reached at the moment, try again"
DIAL = 'error sending request: Post "https://10.9.8.7:10250/exec/alpha--default/web": dial tcp 10.9.8.7:10250: refused'


def channel() -> ErrorChannelFilter:
    return ErrorChannelFilter(generic=GENERIC, namespaces=("alpha--default", "default"))


def frame(payload: bytes, opcode: int = 0x82) -> bytes:
    if len(payload) < 126:
        return bytes((opcode, len(payload))) + payload
    if len(payload) < 65536:
        return bytes((opcode, 126)) + len(payload).to_bytes(2, "big") + payload
    return bytes((opcode, 127)) + len(payload).to_bytes(8, "big") + payload


def status(message: str, **more: object) -> bytes:
    return frame(b"\x03" + json.dumps({"status": "Failure", "message": message, **more}).encode())


def test_filter_is_needed_for_v5_protocol_only() -> None:
    assert is_needed((("sec-websocket-protocol", "v5.channel.k8s.io"),))
    assert not is_needed((("sec-websocket-protocol", "v4.channel.k8s.io"),))
    assert not is_needed((("upgrade", "SPDY/3.1"),))


def test_compute_addresses_are_replaced() -> None:
    passed = channel()(status(DIAL, details={"causes": [{"message": DIAL}]}))
    assert json.loads(passed[3 if passed[1] < 126 else 5 :]) == {"status": "Failure", "message": GENERIC}


def test_long_message_is_filtered_quickly() -> None:
    """The message contains the command that was not found, which may have any length."""
    sent = status("a" * 60_000)
    began = time.thread_time()
    assert channel()(sent) == sent
    assert time.thread_time() - began < 1.0


def test_compute_namespace_becomes_tenant_namespace() -> None:
    passed = channel()(status("no such thing in alpha--default"))
    assert b"in default" in passed
    assert b"alpha--" not in passed


def test_exit_codes_pass_unchanged() -> None:
    causes = {"causes": [{"reason": "ExitCode", "message": "7"}]}
    sent = status("command terminated with non-zero exit code: exit status 7", details=causes)
    assert channel()(sent) == sent


def test_frame_without_status_passes() -> None:
    sent = frame(b"\x03not json") + frame(b"") + frame(b"\x03")
    assert channel()(sent) == sent


def test_output_passes_before_its_frame_is_complete() -> None:
    sent = frame(b"\x01" + bytes(1000))
    assert channel()(sent[:500]) == sent[:500]


PAYLOADS = st.lists(
    st.one_of(st.binary(max_size=300).map(lambda data: b"\x01" + data), st.just(bytes(70_000))), max_size=5
)


@given(payloads=PAYLOADS, cuts=st.lists(st.integers(0, 1000), max_size=6))
def test_arbitrary_pieces_give_same_result(payloads: list[bytes], cuts: list[int]) -> None:
    sent = b"".join(map(frame, payloads)) + status(DIAL) + frame(b"\x02after")
    want = b"".join(map(frame, payloads)) + channel()(status(DIAL)) + frame(b"\x02after")
    watched, got, rest = channel(), b"", sent
    for cut in cuts:
        got += watched(rest[:cut])
        rest = rest[cut:]
    assert got + watched(rest) == want
    assert b"10.9.8.7" not in want
