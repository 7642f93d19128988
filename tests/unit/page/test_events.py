"""Tests of events that are compressed once for all of their readers."""

from __future__ import annotations

import asyncio
import zlib

import pytest

from vkgateway.page import hub as events
from vkgateway.page.hub import GZIP_HEADER, PING, Event


@pytest.mark.parametrize("size", [10, 1 << 20])
async def test_an_event_is_compressed_once(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    compressed: list[bytes] = []
    deflate = events._deflate

    def count(plain: bytes) -> bytes:
        compressed.append(plain)
        return deflate(plain)

    monkeypatch.setattr(events, "_deflate", count)
    event = Event("state", b"x" * size)
    zipped = await asyncio.gather(*(event.zipped() for _ in range(20)))
    assert len(set(zipped)) == 1
    assert compressed == [event.plain]


async def test_events_of_any_order_continue_a_stream_of_gzip() -> None:
    sent = [Event("delta", b'{"a": 1}'), PING, Event("state", b"y" * 100_000), PING, Event("delta", b'{"a": 1}')]
    reader = zlib.decompressobj(31)
    reader.decompress(GZIP_HEADER)
    for event in (*sent, *reversed(sent)):
        assert reader.decompress(await event.zipped()) == event.plain, "nothing is held back"
