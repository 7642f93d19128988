"""Kubelet HTTPS endpoint that all virtual nodes of all tenants share."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ssl
from collections.abc import Collection, Iterator
from typing import Any, Final, Self

import msgspec
import structlog

from vkgateway.api.errors import NotFoundError, UnavailableError
from vkgateway.kube.byte_stream import ByteStream
from vkgateway.kube.errors import ApiError
from vkgateway.kube.loop_throttle import LoopThrottle
from vkgateway.kube.tls_engine import TlsEngine
from vkgateway.nodes import routes
from vkgateway.nodes.call import Call, Rejected
from vkgateway.nodes.connection_tracker import ClientConnection, ConnectionTracker
from vkgateway.nodes.http import Reply, Request, Session
from vkgateway.nodes.identity import AdmittedTenants, FrontProxies, UnknownCaller, tenant_from_certificate
from vkgateway.nodes.limits import (
    TENANT_MEMORY_MAX,
    CountBytes,
    MemoryLimiter,
    MemoryLimitError,
    SharedLimit,
    StreamLimiter,
    TooManyStreamsError,
)
from vkgateway.nodes.listener import AcceptedStream
from vkgateway.nodes.routes import RequestTarget
from vkgateway.nodes.stats import StatsProvider
from vkgateway.nodes.target import PodLister, PodLocator, no_placements, no_pods
from vkgateway.nodes.token_reviewer import TokenReviewer

HANDSHAKE_SECONDS: Final = 10.0
FIRST_REQUEST_SECONDS: Final = 30.0
NEXT_REQUEST_SECONDS: Final = 120.0
"""Longer than the 90 s for which Go's transport keeps an unused connection, so that the client closes it."""
REPLY_SECONDS: Final = 120.0
"""Time limit for a client to read a reply."""
_LINGER_SECONDS: Final = 5.0
_UNAUTHENTICATED_SECONDS: Final = 10.0
_UNAUTHENTICATED_BODY_MAX: Final = 1024
MAX_OTHER_CONNECTIONS: Final = 512
"""Limit of a tenant's connections in addition to its streams. Its API server calls the webhook on 200 connections."""

_log = structlog.get_logger(__name__)


