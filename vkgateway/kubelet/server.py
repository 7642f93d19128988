"""The kubelet HTTPS endpoint that all virtual nodes of all tenants share."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ssl
from collections.abc import Collection, Iterator
from types import TracebackType
from typing import Any, Final, Self

import structlog

from vkgateway.kube.byte_stream import ByteStream
from vkgateway.kube.loop_throttle import LoopThrottle
from vkgateway.kube.tls_engine import TlsEngine
from vkgateway.kubelet import routes
from vkgateway.kubelet.accepted_stream import AcceptedStream
from vkgateway.kubelet.authentication import Authenticator
from vkgateway.kubelet.call import Call, Rejected
from vkgateway.kubelet.connection_tracker import ClientConnection, ConnectionTracker
from vkgateway.kubelet.http import Reply, Request, Session
from vkgateway.kubelet.identity import UnknownCaller
from vkgateway.kubelet.memory_limiter import TENANT_MEMORY_MAX, CountBytes, MemoryLimiter, MemoryLimitError
from vkgateway.kubelet.shared_limit import SharedLimit
from vkgateway.kubelet.stats import StatsProvider
from vkgateway.kubelet.stream_limiter import StreamLimiter, TooManyStreamsError
from vkgateway.kubelet.target import PodLister, PodLocator, no_placements, no_pods
from vkgateway.kubelet.token_reviewer import TokenReviewer
from vkgateway.model.errors import UnavailableError

HANDSHAKE_SECONDS: Final = 10.0
FIRST_REQUEST_SECONDS: Final = 30.0
NEXT_REQUEST_SECONDS: Final = 120.0
"""Longer than the 90 s for which Go's transport keeps an unused connection, so that it is the one to close."""
REPLY_SECONDS: Final = 120.0
"""In which a caller must have read an answer that is told whole."""
_LINGER_SECONDS: Final = 5.0
_UNAUTHENTICATED_SECONDS: Final = 10.0
_UNAUTHENTICATED_BODY_MAX: Final = 1024
MAX_OTHER_CONNECTIONS: Final = 512
"""Connections that a tenant may have beside its streams': its API server calls the webhook with 200 at once."""

_log = structlog.get_logger(__name__)


