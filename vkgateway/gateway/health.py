"""Over plain HTTP: /healthz (it lives), /readyz (it serves, or why not), /metrics, /arbiter/state.

By the same few lines that answer for the virtual nodes: a web framework would double what a restarted gateway loads
before it can look for what has changed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Final, Self

import structlog
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from vkgateway.kube.wire import Wire
from vkgateway.kubelet.http import Reply, Request, Session
from vkgateway.model.errors import UnavailableError

log = structlog.get_logger(__name__)

Check = Callable[[], str]
"""Says what is wrong, or "" if nothing is."""

_PATIENCE: Final = 30.0
"""Seconds for which a connection may be silent."""
_CONNECTIONS: Final = 64


class HealthServer:
    """Serves these paths; `checks` by name decide on /readyz, `refresh` is called before metrics are read.

    `state` gives, as JSON, how pools, tenants and gangs stand, and is called in a thread of its own, since it may take
    long; without it that is not known here. It names all tenants: it is for whoever may reach this address.
    """

    def __init__(
        self,
        *,
        address: str,
        port: int,
        checks: Mapping[str, Check],
        refresh: Callable[[], Awaitable[None] | None] = lambda: None,
        state: Callable[[], bytes] | None = None,
    ) -> None:
        self._address = address
        self._port = port
        self._checks = checks
        self._refresh = refresh
        self._state = state
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._measuring = asyncio.Lock()
        """Held from the first figure that is set to the last that is read: one reader must not see another's halves."""

    def show(
        self,
        *,
        checks: Mapping[str, Check],
        refresh: Callable[[], Awaitable[None] | None],
        state: Callable[[], bytes],
    ) -> None:
        """From now on answer by these; a gateway lives, and says what it waits for, before there is more to tell."""
        self._checks = checks
        self._refresh = refresh
        self._state = state

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._port

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._accept, self._address, self._port, reuse_address=True)
        except OSError as error:
            raise UnavailableError(
                f"health and metrics cannot listen on {self._address}:{self._port}: {error.strerror or error}",
                hint="Choose another with observability.port, or 0 for any free one.",
            ) from error
        self._port = self._server.sockets[0].getsockname()[1]
        log.info("health and metrics listen", address=self._address, port=self._port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    def _accept(self) -> Wire:
        wire = Wire()
        task = asyncio.get_running_loop().create_task(self._converse(wire), name="health-connection")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return wire

    async def _converse(self, wire: Wire) -> None:
        """Answer one request after the other."""
        session = Session(wire)
        try:
            await wire.opened()
            more = len(self._tasks) <= _CONNECTIONS
            while more:
                request = await session.await_request(patience=_PATIENCE)
                if request is None:
                    return
                more = await session.reply(await self._answer(request))
        except OSError as error:  # a time-out is one
            log.debug("health connection ended", peer=wire.peer, error=str(error))
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await wire.closed(linger=1.0)

    async def _answer(self, request: Request) -> Reply:
        if request.method != "GET":
            return Reply.text(405, "only GET is known here")
        if request.path == ("healthz",):
            return Reply.text(200, "ok")
        if request.path == ("readyz",):
            return self._readyz()
        if request.path == ("metrics",):
            async with self._measuring:
                if (refreshed := self._refresh()) is not None:
                    await refreshed
                return Reply(200, generate_latest(), CONTENT_TYPE_LATEST)
        if request.path == ("arbiter", "state") and self._state is not None:
            return Reply(200, await asyncio.to_thread(self._state), "application/json")
        return Reply.text(404, "known here: /healthz, /readyz, /metrics, /arbiter/state")

    def _readyz(self) -> Reply:
        """Every check on a line of its own, as Kubernetes' own servers tell them."""
        found = {name: check() for name, check in self._checks.items()}
        lines = [f"[-]{name}: {why}" if why else f"[+]{name} ok" for name, why in found.items()]
        return Reply.text(503 if any(found.values()) else 200, "\n".join(lines))
