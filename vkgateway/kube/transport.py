"""Requests to one API server and watches of it, over connections that are kept alive: bytes out, bytes in."""

from __future__ import annotations

import asyncio
import contextlib
import ssl as ssl_module
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Final, Self

import structlog

from vkgateway.kube import errors
from vkgateway.kube.connections import Connections, close_all
from vkgateway.kube.dialer import HostDialer
from vkgateway.kube.endpoint import Endpoint
from vkgateway.kube.requests import JSON, Params, RequestBuilder
from vkgateway.kube.response_streams import ResponseStream
from vkgateway.kube.responses import ResponseTooLargeError
from vkgateway.model.errors import VkgatewayError

log = structlog.get_logger(__name__)

_CONNECT_TIMEOUT: Final = 10.0
_ERROR_BODY_TIMEOUT: Final = 5.0
_ERROR_BODY_MAX: Final = 64 * 1024
_UNAUTHORIZED: Final = 401
_RENEWAL_INTERVAL: Final = 5.0
"""Seconds between two looks for other credentials, which are read from files."""

TokenSource = Callable[[], Awaitable[str]]
CredentialSource = Callable[[], tuple[ssl_module.SSLContext | None, TokenSource | None] | None]
"""Gives the TLS identity and the bearer token's source anew; None where they are as before. Raises VkgatewayError."""


