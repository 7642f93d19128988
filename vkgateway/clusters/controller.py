"""Controller of ComputeClusters: connects the gateway to each cluster and reports its state in the status."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import structlog

from vkgateway.api.errors import InputError, VkgatewayError
from vkgateway.api.names import GROUP
from vkgateway.api.objects import decode_secret
from vkgateway.api.reserve import pool_problems
from vkgateway.api.run_limits import run_limit_problems
from vkgateway.api.scheduling import next_mode, scheduling_problems
from vkgateway.api.types import IMAGES_PULLED, POOLS_APART, SCHEDULERS_READY, ComputeCluster, KubeconfigSecret
from vkgateway.clusters.cluster_watches import NODES, TRUST
from vkgateway.clusters.compute_clusters import ComputeClusters
from vkgateway.clusters.connected_cluster import ConnectedCluster
from vkgateway.clusters.link import ComputeLink
from vkgateway.clusters.pool_nodes import PoolNodes
from vkgateway.clusters.pools import has_admitted_pods, pool_status, shared_nodes
from vkgateway.clusters.status import (
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
from vkgateway.kinds.catalogue import WATCHES
from vkgateway.kube import errors, kubeconfig
from vkgateway.kube.client import Client
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.kube.resources import COMPUTE_CLUSTERS, SECRETS
from vkgateway.runtime import finalizers
from vkgateway.runtime.events import EventRecorder
from vkgateway.runtime.workqueue import ObjectQueue
from vkgateway.scheduler.backends.verdict import scheduler_verdict

log = structlog.get_logger(__name__)

FINALIZER = f"{GROUP}/compute-cluster"
RESYNC_SECONDS = 30.0
STARTUP_REQUEUE_SECONDS = 0.2
TERMINATION_REQUEUE_SECONDS = 1.0
"""Requeue interval while the last tenant pods terminate in a cluster that is being deleted."""

GuaranteeLookup = Callable[[str, str], Mapping[str, str]]
"""Returns the sum of all tenants' guarantees in a pool, by compute cluster and pool."""

TenantsLookup = Callable[[str], list[str] | None]
"""Returns the tenants that use pools of a compute cluster, or whose data is there; None while they are not known."""

PoolTenantsLookup = Callable[[str, str], list[str]]
"""Returns the tenants that use a pool, by compute cluster and pool."""


