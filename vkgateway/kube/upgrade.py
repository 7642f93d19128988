"""Connections of their own to an API server: upgraded to SPDY or WebSocket, or left to stream one body, and
tunnelled.

The head of a request and its answer go through h11; what follows is passed on byte by byte, undecoded, so
that every protocol version that client and server agree on works, frames, channels and exit codes included.
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
from vkgateway.kube.dialer import HostDialer
from vkgateway.kube.endpoint import Endpoint
from vkgateway.kube.errors import Unreachable

Headers = tuple[tuple[str, str], ...]
"""Names in lower case, in the order they came."""
Params = Iterable[tuple[str, str]]
BytesFilter = Callable[[bytes], bytes]
AliveCheck = Callable[[], bool]
"""Whether what the stream is about is still there."""

_MAX_HEAD_BYTES = 64 * 1024
_LAST_CHUNK = b"0\r\n\r\n"
_MAX_BODY_BYTES = 64 * 1024
_LINGER_SECONDS = 30.0
"""Seconds in which a slow side may take what was left when the other side ended."""
ALIVE_CHECK_SECONDS = 2.0
"""How often it is asked whether what a stream is about is still there."""
QUIET_SECONDS = 5.0
"""How long nothing may move once it is not."""


class Dialable(Protocol):
    """What a connection needs to know of a client: `vkgateway.kube.client.Client` is one."""

    @property
    def name(self) -> str:
        """Which server it is, for messages."""

    @property
    def server(self) -> str:
        """Base URL, as `https://host:port`."""

    @property
    def ssl(self) -> ssl.SSLContext | None:
        """TLS settings with the client's certificate; None for plain HTTP."""

    @property
    def server_hostname(self) -> str | None:
        """The name the server's certificate must carry, where that is not the URL's host."""

    @property
    def dialer(self) -> HostDialer:
        """Those of the server's host, and which of them answered last."""

    async def authorization_headers(self) -> dict[str, str]:
        """The header that proves who we are, if the certificate does not."""


@dataclass(frozen=True, slots=True)
class OpenedStream:
    """The server went along: 101 for an upgrade, 200 for a stream; `stream` now carries what follows the
    head.
    """

    status: int
    headers: Headers
    stream: ByteStream


@dataclass(frozen=True, slots=True)
class RefusedStream:
    """The server answered with an ordinary response; the connection is closed. `body` is cut at 64 KiB."""

    status: int
    headers: Headers
    body: bytes


class TunnelEnd(Enum):
    """Why a tunnel ended."""

    NEAR = "near"
    FAR = "far"
    IDLE = "idle"
    GONE = "gone"


async def open_upgrade(
    client: Dialable, method: str, path: str, *, params: Params = (), headers: Headers, timeout: float = 30.0
) -> OpenedStream | RefusedStream:
    """Ask for a connection upgrade; `headers` hold `upgrade` and what goes with it.

    Raises Unreachable where there is no answer within `timeout` seconds.
    """
    head = (*headers, ("connection", "Upgrade"))
    return await _send_request(client, method, path, params=params, headers=head, accept=101, timeout=timeout)


