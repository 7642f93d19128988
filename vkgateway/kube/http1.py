"""Minimal HTTP/1.1 client with a pool of kept-alive connections to one server.

A pod's life takes six requests. A general HTTP client spends more CPU time on each request than the gateway spends on
everything else for the pod. API servers need no redirects, cookies, compression or proxies.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from typing import Final, Protocol, TypeVar

from vkgateway.kube.endpoint import IDLE_SECONDS, Endpoint
from vkgateway.kube.errors import NotLeader
from vkgateway.kube.responses import MalformedResponseError, Response, ResponseParser
from vkgateway.kube.sockets import discard_on_close
from vkgateway.kube.tls_protocol import TlsProtocol
from vkgateway.kube.write_gate import Permit

_IDEMPOTENT: Final = frozenset({"GET", "PUT", "DELETE"})
_PART_BYTES: Final = 16 * 1024
"""Size that the send buffer of a connection without unread requests always has space for."""
_LAST_PART_BYTES: Final = 1024


class ConnectionClosedError(ConnectionError):
    """The server closed the connection before the response was complete."""

    def __init__(self, message: str, *, unused: bool = False) -> None:
        super().__init__(message)
        self.is_unused = unused
        """Whether no byte of a response had arrived."""


class ConnectionOwner(Protocol):
    """Owner of connections."""

    def forget_connection(self, connection: Connection) -> None:
        """Drop a closed connection."""


class Connection(TlsProtocol):
    """A connection that carries one request at a time."""

    def __init__(self, owner: ConnectionOwner) -> None:
        super().__init__()
        self.was_used = False
        self.idle_since = 0.0
        self._loop = asyncio.get_running_loop()  # stored: before Python 3.12, each call asks the kernel for the pid
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._owner = owner
        self._waiter: asyncio.Future[Response] | None = None
        self._parser = ResponseParser()
        self._unsent = memoryview(b"")
        """End of a large request that the kernel has no space for yet."""
        self._permit: Permit | None = None

    @property
    def is_reusable(self) -> bool:
        """Whether another request may be sent."""
        return self.transport is not None and not self.transport.is_closing() and self._waiter is None

    def send_request(self, request: bytes, *, permit: Permit | None = None) -> asyncio.Future[Response]:
        """Send a request. The returned future gets the response, ConnectionError or NotLeader.

        A `permit` is checked after the encryption, right before the kernel takes the bytes: a process may be frozen at
        any moment, and what it has passed to the kernel arrives. Of a large request, each part is checked, and the last
        part is sent alone. So a request is complete only if the permit was valid at its end.
        """
        waiter: asyncio.Future[Response] = self._loop.create_future()
        self._waiter = waiter
        if permit is None:
            self.write(request)
        elif len(request) <= _PART_BYTES:
            self._send_part(request, permit)
        else:
            assert self.transport is not None
            self.transport.set_write_buffer_limits(high=0)  # calls resume_writing when the kernel has taken all bytes
            self._unsent, self._permit = memoryview(request), permit
            self._send_parts()
        return waiter

    def revoke(self) -> None:
        """Close the connection, and discard what the server has not received, so that it does not arrive later."""
        if self.transport is not None:
            discard_on_close(self.transport)
        self.abort()

    def resume_writing(self) -> None:
        """Send more of a large request."""
        if self._unsent:
            self._send_parts()

    def _send_parts(self) -> None:
        """Send parts of a large request until the kernel has no space, or all is sent."""
        assert self.transport is not None
        assert self._permit is not None
        while self._unsent and not self.transport.get_write_buffer_size():
            size = min(_PART_BYTES, max(len(self._unsent) - _LAST_PART_BYTES, 0)) or len(self._unsent)
            part, self._unsent = self._unsent[:size], self._unsent[size:]
            self._send_part(bytes(part), self._permit)

    def _send_part(self, part: bytes, permit: Permit) -> None:
        try:
            self.write_checked(part, permit.check)
        except NotLeader as error:
            self._unsent = memoryview(b"")
            self._fail_request(error)
            self.abort()

    def handle_data(self, data: bytes) -> None:
        """Parse bytes of the response."""
        if self._waiter is None:
            self.abort()  # unsolicited bytes must not become the response of the next request
            return
        try:
            response = self._parser.feed(data)
        except MalformedResponseError as error:
            self._fail_request(error)
            self.abort()
            return
        if response is not None:
            self._complete_request(response)

    def handle_close(self, error: Exception | None) -> None:
        """Complete a response without a length, or fail the request."""
        response = None if error is not None else self._parser.handle_eof()
        if response is not None:
            self._complete_request(response)
        elif isinstance(error, ssl.SSLError) and not self.was_used:
            self._fail_request(error)  # in TLS 1.3, the refusal of a client certificate may arrive with the response
        else:
            message = str(error) if error is not None else "the server closed the connection"
            self._fail_request(ConnectionClosedError(message, unused=self._parser.is_untouched))
        if not self.closed.done():
            self.closed.set_result(None)
        self._owner.forget_connection(self)

    def _complete_request(self, response: Response) -> None:
        if self._unsent:  # the server has answered before the end of the request
            self._unsent = memoryview(b"")
            self.abort()
        elif not self._parser.keeps_alive:
            self.close()
        self._parser = ResponseParser()
        waiter, self._waiter = self._waiter, None
        self.was_used = True
        if waiter is not None and not waiter.done():
            waiter.set_result(response)

    def _fail_request(self, error: Exception) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)


class ConnectionPool:
    """Connections to one server, at most `limit`. Further requests wait in a queue."""

    def __init__(self, server: Endpoint, *, limit: int) -> None:
        self._server = server
        self._limit = limit
        self._idle: list[Connection] = []
        self._connections: set[Connection] = set()
        self._active_requests = 0
        self._slot_waiters: deque[asyncio.Future[None]] = deque()
        self._loop = asyncio.get_running_loop()  # stored, see `Connection`
        self._deadlines = Deadlines()
        self._is_closed = False
        self._is_draining = False

    async def request(self, method: str, request: bytes, *, timeout: float, permit: Permit | None = None) -> Response:
        """Send the bytes of a request and return the response.

        An idempotent request is sent again if the server has closed a reused connection. `permit` is checked right
        before the bytes are written. Raises OSError (TimeoutError and ConnectionError included), NotLeader.
        """
        until = self._loop.time() + timeout
        try:
            await self._acquire_slot(until)
            try:
                return await self._send_and_receive(method, request, until, permit=permit)
            finally:
                self._release_slot()
        except TimeoutError:
            raise TimeoutError(f"no response within {timeout:g} s") from None

    async def _send_and_receive(self, method: str, request: bytes, until: float, *, permit: Permit | None) -> Response:
        while True:
            connection = self.take_idle() or await self._open_connection(until)
            try:
                if permit is None:
                    response = await self._deadlines.wait(connection.send_request(request), until=until)
                else:
                    response = await self._send_with_permit(connection, request, permit, until)
            except ConnectionClosedError as error:
                if connection.was_used and error.is_unused and method in _IDEMPOTENT:
                    continue
                raise
            except BaseException:
                connection.abort()  # a late response must not become the response of the next request
                raise
            self._server.activity.last_heard = connection.idle_since = self._loop.time()
            if self._is_draining:
                connection.close()
            elif connection.is_reusable:
                self._idle.append(connection)
            return response

    async def _send_with_permit(self, connection: Connection, request: bytes, permit: Permit, until: float) -> Response:
        permit.begin(connection)
        try:
            return await self._deadlines.wait(connection.send_request(request, permit=permit), until=until)
        finally:
            permit.end(connection)

    def take_idle(self) -> Connection | None:
        """Remove and return the last used idle connection, or None. Close stale connections."""
        oldest = self._loop.time() - IDLE_SECONDS
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable and connection.idle_since >= oldest:
                return connection
            connection.abort()
        return None

    async def _open_connection(self, until: float) -> Connection:
        self._check_open()
        async with asyncio.timeout_at(until):
            connection = await self._server.open_connection(Connection(self))
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

    def forget_connection(self, connection: Connection) -> None:
        """Drop a closed connection."""
        self._connections.discard(connection)
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)

    async def _acquire_slot(self, until: float) -> None:
        if self._active_requests >= self._limit:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._slot_waiters.append(waiter)
            try:
                await self._deadlines.wait(waiter, until=until)
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                    self._release_slot()
                raise
            return
        self._active_requests += 1

    def _release_slot(self) -> None:
        """Pass the slot to the next waiting request, or free the slot."""
        while self._slot_waiters:
            waiter = self._slot_waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._active_requests -= 1

    @property
    def is_in_use(self) -> bool:
        """Whether requests or connections exist."""
        return self._active_requests > 0 or bool(self._connections)

    def start_draining(self) -> None:
        """Stop reusing connections. Current requests continue."""
        self._is_draining = True
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    async def close(self) -> None:
        """Close all connections. Current requests fail."""
        self._is_closed = True
        self._deadlines.close()
        self._idle.clear()
        connections = list(self._connections)
        for connection in connections:
            connection.abort()
        if connections:
            await asyncio.wait([connection.closed for connection in connections], timeout=1.0)


T = TypeVar("T")


class Deadlines:
    """Awaited futures and their deadlines. For one event loop."""

    def __init__(self) -> None:
        self._due: dict[asyncio.Future[object], float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at = 0.0
        """Time of the timer, in the event loop's time."""

    async def wait(self, future: asyncio.Future[T], *, until: float) -> T:
        """Return a future's result. Raises TimeoutError at the event loop's time `until`."""
        awaited: asyncio.Future[object] = future  # type: ignore[assignment] # the result's type does not matter
        self._due[awaited] = until
        if self._timer is None or until < self._fires_at:
            self._arm_timer(until)
        try:
            return await future
        finally:
            del self._due[awaited]

    def close(self) -> None:
        """Cancel the timer. Futures that are still awaited do not time out."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm_timer(self, when: float) -> None:
        self.close()
        self._fires_at = when
        self._timer = asyncio.get_running_loop().call_at(when, self._expire_due)

    def _expire_due(self) -> None:
        self._timer = None
        # An event loop's timers have a resolution of milliseconds, and may fire early by that.
        now = asyncio.get_running_loop().time() + 0.001
        for future, due in self._due.items():
            if due <= now and not future.done():
                future.set_exception(TimeoutError())
        remaining = [due for due in self._due.values() if due > now]
        if remaining:
            self._arm_timer(min(remaining))