class ComputeController:
    """Controller with one worker per ComputeCluster.

    `on_change` is called when a cluster, the nodes of its pools or its reachability changed.
    """

    def __init__(
        self,
        management: Client,
        *,
        clusters: ComputeClusters,
        recorder: EventRecorder,
        connect: Callable[[str, kubeconfig.ClientConfig | None], Client],
        on_change: Callable[[], None],
        total_guarantee: GuaranteeLookup = lambda _cluster, _pool: {},
        tenants_of: TenantsLookup = lambda _cluster: [],
        tenants_in: PoolTenantsLookup = lambda _cluster, _pool: [],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._management = management
        self._recorder = recorder
        self._connect = connect
        self._on_change = on_change
        self._clock = clock
        self._is_leading = True
        self._total_guarantee = total_guarantee
        self._tenants_of = tenants_of
        self._tenants_in = tenants_in
        self._queue = ObjectQueue("compute-cluster", self._reconcile, on_error=self._handle_error)
        self.clusters = clusters
        clusters.changed.subscribe(self._cluster_changed)

    def tenants_changed(self) -> None:
        """Requeue all compute clusters, whose statuses report the tenants' guarantees."""
        self._queue.enqueue(*(name for _, name in self.clusters.reflector.store))

    async def run(self, leading: asyncio.Event | None = None) -> None:
        """Run until cancelled, then close all connections. Before `leading` is set, only connect."""
        self._is_leading = leading is None or leading.is_set()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.clusters.reflector.run(), name="compute-clusters/watch")
                group.create_task(self._queue.run(), name="compute-clusters/workers")
                if leading is not None and not self._is_leading:
                    await leading.wait()
                    self._is_leading = True
                    self.tenants_changed()
        finally:
            for name in list(self.clusters.connected):
                await self._disconnect(name)

    def _cluster_changed(self, old: ComputeCluster | None, new: ComputeCluster | None) -> None:
        compute = new or old
        if compute is None or (old is not None and new is not None and _is_unchanged(old, new)):
            return
        self._queue.enqueue(compute.metadata.name)
        self._on_change()

    async def _reconcile(self, name: str) -> float | None:
        compute = self.clusters.find_cluster(name)
        if compute is None:
            await self._disconnect(name)
            self.clusters.forget_status(name)
            self._on_change()
            return None
        if not self._is_leading:
            await self._ensure_connected(compute)
            return RESYNC_SECONDS
        if compute.metadata.deletion_timestamp is not None:
            return await self._finalize_cluster(compute)
        if FINALIZER not in compute.metadata.finalizers:
            await finalizers.add_finalizer(self._management, COMPUTE_CLUSTERS, compute.metadata, FINALIZER)
        connected = await self._ensure_connected(compute)
        await connected.ensure_prepared(self._clock.monotonic())
        pools = (*compute.spec.pools, *self.clusters.effective_pools(compute))
        await connected.check_schedulers(pools, self._clock.monotonic())
        if connected.prepared and connected.link.nodes.is_complete:
            await connected.images.keep(compute.spec.pools, now=self._clock.monotonic(), time=self._clock.time())
        if _is_starting(compute, connected, now=self._clock.monotonic()):
            return STARTUP_REQUEUE_SECONDS
        await self._write_status(compute, self._compute_facts(compute, connected))
        return min(RESYNC_SECONDS, connected.images.check_seconds)

    async def _handle_error(self, name: str, error: Exception) -> None:
        compute = self.clusters.find_cluster(name)
        if compute is None or compute.metadata.deletion_timestamp is not None or not self._is_leading:
            return
        connected = self.clusters.connected.get(name)
        known = isinstance(error, VkgatewayError)
        ready = false_verdict("CannotConnect" if known else "InternalError", str(error))
        is_connected = connected is not None and connected.link.is_reachable
        previous = self.clusters.current_status(compute)
        facts = ComputeFacts(
            true_verdict("Connected") if is_connected else ready,
            ready,
            pools=previous.pools,
            shared_nodes=verdict_from_condition(previous.conditions, POOLS_APART),
            schedulers=verdict_from_condition(previous.conditions, SCHEDULERS_READY),
            images=verdict_from_condition(previous.conditions, IMAGES_PULLED),
        )
        await self._write_status(compute, facts)

    async def _finalize_cluster(self, compute: ComputeCluster) -> float | None:
        metadata = compute.metadata
        users = self._tenants_of(metadata.name)
        if users is None:
            return STARTUP_REQUEUE_SECONDS
        if users:
            message = f"is deleted when no tenant uses its pools; still in use by: {', '.join(users)}"
            await self._report_in_use(compute, await self._ensure_connected(compute), message)
            return RESYNC_SECONDS
        connected = await self._try_connect(compute) if FINALIZER in metadata.finalizers else None
        link = connected.link if connected is not None else None
        if link is not None and not (link.pods.is_complete if link.is_reachable else link.reachability.is_judged):
            return STARTUP_REQUEUE_SECONDS
        if connected is not None and link is not None and link.is_reachable and (remaining := _tenants_with_pods(link)):
            message = f"is deleted when the last tenant pods have terminated; pods left of: {', '.join(remaining)}"
            await self._report_in_use(compute, connected, message)
            return TERMINATION_REQUEUE_SECONDS
        if connected is not None:
            await connected.images.delete_all()
        await self._disconnect(metadata.name)
        if FINALIZER in metadata.finalizers:
            await finalizers.remove_finalizer(self._management, COMPUTE_CLUSTERS, metadata, FINALIZER)
        return None

    async def _try_connect(self, compute: ComputeCluster) -> ConnectedCluster | None:
        """Connect to a cluster that is being deleted, so that its pods can terminate; None if that is impossible.

        An existing connection stays in use if a new one cannot be made.
        """
        try:
            return await self._ensure_connected(compute)
        except VkgatewayError as error:
            if connected := self.clusters.connected.get(compute.metadata.name):
                return connected
            if isinstance(error, errors.ApiError):
                raise
            log.warning(
                "pods of the deleted compute cluster are left running", compute=compute.metadata.name, error=str(error)
            )
            return None

    async def _report_in_use(self, compute: ComputeCluster, connected: ConnectedCluster, message: str) -> None:
        facts = self._compute_facts(compute, connected)
        await self._write_status(compute, replace(facts, ready=false_verdict("InUse", message)))

    async def _ensure_connected(self, compute: ComputeCluster) -> ConnectedCluster:
        name = compute.metadata.name
        connection = await read_connection(self._management, compute.spec.connection.kubeconfig_secret)
        connected = self.clusters.connected.get(name)

        def connect() -> Client:
            return self._connect(name, connection)

        if (
            connected is not None
            and not connected.task.done()
            and await connected.update_connection(connection, connect)
        ):
            return connected
        client = connect()  # before the disconnect: an invalid connection must not end the current one
        await self._disconnect(name)
        link = ComputeLink(name, client, self.clusters.gateway, kinds=WATCHES)
        link.watches.add(NODES, lambda: self._link_changed(name))
        link.watches.add(TRUST, lambda: self._link_changed(name))
        task = asyncio.create_task(link.run(), name=f"compute/{name}")
        task.add_done_callback(lambda done: self._link_ended(name, done))
        connected = self.clusters.connected[name] = ConnectedCluster(
            link, task, connection, connected_at=self._clock.monotonic()
        )
        log.info("connecting to compute cluster", compute=name)
        self._on_change()
        return connected

    def _link_changed(self, name: str) -> None:
        self._queue.enqueue(name)
        self._on_change()

    def _link_ended(self, name: str, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("watches of compute cluster failed", compute=name, exc_info=error)
            self._queue.enqueue(name)

    async def _disconnect(self, name: str) -> None:
        connected = self.clusters.connected.pop(name, None)
        if connected is None:
            return
        connected.task.cancel()
        await asyncio.gather(connected.task, return_exceptions=True)
        if connected.link.client is not self._management:
            await connected.link.client.close()

    def _compute_facts(self, compute: ComputeCluster, connected: ConnectedCluster) -> ComputeFacts:
        link = connected.link
        if not link.nodes.is_complete:
            # The last known pool sizes stay until the nodes are listed.
            return ComputeFacts(
                connected.connection_verdict(self._clock.monotonic()),
                unknown_verdict("NodesUnknown", "listing nodes"),
                connected.version,
                self.clusters.current_status(compute).pools,
                verdict_from_condition(self.clusters.current_status(compute).conditions, POOLS_APART),
                verdict_from_condition(self.clusters.current_status(compute).conditions, SCHEDULERS_READY),
                verdict_from_condition(self.clusters.current_status(compute).conditions, IMAGES_PULLED),
            )
        nodes = {pool.name: link.nodes.pool_nodes(pool.node_selector) for pool in compute.spec.pools}
        modes = self._scheduling_modes(compute, link)
        pools = tuple(
            pool_status(
                pool,
                nodes[pool.name],
                guaranteed=self._total_guarantee(link.name, pool.name),
                scheduling_mode=modes[pool.name],
                pre_pull=connected.images.status_of(pool.name),
            )
            for pool in compute.spec.pools
        )
        usable = sum(pool.usable_nodes for pool in pools)
        problems = "; ".join(
            problem
            for pool in compute.spec.pools
            for problem in (*pool_problems(pool), *run_limit_problems(pool), *scheduling_problems(pool))
        )
        if problems:
            ready = false_verdict("InvalidPool", f"{problems}. The setting has no effect.")
        elif connected.prepared:
            ready = true_verdict("Ready", f"{usable} usable nodes in {len(pools)} pools")
        else:
            ready = unknown_verdict("Preparing", "creating the namespace and priority classes for tenant pods")
        return ComputeFacts(
            connected.connection_verdict(self._clock.monotonic()),
            ready,
            connected.version,
            pools,
            _shared_nodes_verdict(nodes),
            scheduler_verdict(
                compute.spec.pools, modes, connected.schedulers, tenants=partial(self._tenants_in, link.name)
            ),
            connected.images.verdict(),
        )

    def _scheduling_modes(self, compute: ComputeCluster, link: ComputeLink) -> dict[str, str]:
        """Return the scheduling mode of each pool that is in effect from now on.

        While the pods of the cluster are unknown, no mode changes.
        """
        current = {pool.name: pool.scheduling_mode for pool in self.clusters.current_status(compute).pools}
        if not link.is_trusted:
            return {pool.name: current.get(pool.name, "") for pool in compute.spec.pools}
        modes = {}
        for pool in compute.spec.pools:
            former = current.get(pool.name, "")
            # A pool's pods are counted only for a change.
            same = former == pool.scheduling.mode
            has_pods = not same and has_admitted_pods(link.pods.store.values(), pool.name)
            modes[pool.name] = next_mode(pool, current=former, has_pods=has_pods)
        return modes

    async def _write_status(self, compute: ComputeCluster, facts: ComputeFacts) -> None:
        metadata = compute.metadata
        old = self.clusters.current_status(compute)
        new = compute_status(facts, old=old, generation=metadata.generation, now=self._clock.now())
        self.clusters.record_status(compute, new)
        if new.pools != old.pools or new.conditions != old.conditions:
            self._on_change()
        change = status_patch(old, new)
        if not change:
            return
        try:
            await self._management.patch_status(COMPUTE_CLUSTERS, metadata, change)
        except errors.ApiError:
            self.clusters.record_status(compute, old)
            raise
        for condition in changed_conditions(old.conditions, new.conditions):
            await self._recorder.emit_event(
                metadata,
                about=COMPUTE_CLUSTERS,
                reason=condition.reason,
                message=condition.message or condition.reason,
                kind="Warning" if condition.status == "False" else "Normal",
            )


def _is_starting(compute: ComputeCluster, connected: ConnectedCluster, *, now: float) -> bool:
    """Return whether the written status must stay, because its facts are not known yet after a restart."""
    link = connected.link
    known = link.is_reachable and link.nodes.is_complete and connected.prepared
    return compute.status.observed_generation > 0 and not known and connected.is_recent(now)


def _tenants_with_pods(link: ComputeLink) -> list[str]:
    """Return the tenants of this gateway that have pods in a cluster."""
    return [tenant for tenant in link.pods.tenant_names() if not link.owners.is_foreign(tenant)]


def _shared_nodes_verdict(pools: Mapping[str, PoolNodes]) -> Verdict | None:
    shared = shared_nodes(pools)
    if not shared:
        return None
    return false_verdict(
        "NodesShared", f"{shared}: their capacity is counted more than once; use disjoint nodeSelectors"
    )


def _is_unchanged(old: ComputeCluster, new: ComputeCluster) -> bool:
    """Return whether only the status changed, which this controller writes."""
    return (
        old.metadata.uid == new.metadata.uid
        and old.metadata.generation == new.metadata.generation
        and old.metadata.finalizers == new.metadata.finalizers
        and old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
    )


_FORBIDDEN_KEYS = frozenset(
    {"exec", "auth-provider", "tokenFile", "certificate-authority", "client-certificate", "client-key"}
)
"""Keys that would make the gateway read a file or run a program of its machine."""


async def read_connection(management: Client, secret: KubeconfigSecret | None) -> kubeconfig.ClientConfig | None:
    """Return the client configuration of the connection; None for the management cluster itself.

    Raises InputError if the Secret or its key is missing, or if the kubeconfig is not usable.
    """
    if secret is None:
        return None
    where = f"Secret {secret.namespace}/{secret.name}"
    try:
        answer = await management.get(SECRETS, secret.name, namespace=secret.namespace)
    except errors.NotFound as error:
        raise InputError(f"{where} for the kubeconfig does not exist") from error
    found = decode_secret(answer)
    if secret.key not in found.data:
        raise InputError(f"{where} has no key {secret.key!r}; available keys: {', '.join(sorted(found.data))}")
    text = base64.b64decode(found.data[secret.key]).decode(errors="replace")
    return parse_connection(text, where=f"in {where}")


def parse_connection(text: str, *, where: str) -> kubeconfig.ClientConfig:
    """Parse a kubeconfig from a Secret, which must be self-contained.

    Raises InputError if it refers to files or programs of the gateway's machine.
    """
    document = kubeconfig.parse(text, where=where)
    for section, kind in (("clusters", "cluster"), ("users", "user")):
        for entry in document.get(section) or []:
            for key in _FORBIDDEN_KEYS & set(entry.get(kind) or {}):
                raise InputError(f"the kubeconfig {where} uses {key}; embed the data instead")
    return kubeconfig.Kubeconfig(document=document, path=Path(f"/{where}")).client_config()
