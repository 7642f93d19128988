"""Separate connections to an API server for tunnels: upgraded to SPDY or WebSocket, or with one streamed body.

h11 processes the heads of request and response. All following bytes pass unchanged, so that every protocol version
works that client and server negotiate, including frames, channels and exit codes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol
from urllib.parse import urlencode, urlsplit

import h11

from vkgateway.kube.byte_stream import ByteStream
from vkgateway.kube.endpoint import Endpoint, HostDialer
from vkgateway.kube.errors import Unreachable

Headers = tuple[tuple[str, str], ...]
"""Names (lower case) and values, in their original order."""
Params = Iterable[tuple[str, str]]
BytesFilter = Callable[[bytes], bytes]
AliveCheck = Callable[[], bool]
"""Returns whether the subject of a tunnel (a pod) still exists."""

_MAX_HEAD_BYTES = 64 * 1024
_LAST_CHUNK = b"0\r\n\r\n"
_MAX_BODY_BYTES = 64 * 1024
_LINGER_SECONDS = 30.0
"""Seconds that a slow side may take to read the remaining bytes after the other side ended."""
ALIVE_CHECK_SECONDS = 2.0
"""Seconds between two checks of a tunnel's subject."""
QUIET_SECONDS = 5.0
"""Seconds without bytes until a tunnel without a subject ends."""


class Dialable(Protocol):
    """A client's settings that a connection needs. `vkgateway.kube.client.Client` implements this protocol."""

    @property
    def name(self) -> str:
        """Name of the server, for messages."""

    @property
    def server(self) -> str:
        """Base URL, like `https://host:port`."""

    @property
    def ssl(self) -> ssl.SSLContext | None:
        """TLS settings with the client's certificate; None for plain HTTP."""

    @property
    def server_hostname(self) -> str | None:
        """Name in the server's certificate, if it differs from the URL's host."""

    @property
    def dialer(self) -> HostDialer:
        """Dialer of the server's host, which knows the last good address."""

    async def authorization_headers(self) -> dict[str, str]:
        """Return the header with the bearer token, if the client has one."""


@dataclass(frozen=True, slots=True)
class OpenedStream:
    """The server accepted the request: 101 for an upgrade, 200 for a body. `stream` continues after the head."""

    headers: Headers
    stream: ByteStream


@dataclass(frozen=True, slots=True)
class RefusedStream:
    """The server refused the request with an ordinary response. `body` is limited to 64 KiB."""

    status: int
    body: bytes


class TunnelEnd(Enum):
    """Why a tunnel ended."""

    NEAR = "near"
    FAR = "far"
    IDLE = "idle"
    GONE = "gone"


async def open_upgrade(
    client: Dialable, method: str, path: str, *, params: Params = (), headers: Headers
) -> OpenedStream | RefusedStream:
    """Request an upgrade of the connection. `headers` contain `upgrade` and related headers.

    Raises Unreachable without a response within 30 seconds.
    """
    head = (*headers, ("connection", "Upgrade"))
    return await _send_request(client, method, path, params=params, headers=head, accept=101, timeout=30.0)


async def open_stream(
    client: Dialable, path: str, *, params: Params = (), timeout: float | None = 30.0
) -> OpenedStream | RefusedStream:
    """Request a body of unknown length. The stream contains the body in the framing that `headers` describe.

    `timeout` limits the wait for the head of the response; None means no limit, because a kubelet sends no head before
    the first log line. The request asks the server to close the connection after the body. Raises Unreachable.
    """
    return await _send_request(
        client, "GET", path, params=params, headers=(("connection", "close"),), accept=200, timeout=timeout
    )


