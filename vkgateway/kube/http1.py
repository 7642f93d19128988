"""Requests over kept HTTP/1.1 connections to one server, with as little in between as can be.

A pod's life takes six requests, and a general HTTP client spends more CPU on each than everything else that is done
for the pod. API servers need little of it: no redirects, cookies, compression or proxies.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Callable
from typing import Final

from vkgateway.kube.answers import Answer, AnswerReader, MalformedAnswerError
from vkgateway.kube.deadlines import Deadlines
from vkgateway.kube.line import IDLE_SECONDS, Line, Server

_IDEMPOTENT: Final = frozenset({"GET", "PUT", "DELETE"})


class ConnectionClosedError(ConnectionError):
    """The server closed the connection before its answer was complete."""

    def __init__(self, message: str, *, unused: bool = False) -> None:
        super().__init__(message)
        self.unused = unused
        """Whether not one byte of an answer had come."""


class Connection(Line):
    """One connection; it carries one request at a time."""

    def __init__(self, on_lost: Callable[[Connection], None]) -> None:
        super().__init__()
        self.used = False
        self.idle_since = 0.0
        self._loop = asyncio.get_running_loop()  # kept: until Python 3.12 each look asks the kernel for the process
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._on_lost = on_lost
        self._waiter: asyncio.Future[Answer] | None = None
        self._reader = AnswerReader()

    @property
    def usable(self) -> bool:
        """Whether another request may be sent."""
        return self.transport is not None and not self.transport.is_closing() and self._waiter is None

    def send(self, request: bytes) -> asyncio.Future[Answer]:
        """Send a request; the future gets its answer, or ConnectionError."""
        waiter: asyncio.Future[Answer] = self._loop.create_future()
        self._waiter = waiter
        self.write(request)
        return waiter

    def heard(self, data: bytes) -> None:
        """See `Line`."""
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

    def lost(self, why: Exception | None) -> None:
        """See `Line`."""
        answer = None if why is not None else self._reader.end()
        if answer is not None:
            self._done(answer)
        elif isinstance(why, ssl.SSLError) and not self.used:
            self._finish(why)  # by TLS 1.3 it may come as late as this that a server refuses who we are
        else:
            message = str(why) if why is not None else "the server closed the connection"
            self._finish(ConnectionClosedError(message, unused=self._reader.untouched))
        if not self.closed.done():
            self.closed.set_result(None)
        self._on_lost(self)

    def _done(self, answer: Answer) -> None:
        if not self._reader.keeps:
            self.close()
        self._reader = AnswerReader()
        waiter, self._waiter = self._waiter, None
        self.used = True
        if waiter is not None and not waiter.done():
            waiter.set_result(answer)

    def _finish(self, error: Exception) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)


class Pool:
    """Connections to one server, at most `limit`; whoever finds none free waits for its turn."""

    def __init__(self, server: Server, *, limit: int) -> None:
        self._server = server
        self._limit = limit
        self._free: list[Connection] = []
        self._all: set[Connection] = set()
        self._busy = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._loop = asyncio.get_running_loop()  # kept, as in `Connection`
        self._deadlines = Deadlines()
        self._closed = False
        self._retired = False

    async def request(self, method: str, request: bytes, *, timeout: float) -> Answer:
        """Send the bytes of a whole request and return the answer.

        A request that changes nothing when repeated is sent once more where a kept connection turns out to be closed.
        Raises OSError (TimeoutError and ConnectionError among them).
        """
        until = self._loop.time() + timeout
        try:
            await self._turn(until)
            try:
                return await self._exchange(method, request, until)
            finally:
                self._next()
        except TimeoutError:
            raise TimeoutError(f"no answer within {timeout:g} s") from None

    async def _exchange(self, method: str, request: bytes, until: float) -> Answer:
        while True:
            connection = self._take() or await self._connect(until)
            try:
                answer = await self._deadlines.wait(connection.send(request), until=until)
            except ConnectionClosedError as error:
                if connection.used and error.unused and method in _IDEMPOTENT:
                    continue
                raise
            except BaseException:
                connection.abort()  # its answer would be taken for the next request's
                raise
            self._server.pulse.heard = connection.idle_since = self._loop.time()
            if self._retired:
                connection.close()
            elif connection.usable:
                self._free.append(connection)
            return answer

    def _take(self) -> Connection | None:
        """The connection used last, if one is free; those that are stale are closed."""
        oldest = self._loop.time() - IDLE_SECONDS
        while self._free:
            connection = self._free.pop()
            if connection.usable and connection.idle_since >= oldest:
                return connection
            connection.abort()
        return None

    def give_away(self) -> Connection | None:
        """A connection that no request needs just now, for whoever takes it over; not counted here any more."""
        return self._take()

    async def _connect(self, until: float) -> Connection:
        self._check_open()
        async with asyncio.timeout_at(until):
            connection = await self._server.connect(Connection(self._lost))
        self._all.add(connection)
        try:
            self._check_open()
        except ConnectionClosedError:
            connection.abort()
            raise
        return connection

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionClosedError("the client is closed")

    def _lost(self, connection: Connection) -> None:
        self._all.discard(connection)
        with contextlib.suppress(ValueError):
            self._free.remove(connection)

    async def _turn(self, until: float) -> None:
        if self._busy >= self._limit:
            turn: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(turn)
            try:
                await self._deadlines.wait(turn, until=until)
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled() and turn.exception() is None:
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

    @property
    def in_use(self) -> bool:
        """Whether requests are under way, or connections there."""
        return self._busy > 0 or bool(self._all)

    def retire(self) -> None:
        """Keep no connection any more; requests under way go on."""
        self._retired = True
        free, self._free = self._free, []
        for connection in free:
            connection.close()

    async def close(self) -> None:
        """Close all connections; requests under way fail."""
        self._closed = True
        self._deadlines.close()
        self._free.clear()
        connections = list(self._all)
        for connection in connections:
            connection.abort()
        if connections:
            await asyncio.wait([connection.closed for connection in connections], timeout=1.0)
