"""Requests and watches of one API server over kept-alive connections, in bytes."""

from __future__ import annotations

import asyncio
import contextlib
import ssl as ssl_module
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final, Self

import structlog

from vkgateway.api.errors import VkgatewayError
from vkgateway.kube import errors
from vkgateway.kube.bearer import TokenSource
from vkgateway.kube.endpoint import Endpoint, HostDialer
from vkgateway.kube.http1 import ConnectionPool
from vkgateway.kube.requests import JSON, Params, RequestBuilder
from vkgateway.kube.response_streams import ResponseStream, StreamPool
from vkgateway.kube.responses import ResponseTooLargeError
from vkgateway.kube.store_budget import StoreBudget
from vkgateway.kube.write_gate import WriteGate

log = structlog.get_logger(__name__)

_CONNECT_TIMEOUT: Final = 10.0
_ERROR_BODY_TIMEOUT: Final = 5.0
_ERROR_BODY_MAX: Final = 64 * 1024
_UNAUTHORIZED: Final = 401
_RENEWAL_INTERVAL: Final = 5.0
"""Minimum seconds between two attempts to renew the credentials, which are read from files."""

CredentialSource = Callable[[], tuple[ssl_module.SSLContext | None, TokenSource | None] | None]
"""Returns renewed TLS settings and token source, or None if they are unchanged. Raises VkgatewayError."""


class Transport:
    """Connections to one API server. Tasks of one event loop may share it. Every method raises `errors.ApiError`.

    `server` is the base URL; its path is a prefix of all paths. `ssl` holds the TLS settings. `token` returns a bearer
    token before each request. `renewal` returns new credentials after the server refuses the current ones, or after
    verification of the server fails. `name` is the server's name in errors.

    `streaming_lists` says whether the server may support streaming lists; reflectors reset it if the server does not.
    `single_server` says that no other server changes these objects, so that its watch cache is never older than earlier
    responses. Then reflectors start with a list from the watch cache.

    `traffic` counts requests. Clients may share one. `store_budget` bounds the objects that reflectors keep of this
    server; None: it is trusted.
    """

    def __init__(
        self,
        server: str,
        *,
        ssl: ssl_module.SSLContext | None = None,
        token: TokenSource | None = None,
        renewal: CredentialSource | None = None,
        name: str = "",
        max_connections: int = 64,
        server_hostname: str | None = None,
        streaming_lists: bool = True,
        single_server: bool = False,
        traffic: Traffic | None = None,
        store_budget: StoreBudget | None = None,
    ) -> None:
        self.streaming_lists = streaming_lists
        self.single_server: Final = single_server
        self.server: Final = server.rstrip("/")
        self.ssl = ssl
        self._request_builder: Final = RequestBuilder(self.server)
        self.name: Final = name or self.server
        self.server_hostname: Final = server_hostname
        self.dialer: Final = HostDialer()
        self.traffic: Final = traffic or Traffic()
        self._token = token
        self._renewal = renewal
        self._renewed_at = float("-inf")
        self._max_connections = max_connections
        self._connections: Connections | None = None
        self._draining: list[Connections] = []
        self._is_closed = False
        self._gate: WriteGate | None = None
        self.store_budget = store_budget

    def guard_writes(self, gate: WriteGate | None) -> Self:
        """Send requests that may change objects only while `gate` permits it (None: always). Return this client."""
        self._gate = gate
        return self

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        metadata_only: bool = False,
        timeout: float = 30,
    ) -> bytes:
        """Send a request and return the body of the response. `path` is absolute and percent-encoded.

        Raises NotLeader if the client's gate does not permit a write.

        With `metadata_only`, the server returns only the metadata of an object, if it supports that.
        """
        permit = None if self._gate is None else self._gate.permit_for(method, path)
        if permit is not None:
            permit.check()  # before a connection is opened in vain
        connections = self._connections or self._open_connections()
        message = self._request_builder.build_request(
            method,
            path,
            params=params,
            body=body,
            content_type=content_type,
            metadata_only=metadata_only,
            token="" if self._token is None else await _fetch_token(self._token, self.name),
        )
        self.traffic.count_request(method)
        try:
            response = await connections.request_pool.request(method, message, timeout=timeout, permit=permit)
        except ResponseTooLargeError as error:
            raise errors.ResponseTooLarge(f"{method} {path} at {self.name}: {error}", status=500) from error
        except (TimeoutError, OSError) as error:
            raise self.unreachable_error(method, path, error) from error
        if response.status < 300:
            return response.body
        retry_after = response.header("retry-after")
        raise self._response_error(method, path, response.status, response.body, retry_after=retry_after)

    @contextlib.asynccontextmanager
    async def open_watch(
        self,
        path: str,
        params: Params | None = None,
        *,
        inactivity: float | None = None,
        longest: float | None = None,
    ) -> AsyncIterator[ResponseStream]:
        """Open a streaming response of a GET request: a watch.

        For the time limits, see `ResponseStream`. Reading the body raises OSError; `unreachable_error` converts it.
        """
        self._check_open()
        token = "" if self._token is None else await _fetch_token(self._token, self.name)
        message = self._request_builder.build_request("GET", path, params=params, token=token)
        streams = (self._connections or self._open_connections()).stream_pool
        try:
            stream = await streams.open_stream(message, inactivity=inactivity, longest=longest)
        except OSError as error:
            raise self.unreachable_error("GET", path, error) from error
        try:
            self._check_open()
            if stream.response.status >= 300:
                raise await self._stream_error(path, stream)
            with self.traffic.count_watch():
                yield stream
        finally:
            streams.release_stream(stream)

    async def authorization_headers(self) -> dict[str, str]:
        """Return the headers with the bearer token, for requests on separate connections."""
        if self._token is None:
            return {}
        return {"Authorization": f"Bearer {await _fetch_token(self._token, self.name)}"}

    async def close(self) -> None:
        """Close all connections. Current and later requests fail."""
        self._is_closed = True
        all_connections = [*self._draining, *([self._connections] if self._connections else [])]
        self._connections, self._draining = None, []
        await close_all(all_connections)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _open_connections(self) -> Connections:
        """Create the connection pools for all later requests and streams."""
        self._check_open()
        url = self._request_builder.server_url
        is_secure = url.scheme == "https"
        server = Endpoint(
            host=url.host,
            port=url.port,
            ssl=(self.ssl or ssl_module.create_default_context()) if is_secure else None,
            server_hostname=self.server_hostname,
            connect_timeout=_CONNECT_TIMEOUT,
            dialer=self.dialer,
        )
        self._connections = Connections(server, limit=self._max_connections)
        return self._connections

    def _renew_credentials(self) -> None:
        """Replace changed credentials. Current requests continue with their credentials."""
        now = asyncio.get_running_loop().time()
        if self._renewal is None or now < self._renewed_at + _RENEWAL_INTERVAL:
            return
        self._renewed_at = now
        try:
            credentials = self._renewal()
        except VkgatewayError as error:
            log.warning("credentials cannot be renewed", server=self.name, error=str(error))
            return
        if credentials is None:
            return
        log.info("credentials renewed", server=self.name)
        self._set_credentials(*credentials)

    def adopt_credentials(self, other: Transport) -> None:
        """Use the credentials of another client. Current requests continue with their credentials."""
        self._set_credentials(other.ssl, other._token)

    def _set_credentials(self, ssl: ssl_module.SSLContext | None, token: TokenSource | None) -> None:
        self.ssl, self._token = ssl, token
        if self._connections is not None:
            self._connections.start_draining()
            self._draining = [old for old in (*self._draining, self._connections) if old.is_in_use]
            self._connections = None

    def _check_open(self) -> None:
        if self._is_closed:
            raise errors.Unreachable(f"the client of {self.name} is closed")

    def _response_error(
        self, method: str, path: str, status: int, body: bytes, *, retry_after: str | None
    ) -> errors.ApiError:
        if status == _UNAUTHORIZED:
            self._renew_credentials()
        return errors.from_response(status, body, what=f"{method} {path} at {self.name}", retry_after=retry_after)

    async def _stream_error(self, path: str, stream: ResponseStream) -> errors.ApiError:
        """Read the error from a stream, up to a limit: the body may be endless."""
        body = b""
        try:
            async with asyncio.timeout(_ERROR_BODY_TIMEOUT):
                while len(body) < _ERROR_BODY_MAX and (chunk := await stream.read()):
                    body += chunk
        except OSError as error:
            if not body:
                return self.unreachable_error("GET", path, error)
        return self._response_error(
            "GET", path, stream.response.status, body, retry_after=stream.response.header("retry-after")
        )

    def unreachable_error(self, method: str, path: str, error: Exception) -> errors.Unreachable:
        """Return the ApiError for a failed connection. After a TLS error, renew the credentials."""
        if isinstance(error, ssl_module.SSLError):
            self._renew_credentials()
        reason = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
        return errors.Unreachable(f"{method} {path} at {self.name}: {reason}", reason="Unreachable")