class KubeletServer:
    """Server of the kubelet API for admitted tenants, over TLS.

    The client certificate identifies the tenant. With `token_reviewer`, a token that the tenant's API server reviews is
    accepted, too, for reading statistics and pods only; see `Authenticator`. `admit_tenant` admits a tenant.

    `pod_locator` finds the compute pod of a request, `pod_lister` lists a tenant's pods for `/pods`, and
    `stats_provider` returns their statistics. With `port` 0, the system selects a free port, which the property `port`
    returns after `start`.

    `idle_timeout` (seconds) ends silent exec, attach and port-forward connections, like a kubelet's
    streamingConnectionIdleTimeout; logs may be silent. `streams_per_tenant` and `streams` limit the streams of one
    tenant and of all tenants, `connections` all connections, and `memory_max` the bytes of a tenant's requests and
    replies in memory.
    """

    def __init__(
        self,
        *,
        address: str,
        port: int,
        tls: ssl.SSLContext,
        pod_locator: PodLocator,
        pod_lister: PodLister = no_pods,
        stats_provider: StatsProvider | None = None,
        token_reviewer: TokenReviewer | None = None,
        streams_per_tenant: int = 256,
        streams: int = 2048,
        connections: int = 8192,
        idle_timeout: float = 4 * 3600.0,
        memory_max: int = TENANT_MEMORY_MAX,
    ) -> None:
        self._address = address
        self.port = port
        """The port of the endpoint."""
        self._tls = tls
        self._pod_locator = pod_locator
        self._pod_lister = pod_lister
        self.stats_provider: Final = stats_provider or StatsProvider(no_placements)
        self._idle_timeout = idle_timeout
        self._authenticator = Authenticator(token_reviewer)
        self._memory_limiter = MemoryLimiter(memory_max)
        self.stream_limiter: Final = StreamLimiter(streams_per_tenant, total=streams)
        self._connections = ConnectionTracker(SharedLimit(streams_per_tenant + MAX_OTHER_CONNECTIONS, connections))
        self._throttle = LoopThrottle()
        self._server: asyncio.Server | None = None

    def admit_tenant(self, tenant: str, *, fingerprints: Collection[str] = (), front_proxy: bytes = b"") -> None:
        """Serve a tenant, with fingerprints (`identity.certificate_fingerprint`) only for these certificates.

        `front_proxy` is the authority (PEM) of the front-proxy certificate of the tenant's API server. Another call
        replaces the fingerprints. Current requests continue.
        """
        self._authenticator.admitted_tenants.admit_tenant(tenant, fingerprints=fingerprints)
        if front_proxy:
            self._tls.load_verify_locations(cadata=front_proxy.decode())
            self._authenticator.front_proxies.add_authority(tenant, front_proxy)

    def revoke_tenant(self, tenant: str) -> None:
        """Stop serving a tenant, and close its connections."""
        self._authenticator.forget_tenant(tenant)
        self.stats_provider.forget_tenant(tenant)
        for connection in self._connections:
            if connection.tenant == tenant:
                connection.cancel_task()

    async def start(self) -> None:
        """Listen. Raises UnavailableError if the address or port is not available."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: AcceptedStream(TlsEngine(self._tls, server_side=True), throttle=self._throttle, acceptor=self),
                self._address,
                self.port,
                backlog=512,
                reuse_address=True,
            )
        except OSError as error:
            raise UnavailableError(
                f"the kubelet endpoint cannot listen on {self._address}:{self.port}: {error.strerror or error}",
                hint="set kubelet.port to another port, or to 0 for any free port",
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]
        _log.info("kubelet endpoint listens", address=self._address, port=self.port)

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        if self._server is not None:
            self._server.close()
        connections = list(self._connections)
        for connection in connections:
            connection.cancel_task()
        tasks = [connection.task for connection in connections if connection.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.stats_provider.close()
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def accept_stream(self, stream: ByteStream) -> None:
        """Serve a new connection; see `AcceptedStream`."""
        connection = ClientConnection(stream)
        serve = self._handle_connection(connection)
        connection.task = asyncio.get_running_loop().create_task(serve, name="kubelet-connection")
        connection.task.add_done_callback(functools.partial(self._untrack_connection, connection))
        self._connections.add_connection(connection)

    def _untrack_connection(self, connection: ClientConnection, task: asyncio.Task[None]) -> None:
        self._connections.remove_connection(connection)
        connection.task = None  # the error of a cancelled task refers to the connection: break the cycle
        connection.stream.abort()  # a task that was cancelled before its first step has not closed the stream
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("kubelet connection failed", exc_info=error)

    async def _handle_connection(self, connection: ClientConnection) -> None:
        stream = connection.stream
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await stream.wait_opened()
            tenant = self._authenticator.tenant_by_certificate(stream.tls)
            if not tenant or not self._connections.assign_tenant(connection, tenant):
                self._connections.mark_unauthenticated(connection)
            await self._serve_requests(connection)
        except (OSError, TimeoutError) as error:
            _log.debug("kubelet connection ended", peer=stream.peer_address, error=str(error))
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await stream.close_gracefully(linger=_LINGER_SECONDS)

    async def _serve_requests(self, connection: ClientConnection) -> None:
        """Answer the requests of a connection one after the other."""
        is_known = bool(connection.tenant)
        session = Session(connection.stream) if is_known else _unauthenticated_session(connection.stream)
        has_more = True
        timeout = FIRST_REQUEST_SECONDS if is_known else _UNAUTHENTICATED_SECONDS
        while has_more:
            with self._memory_limiter.track_request(connection.tenant) as memory:
                request = await session.await_request(timeout=timeout, count_bytes=memory.count_bytes)
                has_more = request is not None and await self._serve_request(connection, session, request)
            timeout = NEXT_REQUEST_SECONDS

    async def _serve_request(self, connection: ClientConnection, session: Session, request: Request) -> bool:
        """Answer a request. Return whether another may follow. Raises TimeoutError if the client does not read."""
        request, target = routes.resolve_target(request)
        refusal = await self._authenticate_caller(connection, request, target)
        if refusal is not None:
            return await session.send_reply(refusal, last=True)
        with self._memory_limiter.track_request(connection.tenant) as memory:
            try:
                reply = await self._route_request(
                    connection.tenant, session, request, node=target.node, count_bytes=memory.count_bytes
                )
                if reply is None:
                    return False
                memory.count_bytes(max(0, len(reply.body) - memory.counted_bytes))  # the reply replaces its source
                async with asyncio.timeout(REPLY_SECONDS):
                    return await session.send_reply(reply, last=bool(request.upgrade_protocol))
            except MemoryLimitError as error:
                return await session.send_reply(Reply.from_text(429, str(error)), last=True)

    async def _authenticate_caller(
        self, connection: ClientConnection, request: Request, target: routes.RequestTarget
    ) -> Reply | None:
        """Assign the connection to the tenant of a request, or return a reply that refuses the request."""
        try:
            tenant = await self._authenticator.authenticate_request(
                connection.stream.tls, request, target, client_address=connection.address
            )
        except UnknownCaller as error:
            _log.warning("kubelet client refused", peer=connection.stream.peer_address, reason=str(error))
            return Reply.from_text(403, str(error))
        except Rejected as rejected:
            return rejected.reply
        except TooManyStreamsError as error:
            return Reply.from_text(429, str(error))
        if not self._connections.assign_tenant(connection, tenant):
            return Reply.from_text(429, "too many connections to the virtual nodes are open already; try again")
        return None

    async def _route_request(
        self, tenant: str, session: Session, request: Request, *, node: str, count_bytes: CountBytes
    ) -> Reply | None:
        """Return the reply, or None if the connection is used up."""
        route = routes.find_route(request)
        if isinstance(route, Reply):
            return route
        call = Call(
            tenant,
            request,
            session,
            self._pod_locator,
            self._pod_lister,
            self.stats_provider,
            self._idle_timeout,
            node=node,
            count_bytes=count_bytes,
        )
        return await _run_endpoint(route, call, self.stream_limiter)


async def _run_endpoint(route: routes.Route, call: Call, stream_limiter: StreamLimiter) -> Reply | None:
    """Run an endpoint. Errors become replies."""
    try:
        if not route.is_stream:
            return await route(call)
        with stream_limiter.hold_stream(call.tenant), _cancel_on_disconnect(call.session.stream):
            return await route(call)
    except Rejected as rejected:
        return rejected.reply
    except TooManyStreamsError as error:
        return Reply.from_text(429, str(error))
    except (OSError, MemoryLimitError):
        raise
    except Exception:  # noqa: BLE001 - a defect in one request must not end the connection; it is logged
        _log.exception("kubelet request failed", tenant=call.tenant, path="/".join(call.request.path))
        return Reply.from_text(500, "the virtual node failed to answer; its operators find the error in the log")


def _unauthenticated_session(stream: ByteStream) -> Session:
    return Session(stream, body_max=_UNAUTHENTICATED_BODY_MAX)


@contextlib.contextmanager
def _cancel_on_disconnect(stream: ByteStream) -> Iterator[None]:
    """Cancel the block if the client disconnects while the block waits for the compute cluster."""
    task = asyncio.current_task()
    if task is None or stream.has_ended:
        raise ConnectionResetError("the client disconnected")
    stream.on_end = functools.partial(_cancel_task, task)
    try:
        yield
    finally:
        stream.on_end = None


def _cancel_task(task: asyncio.Task[Any]) -> None:
    task.cancel()


_AGGREGATED_PATH: Final = ("apis",)
"""Prefix of the paths of aggregated APIs. An API server forwards users' requests with its front-proxy certificate, so
this certificate is valid for these paths only, and no other credential is."""


class Authenticator:
    """Authentication of tenants. Without `token_reviewer`, only certificates are accepted."""

    def __init__(self, token_reviewer: TokenReviewer | None) -> None:
        self.admitted_tenants = AdmittedTenants()
        self.front_proxies = FrontProxies()
        self._token_reviewer = token_reviewer

    def forget_tenant(self, tenant: str) -> None:
        """Stop serving a tenant."""
        self.admitted_tenants.revoke_tenant(tenant)
        self.front_proxies.remove_authority(tenant)
        if self._token_reviewer is not None:
            self._token_reviewer.forget_tenant(tenant)

    def tenant_by_certificate(self, tls: TlsEngine | None) -> str:
        """Return the admitted tenant of the connection's certificate, or an empty string."""
        certificate = tls.peer_certificate() if tls is not None else None
        if tls is None or certificate is None:
            return ""
        if tenant := self.front_proxies.find_tenant(certificate):
            return tenant
        try:
            tenant = tenant_from_certificate(tls.peer_names())
            self.admitted_tenants.check_certificate(tenant, certificate)
        except UnknownCaller:
            return ""
        return tenant

    async def authenticate_request(
        self, tls: TlsEngine | None, request: Request, target: RequestTarget, *, client_address: str
    ) -> str:
        """Return the tenant of a request. Checked for each request, because the tenant may be revoked.

        Raises UnknownCaller, Rejected.
        """
        certificate = tls.peer_certificate() if tls is not None else None
        if tls is None or certificate is None:
            return await self._authenticate_token(request, target, client_address)
        aggregated = request.path[:1] == _AGGREGATED_PATH
        if tenant := self.front_proxies.find_tenant(certificate):
            if not aggregated:
                raise Rejected(Reply.from_text(404, f"only paths under /{_AGGREGATED_PATH[0]} are aggregated"))
            return tenant
        tenant = tenant_from_certificate(tls.peer_names())
        self.admitted_tenants.check_certificate(tenant, certificate)
        if aggregated:
            raise UnknownCaller(f"/{_AGGREGATED_PATH[0]} is for an API server's front proxy only")
        if target.tenant not in ("", tenant):
            raise UnknownCaller(f"the client certificate is not that of tenant {target.tenant[:63]!r}")
        return tenant

    async def _authenticate_token(self, request: Request, target: RequestTarget, client_address: str) -> str:
        """Return the tenant of a token. Only the API server of the tenant in the path reviews the token.

        A wrong tenant in the path is harmless: its API server does not know the token.
        """
        tenant, (scheme, _, token) = target.tenant, request.header("authorization").partition(" ")
        if self._token_reviewer is None or not tenant or scheme.lower() != "bearer":
            raise Rejected(
                Reply.from_text(401, "Unauthorized: a client certificate, or a token for /tenants/NAME/nodes/NAME")
            )
        if not self.admitted_tenants.is_admitted(tenant):
            raise Rejected(Reply.from_text(401, "Unauthorized"))
        try:
            user = await self._token_reviewer.review_token(tenant, token.strip(), address=client_address)
            if user is None:
                raise Rejected(Reply.from_text(401, "Unauthorized"))
            path = request.path[0] if request.path else ""
            if not await self._token_reviewer.can_read_node(tenant, user, node=target.node, path=path):
                message = f"Forbidden (user={user.username}, verb=get, resource=nodes, path={path[:64]})"
                raise Rejected(Reply.from_text(403, message))
        except (ApiError, NotFoundError, msgspec.DecodeError) as error:
            _log.warning("token review failed", tenant=tenant, error=str(error))
            raise Rejected(Reply.from_text(503, "the tenant's API server cannot review the token now")) from error
        return tenant
