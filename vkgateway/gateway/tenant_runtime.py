"""The work for one tenant, wired: its reconcilers and its virtual nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from vkgateway.arbiter.snapshot import Quota
from vkgateway.gateway.config import Nodes
from vkgateway.gateway.interfaces import ApiServerAccess, VirtualNodesState
from vkgateway.gateway.node_source import NodeSource
from vkgateway.gateway.placements import placed_pods, pod_target
from vkgateway.gateway.pools import build_quota
from vkgateway.gateway.status import Verdict, false_verdict, true_verdict, unknown_verdict
from vkgateway.kube import errors
from vkgateway.kube.backoff import Backoff, add_jitter
from vkgateway.kube.resources import NODES, PODS
from vkgateway.kubelet.absentpod import AbsentPod
from vkgateway.kubelet.target import NoComputePodError, PlacedPod, PodTarget
from vkgateway.kubelet.virtualnode import VirtualNode
from vkgateway.model.api import TenantPool, WithinTenant
from vkgateway.model.errors import InputError, NotFoundError, UnavailableError
from vkgateway.model.names import (
    COMPUTE_CLUSTER_LABEL,
    UID_ANNOTATION,
    VIRTUAL_NODE_TYPE,
    virtual_node_name,
)
from vkgateway.model.objects import Taint, decode_object
from vkgateway.model.quantity import Quantity, cap_resources, sum_resources
from vkgateway.model.requests import to_milli
from vkgateway.sync.admission.controller import ArbiterService
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.network.name_service import NameServers
from vkgateway.sync.node_binding import VirtualNodeBinding
from vkgateway.sync.tenant import TenantSync
from vkgateway.sync.views.pods import decode_tenant_pod
from vkgateway.sync.workers import WorkerPool
from vkgateway.translate.context import TenantContext

log = structlog.get_logger(__name__)

_FIRST_SWEEP_SECONDS = 5.0
"""Seconds, and at most twice that."""
_SWEEP_SECONDS = 30.0
_VIRTUAL_NODE_SELECTOR = f"type={VIRTUAL_NODE_TYPE},{COMPUTE_CLUSTER_LABEL}"
PODS_MAX_BYTES = 64 * 1024 * 1024
"""Bytes of pods that are told at once by the kubelet endpoint's /pods."""
_BACKOFF = Backoff(base=0.5, cap=30.0)


@dataclass(frozen=True, slots=True)
class TenantWiring:
    """What a tenant's work is made from, as its spec and the compute clusters are now."""

    context: TenantContext
    links: Mapping[str, ComputeLink]
    sources: Mapping[str, NodeSource]
    missing_pools: tuple[TenantPool, ...]
    disconnected_nodes: frozenset[str] = frozenset()
    """Virtual nodes of compute clusters that are not connected now; those without a source were not seen yet."""
    granted_at: float = 0.0
    """When the tenant was made (seconds since the epoch)."""
    within_tenant: WithinTenant = "LowerPriority"
    """Whether its higher priorities preempt its lower ones."""

    def has_node(self, node: str) -> bool:
        """Whether a virtual node is the tenant's, also where its compute cluster was not seen yet."""
        return node in self.sources or node in self.disconnected_nodes

    def pool_quotas(self) -> tuple[Quota, ...]:
        """What the tenant is guaranteed of each pool, and may use of it at most."""
        pools = {(wanted.compute_cluster, wanted.name): wanted for wanted in self._tenant_pools()}
        return tuple(
            build_quota(self.context.name, wanted, granted=self.granted_at, within=self.within_tenant)
            for wanted in pools.values()
        )

    def _tenant_pools(self) -> list[TenantPool]:
        return [source.tenant_pool for source in self.sources.values()]

    def pool_limit(self, pool_name: str) -> dict[str, Quantity]:
        """Return what the tenant may use of a pool, over all its virtual nodes; nothing of one that it has no more."""
        sources = [source for source in self.sources.values() if source.pool_name == pool_name]
        if not sources:
            return {}
        if sources[0].has_known_nodes:
            return sources[0].tenant_limit()
        return dict(
            cap_resources(sum_resources(source.last_capacity for source in sources), sources[0].tenant_pool.limit)
        )

    def node_bindings(self) -> dict[str, VirtualNodeBinding]:
        """What each virtual node stands for."""
        return {
            name: VirtualNodeBinding(pool=source.pool_context(), link=source.link, node_ip=source.address)
            for name, source in self.sources.items()
        }