async def _fetch_token(source: TokenSource, server: str) -> str:
    """Return a bearer token. Raises errors.Unreachable if no token is available."""
    try:
        return await source()
    except VkgatewayError as error:
        raise errors.Unreachable(f"no credentials for {server}: {error}", hint=error.hint) from error


class Connections:
    """Connection pools for requests (at most `limit` at a time) and streams.

    Streams use separate connections, because long-lived streams would block requests. A new stream takes over an idle
    connection of the requests, so that a list and the following watch need one handshake.
    """

    def __init__(self, server: Endpoint, *, limit: int) -> None:
        self.request_pool = ConnectionPool(server, limit=limit)
        self.stream_pool = StreamPool(server, request_pool=self.request_pool)

    @property
    def is_in_use(self) -> bool:
        """Whether requests, streams or connections exist."""
        return self.request_pool.is_in_use or self.stream_pool.is_in_use

    def start_draining(self) -> None:
        """Stop reusing connections. Current requests and streams continue."""
        self.request_pool.start_draining()
        self.stream_pool.start_draining()

    async def close(self) -> None:
        """Close all connections. Current requests and streams fail."""
        self.stream_pool.close()
        await self.request_pool.close()


async def close_all(all_connections: list[Connections]) -> None:
    """Close connections concurrently."""
    await asyncio.gather(*(connections.close() for connections in all_connections))


WATCH: Final = "WATCH"
"""Method under which watches are counted."""


class Traffic:
    """Requests so far by method, and the number of open watches."""

    def __init__(self) -> None:
        self.requests: Final[Counter[str]] = Counter()
        self.open_watches = 0

    def count_request(self, method: str) -> None:
        """Count a request that is not a watch."""
        self.requests[method] += 1

    @contextlib.contextmanager
    def count_watch(self) -> Iterator[None]:
        """Count a watch, which is open within the block."""
        self.requests[WATCH] += 1
        self.open_watches += 1
        try:
            yield
        finally:
            self.open_watches -= 1
