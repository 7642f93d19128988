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
from vkgateway.kube.wire import Wire
from vkgateway.kubelet import routes
from vkgateway.kubelet.call import Call, Rejected
from vkgateway.kubelet.callers import Callers
from vkgateway.kubelet.http import Reply, Request, Session
from vkgateway.kubelet.identity import Stranger
from vkgateway.kubelet.stats import Figures
from vkgateway.kubelet.streams import Streams, TooManyStreamsError
from vkgateway.kubelet.target import Backends, Pods, no_placements, no_pods
from vkgateway.kubelet.tokens import Tokens
from vkgateway.kubelet.unread import UNREAD_MAX, Unread, UnreadError
from vkgateway.model.errors import UnavailableError

HANDSHAKE_SECONDS: Final = 10.0
FIRST_REQUEST_SECONDS: Final = 30.0
BETWEEN_REQUESTS_SECONDS: Final = 120.0
"""Longer than the 90 s for which Go's transport keeps an unused connection, so that it is the one to close."""
REPLY_SECONDS: Final = 120.0
"""In which a caller must have read an answer that is told whole."""
_LINGER_SECONDS: Final = 5.0
_UNKNOWN_AT_ONCE: Final = 512
"""Connections that may be in their handshake at the same time."""
_NAMELESS_AT_ONCE: Final = 256
_NAMELESS_OF_ONE: Final = 64
"""Connections without a certificate that may be open at the same time, in all and from one address."""
_NAMELESS_SECONDS: Final = 10.0
_NAMELESS_BODY: Final = 1024

_log = structlog.get_logger(__name__)


class KubeletServer:
    """Serves the kubelet API to admitted tenants by TLS.

    Which tenant calls is read from the client certificate, or told by that tenant's API server, of a token (`tokens`,
    for reading figures and pods only); see `callers`. Nobody is served before `admit`. `backends` finds the compute
    pod, `pods` lists a tenant's pods for `/pods`, `figures` measures them. `port` 0 is any free one, and the property
    tells it after `start`. `idle_timeout` (seconds) ends silent exec, attach and port-forward connections, as a
    kubelet's streamingConnectionIdleTimeout does; logs may be silent for ever. `unread_max` bounds the bytes of answers
    that a tenant has not read.
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
        idle_timeout: float = 4 * 3600.0,
        unread_max: int = UNREAD_MAX,
    ) -> None:
        self._address = address
        self._port = port
        self._tls = tls
        self._backends = backends
        self._pods = pods
        self.figures: Final = figures or Figures(no_placements)
        self._idle_timeout = idle_timeout
        self._callers = Callers(tokens)
        self._unread = Unread(unread_max)
        self.streams: Final = Streams(streams_per_tenant)
        self._server: asyncio.Server | None = None
        self._tasks: dict[asyncio.Task[None], str] = {}
        """Every connection's task and its tenant; the empty name until that is known."""
        self._nameless: dict[asyncio.Task[None], str] = {}
        """Tasks of connections without a certificate, and the addresses they come from."""

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._port

    def admit(self, tenant: str, *, fingerprints: Collection[str] = ()) -> None:
        """Serve a tenant from now on; with fingerprints (`identity.fingerprint`) only by those certificates.

        Called again it replaces the fingerprints; requests that are under way go on.
        """
        self._callers.admission.admit(tenant, fingerprints=fingerprints)

    def revoke(self, tenant: str) -> None:
        """Serve a tenant no longer, and end what it holds open."""
        self._callers.forget(tenant)
        self.figures.forget(tenant)
        for task, owner in list(self._tasks.items()):
            if owner == tenant:
                task.cancel()

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
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
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
        wire = Wire(tls=Tls(self._tls, server_side=True))
        task = asyncio.get_running_loop().create_task(self._connection(wire), name="kubelet-connection")
        self._tasks[task] = ""
        task.add_done_callback(self._finished)
        return wire

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        self._nameless.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("kubelet connection failed", exc_info=error)

    async def _connection(self, wire: Wire) -> None:
        try:
            await self._greet(wire)
            await self._converse(wire)
        except (OSError, TimeoutError) as error:
            _log.debug("kubelet connection ended", peer=wire.peer, error=str(error))
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await wire.closed(linger=_LINGER_SECONDS)

    async def _greet(self, wire: Wire) -> None:
        unknown = sum(not owner and task not in self._nameless for task, owner in self._tasks.items())
        if unknown > _UNKNOWN_AT_ONCE:
            raise ConnectionAbortedError("too many connections are in their handshake")
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            await wire.opened()
        task = asyncio.current_task()
        if task is not None and (wire.tls is None or wire.tls.peer_certificate() is None):
            address = wire.peer.rpartition(":")[0]
            of_one = sum(other == address for other in self._nameless.values())
            if len(self._nameless) >= _NAMELESS_AT_ONCE or of_one >= _NAMELESS_OF_ONE:
                raise ConnectionAbortedError("too many connections have no certificate")
            self._nameless[task] = address

    async def _converse(self, wire: Wire) -> None:
        """Answer one request after the other."""
        nameless = asyncio.current_task() in self._nameless
        session = Session(wire, body_max=_NAMELESS_BODY) if nameless else Session(wire)
        more = True
        patience = _NAMELESS_SECONDS if nameless else FIRST_REQUEST_SECONDS
        while more:
            request = await session.await_request(patience=patience)
            if request is None:
                return
            reply, last = await self._answer(session, request)
            if reply is None:
                return
            more = await self._deliver(session, reply, last=last)
            patience = BETWEEN_REQUESTS_SECONDS

    async def _deliver(self, session: Session, reply: Reply, *, last: bool) -> bool:
        """Send a whole answer; says whether another request may follow. Raises TimeoutError where it is not read."""
        task = asyncio.current_task()
        tenant = self._tasks.get(task, "") if task is not None else ""
        try:
            with self._unread.hold(tenant, len(reply.body)):
                async with asyncio.timeout(REPLY_SECONDS):
                    return await session.reply(reply, last=last)
        except UnreadError as error:
            return await session.reply(Reply.text(429, str(error)), last=True)

    async def _answer(self, session: Session, request: Request) -> tuple[Reply | None, bool]:
        """The reply, None if the connection is used up, and whether it is to be the connection's last."""
        request, address = routes.addressed(request)
        try:
            tenant = await self._callers.tenant(session.wire.tls, request, address)
        except Stranger as error:
            _log.warning("kubelet caller refused", peer=session.wire.peer, why=str(error))
            return Reply.text(403, str(error)), True
        except Rejected as rejected:
            return rejected.reply, True
        except TooManyStreamsError as error:
            return Reply.text(429, str(error)), True
        self._belongs(tenant)
        route = routes.find(request)
        call = Call(
            tenant, request, session, self._backends, self._pods, self.figures, self._idle_timeout, node=address.node
        )
        reply = route if isinstance(route, Reply) else await self._call(route, call)
        return reply, bool(request.upgrade)

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
        except OSError:
            raise
        except Exception:  # noqa: BLE001 - one broken answer must not end the endpoint; it is logged in full
            _log.exception("kubelet request failed", tenant=call.tenant, path="/".join(call.request.path))
            return Reply.text(500, "the virtual node failed to answer; its operators can find out why")

    def _belongs(self, tenant: str) -> None:
        """Note whose the connection is, so that it can be ended with its tenant."""
        task = asyncio.current_task()
        if task in self._tasks:
            self._tasks[task] = tenant


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
