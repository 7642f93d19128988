"""The work for all tenants: started, changed and ended as specs and compute clusters change."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Protocol

from vkgateway.gateway.compute import ComputeController
from vkgateway.gateway.config import Nodes
from vkgateway.gateway.nodes import NodeSource
from vkgateway.gateway.planes import Access, NodesSeen
from vkgateway.gateway.runtime import TenantRuntime, Wiring
from vkgateway.gateway.status import failing, waiting
from vkgateway.gateway.virtualnodes import parts
from vkgateway.kube.client import Client
from vkgateway.kubelet.target import PlacedPod, PodTarget
from vkgateway.model import times
from vkgateway.model.api import Pool, Tenant, TenantPool, TenantPoolStatus
from vkgateway.model.errors import NotFoundError
from vkgateway.model.names import virtual_node_name
from vkgateway.sync.admission.desk import ArbiterService
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.engine import Engine
from vkgateway.sync.network.names import NameServers
from vkgateway.translate.context import TenantContext

PATIENCE_SECONDS = 10.0
"""How long a start waits for compute clusters to tell their nodes, so that no node is shown empty, or not ready, for a
moment."""

REST_SECONDS = 10.0
"""How long the work for a tenant rests after it failed by a defect. What its cluster holds may bring that about again
at once, for ever; the others must not notice."""


class Endpoint(Protocol):
    """The part of the kubelet endpoint that is used here."""

    @property
    def port(self) -> int:
        """The port that it listens on."""

    def admit(self, tenant: str, *, fingerprints: Collection[str] = (), front_proxy: bytes = b"") -> None:
        """Serve a tenant from now on, by these certificates and those that an authority signed for aggregation."""

    def revoke(self, tenant: str) -> None:
        """Serve it no longer."""


class TenantRuntimes:
    """All tenants that are worked for. `on_change` hears the name of a tenant whose nodes changed."""

    def __init__(
        self,
        *,
        computes: ComputeController,
        kubelet: Endpoint,
        engine: Engine,
        arbiter: ArbiterService,
        address: str,
        settings: Nodes,
        on_change: Callable[[str], None],
        name_servers: NameServers | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._computes = computes
        self._kubelet = kubelet
        self._engine = engine
        self._arbiter = arbiter
        self._name_servers = name_servers
        self._address = address
        self._settings = settings
        self._on_change = on_change
        self._monotonic = monotonic
        self._running: dict[str, TenantRuntime] = {}
        self._admitted: dict[str, frozenset[str]] = {}
        self._asked: dict[str, float] = {}
        self._resting: dict[str, float] = {}

    async def serve(self, tenant: Tenant, access: Access) -> NodesSeen:
        """See `planes.Runtimes`."""
        name = tenant.metadata.name
        running = self._running.get(name)
        wiring = self._wire(tenant, access, known=running.sources if running is not None else {})
        if running is not None and (running.client is not access.client or running.broken):
            await self.stop(name)
            if running.broken:
                self._resting[name] = self._monotonic() + REST_SECONDS
            running = None
        if self._is_resting(name):
            return NodesSeen(
                failing("InternalError", "the work for it failed, and is begun anew in a while"), tenant.status.pools
            )
        if running is None:
            if unknown := self._too_early(name, wiring):
                return NodesSeen(
                    waiting("ComputeClusterUnknown", f"waits for the nodes of {unknown}"), tenant.status.pools
                )
            running = self._start(name, access, wiring)
        else:
            self._admit(name, access)
            await running.rewire(wiring)
        return running.seen()

    async def stop(self, name: str) -> None:
        """See `planes.Runtimes`."""
        self._asked.pop(name, None)
        running = self._running.pop(name, None)
        if running is not None:
            self._admitted.pop(name, None)
            self._kubelet.revoke(name)
            await running.stop()
            await self._engine.drain(name)

    async def pods(self, tenant: str, node: str, phase: str) -> list[bytes]:
        """Tell a tenant's pods on its virtual nodes, for the kubelet endpoint; see `kubelet.target.Pods`."""
        return await self._served(tenant).pods_on_nodes(node, phase)

    def find(self, tenant: str, namespace: str, pod: str) -> PodTarget:
        """Find the compute pod that stands for a tenant's pod, for the kubelet endpoint. Raises NotFoundError."""
        return self._served(tenant).find(namespace, pod)

    def placed(self, tenant: str, node: str) -> tuple[str, list[PlacedPod]]:
        """Tell where a virtual node's pods run, for the kubelet endpoint; see `kubelet.target.Placements`."""
        return self._served(tenant).placed(node)

    def node_labels(self, tenant: str) -> Mapping[str, Mapping[str, str]]:
        """Tell a tenant's virtual nodes, for the kubelet endpoint; see `kubelet.target.VirtualNodes`."""
        return self._served(tenant).node_labels()

    def client_of(self, tenant: str) -> Client:
        """Return the client of a tenant's API server. Raises NotFoundError."""
        return self._served(tenant).client

    def _served(self, tenant: str) -> TenantRuntime:
        running = self._running.get(tenant)
        if running is None:
            raise NotFoundError(f"tenant {tenant} is not served now")
        return running

    def _is_resting(self, name: str) -> bool:
        until = self._resting.get(name)
        if until is not None and until <= self._monotonic():
            del self._resting[name]
            return False
        return until is not None

    def _too_early(self, name: str, wiring: Wiring) -> str:
        """Name a compute cluster whose nodes are not known yet and may be soon, or ""."""
        since = self._asked.setdefault(name, self._monotonic())
        if self._monotonic() - since > PATIENCE_SECONDS:
            return ""
        links = (source.link for source in wiring.sources.values())
        unknown = (
            link for link in links if not link.reachability.judged or (link.reachable and not link.nodes.complete)
        )
        return next((link.name for link in unknown), "")

    def _start(self, name: str, access: Access, wiring: Wiring) -> TenantRuntime:
        running = TenantRuntime(
            name,
            access,
            wiring,
            engine=self._engine,
            arbiter=self._arbiter,
            name_servers=self._name_servers,
            settings=self._settings,
            on_change=lambda: self._on_change(name),
        )
        self._running[name] = running
        self._admit(name, access)
        running.start()
        return running

    def _admit(self, name: str, access: Access) -> None:
        """Let its API server call the kubelet endpoint, by the certificates that it has now."""
        if self._admitted.get(name) != access.kubelet_clients:
            self._admitted[name] = access.kubelet_clients
            self._kubelet.admit(name, fingerprints=access.kubelet_clients, front_proxy=access.front_proxy_ca)

    def _wire(self, tenant: Tenant, access: Access, *, known: Mapping[str, NodeSource]) -> Wiring:
        """Wire a tenant as all is now; `known` are its nodes so far.

        A node stays, not ready, while its compute cluster is not connected (its credentials change, or cannot be used):
        were it removed, Kubernetes would remove the pods on it, and all their work with them.
        """
        policy = tenant.spec.policy
        context = TenantContext(
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
        )
        sources: dict[str, NodeSource] = {}
        missing: list[TenantPool] = []
        connected = self._computes.links
        links = dict(connected)
        unconnected: set[str] = set()
        for pool in tenant.spec.pools:
            cluster, link = self._computes.cluster(pool.compute_cluster), connected.get(pool.compute_cluster)
            found = next((one for one in cluster.spec.pools if one.name == pool.name), None) if cluster else None
            if link is not None and found is not None:
                sources |= self._sources(tenant, pool, found, link)
                continue
            missing.append(pool)
            if link is None and cluster is not None:
                unconnected |= {virtual_node_name(pool.name, pool.compute_cluster), *_shown(tenant, pool)}
                stays = {name: source for name, source in known.items() if _is_of(source, pool)}
                sources |= {name: replace(source, wanted=pool) for name, source in stays.items()}
                for source in stays.values():
                    links[pool.compute_cluster] = source.link
        created = tenant.metadata.creation_timestamp
        granted = times.parse(created).timestamp() if created else 0.0
        within = tenant.spec.preemption.within_tenant
        return Wiring(context, links, sources, tuple(missing), frozenset(unconnected), granted, within)

    def _sources(self, tenant: Tenant, wanted: TenantPool, pool: Pool, link: ComputeLink) -> dict[str, NodeSource]:
        """Return what a pool's virtual nodes are made from, by their names."""
        running = self._running.get(tenant.metadata.name)
        shown = _shown(tenant, wanted)
        if running is not None:
            shown |= {name: source.seen() for name, source in running.sources.items() if _is_of(source, wanted)}
        found = parts(
            pool,
            link.nodes.pool(pool.node_selector).values(pool.virtual_nodes_by),
            nodes_known=link.nodes.complete or bool(link.nodes.items),
            shown=shown.values(),
            is_occupied=running.is_occupied if running is not None else lambda _node: True,
        )
        return {
            name: NodeSource(
                tenant=tenant.metadata.name,
                name=name,
                wanted=wanted,
                pool=pool,
                link=link,
                address=self._address,
                port=self._kubelet.port,
                part=part,
                last_capacity=shown[name].capacity if name in shown else {},
            )
            for part in found
            for name in (part.node_name(wanted),)
        }


def _shown(tenant: Tenant, pool: TenantPool) -> dict[str, TenantPoolStatus]:
    """Return the virtual nodes of a pool as the tenant's status shows them, by their names."""
    return {
        status.node_name: status
        for status in tenant.status.pools
        if (status.name, status.compute_cluster) == (pool.name, pool.compute_cluster)
    }


def _is_of(source: NodeSource, pool: TenantPool) -> bool:
    return (source.wanted.name, source.wanted.compute_cluster) == (pool.name, pool.compute_cluster)
