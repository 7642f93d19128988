"""Runtimes of all tenants, which follow changes of specs and compute clusters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Protocol

from vkgateway.api import times
from vkgateway.api.names import virtual_node_name
from vkgateway.api.templates import template_keys
from vkgateway.api.types import Pool, Tenant, TenantPool, TenantPoolStatus
from vkgateway.clusters.compute_clusters import ComputeClusters
from vkgateway.clusters.link import ComputeLink
from vkgateway.clusters.pools import split_pool
from vkgateway.clusters.status import false_verdict, unknown_verdict
from vkgateway.kinds.context import TenantContext
from vkgateway.kinds.services.platform_service import ApiServers, NameServers
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.nodes.node_source import NodeSource
from vkgateway.runtime.workers import WorkerPool
from vkgateway.scheduler.service.arbitration import Arbitration
from vkgateway.settings.config import Nodes
from vkgateway.tenants.compute_cleanup import take_tenant
from vkgateway.tenants.interfaces import ApiServerAccess, VirtualNodesState
from vkgateway.tenants.running_tenants import RunningTenants
from vkgateway.tenants.runtime import TenantRuntime, TenantWiring

NODES_WAIT_SECONDS = 10.0
"""How long the start of a runtime waits for the compute nodes, so that no virtual node is briefly empty or NotReady."""

FAILURE_BACKOFF_SECONDS = 10.0
"""Delay before a runtime that failed because of a defect is restarted.

