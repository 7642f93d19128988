"""Health and metrics over plain HTTP: /healthz (it lives), /readyz (it serves, or why not), /metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

import structlog
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from vkgateway.model.errors import UnavailableError

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
        self._runner: web.AppRunner | None = None

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._port

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._address, self._port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise UnavailableError(
                f"health and metrics cannot listen on {self._address}:{self._port}: {error.strerror or error}",
                hint="Choose another with observability.port, or 0 for any free one.",
            ) from error
        self._port = self._runner.addresses[0][1]
        log.info("health and metrics listen", address=self._address, port=self._port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        """Every check on a line of its own, as Kubernetes' own servers tell them."""
        found = {name: check() for name, check in self._checks.items()}
        lines = [f"[-]{name}: {why}" if why else f"[+]{name} ok" for name, why in found.items()]
        return web.Response(text="\n".join(lines) + "\n", status=503 if any(found.values()) else 200)

    async def _metrics(self, _: web.Request) -> web.Response:
        self._refresh()
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})
