"""Response streams: framing, back-pressure, timeouts and truncation."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from tests.support.machine import patience
from tests.support.waiting import let_pass
from vkgateway.kube.endpoint import Endpoint, ServerActivity
from vkgateway.kube.response_streams import ResponseStream, StreamPool
from vkgateway.kube.responses import MalformedResponseError
from vkgateway.kube.transport import Connections

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nRetry-After: 7\r\n\r\n"
REQUEST = b"GET / HTTP/1.1\r\n\r\n"
Play = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def streaming(
    play: Play, *, inactivity: float | None = 5.0, longest: float | None = None, activity: ServerActivity | None = None
) -> AsyncIterator[ResponseStream]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await play(reader, writer)

    async with listening(serve) as port:
        server = Endpoint(host="127.0.0.1", port=port, ssl=None, activity=activity or ServerActivity())
        stream = await StreamPool(server).open_stream(REQUEST, inactivity=inactivity, longest=longest)
        with contextlib.closing(stream):
            yield stream


@contextlib.asynccontextmanager
async def listening(play: Play) -> AsyncIterator[int]:
    """Yield the port of a server that runs `play` on each connection. All connections are closed at the end."""
    playing: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        playing.add(task)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            try:
                await play(reader, writer)
            finally:
                writer.close()
                await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.sleep(0)  # whom it has accepted begins
        for task in playing:
            task.cancel()
        await asyncio.gather(*playing, return_exceptions=True)
        await server.wait_closed()


async def test_chunks_arrive_separately_and_end_is_reported() -> None:
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED[:20])
        await asyncio.sleep(0.01)
        writer.write(CHUNKED[20:] + b"3\r\none\r\n")
        await reader.read(1)
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async with streaming(play) as stream:
        assert (stream.response.status, stream.response.header("retry-after")) == (200, "7")
        assert await stream.read() == b"one"
        stream.send_request(b"x")
        assert await stream.read() == b""
        assert await stream.read() == b""


async def test_response_without_length_ends_with_connection() -> None:
    async def play(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nall")

    async with streaming(play) as stream:
        assert await stream.read() == b"all"
        assert await stream.read() == b""


async def test_incomplete_response_is_an_error_after_its_bytes() -> None:
    async def play(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + b"3\r\none\r\n")

    async with streaming(play) as stream:
        assert await stream.read() == b"one"
        with pytest.raises(ConnectionError):
            await stream.read()


async def test_silent_server_times_out() -> None:
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        await reader.read()

    async with streaming(play, inactivity=patience(1)) as stream:
        with pytest.raises(TimeoutError, match="no byte"):
            await stream.read()


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Start a response, then send nothing."""
    writer.write(CHUNKED)
    await reader.read()


async def test_activity_on_other_connection_prevents_timeout() -> None:
    activity, loop, inactivity = ServerActivity(), asyncio.get_running_loop(), patience(0.25)
    async with streaming(silent, inactivity=inactivity, activity=activity) as stream:
        reading = asyncio.ensure_future(stream.read())
        began = loop.time()
        while loop.time() < began + 1.5 * inactivity:
            activity.last_heard = loop.time()
            await asyncio.sleep(inactivity / 20)
        assert not reading.done()
        with pytest.raises(TimeoutError, match="no byte"):
            await reading


async def test_missing_bookmarks_cause_timeout() -> None:
    activity = ServerActivity()
    async with streaming(silent, inactivity=patience(0.5), activity=activity) as stream:
        stream.sends_bookmarks = True
        activity.last_heard = asyncio.get_running_loop().time() + 60
        with pytest.raises(TimeoutError, match="no byte"):
            await stream.read()


async def test_stream_fails_after_longest_duration() -> None:
    async with streaming(silent, inactivity=patience(60), longest=patience(0.5)) as stream:
        with pytest.raises(TimeoutError, match="in time"):
            await stream.read()


