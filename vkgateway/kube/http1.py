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

from vkgateway.kube.deadlines import Deadlines
from vkgateway.kube.endpoint import IDLE_SECONDS, Endpoint
from vkgateway.kube.responses import MalformedResponseError, Response, ResponseParser
from vkgateway.kube.tls_protocol import TlsProtocol

_IDEMPOTENT: Final = frozenset({"GET", "PUT", "DELETE"})


class ConnectionClosedError(ConnectionError):
    """The server closed the connection before its answer was complete."""

    def __init__(self, message: str, *, unused: bool = False) -> None:
        super().__init__(message)
        self.is_unused = unused
        """Whether not one byte of an answer had come."""


class Connection(TlsProtocol):
    """One connection; it carries one request at a time."""

    def __init__(self, on_lost: Callable[[Connection], None]) -> None:
        super().__init__()
        self.was_used = False
        self.idle_since = 0.0
        self._loop = asyncio.get_running_loop()  # kept: until Python 3.12 each look asks the kernel for the process
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._on_lost = on_lost
        self._waiter: asyncio.Future[Response] | None = None
        self._parser = ResponseParser()

    @property
    def is_reusable(self) -> bool:
        """Whether another request may be sent."""
        return self.transport is not None and not self.transport.is_closing() and self._waiter is None

    def send_request(self, request: bytes) -> asyncio.Future[Response]:
        """Send a request; the future gets its answer, or ConnectionError."""
        waiter: asyncio.Future[Response] = self._loop.create_future()
        self._waiter = waiter
        self.write(request)
        return waiter

    def handle_data(self, data: bytes) -> None:
        """See `Sample`."""
        if self._waiter is None:
            self.abort()  # nobody has asked: whatever this is, it must not become an answer
            return
        try:
            answer = self._parser.feed(data)
        except MalformedResponseError as error:
            self._fail_request(error)
            self.abort()
            return
        if answer is not None:
            self._complete_request(answer)

    def handle_close(self, why: Exception | None) -> None:
        """See `Sample`."""
        answer = None if why is not None else self._parser.handle_eof()
        if answer is not None:
            self._complete_request(answer)
        elif isinstance(why, ssl.SSLError) and not self.was_used:
            self._fail_request(why)  # by TLS 1.3 it may come as late as this that a server refuses who we are
        else:
            message = str(why) if why is not None else "the server closed the connection"
            self._fail_request(ConnectionClosedError(message, unused=self._parser.is_untouched))
        if not self.closed.done():
            self.closed.set_result(None)
        self._on_lost(self)

    def _complete_request(self, answer: Response) -> None:
        if not self._parser.keeps_alive:
            self.close()
        self._parser = ResponseParser()
        waiter, self._waiter = self._waiter, None
        self.was_used = True
        if waiter is not None and not waiter.done():
            waiter.set_result(answer)

    def _fail_request(self, error: Exception) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)


class ConnectionPool:
    """Connections to one server, at most `limit`; whoever finds none free waits for its turn."""

    def __init__(self, server: Endpoint, *, limit: int) -> None:
        self._server = server
        self._limit = limit
        self._idle: list[Connection] = []
        self._connections: set[Connection] = set()
        self._active_requests = 0
        self._slot_waiters: deque[asyncio.Future[None]] = deque()
        self._loop = asyncio.get_running_loop()  # kept, as in `ClientConfig`
        self._deadlines = Deadlines()
        self._is_closed = False
        self._is_draining = False

    async def request(self, method: str, request: bytes, *, timeout: float) -> Response:
        """Send the bytes of a whole request and return the answer.

        A request that changes nothing when repeated is sent once more where a kept connection turns out to be closed.
        Raises OSError (TimeoutError and ConnectionError among them).
        """
        until = self._loop.time() + timeout
        try:
            await self._acquire_slot(until)
            try:
                return await self._send_and_receive(method, request, until)
            finally:
                self._release_slot()
        except TimeoutError:
            raise TimeoutError(f"no answer within {timeout:g} s") from None

    async def _send_and_receive(self, method: str, request: bytes, until: float) -> Response:
        while True:
            connection = self._take_idle() or await self._open_connection(until)
            try:
                answer = await self._deadlines.wait(connection.send_request(request), until=until)
            except ConnectionClosedError as error:
                if connection.was_used and error.is_unused and method in _IDEMPOTENT:
                    continue
                raise
            except BaseException:
                connection.abort()  # its answer would be taken for the next request's
                raise
            self._server.activity.last_heard = connection.idle_since = self._loop.time()
            if self._is_draining:
                connection.close()
            elif connection.is_reusable:
                self._idle.append(connection)
            return answer

    def _take_idle(self) -> Connection | None:
        """The connection used last, if one is free; those that are stale are closed."""
        oldest = self._loop.time() - IDLE_SECONDS
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable and connection.idle_since >= oldest:
                return connection
            connection.abort()
        return None

    def release_idle(self) -> Connection | None:
        """A connection that no request needs just now, for whoever takes it over; not counted here any more."""
        return self._take_idle()

    async def _open_connection(self, until: float) -> Connection:
        self._check_open()
        async with asyncio.timeout_at(until):
            connection = await self._server.open_connection(Connection(self._forget_connection))
        self._connections.add(connection)
        try:
            self._check_open()
        except ConnectionClosedError:
            connection.abort()
            raise
        return connection

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConnectionClosedError("the client is closed")

    def _forget_connection(self, connection: Connection) -> None:
        self._connections.discard(connection)
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)

    async def _acquire_slot(self, until: float) -> None:
        if self._active_requests >= self._limit:
            turn: asyncio.Future[None] = self._loop.create_future()
            self._slot_waiters.append(turn)
            try:
                await self._deadlines.wait(turn, until=until)
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled() and turn.exception() is None:
                    self._release_slot()
                raise
            return
        self._active_requests += 1

    def _release_slot(self) -> None:
        """Give the turn to one who waits, or back."""
        while self._slot_waiters:
            turn = self._slot_waiters.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._active_requests -= 1

    @property
    def is_in_use(self) -> bool:
        """Whether requests are under way, or connections there."""
        return self._active_requests > 0 or bool(self._connections)

    def start_draining(self) -> None:
        """Keep no connection any more; requests under way go on."""
        self._is_draining = True
        free, self._idle = self._idle, []
        for connection in free:
            connection.close()

    async def close(self) -> None:
        """Close all connections; requests under way fail."""
        self._is_closed = True
        self._deadlines.close()
        self._idle.clear()
        connections = list(self._connections)
        for connection in connections:
            connection.abort()
        if connections:
            await asyncio.wait([connection.closed for connection in connections], timeout=1.0)