class TenantRuntime:
    """One tenant that is worked for, until `stop`."""

    def __init__(
        self,
        name: str,
        access: ApiServerAccess,
        wiring: TenantWiring,
        *,
        engine: WorkerPool,
        arbiter: ArbiterService,
        name_servers: NameServers | None,
        settings: Nodes,
        on_change: Callable[[], None],
    ) -> None:
        self.name = name
        self.client = access.client
        self.has_failed = False
        self._pod_list_lock = asyncio.Lock()
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
        )
        self._sync.set_quotas(wiring.pool_quotas())
        self._nodes: dict[str, VirtualNode] = {}
        self._build_inputs: dict[str, tuple[object, ...]] = {}
        """By virtual node, what it was made from when it was looked at last."""
        self._limits: dict[str, Mapping[str, int]] = {}
        """By pool, what its tenant may use of it."""
        self._pool_names: dict[str, str] = {}
        """By virtual node, the pool that it belongs to."""
        self._labels: dict[str, Mapping[str, str]] = {}
        """Of its virtual nodes, as they were seen last."""
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Begin to work; what virtual nodes offer is known to the reconcilers before they look at the first pod."""
        for name in self._wiring.sources:
            self._add_node(name)
        self._start_task("sync", self._sync.run())
        self._start_task("sweep", self._remove_orphan_nodes())

    async def stop(self) -> None:
        """End the work; nothing is removed."""
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def update_wiring(self, wiring: TenantWiring) -> None:
        """Take over what changed in the tenant's spec or in the compute clusters.

        Raises ApiError where a node could not be removed; all else is done by then, and the next call tries it again.
        """
        old, self._wiring = self._wiring, wiring
        if (old.context, old.links, old.node_bindings()) != (wiring.context, wiring.links, wiring.node_bindings()):
            self._sync.update_tenant(wiring.context, links=wiring.links, bindings=wiring.node_bindings())
        if old.pool_quotas() != wiring.pool_quotas() or old.node_bindings() != wiring.node_bindings():
            self._sync.set_quotas(wiring.pool_quotas())
        stays: errors.ApiError | None = None
        for name in self._nodes.keys() - wiring.sources.keys():
            try:
                await self._remove_node(name)
            except errors.ApiError as error:
                stays = error
        for name, source in wiring.sources.items():
            if f"node/{name}" not in self._tasks:
                self._add_node(name)
            elif self._build_inputs.get(name) != (built_from := (source, *source.build_inputs())):
                self._build_inputs[name] = built_from
                self._nodes[name].trigger_reconcile()
        if stays is not None:
            raise stays

    def is_occupied(self, node: str) -> bool:
        """Tell whether pods that have not ended are on a virtual node, or may be, as far as pods are known."""
        pods = self._sync.cache.pods
        return not pods.is_complete or any(
            pod.spec.node_name == node and not pod.is_terminal for pod in pods.store.values()
        )

    @property
    def node_sources(self) -> Mapping[str, NodeSource]:
        """What its virtual nodes are made from."""
        return self._wiring.sources

    def virtual_nodes_state(self) -> VirtualNodesState:
        """Say how the virtual nodes are."""
        pools = tuple(
            source.pool_status(ready=self._nodes[name].is_registered and source.link.is_reachable)
            for name, source in self._wiring.sources.items()
        )
        return VirtualNodesState(self._nodes_verdict(), pools)

    def find_pod(self, namespace: str, pod: str) -> PodTarget:
        """Find the compute pod of one of this tenant's pods. Raises NotFoundError, NoComputePodError."""
        view = self._sync.cache.pods.store.get((namespace, pod))
        if view is None:
            raise NotFoundError(f"there is no pod {namespace}/{pod} on a virtual node")
        for source in self._wiring.sources.values():
            below = source.link.pods.find_pod(self.name, (namespace, pod))
            if below is not None and below.metadata.annotations.get(UID_ANNOTATION) == view.metadata.uid:
                if not below.spec.node_name:
                    break  # its API server would answer with an empty log
                return pod_target(self.name, view, below, link=source.link)
        home = self._wiring.sources.get(view.spec.node_name)
        if home is None or not home.link.is_trusted:
            raise NotFoundError(f"pod {namespace}/{pod} cannot be looked up: its compute cluster does not answer now")
        raise NoComputePodError(AbsentPod(f"{namespace}/{pod}", msgspec.json.decode(view.status)))

    def placed_on_node(self, node: str) -> tuple[str, list[PlacedPod]]:
        """Return a virtual node's name and its pods that have a compute node; without a name, of the only one.

        Raises NotFoundError, InputError.
        """
        sources = self._wiring.sources
        if not node:
            if len(sources) != 1:
                raise InputError(f"say which of the {len(sources)} virtual nodes: ask /nodes/NAME/... for it")
            node = next(iter(sources))
        if node not in sources:
            raise NotFoundError(f"there is no virtual node {node[:253]!r}")
        return node, placed_pods(self.name, self._sync.cache.pods.store, link=sources[node].link, node=node)

    def node_labels(self) -> dict[str, Mapping[str, str]]:
        """Return the tenant's virtual nodes by name, with the labels that its API server shows."""
        return {name: self._labels.get(name, {}) for name in self._wiring.sources}

    async def list_pods(self, node: str, phase: str) -> list[bytes]:
        """Return the tenant's pods on its virtual nodes as they are now, those on `node` and in `phase` only if given.

        Asked of its API server, for whole pods are not kept; one list at a time, and no larger than PODS_MAX, since the
        tenant chooses how large its pods are and how often it asks. Raises ApiError, UnavailableError, NotFoundError.
        """
        if node and node not in self._wiring.sources:
            raise NotFoundError(f"there is no virtual node {node[:253]!r}")
        nodes = (node,) if node else self._wiring.sources.keys()
        selector = "spec.nodeName!=" + (f",status.phase={phase}" if phase else "")
        found: list[bytes] = []
        size = 0
        async with self._pod_list_lock:
            async for page in self.client.list_pages(PODS, field_selector=selector, limit=100):
                for item in map(bytes, page.items):
                    if decode_tenant_pod(item).spec.node_name in nodes:
                        found.append(item)
                        size += len(item)
                if size > PODS_MAX_BYTES:
                    raise UnavailableError(
                        f"they are more than {PODS_MAX_BYTES} bytes; ask the API server for them instead"
                    )
        return found

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
        """Remove a node of a pool that the tenant has no more; where that fails, it is still known the next time."""
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
        """Remove nodes of pools that the tenant lost while nobody worked for it; pods come first.

        Nodes of compute clusters that are not connected yet are left alone, and looked at again.
        """
        await asyncio.sleep(add_jitter(_FIRST_SWEEP_SECONDS))
        failures = 0
        while True:
            try:
                page = await self.client.list_all(NODES, label_selector=_VIRTUAL_NODE_SELECTOR)
                names = [decode_object(item).metadata.name for item in page.items]
                for name in names:
                    # Asked each time: pools come, and compute clusters are connected, while another is removed.
                    if not self._wiring.has_node(name):
                        log.info("removing a virtual node without a pool", tenant=self.name, node=name)
                        await VirtualNode(self.client, name=name, build=dict).delete_node()
                if (self._wiring.disconnected_nodes - self._wiring.sources.keys()).isdisjoint(names):
                    return
                failures = 0
            except errors.ApiError as error:
                failures += 1
                log.warning("virtual nodes not swept", tenant=self.name, error=error.message)
            await asyncio.sleep(_BACKOFF.delay_after(failures) if failures else _SWEEP_SECONDS)

    def _update_limit(self, pool_name: str) -> None:
        """Tell the reconcilers what the tenant may use of a pool, if that has changed."""
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
            log.error("work for a tenant failed", tenant=self.name, task=task.get_name(), exc_info=error)
            self.has_failed = True
            self._on_change()

    def _nodes_verdict(self) -> Verdict:
        if self._wiring.missing_pools:
            pool = self._wiring.missing_pools[0]
            if virtual_node_name(pool.name, pool.compute_cluster) in self._wiring.disconnected_nodes:
                return false_verdict(
                    "ComputeClusterUnreachable", f"compute cluster {pool.compute_cluster!r} is not connected"
                )
            where = f"pool {pool.name!r} of compute cluster {pool.compute_cluster!r}"
            return false_verdict("PoolMissing", f"{where} is not there now")
        for name, source in self._wiring.sources.items():
            if not source.link.is_reachable:
                why = f"compute cluster {source.link.name!r} cannot be reached: {source.link.reachability.reason}"
                return false_verdict("ComputeClusterUnreachable", why)
            if not self._nodes[name].is_registered:
                return unknown_verdict("Registering", f"virtual node {name} is being registered")
        count = len(self._wiring.sources)
        if not count:
            return true_verdict("NoPools", "the tenant has no pools")
        return true_verdict("Ready", "1 virtual node is ready" if count == 1 else f"{count} virtual nodes are ready")
