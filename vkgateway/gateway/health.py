"""Health and metrics over plain HTTP: /healthz (it lives), /readyz (it serves, or why not), /metrics."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import socket
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

import structlog
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from vkgateway.model.errors import UnavailableError

if TYPE_CHECKING:
    from aiohttp import web

log = structlog.get_logger(__name__)

Check = Callable[[], str]
"""Says what is wrong, or "" if nothing is."""


class HealthServer:
    """Serves the three paths; `checks` by name decide on /readyz, `refresh` is called before metrics are read."""

    def __init__(
        self,
        *,
        address: str,
        port: int,
        checks: Mapping[str, Check],
        refresh: Callable[[], None] = lambda: None,
    ) -> None:
        self._address = address
        self._port = port
        self._checks = checks
        self._refresh = refresh
        self._task: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._port

    async def __aenter__(self) -> Self:
        """Listen; answers come as soon as the web server is loaded, which nothing else waits for."""
        try:
            listening = _listen(self._address, self._port)
        except OSError as error:
            raise UnavailableError(
                f"health and metrics cannot listen on {self._address}:{self._port}: {error.strerror or error}",
                hint="Choose another with observability.port, or 0 for any free one.",
            ) from error
        self._port = listening.getsockname()[1]
        self._task = asyncio.create_task(self._serve(listening), name="health")
        log.info("health and metrics listen", address=self._address, port=self._port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            task, self._task = self._task, None
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _serve(self, listening: socket.socket) -> None:
        with contextlib.closing(listening):
            # A third of a second of loading, which a gateway that was restarted has better use for.
            web = await asyncio.to_thread(importlib.import_module, "aiohttp.web")
            app = web.Application()
            app.router.add_get("/healthz", self._healthz)
            app.router.add_get("/readyz", self._readyz)
            app.router.add_get("/metrics", self._metrics)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
            await runner.setup()
            try:
                await web.SockSite(runner, listening).start()
                await asyncio.get_running_loop().create_future()
            finally:
                await runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        from aiohttp import web

        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        """Every check on a line of its own, as Kubernetes' own servers tell them."""
        from aiohttp import web

        found = {name: check() for name, check in self._checks.items()}
        lines = [f"[-]{name}: {why}" if why else f"[+]{name} ok" for name, why in found.items()]
        return web.Response(text="\n".join(lines) + "\n", status=503 if any(found.values()) else 200)

    async def _metrics(self, _: web.Request) -> web.Response:
        from aiohttp import web

        self._refresh()
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _listen(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listening = socket.create_server((address, port), family=family, backlog=128)
    listening.setblocking(False)
    return listening
