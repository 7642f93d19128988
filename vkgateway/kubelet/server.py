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

from vkgateway.kube.tlsbytes import Tls
from vkgateway.kube.turns import Turns
from vkgateway.kube.wire import Wire
from vkgateway.kubelet import routes
from vkgateway.kubelet.call import Call, Rejected
from vkgateway.kubelet.callers import Callers
from vkgateway.kubelet.guests import Guest, Guests
from vkgateway.kubelet.held import HELD_MAX, Held, HeldError, Take
from vkgateway.kubelet.http import Reply, Request, Session
from vkgateway.kubelet.identity import Stranger
from vkgateway.kubelet.shares import Shares
from vkgateway.kubelet.stats import Figures
from vkgateway.kubelet.streams import Streams, TooManyStreamsError
from vkgateway.kubelet.target import Backends, Pods, no_placements, no_pods
from vkgateway.kubelet.tokens import Tokens
from vkgateway.model.errors import UnavailableError

HANDSHAKE_SECONDS: Final = 10.0
FIRST_REQUEST_SECONDS: Final = 30.0
BETWEEN_REQUESTS_SECONDS: Final = 120.0
"""Longer than the 90 s for which Go's transport keeps an unused connection, so that it is the one to close."""
REPLY_SECONDS: Final = 120.0
"""In which a caller must have read an answer that is told whole."""
_LINGER_SECONDS: Final = 5.0
_NAMELESS_SECONDS: Final = 10.0
_NAMELESS_BODY: Final = 1024
CONNECTIONS_BESIDE_STREAMS: Final = 512
"""Connections that a tenant may have beside its streams': its API server calls the webhook with 200 at once."""

_log = structlog.get_logger(__name__)


