"""Connection to one compute cluster, and the prerequisites of tenant pods there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec
import structlog

from vkgateway.api.types import Pool
from vkgateway.clusters import prerequisites
from vkgateway.clusters.link import ComputeLink
from vkgateway.clusters.pre_pull.keeper import ImageKeeper
from vkgateway.clusters.status import Verdict, false_verdict, true_verdict, unknown_verdict
from vkgateway.kinds.services.service_cidr import refresh_ranges
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.cluster_uid import read_cluster_uid
from vkgateway.kube.kubeconfig import ClientConfig
from vkgateway.scheduler.backends.kinds import ModeKinds, View
from vkgateway.scheduler.backends.kueue.kinds import KUEUE_KINDS
from vkgateway.scheduler.backends.pool_objects import delete_everything
from vkgateway.scheduler.backends.verdict import SchedulerStates, read_schedulers
from vkgateway.scheduler.backends.volcano.kinds import VOLCANO_KINDS

log = structlog.get_logger(__name__)

PREPARE_SECONDS = 300.0
"""Interval between checks that a compute cluster has the prerequisites of tenant pods."""
STARTUP_GRACE_SECONDS = 3.0
_VERSION_PATH = "/version"


class _Version(msgspec.Struct, rename="camel"):
    git_version: str = ""


@dataclass(slots=True)
class ConnectedCluster:
    """Compute cluster with a connection; `connection` is the configuration of its client.

    `connection` is None for the management cluster itself. All times are monotonic seconds.
    """

    link: ComputeLink
    task: asyncio.Task[None]
    connection: ClientConfig | None
    connected_at: float
    prepared: bool = False
    schedulers: SchedulerStates = field(default_factory=dict)
    """Last known states of the schedulers that pools request."""
    version: str = ""
    images: ImageKeeper = field(init=False)
    _prepare_due: float = 0.0
    _cleanup_due: dict[str, float] = field(default_factory=dict)
    """By scheduling mode: when to look again for objects that were left."""

    def __post_init__(self) -> None:
        self.images = ImageKeeper(self.link)

    def is_recent(self, now: float) -> bool:
        """Return whether the connection is younger than STARTUP_GRACE_SECONDS."""
        return now - self.connected_at < STARTUP_GRACE_SECONDS

    def connection_verdict(self, now: float) -> Verdict:
        """Return the verdict of the condition Connected."""
        if self.link.is_reachable:
            return true_verdict("Connected", f"connected to {self.link.client.server}")
        if self.is_recent(now):
            return unknown_verdict("Connecting", f"connecting to {self.link.client.server}")
        return false_verdict("Unreachable", self.link.reachability.reason)

    async def update_connection(self, connection: ClientConfig | None, connect: Callable[[], Client]) -> bool:
        """Adopt new credentials of the same server; return False if a new connection is necessary.

        A new connection is necessary for another server, or if the current one is unreachable. Otherwise all watches
        continue, and no tenant sees a disconnected compute cluster. Raises ApiError if the server refuses the
        credentials; the old ones stay in use.
        """
        if connection == self.connection:
            return True
        if (
            connection is None
            or self.connection is None
            or not connection.is_same_server(self.connection)
            or not self.link.is_reachable
        ):
            return False
        async with connect() as renewed:
            await renewed.request("GET", _VERSION_PATH)
            self.link.client.adopt_credentials(renewed)
        self.connection = connection
        log.info("credentials of compute cluster renewed", compute=self.link.name)
        return True

    async def ensure_prepared(self, now: float) -> None:
        """Create the prerequisites of tenant pods and read the cluster's version, if reachable and due.

        Later calls re-create deleted objects and notice upgrades; their failures are only logged. The first call
        raises ApiError.
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
            log.warning("check of compute cluster failed", compute=self.link.name, error=error.message)

    async def check_schedulers(self, pools: Iterable[Pool], now: float) -> None:
        """Read the state of the schedulers that pools need, and delete what was left at others.

        A failure leaves the states unknown.
        """
        if not self.link.is_reachable:
            return
        try:
            self.schedulers = await read_schedulers(self.link, pools)
            await self._clean_scheduler(KUEUE_KINDS, pools, now)
            await self._clean_scheduler(VOLCANO_KINDS, pools, now)
        except errors.ApiError as error:
            self.schedulers = {}
            log.warning("check of schedulers failed", compute=self.link.name, error=error.message)

    async def _clean_scheduler(self, kinds: ModeKinds[View], pools: Iterable[Pool], now: float) -> None:
        """Delete what was left at a scheduler that no pool needs."""
        if any(pool.scheduling.mode == kinds.mode for pool in pools):
            self._cleanup_due.pop(kinds.mode, None)
        elif now >= self._cleanup_due.get(kinds.mode, 0.0):
            await delete_everything(kinds, self.link)
            self._cleanup_due[kinds.mode] = now + PREPARE_SECONDS

    async def _prepare_cluster(self, now: float) -> None:
        client = self.link.client
        self.link.pods.kept_features.clear()
        await prerequisites.ensure_prerequisites(client)
        await refresh_ranges(self.link)
        self.link.uid = await read_cluster_uid(client)
        answer = await client.request("GET", _VERSION_PATH)
        self.version = msgspec.json.decode(answer, type=_Version).git_version
        self._prepare_due = now + PREPARE_SECONDS
