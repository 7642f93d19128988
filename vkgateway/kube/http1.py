"""Requests over kept HTTP/1.1 connections to one server, with as little in between as can be.

A pod's life takes six requests, and a general HTTP client spends more CPU on each than everything else that is done
for the pod. API servers need little of it: no redirects, cookies, compression or proxies. What is here follows RFC 9112
for answers with a length, in chunks (section 7.1), and up to the end of the connection (section 6.3).
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl as ssl_module
from collections import deque
from collections.abc import Callable
from typing import Final, cast

_IDLE: Final = 60.0
"""Seconds after which an unused connection is not trusted any more."""
_HEAD_MAX: Final = 256 * 1024
_HEX: Final = b"0123456789abcdefABCDEF"
LONGEST_ANSWER: Final = 128 * 1024 * 1024
"""Bytes of an answer that are taken in. Tenants choose how large their objects are, and may even put a server of their
own in the place of their API server's (APIService), whose answers need have no end."""
_IDEMPOTENT: Final = frozenset({"GET", "PUT", "DELETE"})
_BODILESS: Final = frozenset({204, 304})


class ConnectionClosedError(ConnectionError):
    """The server closed the connection before its answer was complete."""

    def __init__(self, message: str, *, unused: bool = False) -> None:
        super().__init__(message)
        self.unused = unused
        """Whether not one byte of an answer had come."""


class MalformedAnswerError(ConnectionError):
    """What came is no HTTP/1.1 answer."""


class AnswerTooLongError(MalformedAnswerError):
    """The answer has more bytes than are taken in."""


class Answer:
    """One complete answer."""

    __slots__ = ("_head", "body", "status")

    def __init__(self, status: int, head: bytes, body: bytes) -> None:
        self.status = status
        self.body = body
        self._head = head

    def header(self, name: str) -> str | None:
        """The value of a header, by its lower-case name."""
        value = _field(self._head, name.encode())
        return None if value is None else value.decode("latin-1")


