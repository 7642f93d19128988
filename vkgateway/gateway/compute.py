"""Keeps the gateway connected to every ComputeCluster, and tells in its status how that goes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

import msgspec
import structlog

from vkgateway.arbiter.facts import Pool, PoolKey
from vkgateway.gateway import finalizers
from vkgateway.gateway.attached import Attached
from vkgateway.gateway.compute_connection import connection
from vkgateway.gateway.events import Recorder
from vkgateway.gateway.pools import held_inside, pool_facts, pool_status, shared_nodes
from vkgateway.gateway.promises import Held
from vkgateway.gateway.status import (
    ComputeFacts,
    Verdict,
    changed,
    compute_status,
    difference,
    failing,
    passed,
    told_before,
    waiting,
)
from vkgateway.gateway.worker import DONE, Fleet, Outcome
from vkgateway.kube import errors, kubeconfig
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.kube.resources import COMPUTE_CLUSTERS
from vkgateway.model.api import POOLS_APART, ComputeCluster, ComputeClusterStatus
from vkgateway.model.errors import VkgatewayError
from vkgateway.model.names import GROUP
from vkgateway.model.reserve import problems
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.translate.poolnodes import PoolNodes

log = structlog.get_logger(__name__)

FINALIZER = f"{GROUP}/compute-cluster"
RESYNC_SECONDS = 30.0
SETTLING_LOOK_SECONDS = 0.2
ENDING_LOOK_SECONDS = 1.0
"""How soon to look again whether the last pods of tenants have ended in a cluster that is to go."""

Guaranteed = Callable[[str, str], Mapping[str, str]]
"""Compute cluster and pool to what tenants are guaranteed of it, all told."""

Users = Callable[[str], list[str]]
"""Compute cluster to the tenants that have pools of it."""


class ComputeController:
    """One worker a ComputeCluster; `links` holds those that are connected or being connected to.

    `on_change` is called whenever a cluster, its pools' nodes or its reachability changed. `guaranteed` and `users`
    are asked about tenants; they are set once the tenants' controller is there.
    """

    def __init__(
        self,
        management: Client,
        *,
        recorder: Recorder,
        connect: Callable[[str, kubeconfig.Connection | None], Client],
        on_change: Callable[[], None],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._management = management
        self._recorder = recorder
        self._connect = connect
        self._on_change = on_change
        self._clock = clock
        self._monotonic = monotonic
        self._attached: dict[str, Attached] = {}
        self._statuses: dict[str, tuple[str, ComputeClusterStatus]] = {}
        """By name, what was told last, with the UID of whom it was told: another may have the name by now."""
        self.guaranteed: Guaranteed = lambda _cluster, _pool: {}
        self.users: Users = lambda _cluster: []
        self._fleet = Fleet("compute-cluster", self._reconcile, on_error=self._failed)
        self.clusters: Reflector[ComputeCluster] = Reflector(
            management,
            COMPUTE_CLUSTERS,
            decode=msgspec.json.Decoder(ComputeCluster).decode,
            on_change=self._cluster_changed,
        )

    @property
    def links(self) -> dict[str, ComputeLink]:
        """Compute clusters by name; what a link knows can be trusted only while it says so."""
        return {name: attached.link for name, attached in self._attached.items()}

    def cluster(self, name: str) -> ComputeCluster | None:
        """Return a ComputeCluster object as it was seen last."""
        return self.clusters.items.get(("", name))

    def names(self) -> list[str] | None:
        """The compute clusters that there are, connected or not; None while that is not known."""
        return [name for _, name in self.clusters.items] if self.clusters.complete else None

    def seen(self) -> list[ComputeCluster]:
        """Return all compute clusters with their newest status, also where the server has not told it back yet."""
        return [
            ComputeCluster(
                metadata=found.metadata,
                spec=found.spec,
                status=self._told(found) or ComputeClusterStatus(),
            )
            for found in self.clusters.items.values()
        ]

    def pool_facts(self, key: PoolKey) -> Pool | None:
        """A pool's nodes, with what pods that are not the gateway's hold there; None while that is not known."""
        found, attached = self.cluster(key[0]), self._attached.get(key[0])
        pool = next((pool for pool in found.spec.pools if pool.name == key[1]), None) if found is not None else None
        link = attached.link if attached is not None else None
        if pool is None or link is None or not (link.nodes.complete and link.strangers.complete):
            return None
        nodes, strangers = link.nodes.pool(pool.node_selector), link.strangers.items.values()
        return pool_facts(key, nodes, strangers, cell_resource=pool.cell_resource)

    def standing(self, key: PoolKey) -> list[Held]:
        """The pods that run inside guarantees in a pool, as far as they are known."""
        attached, facts = self._attached.get(key[0]), self.pool_facts(key)
        if attached is None or facts is None or not facts.governed:
            return []
        return held_inside(attached.link.pods.items.values(), key, facts.unit)

    def networks(self) -> list[str]:
        """The ranges of Services and pods in all compute clusters, as far as they are known."""
        return [cidr for attached in self._attached.values() for cidr in attached.link.networks()]

    def tenants_changed(self) -> None:
        """Tenants came, went or changed: their guarantees are told in the statuses."""
        self._fleet.wake_all()

    async def run(self) -> None:
        """Work until cancelled, then let go of all connections."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.clusters.run(), name="compute-clusters/watch")
                group.create_task(self._fleet.run(), name="compute-clusters/workers")
        finally:
            for name in list(self._attached):
                await self._detach(name)

    def _cluster_changed(self, old: ComputeCluster | None, new: ComputeCluster | None) -> None:
        found = new or old
        if found is None or (old is not None and new is not None and _same(old, new)):
            return
        self._fleet.wake(found.metadata.name)
        self._on_change()

    async def _reconcile(self, name: str) -> Outcome:
        found = self.cluster(name)
        if found is None:
            await self._detach(name)
            self._statuses.pop(name, None)
            self._on_change()
            return DONE
        if found.metadata.deletion_timestamp is not None:
            return await self._remove(found)
        await self._hold(found)
        attached = await self._attach(found)
        await attached.keep_prepared(self._monotonic())
        if self._settling(found, attached):
            return SETTLING_LOOK_SECONDS
        await self._tell(found, self._facts(found, attached))
        return RESYNC_SECONDS

    def _settling(self, found: ComputeCluster, attached: Attached) -> bool:
        """Whether to keep quiet: after a start of the gateway all is as it was until something shows otherwise."""
        link = attached.link
        known = link.reachable and link.nodes.complete and attached.prepared
        return found.status.observed_generation > 0 and not known and attached.recent(self._monotonic())

    async def _failed(self, name: str, error: Exception) -> None:
        found = self.cluster(name)
        if found is None or found.metadata.deletion_timestamp is not None:
            return
        attached = self._attached.get(name)
        known = isinstance(error, VkgatewayError)
        verdict = failing("CannotConnect" if known else "InternalError", str(error))
        connected = passed("Connected") if attached is not None and attached.link.reachable else verdict
        before = self._status(found)
        apart = told_before(before.conditions, POOLS_APART)
        await self._tell(found, ComputeFacts(connected, verdict, pools=before.pools, apart=apart))

    async def _hold(self, found: ComputeCluster) -> None:
        """Put our finalizer on it, so that it does not vanish from under its tenants."""
        if FINALIZER not in found.metadata.finalizers:
            await finalizers.hold(self._management, COMPUTE_CLUSTERS, found.metadata, FINALIZER)

    async def _remove(self, found: ComputeCluster) -> Outcome:
        metadata = found.metadata
        if users := self.users(metadata.name):
            why = f"goes when no tenant has pools of it any more: {', '.join(users)}"
            await self._tell_in_use(found, await self._attach(found), why)
            return RESYNC_SECONDS
        attached = await self._last_look(found) if FINALIZER in metadata.finalizers else None
        link = attached.link if attached is not None else None
        if link is not None and not (link.pods.complete if link.reachable else link.reachability.judged):
            return SETTLING_LOOK_SECONDS
        if attached is not None and link is not None and link.reachable and (left := link.pods.tenants()):
            why = f"goes when the last pods of tenants have ended there: {', '.join(left)}"
            await self._tell_in_use(found, attached, why)
            return ENDING_LOOK_SECONDS
        await self._detach(metadata.name)
        if FINALIZER in metadata.finalizers:
            await finalizers.release(self._management, COMPUTE_CLUSTERS, metadata, FINALIZER)
        return None

    async def _last_look(self, found: ComputeCluster) -> Attached | None:
        """Connect to a cluster that is to go, for once we let go of it nobody ends what runs there; None: we cannot.

        By the connection that there is, where what it is to be made from cannot be used or read now.
        """
        try:
            return await self._attach(found)
        except VkgatewayError as error:
            if attached := self._attached.get(found.metadata.name):
                return attached
            if isinstance(error, errors.ApiError):
                raise
            log.warning("what runs there is left alone", compute=found.metadata.name, error=str(error))
            return None

    async def _tell_in_use(self, found: ComputeCluster, attached: Attached, why: str) -> None:
        facts = self._facts(found, attached)
        await self._tell(found, replace(facts, ready=failing("InUse", why)))

    async def _attach(self, found: ComputeCluster) -> Attached:
        name = found.metadata.name
        way = await connection(self._management, found.spec.connection.kubeconfig_secret)
        attached = self._attached.get(name)

        def connect() -> Client:
            return self._connect(name, way)

        if attached is not None and not attached.task.done() and await attached.follow(way, connect):
            return attached
        client = connect()  # before the old one goes: what cannot be used takes nothing away
        await self._detach(name)
        link = ComputeLink(name, client)
        link.on_nodes_changed.append(lambda: self._link_changed(name))
        link.on_reachable_changed.append(lambda: self._link_changed(name))
        task = asyncio.create_task(link.run(), name=f"compute/{name}")
        task.add_done_callback(lambda done: self._link_ended(name, done))
        attached = self._attached[name] = Attached(link, task, way, since=self._monotonic())
        log.info("connecting to compute cluster", compute=name)
        self._on_change()
        return attached

    def _link_changed(self, name: str) -> None:
        self._fleet.wake(name)
        self._on_change()

    def _link_ended(self, name: str, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("compute cluster's watches failed", compute=name, exc_info=error)
            self._fleet.wake(name)

    async def _detach(self, name: str) -> None:
        attached = self._attached.pop(name, None)
        if attached is None:
            return
        attached.task.cancel()
        await asyncio.gather(attached.task, return_exceptions=True)
        if attached.link.client is not self._management:
            await attached.link.client.close()

    def _facts(self, found: ComputeCluster, attached: Attached) -> ComputeFacts:
        link = attached.link
        if not link.nodes.complete:
            # What was counted before stays until it can be counted anew.
            return ComputeFacts(
                attached.connected(self._monotonic()),
                waiting("NodesUnknown", "its nodes are being listed"),
                attached.version,
                self._status(found).pools,
                told_before(self._status(found).conditions, POOLS_APART),
            )
        nodes = {pool.name: link.nodes.pool(pool.node_selector) for pool in found.spec.pools}
        pools = tuple(
            pool_status(pool, nodes[pool.name], guaranteed=self.guaranteed(link.name, pool.name))
            for pool in found.spec.pools
        )
        usable = sum(pool.usable_nodes for pool in pools)
        wrong = "; ".join(problem for pool in found.spec.pools for problem in problems(pool))
        if wrong:
            ready = failing("InvalidPool", f"{wrong}. The setting has no effect.")
        elif attached.prepared:
            ready = passed("Ready", f"{usable} usable nodes in {len(pools)} pools")
        else:
            ready = waiting("Preparing", "what tenants' pods need there is being made")
        return ComputeFacts(attached.connected(self._monotonic()), ready, attached.version, pools, _apart(nodes))

    def _status(self, found: ComputeCluster) -> ComputeClusterStatus:
        return self._told(found) or found.status

    def _told(self, found: ComputeCluster) -> ComputeClusterStatus | None:
        uid, status = self._statuses.get(found.metadata.name, ("", None))
        return status if uid == found.metadata.uid else None

    async def _tell(self, found: ComputeCluster, facts: ComputeFacts) -> None:
        metadata = found.metadata
        old = self._status(found)
        new = compute_status(facts, old=old, generation=metadata.generation, now=self._clock())
        self._statuses[metadata.name] = metadata.uid, new
        if new.pools != old.pools or new.conditions != old.conditions:
            self._on_change()
        change = difference(old, new)
        if not change:
            return
        try:
            body = {"metadata": {"uid": metadata.uid}, "status": change}
            await self._management.patch(COMPUTE_CLUSTERS, metadata.name, body, subresource="status")
        except errors.ApiError:
            self._statuses[metadata.name] = metadata.uid, old
            raise
        for one in changed(old.conditions, new.conditions):
            await self._recorder.emit(
                COMPUTE_CLUSTERS,
                metadata,
                reason=one.reason,
                message=one.message or one.reason,
                kind="Warning" if one.status == "False" else "Normal",
            )


def _apart(pools: Mapping[str, PoolNodes]) -> Verdict | None:
    shared = shared_nodes(pools)
    if not shared:
        return None
    return failing("NodesShared", f"{shared}: what is there is promised by each; let their nodeSelectors differ")


def _same(old: ComputeCluster, new: ComputeCluster) -> bool:
    """Whether nothing changed but the status, which is our own doing."""
    return (
        old.metadata.uid == new.metadata.uid
        and old.metadata.generation == new.metadata.generation
        and old.metadata.finalizers == new.metadata.finalizers
        and old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
    )