The tenant's objects may cause the same failure again at once; this must not affect other tenants.
"""


class KubeletEndpoint(Protocol):
    """The part of the kubelet endpoint that is used here."""

    @property
    def port(self) -> int:
        """The port of the endpoint."""

    def admit_tenant(self, tenant: str, *, fingerprints: Collection[str] = (), front_proxy: bytes = b"") -> None:
        """Serve a tenant that presents one of these client certificates or one signed by its front-proxy CA."""

    def revoke_tenant(self, tenant: str) -> None:
        """Stop serving a tenant."""


class TenantRuntimes:
    """Starts, updates and stops the runtimes in `running`.

    API servers reach the kubelet endpoint at `address` and `port`; port 0 is that on which the endpoint listens.
    `on_change` is called with the name of a tenant whose nodes changed.
    """

    def __init__(
        self,
        *,
        running: RunningTenants,
        computes: ComputeClusters,
        kubelet: KubeletEndpoint,
        engine: WorkerPool,
        arbiter: Arbitration,
        address: str,
        settings: Nodes,
        on_change: Callable[[str], None],
        port: int = 0,
        name_servers: NameServers | None = None,
        api_servers: ApiServers | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._computes = computes
        self._kubelet = kubelet
        self._engine = engine
        self._arbiter = arbiter
        self._name_servers = name_servers
        self._api_servers = api_servers
        self._address = address
        self._port = port
        self._settings = settings
        self._on_change = on_change
        self._clock = clock
        self._running = running
        self._admitted: dict[str, frozenset[str]] = {}
        self._first_requested: dict[str, float] = {}
        self._backing_off: dict[str, float] = {}

    async def ensure_running(self, tenant: Tenant, access: ApiServerAccess) -> VirtualNodesState:
        """See `interfaces.TenantRunner`."""
        name = tenant.metadata.name
        failure = await take_tenant(self._computes, tenant)
        running = self._running.get(name)
        wiring = self._build_wiring(tenant, access, known=running.node_sources if running is not None else {})
        if running is not None and (running.client is not access.client or running.has_failed):
            await self.stop(name)
            if running.has_failed:
                self._backing_off[name] = self._clock.monotonic() + FAILURE_BACKOFF_SECONDS
            running = None
        if self._is_backing_off(name):
            return VirtualNodesState(
                false_verdict("InternalError", "the tenant's runtime failed; it restarts soon"),
                tenant.status.pools,
            )
        if running is None:
            if unknown := self._unknown_cluster(name, wiring):
                return VirtualNodesState(
                    unknown_verdict("ComputeClusterUnknown", f"waiting for the nodes of compute cluster {unknown!r}"),
                    tenant.status.pools,
                )
            running = self._start_runtime(name, access, wiring)
        else:
            self.admit_tenant(name, access)
            await running.update_wiring(wiring)
        if failure is not None:
            raise failure
        return running.virtual_nodes_state()

    async def stop(self, name: str) -> None:
        """See `interfaces.TenantRunner`."""
        self._first_requested.pop(name, None)
        running = self._running.pop(name)
        if running is not None:
            self._admitted.pop(name, None)
            self._kubelet.revoke_tenant(name)
            await running.stop()
            await self._engine.wait_drained(name)

    def _is_backing_off(self, name: str) -> bool:
        until = self._backing_off.get(name)
        if until is not None and until <= self._clock.monotonic():
            del self._backing_off[name]
            return False
        return until is not None

    def _unknown_cluster(self, name: str, wiring: TenantWiring) -> str:
        """Return a compute cluster whose nodes are expected soon but still unknown, or ""."""
        since = self._first_requested.setdefault(name, self._clock.monotonic())
        if self._clock.monotonic() - since > NODES_WAIT_SECONDS:
            return ""
        links = (source.link for source in wiring.sources.values())
        unknown = (
            link
            for link in links
            if not link.reachability.is_judged or (link.is_reachable and not link.nodes.is_complete)
        )
        return next((link.name for link in unknown), "")

    def _start_runtime(self, name: str, access: ApiServerAccess, wiring: TenantWiring) -> TenantRuntime:
        running = TenantRuntime(
            name,
            access,
            wiring,
            engine=self._engine,
            arbiter=self._arbiter,
            name_servers=self._name_servers,
            api_servers=self._api_servers,
            settings=self._settings,
            on_change=lambda: self._on_change(name),
        )
        self._running.add(running)
        self.admit_tenant(name, access)
        running.start()
        return running

    def find_sources(self, tenant: Tenant, access: ApiServerAccess) -> Mapping[str, NodeSource]:
        """Return the sources of the virtual nodes of a tenant that does not run here."""
        return self._build_wiring(tenant, access, known={}).sources

    def revoke_tenant(self, name: str) -> None:
        """Close the kubelet endpoint for a tenant that does not run here."""
        if self._running.get(name) is None and self._admitted.pop(name, None) is not None:
            self._kubelet.revoke_tenant(name)

    def admit_tenant(self, name: str, access: ApiServerAccess) -> None:
        """Allow the tenant's API server to call the kubelet endpoint with its current certificates."""
        if self._admitted.get(name) != access.kubelet_clients:
            self._admitted[name] = access.kubelet_clients
            self._kubelet.admit_tenant(name, fingerprints=access.kubelet_clients, front_proxy=access.front_proxy_ca)

    def _build_wiring(
        self, tenant: Tenant, access: ApiServerAccess, *, known: Mapping[str, NodeSource]
    ) -> TenantWiring:
        """Return the current wiring of a tenant; `known` are its existing nodes.

        A node stays, NotReady, while its compute cluster is disconnected, for example because its credentials change,
        or has a tenant of this name of another gateway. If the node were deleted, Kubernetes would delete its pods.
        """
        context = _tenant_context(tenant, access, pool_keys=self._pool_keys(tenant))
        sources: dict[str, NodeSource] = {}
        missing: list[TenantPool] = []
        links = self._computes.links
        foreign = {cluster for cluster, link in links.items() if link.owners.is_foreign(context.name)}
        connected = {cluster: link for cluster, link in links.items() if cluster not in foreign}
        unconnected: set[str] = set()
        for pool in tenant.spec.pools:
            cluster, link = self._computes.find_cluster(pool.compute_cluster), connected.get(pool.compute_cluster)
            offered = self._computes.effective_pools(cluster) if cluster is not None else ()
            found = next((one for one in offered if one.name == pool.name), None)
            if link is not None and found is not None:
                sources |= self._pool_sources(tenant, pool, found, link)
                continue
            missing.append(pool)
            if link is None and cluster is not None:
                unconnected |= {virtual_node_name(pool.name, pool.compute_cluster), *_nodes_in_status(tenant, pool)}
                stays = {name: source for name, source in known.items() if _is_from_pool(source, pool)}
                sources |= {name: replace(source, tenant_pool=pool) for name, source in stays.items()}
                for source in stays.values():
                    links[pool.compute_cluster] = source.link
        created = tenant.metadata.creation_timestamp
        granted = times.parse_time(created).timestamp() if created else 0.0
        within = tenant.spec.preemption.within_tenant
        return TenantWiring(
            context, links, sources, tuple(missing), frozenset(unconnected), frozenset(foreign), granted, within
        )

    def _pool_keys(self, tenant: Tenant) -> tuple[str, ...]:
        """Return the keys of labels and annotations that only the tenant's pools may set."""
        wanted = {(pool.compute_cluster, pool.name) for pool in tenant.spec.pools}
        found = {
            key
            for cluster in {pool.compute_cluster for pool in tenant.spec.pools}
            if (compute := self._computes.find_cluster(cluster)) is not None
            for pool in compute.spec.pools
            if (cluster, pool.name) in wanted
            for key in template_keys(pool.scheduling)
        }
        return tuple(sorted(found))

    def _pool_sources(self, tenant: Tenant, wanted: TenantPool, pool: Pool, link: ComputeLink) -> dict[str, NodeSource]:
        """Return the sources of a pool's virtual nodes by name."""
        running = self._running.get(tenant.metadata.name)
        shown = _nodes_in_status(tenant, wanted)
        if running is not None:
            shown |= {
                name: source.pool_status()
                for name, source in running.node_sources.items()
                if _is_from_pool(source, wanted)
            }
        found = split_pool(
            pool,
            link.nodes.pool_nodes(pool.node_selector).label_values(pool.virtual_nodes_by),
            nodes_known=link.nodes.is_complete or bool(link.nodes.store),
            shown=shown.values(),
            is_occupied=running.pods.is_occupied if running is not None else lambda _node: True,
        )
        return {
            name: NodeSource(
                tenant=tenant.metadata.name,
                name=name,
                tenant_pool=wanted,
                pool=pool,
                link=link,
                address=self._address,
                port=self._port or self._kubelet.port,
                part=part,
                last_capacity=shown[name].capacity if name in shown else {},
            )
            for part in found
            for name in (part.node_name(wanted),)
        }