async def ended(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a complete response."""
    writer.write(CHUNKED + b"0\r\n\r\n")


async def test_unused_stream_is_freed_without_garbage_collector() -> None:
    for play in (silent, ended):
        async with streaming(play, inactivity=patience(0.5)) as stream:
            with contextlib.suppress(TimeoutError):
                while await stream.read():
                    pass
        await let_pass(0.01)  # until the event loop has released the connection
        gone = weakref.ref(stream)
        gc.disable()
        try:
            del stream
            assert gone() is None
        finally:
            gc.enable()


async def test_missing_response_times_out() -> None:
    async def play(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    with pytest.raises(TimeoutError):
        async with streaming(play, inactivity=0.05):
            pass


async def test_other_activity_does_not_replace_missing_head() -> None:
    async def play(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    activity = ServerActivity()
    activity.last_heard = asyncio.get_running_loop().time() + 60
    with pytest.raises(TimeoutError, match="no byte"):
        async with streaming(play, inactivity=0.2, longest=60.0, activity=activity):
            pass


async def test_malformed_response_is_refused() -> None:
    async def play(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH\r\n")

    with pytest.raises(MalformedResponseError):
        async with streaming(play):
            pass


async def test_slow_reader_applies_back_pressure() -> None:
    sent = 0

    async def play(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(CHUNKED)
        for _number in range(400):
            writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            await writer.drain()
            sent += 1
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async with streaming(play) as stream:
        await asyncio.sleep(0.3)
        assert sent < 400
        received = 0
        while piece := await stream.read():
            received += len(piece)
        assert received == 400 * 65536


@contextlib.asynccontextmanager
async def counted(answers: Sequence[bytes | None]) -> AsyncIterator[tuple[Endpoint, list[int]]]:
    """A server that gives one answer after the other, and the number of each one's connection.

    Where an answer is None the connection is closed when it is asked for, and so it is after the last one.
    """
    carried: list[int] = []
    coming = iter(answers)
    connections = itertools.count()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = next(connections)
        while await reader.readuntil(b"\r\n\r\n"):
            if (answer := next(coming, None)) is None:
                break
            carried.append(number)
            writer.write(answer)
            await writer.drain()

    async with listening(serve) as port:
        yield Endpoint(host="127.0.0.1", port=port, ssl=None), carried


@contextlib.asynccontextmanager
async def counting(answers: Sequence[bytes | None]) -> AsyncIterator[tuple[StreamPool, list[int]]]:
    """Yield the stream pool of such a server."""
    async with counted(answers) as (server, carried):
        streams = StreamPool(server)
        try:
            yield streams, carried
        finally:
            streams.close()


async def everything(streams: StreamPool) -> bytes:
    stream = await streams.open_stream(REQUEST, inactivity=5)
    try:
        received = b""
        while piece := await stream.read():
            received += piece
        return received
    finally:
        streams.release_stream(stream)


WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nall"
ONE = CHUNKED + b"3\r\none\r\n0\r\n\r\n"
TWO = CHUNKED + b"3\r\ntwo\r\n0\r\n\r\n"


async def test_connection_of_ended_response_is_reused() -> None:
    async with counting([ONE, TWO, ONE]) as (streams, carried):
        assert [await everything(streams) for _ in range(3)] == [b"one", b"two", b"one"]
        assert carried == [0, 0, 0]


async def test_stream_retries_on_closed_idle_connection() -> None:
    async with counting([ONE, None, TWO]) as (streams, carried):
        assert [await everything(streams) for _ in range(2)] == [b"one", b"two"]
        assert carried == [0, 1]


@contextlib.asynccontextmanager
async def both(answers: Sequence[bytes | None]) -> AsyncIterator[tuple[Connections, list[int]]]:
    """Yield the connections to such a server."""
    async with counted(answers) as (server, carried):
        connections = Connections(server, limit=4)
        try:
            yield connections, carried
        finally:
            await connections.close()


async def test_list_and_watch_share_a_connection() -> None:
    async with both([WHOLE, ONE, WHOLE]) as (connections, carried):
        assert (await connections.request_pool.request("GET", REQUEST, timeout=patience(5))).body == b"all"
        assert await everything(connections.stream_pool) == b"one"
        assert carried == [0, 0]
        # It is the stream's from then on, and not counted among those of requests.
        assert (await connections.request_pool.request("GET", REQUEST, timeout=patience(5))).body == b"all"
        assert carried == [0, 0, 1]


async def test_stream_retries_on_closed_request_connection() -> None:
    async with both([WHOLE, None, ONE]) as (connections, carried):
        await connections.request_pool.request("GET", REQUEST, timeout=patience(5))
        assert await everything(connections.stream_pool) == b"one"
        assert carried == [0, 1]


async def test_broken_new_connection_is_an_error() -> None:
    async with counting([None]) as (streams, _):
        with pytest.raises(ConnectionError):
            await everything(streams)


async def test_incomplete_response_on_idle_connection_is_an_error() -> None:
    async with counting([ONE, CHUNKED + b"5\r\nbro", None]) as (streams, _):
        assert await everything(streams) == b"one"
        stream = await streams.open_stream(REQUEST, inactivity=5)
        assert await stream.read() == b"bro"
        stream.send_request(REQUEST)
        with pytest.raises(ConnectionError):
            await stream.read()
        streams.release_stream(stream)


@pytest.mark.parametrize(
    "first",
    [
        ONE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1),
        ONE + TWO,
        ONE + b"HTTP/1.1 2",
    ],
)
async def test_unusable_connection_is_not_reused(first: bytes) -> None:
    async with counting([first, TWO]) as (streams, carried):
        assert [await everything(streams) for _ in range(2)] == [b"one", b"two"]
        assert carried == [0, 1]


async def test_unsolicited_bytes_are_not_a_response() -> None:
    async with counting([ONE, TWO]) as (streams, carried):
        stream = await streams.open_stream(REQUEST, inactivity=5)
        while await stream.read():
            pass
        streams.release_stream(stream)
        stream.handle_data(TWO)
        assert await everything(streams) == b"two"
        assert carried == [0, 1]


async def test_stream_not_read_to_its_end_is_closed() -> None:
    async with counting([ONE, TWO]) as (streams, carried):
        stream = await streams.open_stream(REQUEST, inactivity=5)
        await asyncio.sleep(0.05)
        streams.release_stream(stream)
        assert await everything(streams) == b"two"
        assert carried == [0, 1]


async def test_draining_pool_keeps_current_streams_only() -> None:
    async with counting([ONE, TWO]) as (streams, _):
        stream = await streams.open_stream(REQUEST, inactivity=5)
        streams.start_draining()
        in_use = [streams.is_in_use]
        assert await stream.read() == b"one"
        assert await stream.read() == b""
        streams.release_stream(stream)
        assert [*in_use, streams.is_in_use] == [True, False]
        assert not stream.is_reusable
