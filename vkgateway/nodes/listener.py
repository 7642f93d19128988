"""Minimal HTTP/1.1 server over TCP, TLS or a Unix socket. Web frameworks take long to load."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Protocol, Self

import structlog

from vkgateway.api.errors import UnavailableError
from vkgateway.kube.byte_stream import ByteStream
from vkgateway.kube.loop_throttle import LoopThrottle
from vkgateway.kube.tls_engine import TlsEngine
from vkgateway.nodes.connection_tracker import ClientConnection, ConnectionLimit
from vkgateway.nodes.http import Reply, Request, Session
from vkgateway.runtime.socket_paths import short_socket_path

RequestHandler = Callable[[Request, Session], Awaitable[Reply | None]]
"""Answers a request. Returns None if it has answered itself and used up the connection."""

SOCKET_MODE: Final = 0o600
_HANDSHAKE_SECONDS: Final = 10.0
_REPLY_SECONDS: Final = 30.0
_MAX_BODY_BYTES: Final = 64 * 1024
"""Limit of a request's body. The largest is the sign-in at the page, whose client is not known yet."""
_ADDRESS_SHARE: Final = 4
"""Connections in total for one of an address, as at the kubelet endpoint."""

_log = structlog.get_logger(__name__)


class HttpListener:
    """Server for at most `connections` concurrent connections, which it closes after `idle_timeout` seconds.

    Of the connections whose request is incomplete, or whose client has not read the reply yet, an address has at most
    `per_address`, or a quarter of all. Above a limit, the server closes the oldest of them, and serves the new client.
    The `handler` limits its concurrent work.

    `name` describes the server in logs and errors. `hint` is the remedy for an address that is in use.
    """

    def __init__(
        self,
        handler: RequestHandler,
        *,
        name: str,
        tls: ssl.SSLContext | None = None,
        connections: int = 64,
        per_address: int | None = None,
        idle_timeout: float = 30.0,
        hint: str = "",
    ) -> None:
        self._handler = handler
        self._name = name
        self._tls = tls
        self._connections = connections
        self._waiting = ConnectionLimit(connections, per_address or connections // _ADDRESS_SHARE)
        """Connections whose request is not being answered now."""
        self._throttle = LoopThrottle()
        self._idle_timeout = idle_timeout
        self._hint = hint
        self._server: asyncio.Server | None = None
        self._path: Path | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._answering = 0

    async def listen_tcp(self, address: str, port: int) -> int:
        """Listen on a TCP port (0 for a free one), and return the port. Raises UnavailableError."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._create_stream, address, port, reuse_address=True)
        except OSError as error:
            message = f"{self._name} cannot listen on {address}:{port}: {error.strerror or error}"
            raise UnavailableError(message, hint=self._hint) from error
        bound_port: int = self._server.sockets[0].getsockname()[1]
        _log.info(f"{self._name} listens", address=address, port=bound_port)
        return bound_port

    async def listen_unix(self, path: Path) -> None:
        """Listen on a Unix socket that only its owner may use. Raises UnavailableError."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _bind_socket(listener, path)
            self._server = await asyncio.get_running_loop().create_unix_server(self._create_stream, sock=listener)
        except OSError as error:
            listener.close()
            message = f"{self._name} cannot listen at {path}: {error.strerror or error}"
            raise UnavailableError(message, hint=self._hint) from error
        self._path = path
        _log.info(f"{self._name} listens", socket=str(path))

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def accept_stream(self, stream: ByteStream) -> None:
        """Serve a new connection; see `AcceptedStream`."""
        connection = ClientConnection(stream)
        serve = self._serve_connection(connection)
        connection.task = asyncio.get_running_loop().create_task(serve, name=f"{self._name}-connection")
        self._tasks.add(connection.task)
        connection.task.add_done_callback(functools.partial(self._forget_connection, connection))
        self._await_request(connection)

    def _create_stream(self) -> AcceptedStream:
        tls = TlsEngine(self._tls, server_side=True) if self._tls is not None else None
        return AcceptedStream(tls, throttle=self._throttle, acceptor=self)

    def _await_request(self, connection: ClientConnection) -> None:
        """Count a connection as one that waits, and close another one above the limit."""
        self._waiting.add_connection(connection)
        if len(self._waiting) + self._answering > self._connections:
            self._waiting.close_oldest()

    def _forget_connection(self, connection: ClientConnection, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._waiting.remove_connection(connection)
        connection.task = None
        connection.stream.abort()  # a task that was cancelled before its first step has not closed the stream

    async def _serve_connection(self, connection: ClientConnection) -> None:
        """Answer the requests of a connection one after the other."""
        stream = connection.stream
        session = Session(stream, body_max=_MAX_BODY_BYTES)
        has_more = True
        try:
            async with asyncio.timeout(_HANDSHAKE_SECONDS):
                await stream.wait_opened()
            while has_more:
                request = await session.await_request(timeout=self._idle_timeout)
                reply = None if request is None else await self._answer(connection, request, session)
                if reply is None:
                    return
                async with asyncio.timeout(_REPLY_SECONDS):
                    has_more = await session.send_reply(reply)
        except OSError as error:  # includes TimeoutError
            _log.debug("connection ended", server=self._name, peer=stream.peer_address, error=str(error))
        except Exception:  # noqa: BLE001 - a defect in one request must not end the server; it is logged
            _log.exception("request failed", server=self._name, peer=stream.peer_address)
        finally:
            self._waiting.remove_connection(connection)
            with contextlib.suppress(asyncio.CancelledError):
                await stream.close_gracefully(linger=1.0)

    async def _answer(self, connection: ClientConnection, request: Request, session: Session) -> Reply | None:
        """Return the handler's reply. Meanwhile, the connection does not wait, so it is not closed above the limit."""
        self._waiting.remove_connection(connection)
        self._answering += 1
        try:
            reply = await self._handler(request, session)
        finally:
            self._answering -= 1
        if reply is not None:
            self._await_request(connection)
        return reply


def _bind_socket(listener: socket.socket, path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    mask = os.umask(0o777 & ~SOCKET_MODE)
    try:
        with short_socket_path(path) as short:
            listener.bind(short)
    finally:
        os.umask(mask)


class StreamAcceptor(Protocol):
    """Owner of accepted streams."""

    def accept_stream(self, stream: ByteStream) -> None:
        """Serve a new stream, whose TLS handshake, if any, is not complete."""


class AcceptedStream(ByteStream):
    """A connection of a client. `throttle` limits TLS handshakes to one per iteration of the event loop."""

    def __init__(self, tls: TlsEngine | None, *, throttle: LoopThrottle, acceptor: StreamAcceptor) -> None:
        super().__init__(tls)
        self._throttle = throttle
        self._acceptor = acceptor

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Pass the stream to the acceptor."""
        super().connection_made(transport)
        self._acceptor.accept_stream(self)

    def data_received(self, data: bytes) -> None:
        """Process bytes; bytes of the handshake wait for their iteration of the event loop."""
        if self.tls is not None and not self.tls.is_established:
            self.pause_reading()
            self._throttle.submit_work(functools.partial(self._receive_throttled, data))
        else:
            super().data_received(data)

    def _receive_throttled(self, data: bytes) -> None:
        if not self._is_closing:
            self.resume_reading()
            super().data_received(data)
