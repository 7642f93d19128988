"""A compute cluster that the gateway is connected to: how that goes, and what tenants' pods need there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import structlog

from vkgateway.gateway import prerequisites
from vkgateway.gateway.status import Verdict, false_verdict, true_verdict, unknown_verdict
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.kubeconfig import ClientConfig
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.network.service_cidr import refresh_ranges

log = structlog.get_logger(__name__)

PREPARE_SECONDS = 300.0
"""How often it is seen to that a compute cluster has what tenants' pods need."""
STARTUP_GRACE_SECONDS = 3.0
_VERSION_PATH = "/version"


class _Version(msgspec.Struct, rename="camel"):
    git_version: str = ""


@dataclass(slots=True)
class ConnectedCluster:
    """A compute cluster that is being talked to; `connection` is what its client was made from.

    That is None for the management cluster itself. All times are monotonic seconds, as `connected_at` is.
    """

    link: ComputeLink
    task: asyncio.Task[None]
    connection: ClientConfig | None
    connected_at: float
    prepared: bool = False
    version: str = ""
    _prepare_due: float = 0.0

    def is_recent(self, now: float) -> bool:
        """Whether it was connected to only just."""
        return now - self.connected_at < STARTUP_GRACE_SECONDS

    def connection_verdict(self, now: float) -> Verdict:
        """How the connection stands."""
        if self.link.is_reachable:
            return true_verdict("Connected", f"connected to {self.link.client.server}")
        if self.is_recent(now):
            return unknown_verdict("Connecting", f"connecting to {self.link.client.server}")
        return false_verdict("Unreachable", self.link.reachability.reason)

    async def update_connection(self, way: ClientConfig | None, connect: Callable[[], Client]) -> bool:
        """Go on, by other credentials where `connection` has such; False: a connection must be made anew.

        That is so where it leads elsewhere, or nothing can be lost. Otherwise all watches go on, and no tenant sees a
        compute cluster that is not connected for a while. Raises ApiError where the server refuses the credentials:
        those before them are used on.
        """
        if way == self.connection:
            return True
        if (
            way is None
            or self.connection is None
            or not way.is_same_server(self.connection)
            or not self.link.is_reachable
        ):
            return False
        async with connect() as renewed:
            await renewed.request("GET", _VERSION_PATH)
            self.link.client.adopt_credentials(renewed)
        self.connection = way
        log.info("other credentials for compute cluster", compute=self.link.name)
        return True

    async def ensure_prepared(self, now: float) -> None:
        """Where it answers and the time has come, make what tenants' pods need there, and see which version it is.

        Later on, this is to make again what somebody deleted, and to see whether it was upgraded: then a failure is
        only logged. The first time it raises ApiError.
        """
        if not self.link.is_reachable or now < self._prepare_due:
            return
        if not self.prepared:
            await self._prepare_cluster(now)
            log.info("compute cluster is ready", compute=self.link.name, version=self.version)
            self.prepared = True
            return
        try:
            await self._prepare_cluster(now)
        except errors.ApiError as error:
            log.warning("compute cluster was not looked at", compute=self.link.name, error=error.message)

    async def _prepare_cluster(self, now: float) -> None:
        client = self.link.client
        self.link.kept_features.clear()
        await prerequisites.ensure_prerequisites(client)
        await refresh_ranges(self.link)
        answer = await client.request("GET", _VERSION_PATH)
        self.version = msgspec.json.decode(answer, type=_Version).git_version
        self._prepare_due = now + PREPARE_SECONDS