async def dial_server(client: Dialable, *, timeout: float = 10.0) -> ByteStream:
    """Open a connection to the client's server, TLS handshake included. Raises Unreachable."""
    url = urlsplit(client.server)
    endpoint = Endpoint(
        host=url.hostname or "",
        port=url.port or (443 if url.scheme == "https" else 80),
        ssl=client.ssl,
        server_hostname=client.server_hostname,
        connect_timeout=timeout,
        tls_sessions=None,
        dialer=client.dialer,
    )
    try:
        return await endpoint.open_connection(ByteStream())
    except TimeoutError as error:
        raise Unreachable(f"{client.name} ({client.server}) did not answer in {timeout:g} s") from error
    except OSError as error:
        raise Unreachable(f"{client.name} ({client.server}) cannot be reached: {error}") from error


async def _send_request(
    client: Dialable,
    method: str,
    path: str,
    *,
    params: Params,
    headers: Headers,
    accept: int,
    timeout: float | None,
) -> OpenedStream | RefusedStream:
    url = urlsplit(client.server)
    target = url.path.rstrip("/") + path
    query = urlencode(list(params))
    head: list[tuple[str, str]] = [("host", url.netloc), ("user-agent", "vkgateway"), *headers]
    head.extend((await client.authorization_headers()).items())
    request = h11.Request(method=method, target=f"{target}?{query}" if query else target, headers=head)
    stream = await dial_server(client)
    try:
        async with asyncio.timeout(timeout):
            response = await _exchange_heads(stream, request, accept=accept)
    except TimeoutError as error:
        stream.abort()
        raise Unreachable(f"{client.name} gave no answer to {method} {path} in {timeout} s") from error
    except (OSError, h11.RemoteProtocolError) as error:
        stream.abort()
        raise Unreachable(f"{client.name} broke off {method} {path}: {error}") from error
    except BaseException:
        stream.abort()
        raise
    if isinstance(response, RefusedStream):
        await stream.close_gracefully(linger=1.0)
    return response


async def _exchange_heads(stream: ByteStream, request: h11.Request, *, accept: int) -> OpenedStream | RefusedStream:
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
    stream.write(b"".join(http.send(part) or b"" for part in (request, h11.EndOfMessage())))
    while True:
        event = await _next_event(stream, http)
        if isinstance(event, h11.InformationalResponse) and event.status_code != 101:
            continue
        if not isinstance(event, h11.InformationalResponse | h11.Response):
            raise ConnectionResetError("the connection was closed without a response")
        if event.status_code == accept:
            headers = tuple((name.decode(), value.decode("latin-1")) for name, value in event.headers)
            stream.push_back(http.trailing_data[0])
            return OpenedStream(headers, stream)
        return RefusedStream(event.status_code, await _read_body(stream, http))


async def _read_body(stream: ByteStream, http: h11.Connection) -> bytes:
    body = bytearray()
    while len(body) < _MAX_BODY_BYTES:
        event = await _next_event(stream, http)
        if not isinstance(event, h11.Data):
            break
        body += event.data
    return bytes(body[:_MAX_BODY_BYTES])


async def _next_event(stream: ByteStream, http: h11.Connection) -> object:
    while (event := http.next_event()) is h11.NEED_DATA:
        http.receive_data(await stream.read())
    return event


def _split_last_chunk(data: bytes) -> tuple[bytes, ...]:
    """Split off the last chunk of a chunked body, to send it in a separate TLS record.

    If the last bytes and the end are available together, Go's reader returns both in one call. API servers that forward
    logs over WebSockets then drop the bytes. Other data with the same ending is split, too, which is harmless.
    """
    if len(data) > len(_LAST_CHUNK) and data.endswith(_LAST_CHUNK):
        return data[: -len(_LAST_CHUNK)], _LAST_CHUNK
    return (data,)