class Connection(asyncio.Protocol):
    """One connection; it carries one request at a time."""

    def __init__(self, on_lost: Callable[[Connection], None]) -> None:
        self.used = False
        self.idle_since = 0.0
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Answer] | None = None
        self._reader = _Reader()

    @property
    def usable(self) -> bool:
        """Whether another request may be sent."""
        return self._transport is not None and not self._transport.is_closing() and self._waiter is None

    def send(self, request: bytes) -> asyncio.Future[Answer]:
        """Send a request; the future gets its answer, or ConnectionError."""
        assert self._transport is not None
        waiter: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiter = waiter
        self._transport.write(request)
        return waiter

    def abort(self) -> None:
        """Close at once; an answer under way is lost."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self._waiter is None:
            self.abort()  # nobody has asked: whatever this is, it must not become an answer
            return
        try:
            answer = self._reader.feed(data)
        except MalformedAnswerError as error:
            self._finish(error)
            self.abort()
            return
        if answer is not None:
            self._done(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        answer = None if exc is not None else self._reader.end()
        if answer is not None:
            self._done(answer)
        else:
            why = str(exc) if exc is not None else "the server closed the connection"
            self._finish(ConnectionClosedError(why, unused=self._reader.untouched))
        if not self.closed.done():
            self.closed.set_result(None)
        self._on_lost(self)

    def _done(self, answer: Answer) -> None:
        if not self._reader.keeps and self._transport is not None:
            self._transport.close()
        self._reader = _Reader()
        waiter, self._waiter = self._waiter, None
        self.used = True
        if waiter is not None and not waiter.done():
            waiter.set_result(answer)

    def _finish(self, error: Exception) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)


class _Reader:
    """Puts one answer together from the bytes as they come."""

    __slots__ = (
        "_buffer",
        "_chunked",
        "_head",
        "_left",
        "_length",
        "_pieces",
        "_size",
        "_status",
        "keeps",
        "untouched",
    )

    def __init__(self) -> None:
        self.keeps = True
        """Whether the connection may be used again after this answer."""
        self.untouched = True
        self._buffer = b""
        self._head = b""
        self._status = 0
        self._chunked = False
        self._length = -1
        self._left = 0
        """What is still to come of the chunk under way, its line's end included."""
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Answer | None:
        """Take bytes in; the answer once it is whole. Raises MalformedAnswerError."""
        self.untouched = False
        while not self._status:
            self._buffer = self._buffer + data if self._buffer else data
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > _HEAD_MAX:
                    raise MalformedAnswerError("the answer's head does not end")
                return None
            data, self._head = self._buffer[end + 4 :], self._buffer[:end]
            self._buffer = b""
            self._begin()
        return self._feed_chunks(data) if self._chunked else self._feed_plain(data)

    def end(self) -> Answer | None:
        """The connection has ended: an answer that goes up to there is whole now."""
        if self._status and not self._chunked and self._length < 0:
            return self._answer()
        return None

    def _begin(self) -> None:
        """Read the head; an interim answer (1xx) is passed over."""
        head = self._head
        if not head.startswith(b"HTTP/1.") or not head[9:12].isdigit():
            raise MalformedAnswerError(f"no HTTP/1.1 answer: {head[:64]!r}")
        status = int(head[9:12])
        if status < 200:
            return
        self._status = status
        connection = _field(head, b"connection")
        self.keeps = head[5:8] == b"1.1" and (connection is None or b"close" not in connection.lower())
        if (length := _field(head, b"content-length")) is not None:
            if not length.isdigit():
                raise MalformedAnswerError(f"Content-Length is {length[:32]!r}")
            self._length = int(length)
        if (coding := _field(head, b"transfer-encoding")) is not None:
            if coding.lower() != b"chunked":
                raise MalformedAnswerError(f"Transfer-Encoding is {coding[:32]!r}")
            self._chunked = True
        elif status in _BODILESS:
            self._length = 0
        elif self._length < 0:
            self.keeps = False

    def _feed_plain(self, data: bytes) -> Answer | None:
        self._take(data)
        if self._length < 0 or self._size < self._length:
            return None
        if self._size > self._length:
            raise MalformedAnswerError("the answer is longer than it says")
        return self._answer()

    def _feed_chunks(self, data: bytes) -> Answer | None:
        """A chunk is its size in hexadecimal, a line's end, so many bytes, a line's end; the last has size 0.

        Servers send lists as one chunk of many megabytes: what has come of a chunk is put by, never copied again.
        """
        buffer = self._buffer + data if self._buffer else data
        at = 0
        while True:
            if self._left:
                end = min(len(buffer), at + self._left)
                self._take(buffer[at : min(end, at + max(0, self._left - 2))])
                self._left -= end - at
                at = end
                if self._left:
                    break
            line = buffer.find(b"\r\n", at)
            if line < 0:
                break
            size = _chunk_size(buffer[at:line])
            if size == 0:
                # What may follow are trailers, up to an empty line; none of them matters.
                if buffer.find(b"\r\n\r\n", line) < 0:
                    break
                return self._answer()
            self._left = size + 2
            at = line + 2
        self._buffer = buffer[at:]
        if len(self._buffer) > _HEAD_MAX:
            raise MalformedAnswerError("a chunk's head does not end")
        return None

    def _take(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > LONGEST_ANSWER:
            raise AnswerTooLongError(f"the answer is longer than {LONGEST_ANSWER} bytes")
        if data:
            self._pieces.append(data)

    def _answer(self) -> Answer:
        pieces = self._pieces
        return Answer(self._status, self._head, pieces[0] if len(pieces) == 1 else b"".join(pieces))


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    if not digits or len(digits) > 16 or digits.strip(_HEX):
        raise MalformedAnswerError(f"a chunk's size is {line[:32]!r}")
    return int(digits, 16)


def _field(head: bytes, name: bytes) -> bytes | None:
    """The value of a header in an answer's head, by its lower-case name; None where there is none."""
    at = head.lower().find(b"\r\n" + name + b":")
    if at < 0:
        return None
    start = at + len(name) + 3
    end = head.find(b"\r\n", start)
    return head[start : end if end >= 0 else len(head)].strip()


class Pool:
    """Connections to one server, at most `limit`; whoever finds none free waits for its turn."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        ssl: ssl_module.SSLContext | None,
        server_hostname: str | None,
        limit: int,
        connect_timeout: float,
        on_connect: Callable[[asyncio.BaseTransport], None] = lambda _transport: None,
    ) -> None:
        self._host = host
        self._port = port
        self._ssl = ssl
        self._server_hostname = server_hostname if ssl is not None else None
        self._limit = limit
        self._connect_timeout = connect_timeout
        self._on_connect = on_connect
        self._free: list[Connection] = []
        self._all: set[Connection] = set()
        self._busy = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closed = False

    async def request(self, method: str, request: bytes, *, timeout: float) -> Answer:
        """Send the bytes of a whole request and return the answer.

        A request that changes nothing when repeated is sent once more where a kept connection turns out to be closed.
        Raises OSError (TimeoutError and ConnectionError among them).
        """
        try:
            async with asyncio.timeout(timeout):
                await self._turn()
                try:
                    return await self._exchange(method, request)
                finally:
                    self._next()
        except TimeoutError:
            raise TimeoutError(f"no answer within {timeout:g} s") from None

    async def _exchange(self, method: str, request: bytes) -> Answer:
        while True:
            connection = self._take() or await self._connect()
            try:
                answer = await connection.send(request)
            except ConnectionClosedError as error:
                if connection.used and error.unused and method in _IDEMPOTENT:
                    continue
                raise
            except BaseException:
                connection.abort()  # its answer would be taken for the next request's
                raise
            if connection.usable:
                connection.idle_since = asyncio.get_running_loop().time()
                self._free.append(connection)
            return answer

    def _take(self) -> Connection | None:
        """The connection used last, if one is free; those that are stale are closed."""
        oldest = asyncio.get_running_loop().time() - _IDLE
        while self._free:
            connection = self._free.pop()
            if connection.usable and connection.idle_since >= oldest:
                return connection
            connection.abort()
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        if self._closed:
            raise ConnectionClosedError("the client is closed")
        async with asyncio.timeout(self._connect_timeout):
            transport, connection = await loop.create_connection(
                lambda: Connection(self._lost),
                self._host,
                self._port,
                ssl=self._ssl,
                server_hostname=self._server_hostname,
            )
        self._all.add(connection)
        self._on_connect(transport)
        return connection

    def _lost(self, connection: Connection) -> None:
        self._all.discard(connection)
        with contextlib.suppress(ValueError):
            self._free.remove(connection)

    async def _turn(self) -> None:
        if self._busy >= self._limit:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._next()
                raise
            return
        self._busy += 1

    def _next(self) -> None:
        """Give the turn to one who waits, or back."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._busy -= 1

    async def close(self) -> None:
        """Close all connections; requests under way fail."""
        self._closed = True
        self._free.clear()
        connections = list(self._all)
        for connection in connections:
            connection.abort()
        if connections:
            await asyncio.wait([connection.closed for connection in connections], timeout=1.0)
