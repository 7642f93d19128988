"""Runtime of one tenant: its reconcilers and its virtual nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from vkgateway.api.names import COMPUTE_CLUSTER_LABEL, VIRTUAL_NODE_TYPE, virtual_node_name
from vkgateway.api.objects import Taint, decode_object
from vkgateway.api.quantity import Quantity, cap_resources, sum_resources
from vkgateway.api.requests import to_milli
from vkgateway.api.types import TenantPool, WithinTenant
from vkgateway.clusters.link import ComputeLink
from vkgateway.clusters.pools import build_quota
from vkgateway.clusters.status import Verdict, false_verdict, true_verdict, unknown_verdict
from vkgateway.clusters.tenant_owners import name_taken
from vkgateway.kinds.context import TenantContext
from vkgateway.kinds.services.platform_service import ApiServers, NameServers
from vkgateway.kinds.tenant_scope import VirtualNodeBinding
from vkgateway.kube import errors
from vkgateway.kube.backoff import add_jitter, retry_requests
from vkgateway.kube.resources import NODES
from vkgateway.nodes.node_source import NodeSource
from vkgateway.nodes.virtualnode import VirtualNode
from vkgateway.runtime.workers import WorkerPool
from vkgateway.scheduler.core.snapshot import Quota
from vkgateway.scheduler.service.arbitration import Arbitration
from vkgateway.settings.config import Nodes
from vkgateway.tenants.interfaces import ApiServerAccess, VirtualNodesState
from vkgateway.tenants.pods import TenantPods
from vkgateway.tenants.tenant import TenantSync

log = structlog.get_logger(__name__)

_FIRST_SWEEP_SECONDS = 5.0
"""Minimum delay of the first sweep in seconds; jitter up to twice this value."""
_SWEEP_SECONDS = 30.0
VIRTUAL_NODE_SELECTOR = f"type={VIRTUAL_NODE_TYPE},{COMPUTE_CLUSTER_LABEL}"


@dataclass(frozen=True, slots=True)
class TenantWiring:
    """Inputs of a tenant's runtime from its spec and the compute clusters."""

    context: TenantContext
    links: Mapping[str, ComputeLink]
    sources: Mapping[str, NodeSource]
    missing_pools: tuple[TenantPool, ...]
    disconnected_nodes: frozenset[str] = frozenset()
    """Virtual nodes of disconnected compute clusters; a node without a source was never connected."""
    foreign_clusters: frozenset[str] = frozenset()
    """Compute clusters in which another gateway owns a tenant of this name."""
    granted_at: float = 0.0
    """Creation time of the tenant (seconds since the epoch)."""
    within_tenant: WithinTenant = "LowerPriority"
    """Policy for preemption of the tenant's lower priorities by its higher ones."""

    def has_node(self, node: str) -> bool:
        """Return whether a virtual node belongs to the tenant, even if its compute cluster was never connected."""
        return node in self.sources or node in self.disconnected_nodes

    def pool_quotas(self) -> tuple[Quota, ...]:
        """Return the tenant's quota in each pool."""
        pools = {(wanted.compute_cluster, wanted.name): wanted for wanted in self._tenant_pools()}
        return tuple(
            build_quota(self.context.name, wanted, granted=self.granted_at, within=self.within_tenant)
            for wanted in pools.values()
        )

    def _tenant_pools(self) -> list[TenantPool]:
        return [source.tenant_pool for source in self.sources.values()]

    def pool_limit(self, pool_name: str) -> dict[str, Quantity]:
        """Return the tenant's limit in a pool over all its virtual nodes; empty for a pool without nodes."""
        sources = [source for source in self.sources.values() if source.pool_name == pool_name]
        if not sources:
            return {}
        if sources[0].has_known_nodes:
            return sources[0].tenant_limit()
        return dict(
            cap_resources(sum_resources(source.last_capacity for source in sources), sources[0].tenant_pool.limit)
        )

    def node_bindings(self) -> dict[str, VirtualNodeBinding]:
        """Return the pool and link of each virtual node."""
        return {
            name: VirtualNodeBinding(pool=source.pool_context(), link=source.link, node_ip=source.address)
            for name, source in self.sources.items()
        }


