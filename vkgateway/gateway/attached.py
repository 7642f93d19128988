"""A compute cluster that the gateway is connected to: how that goes, and what tenants' pods need there."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec
import structlog

from vkgateway.gateway import prerequisites
from vkgateway.gateway.status import Verdict, failing, passed, waiting
from vkgateway.kube import errors
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
    """A compute cluster that is being talked to; `source` changes when the connection must be made anew.

    All times are monotonic seconds, as `since` is.
    """

    link: ComputeLink
    task: asyncio.Task[None]
    source: str
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
