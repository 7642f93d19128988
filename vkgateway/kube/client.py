"""A thin client of one API server: bytes out, bytes in, over connections that are kept alive.

Objects are not typed here and answers are not decoded: callers that look at an answer decode the few fields
they need.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl as ssl_module
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, NamedTuple, Self
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from vkgateway.kube import errors, tls
from vkgateway.kube.answers import AnswerTooLongError
from vkgateway.kube.http1 import Pool
from vkgateway.kube.line import Server
from vkgateway.kube.resources import Resource
from vkgateway.kube.streams import Stream, open_stream
from vkgateway.model.errors import InputError
from vkgateway.version import __version__

Params = Mapping[str, str | int | bool]
PatchKind = Literal["merge", "strategic", "json", "apply"]

FIELD_MANAGER: Final = "vkgateway"
JSON: Final = "application/json"
_PATCH_TYPES: Final[dict[PatchKind, str]] = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}
_METADATA: Final = f"{JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1, {JSON}"
"""Asks for no more of an object than its metadata (Kubernetes API concepts, "Metadata-only fetches"): what was written
need be neither encoded, sent nor read again."""
_HEADERS: Final = {
    "User-Agent": f"{FIELD_MANAGER}/{__version__}",
    "Accept": JSON,
    # API servers would otherwise spend CPU on compressing lists for us to spend CPU on inflating them.
    "Accept-Encoding": "identity",
}
_CONNECT_TIMEOUT: Final = 10.0
_REFUSAL_TIMEOUT: Final = 5.0
_REFUSAL_MAX: Final = 64 * 1024
_KEEPALIVE: Final = (
    ("TCP_KEEPIDLE", 15),
    ("TCP_KEEPINTVL", 5),
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", 30_000),
)
_encode = msgspec.json.Encoder().encode


class ListMeta(msgspec.Struct, rename="camel"):
    """`metadata` of a list answer."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")
    remaining_item_count: int = 0


class Page(msgspec.Struct):
    """One page of a list; each item is the raw JSON of one object (its kind and apiVersion are left out by
    servers).
    """

    metadata: ListMeta
    items: list[msgspec.Raw] = []


_decode_page = msgspec.json.Decoder(Page).decode


def encode(body: object) -> bytes:
    """JSON bytes of a msgspec struct or plain object; bytes are taken as already encoded."""
    return body if isinstance(body, bytes) else _encode(body)