class Transport:
    """Speaks to one API server; safe to share between tasks of one event loop.

    `server` is its base URL (a path prefix is kept), `ssl` the TLS identity of both sides, `token` is awaited
    before each request and gives a bearer token, `renewal` is asked for other ones once the server does not take us for
    who we are, or we not it; `name` is how errors call the server, `streaming_lists` whether it may have them:
    reflectors ask for one where it may, and remember here where it has none. `single_server` says that nobody else
    serves these objects, so that what its cache holds is never older than what it told before: reflectors begin with
    that then. Every method raises `errors.ApiError`.
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
    ) -> None:
        self.streaming_lists = streaming_lists
        self.single_server: Final = single_server
        self.server: Final = server.rstrip("/")
        self.ssl = ssl
        self._request_builder: Final = RequestBuilder(self.server)
        self.name: Final = name or self.server
        self.server_hostname: Final = server_hostname
        self.dialer: Final = HostDialer()
        self._token = token
        self._renewal = renewal
        self._renewed_at = float("-inf")
        self._max_connections = max_connections
        self._connections: Connections | None = None
        self._draining: list[Connections] = []
        self._is_closed = False

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
        """Send one request and return the whole answer; `path` is absolute and percent-encoded already.

        With `metadata_only` a server that can leaves all but the metadata out of an answer that is an object.
        """
        connections = self._connections or self._open_connections()
        message = self._request_builder.build_request(
            method,
            path,
            params=params,
            body=body,
            content_type=content_type,
            metadata_only=metadata_only,
            token="" if self._token is None else await self._get_token(self._token),
        )
        try:
            answer = await connections.request_pool.request(method, message, timeout=timeout)
        except ResponseTooLargeError as error:
            raise errors.ResponseTooLarge(f"{method} {path} at {self.name}: {error}", status=500) from error
        except (TimeoutError, OSError) as error:
            raise self.unreachable_error(method, path, error) from error
        if answer.status < 300:
            return answer.body
        raise self._response_error(method, path, answer.status, answer.body, retry_after=answer.header("retry-after"))

    @contextlib.asynccontextmanager
    async def open_watch(
        self,
        path: str,
        params: Params | None = None,
        *,
        inactivity: float | None = None,
        longest: float | None = None,
    ) -> AsyncIterator[ResponseStream]:
        """GET an answer that goes on: a watch.

        There is no limit in time but those of `ResponseStream`. Errors while reading the body come as OSError;
        `unreachable_error` makes one of ours of them.
        """
        self._check_open()
        token = "" if self._token is None else await self._get_token(self._token)
        message = self._request_builder.build_request("GET", path, params=params, token=token)
        streams = (self._connections or self._open_connections()).stream_pool
        try:
            stream = await streams.open_stream(message, inactivity=inactivity, longest=longest)
        except OSError as error:
            raise self.unreachable_error("GET", path, error) from error
        try:
            self._check_open()
            if stream.status >= 300:
                raise await self._stream_error(path, stream)
            yield stream
        finally:
            streams.release_stream(stream)

    async def authorization_headers(self) -> dict[str, str]:
        """The headers by which this client proves itself, for those who speak to the server on their own."""
        if self._token is None:
            return {}
        return {"Authorization": f"Bearer {await self._get_token(self._token)}"}

    async def close(self) -> None:
        """Close all connections; requests under way fail, later ones are refused."""
        self._is_closed = True
        everything = [*self._draining, *([self._connections] if self._connections else [])]
        self._connections, self._draining = None, []
        await close_all(everything)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _open_connections(self) -> Connections:
        """What all requests and streams go over from now on."""
        self._check_open()
        place = self._request_builder.server_url
        secure = place.scheme == "https"
        server = Endpoint(
            host=place.host,
            port=place.port,
            ssl=(self.ssl or ssl_module.create_default_context()) if secure else None,
            server_hostname=self.server_hostname,
            connect_timeout=_CONNECT_TIMEOUT,
            dialer=self.dialer,
        )
        self._connections = Connections(server, limit=self._max_connections)
        return self._connections

    async def _get_token(self, token: TokenSource) -> str:
        """A bearer token; where none can be had now, the server cannot be asked."""
        try:
            return await token()
        except VkgatewayError as error:
            raise errors.Unreachable(f"no credentials for {self.name}: {error}", hint=error.hint) from error

    def _renew_credentials(self) -> None:
        """See whether there are other credentials by now; what is under way goes on with those that it began with."""
        now = asyncio.get_running_loop().time()
        if self._renewal is None or now < self._renewed_at + _RENEWAL_INTERVAL:
            return
        self._renewed_at = now
        try:
            found = self._renewal()
        except VkgatewayError as error:
            log.warning("credentials cannot be read anew", server=self.name, error=str(error))
            return
        if found is None:
            return
        log.info("other credentials", server=self.name)
        self._set_credentials(*found)

    def adopt_credentials(self, other: Transport) -> None:
        """Prove itself as another client does from now on; what is under way goes on with what it began with."""
        self._set_credentials(other.ssl, other._token)

    def _set_credentials(self, ssl: ssl_module.SSLContext | None, token: TokenSource | None) -> None:
        self.ssl, self._token = ssl, token
        if self._connections is not None:
            self._connections.start_draining()
            self._draining = [former for former in (*self._draining, self._connections) if former.is_in_use]
            self._connections = None

    def _check_open(self) -> None:
        if self._is_closed:
            raise errors.Unreachable(f"the client of {self.name} is closed")

    def _response_error(
        self, method: str, path: str, status: int, answer: bytes, *, retry_after: str | None
    ) -> errors.ApiError:
        if status == _UNAUTHORIZED:
            self._renew_credentials()
        return errors.from_response(status, answer, what=f"{method} {path} at {self.name}", retry_after=retry_after)

    async def _stream_error(self, path: str, stream: ResponseStream) -> errors.ApiError:
        """Read the error; not all of it, for it need have no end."""
        said = b""
        try:
            async with asyncio.timeout(_ERROR_BODY_TIMEOUT):
                while len(said) < _ERROR_BODY_MAX and (piece := await stream.read()):
                    said += piece
        except OSError as error:
            if not said:
                return self.unreachable_error("GET", path, error)
        return self._response_error("GET", path, stream.status, said, retry_after=stream.header("retry-after"))

    def unreachable_error(self, method: str, path: str, error: Exception) -> errors.Unreachable:
        """The error of ours that a failed connection is."""
        if isinstance(error, ssl_module.SSLError):
            self._renew_credentials()
        why = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
        return errors.Unreachable(f"{method} {path} at {self.name}: {why}", reason="Unreachable")