def _nodes_in_status(tenant: Tenant, pool: TenantPool) -> dict[str, TenantPoolStatus]:
    """Return the entries of a pool's virtual nodes in the tenant's status, by name."""
    return {
        status.node_name: status
        for status in tenant.status.pools
        if (status.name, status.compute_cluster) == (pool.name, pool.compute_cluster)
    }


def _is_from_pool(source: NodeSource, pool: TenantPool) -> bool:
    return (source.tenant_pool.name, source.tenant_pool.compute_cluster) == (pool.name, pool.compute_cluster)


def _tenant_context(tenant: Tenant, access: ApiServerAccess, *, pool_keys: tuple[str, ...]) -> TenantContext:
    """Return what the translation of a tenant's objects depends on."""
    policy = tenant.spec.policy
    return TenantContext(
        name=tenant.metadata.name,
        api_host=access.host,
        api_port=access.port,
        pod_security=policy.pod_security,
        runtime_classes=policy.runtime_classes,
        runtime_class_names=policy.runtime_class_names,
        storage_classes=policy.storage_classes,
        storage_class_names=policy.storage_class_names,
        default_storage_class=policy.default_storage_class,
        image_pull_secrets=policy.image_pull_secrets,
        plugin_annotations=policy.plugin_annotations,
        user_namespaces=policy.user_namespaces,
        load_balancers=policy.load_balancers,
        node_ports=policy.node_ports,
        service_range=access.service_range,
        pool_keys=pool_keys,
    )