async def open_stream(
    client: Dialable, path: str, *, params: Params = (), timeout: float | None = 30.0
) -> OpenedStream | RefusedStream:
    """GET a body of unknown length, left in the wire exactly as it is framed by `headers`.

    `timeout` seconds are allowed for the answer's head, None is for ever: a kubelet sends none before the
    first log line. The server is told to close the connection at the body's end. Raises Unreachable.
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
    wire = await dial_server(client)
    try:
        async with asyncio.timeout(timeout):
            answer = await _exchange_heads(wire, request, accept=accept)
    except TimeoutError as error:
        wire.abort()
        raise Unreachable(f"{client.name} gave no answer to {method} {path} in {timeout} s") from error
    except (OSError, h11.RemoteProtocolError) as error:
        wire.abort()
        raise Unreachable(f"{client.name} broke off {method} {path}: {error}") from error
    except BaseException:
        wire.abort()
        raise
    if isinstance(answer, RefusedStream):
        await wire.close_gracefully(linger=1.0)
    return answer


async def _exchange_heads(wire: ByteStream, request: h11.Request, *, accept: int) -> OpenedStream | RefusedStream:
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
    wire.write(b"".join(http.send(part) or b"" for part in (request, h11.EndOfMessage())))
    while True:
        event = await _next_event(wire, http)
        if isinstance(event, h11.InformationalResponse) and event.status_code != 101:
            continue
        if not isinstance(event, h11.InformationalResponse | h11.Response):
            raise ConnectionResetError("the connection was closed without an answer")
        headers = tuple((name.decode(), value.decode("latin-1")) for name, value in event.headers)
        if event.status_code == accept:
            wire.push_back(http.trailing_data[0])
            return OpenedStream(event.status_code, headers, wire)
        return RefusedStream(event.status_code, headers, await _read_body(wire, http))


async def _read_body(wire: ByteStream, http: h11.Connection) -> bytes:
    body = bytearray()
    while len(body) < _MAX_BODY_BYTES:
        event = await _next_event(wire, http)
        if not isinstance(event, h11.Data):
            break
        body += event.data
    return bytes(body[:_MAX_BODY_BYTES])


async def _next_event(wire: ByteStream, http: h11.Connection) -> object:
    while (event := http.next_event()) is h11.NEED_DATA:
        http.receive_data(await wire.read())
    return event


def _split_last_chunk(data: bytes) -> tuple[bytes, ...]:
    """The end of a body in chunks apart from what is before it, to be sent as a record of its own.

    Go's reader tells the end along with the last bytes where both are at hand, and API servers, which pass logs on over
    WebSockets, then drop the bytes. Whatever merely looks like such an end is sent in two parts in vain.
    """
    if len(data) > len(_LAST_CHUNK) and data.endswith(_LAST_CHUNK):
        return data[: -len(_LAST_CHUNK)], _LAST_CHUNK
    return (data,)


class _TunnelRelay:
    """Two wires joined: what one receives the other sends, no faster than it takes it."""

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
        """Wait until both sides have ended, or until nothing has moved for too long; see `run_tunnel`."""
        while not self._is_over:
            ended, patience = self._idle_limit(idle=idle, linger=linger, alive=alive, quiet=quiet)
            left = None if patience is None else self._last_activity + patience - self._loop.time()
            if left is not None and left <= 0:
                return ended
            if alive is not None:
                left = min(ALIVE_CHECK_SECONDS, quiet, ALIVE_CHECK_SECONDS if left is None else left)
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changed.wait()
        return self._first_end or TunnelEnd.FAR

    def _idle_limit(
        self, *, idle: float | None, linger: float, alive: AliveCheck | None, quiet: float
    ) -> tuple[TunnelEnd, float | None]:
        """For how long nothing may move now, and what it means if nothing does."""
        bounds: list[tuple[float, TunnelEnd]] = []
        if idle is not None:
            bounds.append((idle, TunnelEnd.IDLE))
        if self._first_end is not None:
            bounds.append((linger, self._first_end))
        if alive is not None and not self._near.is_congested and not alive():
            bounds.append((quiet, TunnelEnd.GONE))
        if not bounds:
            return TunnelEnd.IDLE, None
        patience, ended = min(bounds, key=lambda bound: bound[0])
        return ended, patience


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
    """Pass bytes between two wires until both have ended, then close both; says who ended first.

    The end of one side's bytes is passed on as such, and the other's still go through, until for `linger` seconds none
    does; where a connection is gone altogether, it is over at once. Nothing moving for `idle_timeout` seconds
    ends it too (None: never), and so does nothing moving for `quiet` seconds once `alive` says no. With `one_way` what
    `near` sends is dropped, and the first end is the end. What arrived before is still delivered, for `linger` seconds
    at most. On cancellation both are cut off.
    """
    joint = _TunnelRelay(near, far, one_way=one_way, inward=inward)
    try:
        joint.attach_streams()
        ended = await joint.wait_until_ended(idle=idle_timeout, linger=linger, alive=alive, quiet=quiet)
        if ended in (TunnelEnd.IDLE, TunnelEnd.GONE):  # what has not moved for so long will not
            linger = min(linger, quiet)
        await asyncio.gather(near.close_gracefully(linger=linger), far.close_gracefully(linger=linger))
    finally:
        near.abort()
        far.abort()
    return ended
