"""The minimal HTTP client: parsing of responses, reuse of connections, and errors."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.machine import assert_linear, patience
from tests.support.waiting import let_pass, wait_until
from vkgateway.kube.endpoint import Endpoint, P
from vkgateway.kube.http1 import ConnectionClosedError, ConnectionPool
from vkgateway.kube.responses import MalformedResponseError, Response, ResponseParser, ResponseTooLargeError

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nRetry-After: 7\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN
NO_BODY = b"HTTP/1.1 204 No Content\r\n\r\n"
REQUEST = b"GET / HTTP/1.1\r\n\r\n"


def feed(data: bytes, cuts: set[int]) -> Response | None:
    reader = ResponseParser()
    edges = [0, *sorted(cut % len(data) for cut in cuts), len(data)]
    answers = [reader.feed(data[a:b]) for a, b in itertools.pairwise(edges)]
    assert all(answer is None for answer in answers[:-1])
    return answers[-1]


@pytest.mark.parametrize(
    ("data", "status", "body"),
    [(PLAIN, 200, b"hello"), (CHUNKED, 200, b"hello world"), (INTERIM, 200, b"hello"), (NO_BODY, 204, b"")],
)
@given(cuts=st.sets(st.integers(1, 200), max_size=6))
def test_response_is_parsed_from_arbitrary_pieces(data: bytes, status: int, body: bytes, cuts: set[int]) -> None:
    answer = feed(data, cuts)
    assert answer is not None
    assert (answer.status, answer.body) == (status, body)


def test_headers_are_found_by_lower_case_name() -> None:
    answer = feed(PLAIN, set())
    assert answer is not None
    assert answer.header("retry-after") == "7"
    assert answer.header("after") is None


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1_0\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nmore",
    ],
)
def test_malformed_response_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedResponseError):
        ResponseParser().feed(data)


def test_large_chunk_is_parsed_in_linear_time() -> None:
    """Joining the body with each piece would copy 8 GiB for the large one, 256 times as much as for the small one."""
    assert_linear(_parse_chunk, 1024 * 1024)


def _parse_chunk(size: int) -> None:
    reader, piece = ResponseParser(), b"x" * 16384
    assert reader.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % size) is None
    for _ in range(size // len(piece)):
        assert reader.feed(piece) is None
    answer = reader.feed(b"\r\n0\r\n\r\n")
    assert answer is not None
    assert len(answer.body) == size


@pytest.mark.parametrize("head", [b"Content-Length: 999999", b"Transfer-Encoding: chunked", b"Connection: close"])
def test_endless_response_is_refused(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vkgateway.kube.responses.MAX_BODY_BYTES", 1000)
    reader = ResponseParser()
    reader.feed(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n")
    pieces = itertools.repeat(b"8\r\n12345678\r\n", 200)
    with pytest.raises(ResponseTooLargeError):
        list(map(reader.feed, pieces))


class Server:
    """Server that answers each request with the next response. None closes the connection."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = list(answers)
        self.connections = 0
        self.requests = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                self.requests += 1
                answer = self.answers.pop(0)
                if answer is None:
                    break
                writer.write(answer)
        writer.close()


@contextlib.asynccontextmanager
async def talking(server: Server, *, limit: int = 4) -> AsyncIterator[ConnectionPool]:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    pool = ConnectionPool(Endpoint(host="127.0.0.1", port=port, ssl=None), limit=limit)
    try:
        yield pool
    finally:
        await pool.close()
        listening.close()
        await listening.wait_closed()


async def test_connection_is_reused() -> None:
    server = Server(PLAIN, CHUNKED)
    async with talking(server) as pool:
        assert (await pool.request("GET", REQUEST, timeout=patience(5))).body == b"hello"
        assert (await pool.request("GET", REQUEST, timeout=patience(5))).body == b"hello world"
    assert server.connections == 1


async def test_response_may_end_with_its_connection() -> None:
    class Closing(Server):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\n\r\nall of it")
            writer.close()

    async with talking(Closing()) as pool:
        assert (await pool.request("GET", REQUEST, timeout=patience(5))).body == b"all of it"


async def test_idempotent_request_is_retried_on_closed_connection() -> None:
    server = Server(PLAIN, None, PLAIN)
    async with talking(server) as pool:
        await pool.request("GET", REQUEST, timeout=patience(5))
        assert (await pool.request("GET", REQUEST, timeout=patience(5))).body == b"hello"
    assert server.connections == 2


async def test_post_is_not_retried() -> None:
    server = Server(PLAIN, None)
    async with talking(server) as pool:
        await pool.request("GET", REQUEST, timeout=patience(5))
        with pytest.raises(ConnectionClosedError):
            await pool.request("POST", REQUEST, timeout=patience(5))
    assert server.requests == 2


async def test_request_on_new_connection_is_not_retried() -> None:
    async with talking(Server(None)) as pool:
        with pytest.raises(ConnectionClosedError):
            await pool.request("GET", REQUEST, timeout=patience(5))


async def test_incomplete_response_is_an_error() -> None:
    class Half(Server):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(PLAIN[:-1])
            writer.close()

    async with talking(Half()) as pool:
        with pytest.raises(ConnectionClosedError):
            await pool.request("GET", REQUEST, timeout=patience(5))


async def test_late_response_is_not_given_to_next_request() -> None:
    release = asyncio.Event()

    class Late(Server):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            if self.connections == 1:
                await release.wait()
                writer.close()
                return
            await super().serve(reader, writer)

    server = Late(PLAIN)
    async with talking(server, limit=1) as pool:
        with pytest.raises(TimeoutError):
            await pool.request("GET", REQUEST, timeout=0.01)
        release.set()
        assert (await pool.request("GET", REQUEST, timeout=patience(5))).body == b"hello"


async def test_connections_are_limited() -> None:
    server = Server(*[PLAIN] * 20)
    async with talking(server, limit=3) as pool:
        await asyncio.gather(*(pool.request("GET", REQUEST, timeout=patience(5)) for _ in range(20)))
    assert server.requests == 20
    assert server.connections <= 3


async def test_closed_pool_opens_no_connection() -> None:
    async with talking(Server()) as pool:
        await pool.close()
        with pytest.raises(ConnectionClosedError):
            await pool.request("GET", REQUEST, timeout=patience(5))


async def test_request_cancelled_at_its_timeout_releases_no_slot() -> None:
    class Silent(Server):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            await reader.read()
            writer.close()

    server = Silent()
    async with talking(server, limit=1) as pool:
        busy = asyncio.create_task(pool.request("GET", REQUEST, timeout=patience(5)))
        await wait_until(lambda: server.connections == 1)
        waiting = asyncio.create_task(pool.request("GET", REQUEST, timeout=patience(5)))
        await asyncio.sleep(0)
        (turn,) = pool._slot_waiters
        turn.set_exception(TimeoutError())
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        another = asyncio.create_task(pool.request("GET", REQUEST, timeout=patience(5)))
        await let_pass(0.05)
        assert server.connections == 1
        for task in (busy, another):
            task.cancel()
        await asyncio.gather(busy, another, return_exceptions=True)


async def test_connection_opened_during_close_is_closed() -> None:
    class Slow(Endpoint):
        async def open_connection(self, protocol: P) -> P:
            connection = await super().open_connection(protocol)
            await pool.close()
            return connection

    server = Server(PLAIN)
    async with talking(server) as pool:
        pool._server = Slow(host="127.0.0.1", port=pool._server.port, ssl=None)
        with pytest.raises(ConnectionClosedError):
            await pool.request("GET", REQUEST, timeout=patience(5))
    assert server.requests == 0
