"""Keeps the gateway connected to every ComputeCluster, and tells in its status how that goes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

import msgspec
import structlog

from vkgateway.arbiter.snapshot import Pool, PoolKey
from vkgateway.gateway import finalizers
from vkgateway.gateway.compute_connection import read_connection
from vkgateway.gateway.connected_cluster import ConnectedCluster
from vkgateway.gateway.events import EventRecorder
from vkgateway.gateway.guarantee_checks import GuaranteedPod
from vkgateway.gateway.pools import guaranteed_pods, pool_facts, pool_status, shared_nodes
from vkgateway.gateway.status import (
    ComputeFacts,
    Verdict,
    changed_conditions,
    compute_status,
    false_verdict,
    status_patch,
    true_verdict,
    unknown_verdict,
    verdict_from_condition,
)
from vkgateway.gateway.workqueue import DONE, ReconcileResult, WorkQueue
from vkgateway.kube import errors, kubeconfig
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.kube.resources import COMPUTE_CLUSTERS
from vkgateway.model.api import POOLS_APART, ComputeCluster, ComputeClusterStatus
from vkgateway.model.errors import VkgatewayError
from vkgateway.model.names import GROUP
from vkgateway.model.reserve import pool_problems
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.translate.pool_nodes import PoolNodes

log = structlog.get_logger(__name__)

FINALIZER = f"{GROUP}/compute-cluster"
RESYNC_SECONDS = 30.0
STARTUP_REQUEUE_SECONDS = 0.2
TERMINATION_REQUEUE_SECONDS = 1.0
"""How soon to look again whether the last pods of tenants have ended in a cluster that is to go."""

GuaranteeLookup = Callable[[str, str], Mapping[str, str]]
"""Compute cluster and pool to what tenants are guaranteed of it, all told."""

TenantsLookup = Callable[[str], list[str]]
"""Compute cluster to the tenants that have pools of it."""


class ComputeController:
    """One worker a ComputeCluster; `links` holds those that are connected or being connected to.

    `on_change` is called whenever a cluster, its pools' nodes or its reachability changed. `total_guarantee` and
    `tenants_of` are asked about tenants; they are set once the tenants' controller is there.
    """

    def __init__(
        self,
        management: Client,
        *,
        recorder: EventRecorder,
        connect: Callable[[str, kubeconfig.ClientConfig | None], Client],
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
        self._connected: dict[str, ConnectedCluster] = {}
        self._written_statuses: dict[str, tuple[str, ComputeClusterStatus]] = {}
        """By name, what was told last, with the UID of whom it was told: another may have the name by now."""
        self.total_guarantee: GuaranteeLookup = lambda _cluster, _pool: {}
        self.tenants_of: TenantsLookup = lambda _cluster: []
        self._queue = WorkQueue("compute-cluster", self._reconcile, on_error=self._handle_error)
        self.clusters: Reflector[ComputeCluster] = Reflector(
            management,
            COMPUTE_CLUSTERS,
            decode=msgspec.json.Decoder(ComputeCluster).decode,
            on_change=self._cluster_changed,
        )

    @property
    def links(self) -> dict[str, ComputeLink]:
        """Compute clusters by name; what a link knows can be trusted only while it says so."""
        return {name: attached.link for name, attached in self._connected.items()}

    def find_cluster(self, name: str) -> ComputeCluster | None:
        """Return a ComputeCluster object as it was seen last."""
        return self.clusters.store.get(("", name))

    def cluster_names(self) -> list[str] | None:
        """The compute clusters that there are, connected or not; None while that is not known."""
        return [name for _, name in self.clusters.store] if self.clusters.is_complete else None

    def clusters_with_status(self) -> list[ComputeCluster]:
        """Return all compute clusters with their newest status, also where the server has not told it back yet."""
        return [
            ComputeCluster(
                metadata=found.metadata,
                spec=found.spec,
                status=self._last_written_status(found) or ComputeClusterStatus(),
            )
            for found in self.clusters.store.values()
        ]

    def pool_facts(self, key: PoolKey) -> Pool | None:
        """A pool's nodes, with what pods that are not the gateway's hold there; None while that is not known."""
        found, attached = self.find_cluster(key[0]), self._connected.get(key[0])
        pool = next((pool for pool in found.spec.pools if pool.name == key[1]), None) if found is not None else None
        link = attached.link if attached is not None else None
        if pool is None or link is None or not (link.nodes.is_complete and link.unmanaged_pods.is_complete):
            return None
        nodes, strangers = link.nodes.pool_nodes(pool.node_selector), link.unmanaged_pods.store.values()
        return pool_facts(key, nodes, strangers, cell_resource=pool.cell_resource)

    def guaranteed_pods(self, key: PoolKey) -> list[GuaranteedPod]:
        """The pods that run inside guarantees in a pool, as far as they are known."""
        attached, facts = self._connected.get(key[0]), self.pool_facts(key)
        if attached is None or facts is None or not facts.governed:
            return []
        return guaranteed_pods(attached.link.pods.store.values(), key, facts.unit_resource)

    def known_networks(self) -> list[str]:
        """The ranges of Services and pods in all compute clusters, as far as they are known."""
        return [cidr for attached in self._connected.values() for cidr in attached.link.network_ranges()]

    def tenants_changed(self) -> None:
        """Tenants came, went or changed: their guarantees are told in the statuses."""
        self._queue.enqueue_all()

    async def run(self) -> None:
        """Work until cancelled, then let go of all connections."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.clusters.run(), name="compute-clusters/watch")
                group.create_task(self._queue.run(), name="compute-clusters/workers")
        finally:
            for name in list(self._connected):
                await self._disconnect(name)

    def _cluster_changed(self, old: ComputeCluster | None, new: ComputeCluster | None) -> None:
        found = new or old
        if found is None or (old is not None and new is not None and _is_unchanged(old, new)):
            return
        self._queue.enqueue(found.metadata.name)
        self._on_change()

    async def _reconcile(self, name: str) -> ReconcileResult:
        found = self.find_cluster(name)
        if found is None:
            await self._disconnect(name)
            self._written_statuses.pop(name, None)
            self._on_change()
            return DONE
        if found.metadata.deletion_timestamp is not None:
            return await self._finalize_cluster(found)
        await self._ensure_finalizer(found)
        attached = await self._ensure_connected(found)
        await attached.ensure_prepared(self._monotonic())
        if self._suppress_at_startup(found, attached):
            return STARTUP_REQUEUE_SECONDS
        await self._write_status(found, self._compute_facts(found, attached))
        return RESYNC_SECONDS

    def _suppress_at_startup(self, found: ComputeCluster, attached: ConnectedCluster) -> bool:
        """Whether to keep quiet: after a start of the gateway all is as it was until something shows otherwise."""
        link = attached.link
        known = link.is_reachable and link.nodes.is_complete and attached.prepared
        return found.status.observed_generation > 0 and not known and attached.is_recent(self._monotonic())

    async def _handle_error(self, name: str, error: Exception) -> None:
        found = self.find_cluster(name)
        if found is None or found.metadata.deletion_timestamp is not None:
            return
        attached = self._connected.get(name)
        known = isinstance(error, VkgatewayError)
        verdict = false_verdict("CannotConnect" if known else "InternalError", str(error))
        connected = true_verdict("Connected") if attached is not None and attached.link.is_reachable else verdict
        before = self._current_status(found)
        apart = verdict_from_condition(before.conditions, POOLS_APART)
        await self._write_status(found, ComputeFacts(connected, verdict, pools=before.pools, shared_nodes=apart))

    async def _ensure_finalizer(self, found: ComputeCluster) -> None:
        """Put our finalizer on it, so that it does not vanish from under its tenants."""
        if FINALIZER not in found.metadata.finalizers:
            await finalizers.add_finalizer(self._management, COMPUTE_CLUSTERS, found.metadata, FINALIZER)

    async def _finalize_cluster(self, found: ComputeCluster) -> ReconcileResult:
        metadata = found.metadata
        if users := self.tenants_of(metadata.name):
            why = f"goes when no tenant has pools of it any more: {', '.join(users)}"
            await self._report_in_use(found, await self._ensure_connected(found), why)
            return RESYNC_SECONDS
        attached = await self._try_connect(found) if FINALIZER in metadata.finalizers else None
        link = attached.link if attached is not None else None
        if link is not None and not (link.pods.is_complete if link.is_reachable else link.reachability.is_judged):
            return STARTUP_REQUEUE_SECONDS
        if attached is not None and link is not None and link.is_reachable and (left := link.pods.tenant_names()):
            why = f"goes when the last pods of tenants have ended there: {', '.join(left)}"
            await self._report_in_use(found, attached, why)
            return TERMINATION_REQUEUE_SECONDS
        await self._disconnect(metadata.name)
        if FINALIZER in metadata.finalizers:
            await finalizers.remove_finalizer(self._management, COMPUTE_CLUSTERS, metadata, FINALIZER)
        return None

    async def _try_connect(self, found: ComputeCluster) -> ConnectedCluster | None:
        """Connect to a cluster that is to go, for once we let go of it nobody ends what runs there; None: we cannot.

        By the connection that there is, where what it is to be made from cannot be used or read now.
        """
        try:
            return await self._ensure_connected(found)
        except VkgatewayError as error:
            if attached := self._connected.get(found.metadata.name):
                return attached
            if isinstance(error, errors.ApiError):
                raise
            log.warning("what runs there is left alone", compute=found.metadata.name, error=str(error))
            return None

    async def _report_in_use(self, found: ComputeCluster, attached: ConnectedCluster, why: str) -> None:
        facts = self._compute_facts(found, attached)
        await self._write_status(found, replace(facts, ready=false_verdict("InUse", why)))

    async def _ensure_connected(self, found: ComputeCluster) -> ConnectedCluster:
        name = found.metadata.name
        way = await read_connection(self._management, found.spec.connection.kubeconfig_secret)
        attached = self._connected.get(name)

        def connect() -> Client:
            return self._connect(name, way)

        if attached is not None and not attached.task.done() and await attached.update_connection(way, connect):
            return attached
        client = connect()  # before the old one goes: what cannot be used takes nothing away
        await self._disconnect(name)
        link = ComputeLink(name, client)
        link.on_nodes_changed.append(lambda: self._link_changed(name))
        link.on_reachable_changed.append(lambda: self._link_changed(name))
        task = asyncio.create_task(link.run(), name=f"compute/{name}")
        task.add_done_callback(lambda done: self._link_ended(name, done))
        attached = self._connected[name] = ConnectedCluster(link, task, way, connected_at=self._monotonic())
        log.info("connecting to compute cluster", compute=name)
        self._on_change()
        return attached

    def _link_changed(self, name: str) -> None:
        self._queue.enqueue(name)
        self._on_change()

    def _link_ended(self, name: str, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("compute cluster's watches failed", compute=name, exc_info=error)
            self._queue.enqueue(name)

    async def _disconnect(self, name: str) -> None:
        attached = self._connected.pop(name, None)
        if attached is None:
            return
        attached.task.cancel()
        await asyncio.gather(attached.task, return_exceptions=True)
        if attached.link.client is not self._management:
            await attached.link.client.close()

    def _compute_facts(self, found: ComputeCluster, attached: ConnectedCluster) -> ComputeFacts:
        link = attached.link
        if not link.nodes.is_complete:
            # What was counted before stays until it can be counted anew.
            return ComputeFacts(
                attached.connection_verdict(self._monotonic()),
                unknown_verdict("NodesUnknown", "its nodes are being listed"),
                attached.version,
                self._current_status(found).pools,
                verdict_from_condition(self._current_status(found).conditions, POOLS_APART),
            )
        nodes = {pool.name: link.nodes.pool_nodes(pool.node_selector) for pool in found.spec.pools}
        pools = tuple(
            pool_status(pool, nodes[pool.name], guaranteed=self.total_guarantee(link.name, pool.name))
            for pool in found.spec.pools
        )
        usable = sum(pool.usable_nodes for pool in pools)
        wrong = "; ".join(problem for pool in found.spec.pools for problem in pool_problems(pool))
        if wrong:
            ready = false_verdict("InvalidPool", f"{wrong}. The setting has no effect.")
        elif attached.prepared:
            ready = true_verdict("Ready", f"{usable} usable nodes in {len(pools)} pools")
        else:
            ready = unknown_verdict("Preparing", "what tenants' pods need there is being made")
        return ComputeFacts(
            attached.connection_verdict(self._monotonic()), ready, attached.version, pools, _shared_nodes_verdict(nodes)
        )

    def _current_status(self, found: ComputeCluster) -> ComputeClusterStatus:
        return self._last_written_status(found) or found.status

    def _last_written_status(self, found: ComputeCluster) -> ComputeClusterStatus | None:
        uid, status = self._written_statuses.get(found.metadata.name, ("", None))
        return status if uid == found.metadata.uid else None

    async def _write_status(self, found: ComputeCluster, facts: ComputeFacts) -> None:
        metadata = found.metadata
        old = self._current_status(found)
        new = compute_status(facts, old=old, generation=metadata.generation, now=self._clock())
        self._written_statuses[metadata.name] = metadata.uid, new
        if new.pools != old.pools or new.conditions != old.conditions:
            self._on_change()
        change = status_patch(old, new)
        if not change:
            return
        try:
            body = {"metadata": {"uid": metadata.uid}, "status": change}
            await self._management.patch(COMPUTE_CLUSTERS, metadata.name, body, subresource="status")
        except errors.ApiError:
            self._written_statuses[metadata.name] = metadata.uid, old
            raise
        for one in changed_conditions(old.conditions, new.conditions):
            await self._recorder.emit(
                COMPUTE_CLUSTERS,
                metadata,
                reason=one.reason,
                message=one.message or one.reason,
                kind="Warning" if one.status == "False" else "Normal",
            )


def _shared_nodes_verdict(pools: Mapping[str, PoolNodes]) -> Verdict | None:
    shared = shared_nodes(pools)
    if not shared:
        return None
    return false_verdict("NodesShared", f"{shared}: what is there is promised by each; let their nodeSelectors differ")


def _is_unchanged(old: ComputeCluster, new: ComputeCluster) -> bool:
    """Whether nothing changed but the status, which is our own doing."""
    return (
        old.metadata.uid == new.metadata.uid
        and old.metadata.generation == new.metadata.generation
        and old.metadata.finalizers == new.metadata.finalizers
        and old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
    )