class KubeletServer:
    """Serves the kubelet API to admitted tenants by TLS.

    Which tenant calls is read from the client certificate, or told by that tenant's API server, of a token (`tokens`,
    for reading figures and pods only); see `callers`. Nobody is served before `admit`. `backends` finds the compute
    pod, `pods` lists a tenant's pods for `/pods`, `figures` measures them. `port` 0 is any free one, and the property
    tells it after `start`. `idle_timeout` (seconds) ends silent exec, attach and port-forward connections, as a
    kubelet's streamingConnectionIdleTimeout does; logs may be silent for ever. `streams_per_tenant` and
    `streams` bound the streams of one and of all, `connections` the connections of all, and `held_max` the bytes of
    requests and answers that a tenant has in memory.
    """

    def __init__(
        self,
        *,
        address: str,
        port: int,
        tls: ssl.SSLContext,
        backends: Backends,
        pods: Pods = no_pods,
        figures: Figures | None = None,
        tokens: Tokens | None = None,
        streams_per_tenant: int = 256,
        streams: int = 2048,
        connections: int = 8192,
        idle_timeout: float = 4 * 3600.0,
        held_max: int = HELD_MAX,
    ) -> None:
        self._address = address
        self._port = port
        self._tls = tls
        self._backends = backends
        self._pods = pods
        self.figures: Final = figures or Figures(no_placements)
        self._idle_timeout = idle_timeout
        self._callers = Callers(tokens)
        self._held = Held(held_max)
        self.streams: Final = Streams(streams_per_tenant, total=streams)
        self._guests = Guests(Shares(streams_per_tenant + CONNECTIONS_BESIDE_STREAMS, connections))
        self._turns = Turns()
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._port

    def admit(self, tenant: str, *, fingerprints: Collection[str] = (), front_proxy: bytes = b"") -> None:
        """Serve a tenant from now on; with fingerprints (`identity.fingerprint`) only by those certificates.

        `front_proxy` is the authority (PEM) that signs the certificate by which its API server aggregates APIs.
        Called again it replaces the fingerprints; requests that are under way go on.
        """
        self._callers.admission.admit(tenant, fingerprints=fingerprints)
        if front_proxy:
            self._tls.load_verify_locations(cadata=front_proxy.decode())
            self._callers.front_proxies.admit(tenant, front_proxy)

    def revoke(self, tenant: str) -> None:
        """Serve a tenant no longer, and end what it holds open."""
        self._callers.forget(tenant)
        self.figures.forget(tenant)
        for guest in self._guests:
            if guest.tenant == tenant:
                guest.end()

    async def start(self) -> None:
        """Listen. Raises UnavailableError where the address or port cannot be had."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                self._accept, self._address, self._port, backlog=512, reuse_address=True
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
        guests = list(self._guests)
        for guest in guests:
            guest.end()
        await asyncio.gather(*(guest.task for guest in guests if guest.task is not None), return_exceptions=True)
        await self.figures.close()
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

    def _accept(self) -> Wire:
        return Wire(tls=Tls(self._tls, server_side=True), turns=self._turns, on_made=self._arrived)

    def _arrived(self, wire: Wire) -> None:
        guest = Guest(wire)
        guest.task = asyncio.get_running_loop().create_task(self._connection(guest), name="kubelet-connection")
        guest.task.add_done_callback(functools.partial(self._finished, guest))
        self._guests.enter(guest)

    def _finished(self, guest: Guest, task: asyncio.Task[None]) -> None:
        self._guests.leave(guest)
        guest.task = None  # what a task was cancelled by knows its guest
        guest.wire.abort()  # a task that was cancelled before its first step has closed nothing
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("kubelet connection failed", exc_info=error)

    async def _connection(self, guest: Guest) -> None:
        wire = guest.wire
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await wire.opened()
            tenant = self._callers.certified(wire.tls)
            if not tenant or not self._guests.known(guest, tenant):
                self._guests.nameless(guest)
            await self._converse(guest)
        except (OSError, TimeoutError) as error:
            _log.debug("kubelet connection ended", peer=wire.peer, error=str(error))
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await wire.closed(linger=_LINGER_SECONDS)

    async def _converse(self, guest: Guest) -> None:
        """Answer one request after the other."""
        session = Session(guest.wire) if guest.tenant else Session(guest.wire, body_max=_NAMELESS_BODY)
        more = True
        patience = FIRST_REQUEST_SECONDS if guest.tenant else _NAMELESS_SECONDS
        while more:
            with self._held.account(guest.tenant) as body:
                request = await session.await_request(patience=patience, take=body.take)
                more = request is not None and await self._serve(guest, session, request)
            patience = BETWEEN_REQUESTS_SECONDS

    async def _serve(self, guest: Guest, session: Session, request: Request) -> bool:
        """Answer a request; says whether another may follow. Raises TimeoutError where the answer is not read."""
        request, address = routes.addressed(request)
        refusal = await self._recognise(guest, request, address)
        if refusal is not None:
            return await session.reply(refusal, last=True)
        with self._held.account(guest.tenant) as account:
            try:
                reply = await self._answer(guest.tenant, session, request, node=address.node, take=account.take)
                if reply is None:
                    return False
                account.take(max(0, len(reply.body) - account.bytes))  # what it was made from is gone
                async with asyncio.timeout(REPLY_SECONDS):
                    return await session.reply(reply, last=bool(request.upgrade))
            except HeldError as error:
                return await session.reply(Reply.text(429, str(error)), last=True)

    async def _recognise(self, guest: Guest, request: Request, address: routes.Address) -> Reply | None:
        """Note whose the connection is, so that it can be ended with its tenant; a reply is a refusal."""
        try:
            tenant = await self._callers.tenant(guest.wire.tls, request, address)
        except Stranger as error:
            _log.warning("kubelet caller refused", peer=guest.wire.peer, why=str(error))
            return Reply.text(403, str(error))
        except Rejected as rejected:
            return rejected.reply
        except TooManyStreamsError as error:
            return Reply.text(429, str(error))
        if not self._guests.known(guest, tenant):
            return Reply.text(429, "too many connections to the virtual nodes are open already; try again")
        return None

    async def _answer(self, tenant: str, session: Session, request: Request, *, node: str, take: Take) -> Reply | None:
        """The reply, None if the connection is used up."""
        route = routes.find(request)
        if isinstance(route, Reply):
            return route
        call = Call(
            tenant, request, session, self._backends, self._pods, self.figures, self._idle_timeout, node=node, take=take
        )
        return await self._call(route, call)

    async def _call(self, route: routes.Route, call: Call) -> Reply | None:
        """Run an endpoint; whatever goes wrong in it becomes a reply."""
        try:
            if not route.stream:
                return await route(call)
            with self.streams.hold(call.tenant), _ending_with(call.session.wire):
                return await route(call)
        except Rejected as rejected:
            return rejected.reply
        except TooManyStreamsError as error:
            return Reply.text(429, str(error))
        except (OSError, HeldError):
            raise
        except Exception:  # noqa: BLE001 - one broken answer must not end the endpoint; it is logged in full
            _log.exception("kubelet request failed", tenant=call.tenant, path="/".join(call.request.path))
            return Reply.text(500, "the virtual node failed to answer; its operators can find out why")


@contextlib.contextmanager
def _ending_with(wire: Wire) -> Iterator[None]:
    """Cancel the block when the caller is gone while it waits for an answer below."""
    task = asyncio.current_task()
    if task is None or wire.ended:
        raise ConnectionResetError("the caller is gone")
    wire.on_end = functools.partial(_cancel, task)
    try:
        yield
    finally:
        wire.on_end = None


def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
