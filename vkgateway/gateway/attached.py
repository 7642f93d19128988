"""A compute cluster that the gateway is connected to: how that goes, and what tenants' pods need there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import structlog

from vkgateway.gateway import prerequisites
from vkgateway.gateway.status import Verdict, failing, passed, waiting
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.kubeconfig import Connection
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.network.ownrange import look_at_ranges

log = structlog.get_logger(__name__)

PREPARE_SECONDS = 300.0
"""How often it is seen to that a compute cluster has what tenants' pods need."""
SETTLING_SECONDS = 3.0
_VERSION_PATH = "/version"


class _Version(msgspec.Struct, rename="camel"):
    git_version: str = ""


@dataclass(slots=True)
class Attached:
    """A compute cluster that is being talked to; `way` is what its client was made from.

    That is None for the management cluster itself. All times are monotonic seconds, as `since` is.
    """

    link: ComputeLink
    task: asyncio.Task[None]
    way: Connection | None
    since: float
    prepared: bool = False
    version: str = ""
    _prepare_due: float = 0.0

    def recent(self, now: float) -> bool:
        """Whether it was connected to only just."""
        return now - self.since < SETTLING_SECONDS

    def connected(self, now: float) -> Verdict:
        """How the connection stands."""
        if self.link.reachable:
            return passed("Connected", f"connected to {self.link.client.server}")
        if self.recent(now):
            return waiting("Connecting", f"connecting to {self.link.client.server}")
        return failing("Unreachable", self.link.reachability.why)

    async def follow(self, way: Connection | None, connect: Callable[[], Client]) -> bool:
        """Go on, by other credentials where `way` has such; False: a connection must be made anew.

        That is so where it leads elsewhere, or nothing can be lost. Otherwise all watches go on, and no tenant sees a
        compute cluster that is not connected for a while. Raises ApiError where the server refuses the credentials:
        those before them are used on.
        """
        if way == self.way:
            return True
        if way is None or self.way is None or not way.same_server(self.way) or not self.link.reachable:
            return False
        async with connect() as renewed:
            await renewed.request("GET", _VERSION_PATH)
            self.link.client.take_over(renewed)
        self.way = way
        log.info("other credentials for compute cluster", compute=self.link.name)
        return True

    async def keep_prepared(self, now: float) -> None:
        """Where it answers and the time has come, make what tenants' pods need there, and see which version it is.

        Later on, this is to make again what somebody deleted, and to see whether it was upgraded: then a failure is
        only logged. The first time it raises ApiError.
        """
        if not self.link.reachable or now < self._prepare_due:
            return
        if not self.prepared:
            await self._prepare(now)
            log.info("compute cluster is ready", compute=self.link.name, version=self.version)
            self.prepared = True
            return
        try:
            await self._prepare(now)
        except errors.ApiError as error:
            log.warning("compute cluster was not looked at", compute=self.link.name, error=error.message)

    async def _prepare(self, now: float) -> None:
        client = self.link.client
        self.link.kept_features.clear()
        await prerequisites.ensure(client)
        await look_at_ranges(self.link)
        answer = await client.request("GET", _VERSION_PATH)
        self.version = msgspec.json.decode(answer, type=_Version).git_version
        self._prepare_due = now + PREPARE_SECONDS