class KubeletServer:
    """Serves the kubelet API to admitted tenants by TLS.

    Which tenant calls is read from the client certificate, or told by that tenant's API server, of a token (`tokens`,
    for reading figures and pods only); see `callers`. Nobody is served before `admit_tenant`. `backends` finds the
    compute pod, `pods` lists a tenant's pods for `/pods`, `stats_provider` measures them. `port` 0 is any free one, and
    the property tells it after `start`. `idle_timeout` (seconds) ends silent exec, attach and port-forward connections,
    as a kubelet's streamingConnectionIdleTimeout does; logs may be silent for ever. `streams_per_tenant` and
    `stream_limiter` bound the streams of one and of all, `connections` the connections of all, and `held_max` the bytes
    of requests and answers that a tenant has in memory.
    """

    def __init__(
        self,
        *,
        address: str,
        port: int,
        tls: ssl.SSLContext,
        backends: PodLocator,
        pods: PodLister = no_pods,
        figures: StatsProvider | None = None,
        tokens: TokenReviewer | None = None,
        streams_per_tenant: int = 256,
        streams: int = 2048,
        connections: int = 8192,
        idle_timeout: float = 4 * 3600.0,
        held_max: int = TENANT_MEMORY_MAX,
    ) -> None:
        self._address = address
        self._port = port
        self._tls = tls
        self._pod_locator = backends
        self._pod_lister = pods
        self.stats_provider: Final = figures or StatsProvider(no_placements)
        self._idle_timeout = idle_timeout
        self._authenticator = Authenticator(tokens)
        self._memory_limiter = MemoryLimiter(held_max)
        self.stream_limiter: Final = StreamLimiter(streams_per_tenant, total=streams)
        self._connections = ConnectionTracker(SharedLimit(streams_per_tenant + MAX_OTHER_CONNECTIONS, connections))
        self._throttle = LoopThrottle()
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._port

    def admit_tenant(self, tenant: str, *, fingerprints: Collection[str] = (), front_proxy: bytes = b"") -> None:
        """Serve a tenant from now on; with fingerprints (`identity.certificate_fingerprint`) only by those
        certificates.

        `front_proxy` is the authority (PEM) that signs the certificate by which its API server aggregates APIs. Called
        again it replaces the fingerprints; requests that are under way go on.
        """
        self._authenticator.admitted_tenants.admit_tenant(tenant, fingerprints=fingerprints)
        if front_proxy:
            self._tls.load_verify_locations(cadata=front_proxy.decode())
            self._authenticator.front_proxies.add_authority(tenant, front_proxy)

    def revoke_tenant(self, tenant: str) -> None:
        """Serve a tenant no longer, and end what it holds open."""
        self._authenticator.forget_tenant(tenant)
        self.stats_provider.forget_tenant(tenant)
        for guest in self._connections:
            if guest.tenant == tenant:
                guest.cancel_task()

    async def start(self) -> None:
        """Listen. Raises UnavailableError where the address or port cannot be had."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: AcceptedStream(TlsEngine(self._tls, server_side=True), throttle=self._throttle, acceptor=self),
                self._address,
                self._port,
                backlog=512,
                reuse_address=True,
            )
        except OSError as error:
            raise UnavailableError(
                f"the kubelet endpoint cannot listen on {self._address}:{self._port}: {error.strerror or error}",
                hint="choose another with kubelet.port, or 0 for any free one",
            ) from error
        self._port = self._server.sockets[0].getsockname()[1]
        _log.info("kubelet endpoint listens", address=self._address, port=self._port)

    async def close(self) -> None:
        """Stop listening and end every connection."""
        if self._server is not None:
            self._server.close()
        guests = list(self._connections)
        for guest in guests:
            guest.cancel_task()
        await asyncio.gather(*(guest.task for guest in guests if guest.task is not None), return_exceptions=True)
        await self.stats_provider.close()
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def accept_stream(self, stream: ByteStream) -> None:
        """Serve a new connection; see `AcceptedStream`."""
        guest = ClientConnection(stream)
        guest.task = asyncio.get_running_loop().create_task(self._handle_connection(guest), name="kubelet-connection")
        guest.task.add_done_callback(functools.partial(self._untrack_connection, guest))
        self._connections.add_connection(guest)

    def _untrack_connection(self, guest: ClientConnection, task: asyncio.Task[None]) -> None:
        self._connections.remove_connection(guest)
        guest.task = None  # what a task was cancelled by knows its guest
        guest.stream.abort()  # a task that was cancelled before its first step has closed nothing
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("kubelet connection failed", exc_info=error)

    async def _handle_connection(self, guest: ClientConnection) -> None:
        wire = guest.stream
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await wire.wait_opened()
            tenant = self._authenticator.tenant_by_certificate(wire.tls)
            if not tenant or not self._connections.assign_tenant(guest, tenant):
                self._connections.mark_unauthenticated(guest)
            await self._serve_requests(guest)
        except (OSError, TimeoutError) as error:
            _log.debug("kubelet connection ended", peer=wire.peer_address, error=str(error))
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await wire.close_gracefully(linger=_LINGER_SECONDS)

    async def _serve_requests(self, guest: ClientConnection) -> None:
        """Answer one request after the other."""
        session = Session(guest.stream) if guest.tenant else Session(guest.stream, body_max=_UNAUTHENTICATED_BODY_MAX)
        more = True
        patience = FIRST_REQUEST_SECONDS if guest.tenant else _UNAUTHENTICATED_SECONDS
        while more:
            with self._memory_limiter.track_request(guest.tenant) as body:
                request = await session.await_request(patience=patience, take=body.count_bytes)
                more = request is not None and await self._serve_request(guest, session, request)
            patience = NEXT_REQUEST_SECONDS

    async def _serve_request(self, guest: ClientConnection, session: Session, request: Request) -> bool:
        """Answer a request; says whether another may follow. Raises TimeoutError where the answer is not read."""
        request, address = routes.resolve_target(request)
        refusal = await self._authenticate_caller(guest, request, address)
        if refusal is not None:
            return await session.send_reply(refusal, last=True)
        with self._memory_limiter.track_request(guest.tenant) as account:
            try:
                reply = await self._route_request(
                    guest.tenant, session, request, node=address.node, take=account.count_bytes
                )
                if reply is None:
                    return False
                account.count_bytes(max(0, len(reply.body) - account.counted_bytes))  # what it was made from is gone
                async with asyncio.timeout(REPLY_SECONDS):
                    return await session.send_reply(reply, last=bool(request.upgrade_protocol))
            except MemoryLimitError as error:
                return await session.send_reply(Reply.from_text(429, str(error)), last=True)

    async def _authenticate_caller(
        self, guest: ClientConnection, request: Request, address: routes.RequestTarget
    ) -> Reply | None:
        """Note whose the connection is, so that it can be ended with its tenant; a reply is a refusal."""
        try:
            tenant = await self._authenticator.authenticate_request(guest.stream.tls, request, address)
        except UnknownCaller as error:
            _log.warning("kubelet caller refused", peer=guest.stream.peer_address, why=str(error))
            return Reply.from_text(403, str(error))
        except Rejected as rejected:
            return rejected.reply
        except TooManyStreamsError as error:
            return Reply.from_text(429, str(error))
        if not self._connections.assign_tenant(guest, tenant):
            return Reply.from_text(429, "too many connections to the virtual nodes are open already; try again")
        return None

    async def _route_request(
        self, tenant: str, session: Session, request: Request, *, node: str, take: CountBytes
    ) -> Reply | None:
        """The reply, None if the connection is used up."""
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
            count_bytes=take,
        )
        return await self._run_endpoint(route, call)

    async def _run_endpoint(self, route: routes.Route, call: Call) -> Reply | None:
        """Run an endpoint; whatever goes wrong in it becomes a reply."""
        try:
            if not route.is_stream:
                return await route(call)
            with self.stream_limiter.hold_stream(call.tenant), _cancel_on_disconnect(call.session.stream):
                return await route(call)
        except Rejected as rejected:
            return rejected.reply
        except TooManyStreamsError as error:
            return Reply.from_text(429, str(error))
        except (OSError, MemoryLimitError):
            raise
        except Exception:  # noqa: BLE001 - one broken answer must not end the endpoint; it is logged in full
            _log.exception("kubelet request failed", tenant=call.tenant, path="/".join(call.request.path))
            return Reply.from_text(500, "the virtual node failed to answer; its operators can find out why")


@contextlib.contextmanager
def _cancel_on_disconnect(wire: ByteStream) -> Iterator[None]:
    """Cancel the block when the caller is gone while it waits for an answer below."""
    task = asyncio.current_task()
    if task is None or wire.has_ended:
        raise ConnectionResetError("the caller is gone")
    wire.on_end = functools.partial(_cancel_task, task)
    try:
        yield
    finally:
        wire.on_end = None


def _cancel_task(task: asyncio.Task[Any]) -> None:
    task.cancel()