class Client:
    """Speaks to one API server; safe to share between tasks of one event loop.

    `server` is its base URL (a path prefix is kept), `ssl` the TLS identity of both sides, `token` is awaited
    before each request and gives a bearer token, `name` is how errors call the server, `streaming_lists` whether it may
    have them: reflectors ask for one where it may, and remember here where it has none. Every method raises
    `errors.ApiError`.
    """

    def __init__(
        self,
        server: str,
        *,
        ssl: ssl_module.SSLContext | None = None,
        token: Callable[[], Awaitable[str]] | None = None,
        name: str = "",
        max_connections: int = 64,
        server_hostname: str | None = None,
        streaming_lists: bool = True,
    ) -> None:
        self.streaming_lists = streaming_lists
        self.server: Final = server.rstrip("/")
        self.ssl: Final = ssl
        place = _parse(self.server)
        self._base: Final = place.scheme, place.prefix
        self.name: Final = name or self.server
        self.server_hostname: Final = server_hostname
        self._token = token
        self._max_connections = max_connections
        self._head: Final = _head({"Host": place.authority} | _HEADERS)
        self._metadata_head: Final = _head({"Host": place.authority} | _HEADERS | {"Accept": _METADATA})
        self._origin: Final = place.host, place.port
        self._line_to: Server | None = None
        self._pool: Pool | None = None
        self._streams: set[Stream] = set()
        self._closed = False

    @classmethod
    def from_kubeconfig(
        cls, path: Path | str, *, context: str | None = None, name: str = "", max_connections: int = 64
    ) -> Self:
        """A client as a kubeconfig file describes it (its current context unless another is named).

        Raises InputError where the file is missing, malformed or lacks what it refers to.
        """
        from vkgateway.kube import kubeconfig

        connection = kubeconfig.load(path).connection(context)
        return cls(
            connection.server,
            ssl=connection.ssl_context(),
            token=connection.token_source(),
            name=name or connection.context,
            max_connections=max_connections,
            server_hostname=connection.tls_server_name or None,
        )

    @classmethod
    def in_cluster(cls, *, name: str = "", max_connections: int = 64) -> Self:
        """A client for the cluster whose pod this process runs in, by the mounted service account."""
        from vkgateway.kube import kubeconfig

        connection = kubeconfig.in_cluster()
        return cls(
            connection.server,
            ssl=connection.ssl_context(),
            token=connection.token_source(),
            name=name or connection.context,
            max_connections=max_connections,
        )

    @classmethod
    def from_pem(
        cls,
        server: str,
        *,
        ca: bytes | str,
        cert: bytes | str,
        key: bytes | str,
        name: str = "",
        max_connections: int = 64,
        streaming_lists: bool = True,
    ) -> Self:
        """A client that proves itself by a certificate; all three are PEM texts, none is ever written to a
        disk.
        """
        context = tls.client_context(ca=ca, cert=cert, key=key)
        return cls(server, ssl=context, name=name, max_connections=max_connections, streaming_lists=streaming_lists)

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
        pool = self._pool or self._open_pool()
        head = await self._authorized(self._metadata_head if metadata_only else self._head)
        message = self._message(method, path, params=params, body=body, content_type=content_type, head=head)
        try:
            answer = await pool.request(method, message, timeout=timeout)
        except AnswerTooLongError as error:
            raise errors.AnswerTooLong(f"{method} {path} at {self.name}: {error}", status=500) from error
        except (TimeoutError, OSError) as error:
            raise self.unreachable(method, path, error) from error
        if answer.status < 300:
            return answer.body
        raise self._refused(method, path, answer.status, answer.body, retry_after=answer.header("retry-after"))

    async def _authorized(self, head: str) -> str:
        return head if self._token is None else f"{head}Authorization: Bearer {await self._token()}\r\n"

    def _message(
        self, method: str, path: str, *, params: Params | None, body: bytes | None, content_type: str, head: str
    ) -> bytes:
        """The bytes of a whole request."""
        _, prefix = self._base
        target = f"{prefix}{path}?{_query(params)}" if params else prefix + path
        if not (target.isascii() and target.isprintable() and " " not in target):
            raise InputError(f"{target!r} is no percent-encoded path")
        head = f"{method} {target} HTTP/1.1\r\n{head}"
        if body is not None:
            head += f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        elif method not in ("GET", "DELETE"):
            head += "Content-Length: 0\r\n"
        return f"{head}\r\n".encode() + (body or b"")

    async def get(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        timeout: float = 30,
    ) -> bytes:
        """The JSON of one object."""
        return await self.request("GET", resource.path(namespace, name, subresource), timeout=timeout)

    async def create(
        self,
        resource: Resource,
        body: object,
        *,
        namespace: str | None = None,
        name: str | None = None,
        subresource: str | None = None,
        metadata_only: bool = False,
        timeout: float = 30,
    ) -> bytes:
        """Create an object (`name` only with a subresource, as for `token` and `eviction`); returns it as
        stored, or its metadata.
        """
        path = resource.path(namespace, name, subresource)
        return await self.request("POST", path, body=encode(body), metadata_only=metadata_only, timeout=timeout)

    async def replace(
        self,
        resource: Resource,
        name: str,
        body: object,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        timeout: float = 30,
    ) -> bytes:
        """Replace an object; a `metadata.resourceVersion` in it must still be the current one."""
        path = resource.path(namespace, name, subresource)
        return await self.request("PUT", path, body=encode(body), timeout=timeout)

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: object,
        *,
        kind: PatchKind = "merge",
        namespace: str | None = None,
        subresource: str | None = None,
        field_manager: str = FIELD_MANAGER,
        force: bool = True,
        metadata_only: bool = False,
        timeout: float = 30,
    ) -> bytes:
        """Patch an object; `apply` is server-side apply, where `force` takes over fields that others own.

        Returns the object as stored, or its metadata.
        """
        params: dict[str, str | int | bool] = {"fieldManager": field_manager}
        if kind == "apply":
            params["force"] = force
        return await self.request(
            "PATCH",
            resource.path(namespace, name, subresource),
            params=params,
            body=encode(body),
            content_type=_PATCH_TYPES[kind],
            metadata_only=metadata_only,
            timeout=timeout,
        )

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_period_seconds: int | None = None,
        propagation_policy: Literal["Background", "Foreground", "Orphan"] | None = None,
        timeout: float = 30,
    ) -> bytes:
        """Delete an object, only if it still has that UID and resource version where they are given.

        Of what the server answers, the metadata is asked for.
        """
        options: dict[str, object] = {}
        if uid is not None or resource_version is not None:
            wanted = {"uid": uid, "resourceVersion": resource_version}
            options["preconditions"] = {key: value for key, value in wanted.items() if value is not None}
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        if propagation_policy is not None:
            options["propagationPolicy"] = propagation_policy
        body = _encode({"kind": "DeleteOptions", "apiVersion": "v1"} | options) if options else None
        return await self.request(
            "DELETE", resource.path(namespace, name), body=body, metadata_only=True, timeout=timeout
        )

    async def pages(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 500,
        timeout: float = 60,
    ) -> AsyncIterator[Page]:
        """A consistent list, page by page (`limit` objects each, fewer where they are large; 0 for all at once).

        Raises `errors.Gone` where the continue token has expired meanwhile: begin again.
        """
        path = resource.path(namespace)
        params = _selectors(label_selector, field_selector)
        if limit:
            params["limit"] = limit
        while True:
            try:
                page = await self._page(path, params, timeout)
            except errors.AnswerTooLong:
                if limit <= 1:
                    raise
                limit = params["limit"] = max(1, limit // 8)
                continue
            yield page
            if not page.metadata.continue_:
                return
            params["continue"] = page.metadata.continue_

    async def list_all(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        timeout: float = 60,
    ) -> Page:
        """All objects in one answer, for what is known to be few."""
        params = _selectors(label_selector, field_selector)
        return await self._page(resource.path(namespace), params, timeout)

    async def _page(self, path: str, params: Params, timeout: float) -> Page:
        answer = await self.request("GET", path, params=params, timeout=timeout)
        try:
            return _decode_page(answer)
        except (msgspec.DecodeError, RecursionError) as error:
            raise errors.ServerError(
                f"GET {path} at {self.name}: the answer is no list: {error}", status=500
            ) from error

    @contextlib.asynccontextmanager
    async def stream(
        self,
        path: str,
        params: Params | None = None,
        *,
        inactivity: float | None = None,
    ) -> AsyncIterator[Stream]:
        """GET an answer that goes on: a watch.

        There is no limit in time but `inactivity`, the seconds without a byte. Errors while reading the body
        come as OSError; `unreachable` makes one of ours of them.
        """
        self._check_open()
        # On a connection of its own: it lives long, and must not eat up those that requests wait for.
        head = await self._authorized(self._head)
        message = self._message("GET", path, params=params, body=None, content_type=JSON, head=head)
        try:
            stream = await open_stream(self._lines(), message, inactivity=inactivity)
        except OSError as error:
            raise self.unreachable("GET", path, error) from error
        self._streams.add(stream)
        try:
            if stream.status >= 300:
                raise await self._refused_stream(path, stream)
            yield stream
        finally:
            self._streams.discard(stream)
            stream.close()

    async def authorization(self) -> dict[str, str]:
        """The headers by which this client proves itself, for those who speak to the server on their own."""
        return {"Authorization": f"Bearer {await self._token()}"} if self._token is not None else {}

    async def close(self) -> None:
        """Close all connections; requests under way fail, later ones are refused."""
        self._closed = True
        pool, self._pool = self._pool, None
        for stream in list(self._streams):
            stream.close()
        if pool is not None:
            await pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _open_pool(self) -> Pool:
        self._check_open()
        self._pool = Pool(self._lines(), limit=self._max_connections)
        return self._pool

    def _lines(self) -> Server:
        """Where all connections lead, and what they share."""
        if self._line_to is None:
            host, port = self._origin
            secure = self._base[0] == "https"
            self._line_to = Server(
                host=host,
                port=port,
                ssl=(self.ssl or ssl_module.create_default_context()) if secure else None,
                server_hostname=self.server_hostname,
                connect_timeout=_CONNECT_TIMEOUT,
                on_connect=_keep_alive,
            )
        return self._line_to

    def _check_open(self) -> None:
        if self._closed:
            raise errors.Unreachable(f"the client of {self.name} is closed")

    def _refused(
        self, method: str, path: str, status: int, answer: bytes, *, retry_after: str | None
    ) -> errors.ApiError:
        return errors.from_response(status, answer, what=f"{method} {path} at {self.name}", retry_after=retry_after)

    async def _refused_stream(self, path: str, stream: Stream) -> errors.ApiError:
        """Read the error; not all of it, for it need have no end."""
        said = b""
        try:
            async with asyncio.timeout(_REFUSAL_TIMEOUT):
                while len(said) < _REFUSAL_MAX and (piece := await stream.read()):
                    said += piece
        except OSError as error:
            if not said:
                return self.unreachable("GET", path, error)
        return self._refused("GET", path, stream.status, said, retry_after=stream.header("retry-after"))

    def unreachable(self, method: str, path: str, error: Exception) -> errors.Unreachable:
        """The error of ours that a failed connection is."""
        why = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
        return errors.Unreachable(f"{method} {path} at {self.name}: {why}", reason="Unreachable")


class _Place(NamedTuple):
    """The parts of a server's URL; `authority` is what the Host header says."""

    scheme: str
    host: str
    port: int
    authority: str
    prefix: str


def _parse(server: str) -> _Place:
    """Take a server's URL apart. Raises InputError."""
    try:
        base = urlsplit(server)
        host, port = base.hostname or "", base.port
        if not host.isascii():
            host = host.encode("idna").decode()
    except ValueError as error:
        raise InputError(f"{server!r} is no URL of an API server: {error}") from error
    if base.scheme not in ("http", "https") or not host:
        raise InputError(f"{server!r} is no URL of an API server", hint="https://host:port is one")
    authority = f"[{host}]" if ":" in host else host
    return _Place(
        scheme=base.scheme,
        host=host,
        port=port or (443 if base.scheme == "https" else 80),
        authority=authority if port is None else f"{authority}:{port}",
        prefix=quote(base.path.rstrip("/"), safe="/%:@!$&'()*+,;=~"),
    )


def _head(headers: Mapping[str, str]) -> str:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())


def _selectors(label_selector: str, field_selector: str) -> dict[str, str | int | bool]:
    params: dict[str, str | int | bool] = {}
    if label_selector:
        params["labelSelector"] = label_selector
    if field_selector:
        params["fieldSelector"] = field_selector
    return params


def _query(params: Params) -> str:
    return urlencode(
        {key: str(value).lower() if isinstance(value, bool) else value for key, value in params.items()},
        quote_via=quote,
    )


def _keep_alive(transport: asyncio.BaseTransport) -> None:
    """Have a connection notice within half a minute that its peer's machine is gone, even while it only listens."""
    connection: socket.socket = transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