class _TunnelRelay:
    """Two joined streams: each sends the bytes that the other receives, with back-pressure."""

    def __init__(self, near: ByteStream, far: ByteStream, *, one_way: bool, inward: BytesFilter | None) -> None:
        self._inward_filter = inward
        self._near = near
        self._far = far
        self._one_way = one_way
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._first_end: TunnelEnd | None = None
        self._is_over = False
        self._last_activity = self._loop.time()

    def attach_streams(self) -> None:
        for source, sink in ((self._near, self._far), (self._far, self._near)):
            source.attach_relay(self)
            if sink.is_congested:
                self.apply_backpressure(sink, on=True)

    def relay_data(self, source: ByteStream, data: bytes) -> None:
        self._last_activity = self._loop.time()
        if source is self._far:
            for part in _split_last_chunk(data) if self._one_way else (data,):
                self._near.write(part if self._inward_filter is None else self._inward_filter(part))
        elif not self._one_way:
            self._far.write(data)

    def handle_eof(self, source: ByteStream) -> None:
        self._last_activity = self._loop.time()
        both = self._near.has_ended and self._far.has_ended
        self._first_end = self._first_end or (TunnelEnd.NEAR if source is self._near else TunnelEnd.FAR)
        self._is_over = self._is_over or both or self._one_way or source.is_lost
        if not self._is_over:
            (self._far if source is self._near else self._near).write_eof()
        self._changed.set()

    def apply_backpressure(self, sink: ByteStream, *, on: bool) -> None:
        source = self._far if sink is self._near else self._near
        if on:
            source.pause_reading()
        else:
            source.resume_reading()

    async def wait_until_ended(
        self, *, idle: float | None, linger: float, alive: AliveCheck | None, quiet: float
    ) -> TunnelEnd:
        """Wait until both sides have ended, or until the idle limit; see `run_tunnel`."""
        while not self._is_over:
            end, limit = self._idle_limit(idle=idle, linger=linger, alive=alive, quiet=quiet)
            remaining = None if limit is None else self._last_activity + limit - self._loop.time()
            if remaining is not None and remaining <= 0:
                return end
            if alive is not None:
                remaining = min(ALIVE_CHECK_SECONDS, quiet, ALIVE_CHECK_SECONDS if remaining is None else remaining)
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(remaining):
                    await self._changed.wait()
        return self._first_end or TunnelEnd.FAR

    def _idle_limit(
        self, *, idle: float | None, linger: float, alive: AliveCheck | None, quiet: float
    ) -> tuple[TunnelEnd, float | None]:
        """Return the current limit of seconds without bytes (None: no limit), and the end that exceeding it means."""
        limits: list[tuple[float, TunnelEnd]] = []
        if idle is not None:
            limits.append((idle, TunnelEnd.IDLE))
        if self._first_end is not None:
            limits.append((linger, self._first_end))
        if alive is not None and not self._near.is_congested and not alive():
            limits.append((quiet, TunnelEnd.GONE))
        if not limits:
            return TunnelEnd.IDLE, None
        limit, end = min(limits, key=lambda entry: entry[0])
        return end, limit


async def run_tunnel(
    near: ByteStream,
    far: ByteStream,
    *,
    idle_timeout: float | None = None,
    one_way: bool = False,
    inward: BytesFilter | None = None,
    alive: AliveCheck | None = None,
    linger: float = _LINGER_SECONDS,
    quiet: float = QUIET_SECONDS,
) -> TunnelEnd:
    """Relay bytes between two streams until both have ended, then close both. Return the reason of the end.

    After one side's bytes end, the tunnel sends EOF to the other side and continues until the other side ends or sends
    nothing for `linger` seconds. The loss of a connection ends the tunnel immediately. The tunnel also ends after
    `idle_timeout` seconds without bytes (None: never), and after `quiet` seconds without bytes once `alive` returns
    false. With `one_way`, bytes from `near` are dropped, and the first end ends the tunnel.

    Remaining bytes are delivered within `linger` seconds. Cancellation aborts both connections.
    """
    relay = _TunnelRelay(near, far, one_way=one_way, inward=inward)
    try:
        relay.attach_streams()
        end = await relay.wait_until_ended(idle=idle_timeout, linger=linger, alive=alive, quiet=quiet)
        if end in (TunnelEnd.IDLE, TunnelEnd.GONE):  # a stalled stream is unlikely to resume
            linger = min(linger, quiet)
        await asyncio.gather(near.close_gracefully(linger=linger), far.close_gracefully(linger=linger))
    finally:
        near.abort()
        far.abort()
    return end