class TenantRuntime:
    """Running reconcilers and virtual nodes of one tenant."""

    def __init__(
        self,
        name: str,
        access: ApiServerAccess,
        wiring: TenantWiring,
        *,
        engine: WorkerPool,
        arbiter: Arbitration,
        name_servers: NameServers | None,
        api_servers: ApiServers | None,
        settings: Nodes,
        on_change: Callable[[], None],
    ) -> None:
        self.name = name
        self.client = access.client
        self.has_failed = False
        self._wiring = wiring
        self._settings = settings
        self._on_change = on_change
        self._sync = TenantSync(
            wiring.context,
            access.client,
            links=wiring.links,
            bindings=wiring.node_bindings(),
            engine=engine,
            arbiter=arbiter,
            name_servers=name_servers,
            api_servers=api_servers,
        )
        self._sync.set_quotas(wiring.pool_quotas())
        self.pods = TenantPods(name, access.client, self._sync.scope.cache.pods, sources=lambda: self._wiring.sources)
        self._nodes: dict[str, VirtualNode] = {}
        self._build_inputs: dict[str, tuple[object, ...]] = {}
        """Inputs of the last build of each virtual node."""
        self._limits: dict[str, Mapping[str, int]] = {}
        """The tenant's limit by pool."""
        self._pool_names: dict[str, str] = {}
        """Pool by virtual node."""
        self._labels: dict[str, Mapping[str, str]] = {}
        """Last seen labels by virtual node."""
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Start the runtime; the reconcilers know the nodes' capacity before they reconcile the first pod."""
        for name in self._wiring.sources:
            self._add_node(name)
        self._start_task("sync", self._sync.run())
        self._start_task("sweep", self._remove_orphan_nodes())

    async def stop(self) -> None:
        """Stop the runtime without deleting anything."""
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def update_wiring(self, wiring: TenantWiring) -> None:
        """Apply changes of the tenant's spec or of the compute clusters.

        Raises ApiError if a node could not be deleted, after all other changes; the next call retries it.
        """
        old, self._wiring = self._wiring, wiring
        if (old.context, old.links, old.node_bindings()) != (wiring.context, wiring.links, wiring.node_bindings()):
            self._sync.update_tenant(wiring.context, links=wiring.links, bindings=wiring.node_bindings())
        if old.pool_quotas() != wiring.pool_quotas() or old.node_bindings() != wiring.node_bindings():
            self._sync.set_quotas(wiring.pool_quotas())
        failure: errors.ApiError | None = None
        for name in self._nodes.keys() - wiring.sources.keys():
            try:
                await self._remove_node(name)
            except errors.ApiError as error:
                failure = error
        for name, source in wiring.sources.items():
            if f"node/{name}" not in self._tasks:
                self._add_node(name)
            elif self._build_inputs.get(name) != (built_from := (source, *source.build_inputs())):
                self._build_inputs[name] = built_from
                self._nodes[name].trigger_reconcile()
        if failure is not None:
            raise failure

    def servers_changed(self) -> None:
        """Check the addresses of the tenant's API server and name servers."""
        self._sync.servers_changed()

    @property
    def node_sources(self) -> Mapping[str, NodeSource]:
        """Sources of the virtual nodes by name."""
        return self._wiring.sources

    def virtual_nodes_state(self) -> VirtualNodesState:
        """Return the state of the virtual nodes."""
        pools = tuple(
            source.pool_status(ready=self._nodes[name].is_registered and source.is_connected)
            for name, source in self._wiring.sources.items()
        )
        return VirtualNodesState(self._nodes_verdict(), pools)

    def node_labels(self) -> dict[str, Mapping[str, str]]:
        """Return the labels of the tenant's virtual nodes by name, as stored in its API server."""
        return {name: self._labels.get(name, {}) for name in self._wiring.sources}

    def _add_node(self, name: str) -> None:
        def build() -> dict[str, Any]:
            source = self._wiring.sources[name]
            self._update_limit(source.pool_name)
            return source.build_node()

        def seen(labels: Mapping[str, str], taints: tuple[Taint, ...]) -> None:
            self._labels[name] = labels
            self._sync.set_node(name, (labels, taints))

        self._pool_names[name] = self._wiring.sources[name].pool_name
        build()
        node = VirtualNode(
            self.client,
            name=name,
            build=build,
            lease_seconds=self._settings.lease_seconds,
            renew_every=self._settings.renew_seconds,
            on_registered=self._on_change,
            on_seen=seen,
        )
        self._nodes[name] = node
        self._start_task(f"node/{name}", node.run())

    async def _remove_node(self, name: str) -> None:
        """Delete the node of a pool that the tenant no longer has; a failed deletion is retried at the next update."""
        task = self._tasks.pop(f"node/{name}", None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._update_limit(self._pool_names[name])
        await self._nodes[name].delete_node()
        del self._nodes[name], self._pool_names[name]
        self._build_inputs.pop(name, None)
        self._labels.pop(name, None)

    async def _remove_orphan_nodes(self) -> None:
        """Delete nodes of pools that the tenant lost while no gateway ran; starts after the pods are reconciled.

        Nodes of disconnected compute clusters stay, and are checked again.
        """
        await asyncio.sleep(add_jitter(_FIRST_SWEEP_SECONDS))
        while True:
            nodes_left = await retry_requests(
                self._sweep_nodes,
                report=lambda error: log.warning(
                    "sweep of virtual nodes failed", tenant=self.name, error=error.message
                ),
            )
            if not nodes_left:
                return
            await asyncio.sleep(_SWEEP_SECONDS)

    async def _sweep_nodes(self) -> bool:
        """Delete nodes without a pool; return whether nodes of disconnected compute clusters are left."""
        page = await self.client.list_all(NODES, label_selector=VIRTUAL_NODE_SELECTOR)
        names = [decode_object(item).metadata.name for item in page.items]
        for name in names:
            # Checked each time: pools and connections may appear while another node is deleted.
            if not self._wiring.has_node(name):
                log.info("deleting a virtual node without a pool", tenant=self.name, node=name)
                await VirtualNode(self.client, name=name, build=dict).delete_node()
        return not (self._wiring.disconnected_nodes - self._wiring.sources.keys()).isdisjoint(names)

    def _update_limit(self, pool_name: str) -> None:
        """Pass the tenant's limit in a pool to the reconcilers if it changed."""
        limit = to_milli(self._wiring.pool_limit(pool_name))
        if self._limits.get(pool_name) != limit:
            self._limits[pool_name] = limit
            self._sync.set_limit(pool_name, dict(limit))

    def _start_task(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=f"tenant/{self.name}/{what}")
        task.add_done_callback(self._task_ended)
        self._tasks[what] = task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("runtime of a tenant failed", tenant=self.name, task=task.get_name(), exc_info=error)
            self.has_failed = True
            self._on_change()

    def _nodes_verdict(self) -> Verdict:
        if self.client.store_budget is not None and (problem := self.client.store_budget.problem):
            return false_verdict("TooManyObjects", problem)
        if self._wiring.missing_pools:
            return self._missing_verdict(self._wiring.missing_pools[0])
        for name, source in self._wiring.sources.items():
            if not source.link.is_reachable:
                why = f"compute cluster {source.link.name!r} cannot be reached: {source.link.reachability.reason}"
                return false_verdict("ComputeClusterUnreachable", why)
            if not self._nodes[name].is_registered:
                return unknown_verdict("Registering", f"virtual node {name} is not registered yet")
        count = len(self._wiring.sources)
        if not count:
            return true_verdict("NoPools", "the tenant has no pools")
        ready = "1 virtual node is ready" if count == 1 else f"{count} virtual nodes are ready"
        return true_verdict("Ready", "; ".join([ready, *self._sync.unreachable_servers()]))

    def _missing_verdict(self, pool: TenantPool) -> Verdict:
        """Return why a pool has no virtual node."""
        cluster = pool.compute_cluster
        if cluster in self._wiring.foreign_clusters:
            return false_verdict("NameTaken", name_taken(self.name, cluster).advice)
        if virtual_node_name(pool.name, cluster) in self._wiring.disconnected_nodes:
            return false_verdict("ComputeClusterUnreachable", f"compute cluster {cluster!r} is not connected")
        return false_verdict("PoolMissing", f"pool {pool.name!r} of compute cluster {cluster!r} does not exist")
