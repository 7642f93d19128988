"""Lines and events from the bytes of a watch."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.machine import assert_linear
from vkgateway.kube import reflector as watch_events
from vkgateway.kube.errors import ServerError
from vkgateway.kube.reflector import LineSplitter, split_event


@given(st.lists(st.binary().filter(lambda line: b"\n" not in line)), st.data())
def test_lines_are_split_from_arbitrary_chunks(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    splitter = LineSplitter()
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += splitter.feed(stream[start:end])
    assert found == [line for line in lines if line]


def test_partial_line_is_buffered() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"one\ntw") == [b"one"]
    assert splitter.feed(b"o") == []
    assert splitter.feed(b"\n") == [b"two"]


def test_long_line_is_split_in_linear_time() -> None:
    """Chunks of 1 KiB: joining the line with each chunk would copy 32 MiB for 256 KiB, and 8 GiB for 4 MiB."""
    assert_linear(_split_line, 256)


def _split_line(chunks: int) -> None:
    splitter = LineSplitter()
    for _ in range(chunks):
        assert splitter.feed(b"x" * 1024) == []
    (line,) = splitter.feed(b"\n")
    assert len(line) == chunks * 1024


def test_endless_line_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_events, "_MAX_LINE_BYTES", 10)
    splitter = LineSplitter()
    splitter.feed(b"123456")
    with pytest.raises(ServerError, match="longer than"):
        splitter.feed(b"123456")


@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"])
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_event_contains_bytes_of_its_object(kind: str, separators: tuple[str, str]) -> None:
    document = {"metadata": {"name": 'a"}}'}, "x": "}"}
    line = json.dumps({"type": kind, "object": document}, separators=separators).encode()
    found, body = split_event(line)
    assert found == kind
    assert json.loads(body) == document


def test_event_with_object_first_is_decoded() -> None:
    assert split_event(b'{"object":{"a":1},"type":"ADDED"}') == ("ADDED", b'{"a":1}')


@pytest.mark.parametrize("line", [b"", b"{", b"<html>", b'{"type":"OTHER","object":{}}', b'{"type":"ADDED"}'])
def test_invalid_event_is_refused(line: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        split_event(line)
