"""What the reconcilers of one tenant share: its cache, virtual nodes, compute clusters and work queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from vkgateway.api.errors import UnavailableError
from vkgateway.api.objects import NamespaceView, ObjectView, decode_namespace, decode_object
from vkgateway.clusters.link import ComputeLink
from vkgateway.kinds.context import PoolContext, TenantContext
from vkgateway.kinds.sources import (
    TENANT_CHANGED,
    TENANT_CONFIG,
    TENANT_LISTED,
    TENANT_NAMESPACES,
    TENANT_PODS,
    Watches,
)
from vkgateway.kube import resources
from vkgateway.kube.client import Client
from vkgateway.kube.clock import Clock
from vkgateway.kube.reflector import Reflector
from vkgateway.runtime.events import EventRecorder
from vkgateway.runtime.metrics import PodMeter
from vkgateway.runtime.requests import GATE, POD, WorkQueue
from vkgateway.runtime.views.ownership import COPY_RESOURCES, CopyKind, Key
from vkgateway.runtime.views.pods import TenantPodView, decode_tenant_pod
from vkgateway.scheduler.core.snapshot import PoolKey
from vkgateway.scheduler.governed import VirtualNode


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualNodeBinding:
    """Binding of a virtual node to a pool of a compute cluster, with the node's address."""

    pool: PoolContext
    link: ComputeLink
    node_ip: str

    @property
    def pool_key(self) -> PoolKey:
        """Key of the pool that the virtual node shows, wholly or in part."""
        return self.pool.compute_cluster, self.pool.name

    def has_compute_node(self, compute_node: str) -> bool:
        """Return whether a known compute node is behind the virtual node."""
        return compute_node in self.link.nodes.nodes_behind(self.pool).node_names


class TenantCache:
    """Stores of a tenant cluster's pods, namespaces, ConfigMaps and Secrets, watched as long as the tenant is.

    `sources` are the objects that pods may refer to; only their metadata is kept.
    """

    def __init__(self, client: Client, watches: Watches) -> None:
        self._watches = watches
        on_complete = partial(watches.notify, TENANT_LISTED)
        self.pods: Reflector[TenantPodView] = Reflector(
            client,
            resources.PODS,
            decode=decode_tenant_pod,
            on_change=lambda old, new: watches.notify(TENANT_PODS, old, new),
            on_complete=on_complete,
            weight=2,
        )
        self.namespaces: Reflector[NamespaceView] = Reflector(
            client,
            resources.NAMESPACES,
            decode=decode_namespace,
            on_change=lambda old, new: watches.notify(TENANT_NAMESPACES, old, new),
            on_complete=on_complete,
            weight=2,
        )
        self.sources: dict[CopyKind, Reflector[ObjectView]] = {
            kind: Reflector(
                client,
                resource,
                decode=decode_object,
                on_change=partial(self._source_changed, kind),
                on_complete=on_complete,
                weight=2,
            )
            for kind, resource in COPY_RESOURCES.items()
        }

    @property
    def is_complete(self) -> bool:
        """Whether all lists are complete, so that an object which is not in the cache does not exist."""
        return (
            self.pods.is_complete
            and self.namespaces.is_complete
            and self.sources["configmaps"].is_complete
            and self.sources["secrets"].is_complete
        )

    def all_reflectors(self) -> list[Reflector[Any]]:
        """Return the watches; the caller runs them."""
        return [self.pods, self.namespaces, *self.sources.values()]

    def find_namespace(self, name: str) -> NamespaceView | None:
        """Return the tenant's namespace of this name."""
        return self.namespaces.store.get(("", name))

    def namespace_uid(self, name: str) -> str:
        """Return the UID of a namespace. Raises UnavailableError if it does not exist."""
        view = self.find_namespace(name)
        if view is None:
            raise UnavailableError(f"namespace {name} is gone", hint="nothing to do; its pods go with it")
        return view.metadata.uid

    def namespace_labels(self) -> dict[str, dict[str, str]]:
        """Return the labels of all namespaces, by name."""
        return {view.metadata.name: view.metadata.labels for view in self.namespaces.store.values()}

    def _source_changed(self, kind: CopyKind, old: ObjectView | None, new: ObjectView | None) -> None:
        view = new or old
        assert view is not None
        self._watches.notify(TENANT_CONFIG, (kind, *view.metadata.key))


@dataclass(slots=True, kw_only=True, eq=False)
class TenantScope:
    """One tenant: its client and cache, its compute clusters and virtual nodes, its work queue and its watches.

    Every reconciler of the tenant holds the same scope, and reads from it what may change: `tenant`, `links` and
    `bindings` (the pool of each virtual node).
    """

    tenant: TenantContext
    client: Client
    all_links: dict[str, ComputeLink]
    """All compute clusters by name, also those in which another gateway has a tenant of this name."""
    bindings: dict[str, VirtualNodeBinding]
    work_queue: WorkQueue
    clock: Clock
    """Clock of the arbiter, by which notices run."""
    watches: Watches = field(default_factory=Watches)
    cache: TenantCache = field(init=False)
    events: EventRecorder = field(init=False)
    meter: PodMeter = field(init=False)
    virtual_nodes: dict[str, VirtualNode] = field(default_factory=dict)
    """The tenant's virtual nodes as its API server shows them."""
    created_until: dict[str, float] = field(default_factory=dict)
    """UIDs of tenant pods whose compute pod was created and is not shown by the watch yet, with the time until which
    it counts as existing."""

    def __post_init__(self) -> None:
        self.cache = TenantCache(self.client, self.watches)
        self.events = EventRecorder(self.client, clock=self.clock)
        self.meter = PodMeter(self.tenant.name)

    @property
    def name(self) -> str:
        """The name of the tenant, which never changes."""
        return self.tenant.name

    @property
    def links(self) -> dict[str, ComputeLink]:
        """The compute clusters that the tenant may use, by name: only they may hold objects of the tenant."""
        tenant = self.tenant.name
        for link in self.all_links.values():
            if tenant not in link.owners.admitted and not link.is_usable_by(tenant):
                return {name: link for name, link in self.all_links.items() if link.is_usable_by(tenant)}
        return self.all_links

    def pool_of(self, node: str) -> str:
        """Return the name of the pool of a virtual node."""
        binding = self.bindings.get(node)
        return binding.pool.pool_name if binding is not None else node

    def enqueue_pod(self, key: Key, after: float = 0.0) -> None:
        """Request a reconcile of a pod: of its gates until the pod is bound to a node."""
        view = self.cache.pods.store.get(key)
        self.work_queue.enqueue(POD if view is not None and view.spec.node_name else GATE, key, after)

    def update_tenant(
        self, tenant: TenantContext, *, links: Mapping[str, ComputeLink], bindings: Mapping[str, VirtualNodeBinding]
    ) -> None:
        """Replace the tenant, its compute clusters and its virtual nodes, and notify `TENANT_CHANGED`."""
        for removed in self.all_links.keys() - links.keys():
            self.all_links.pop(removed).watches.tenants.pop(tenant.name, None)
        for name, link in links.items():
            self.all_links[name] = link
            link.watches.tenants[tenant.name] = self.watches
        self.bindings.clear()
        self.bindings.update(bindings)
        old, self.tenant = self.tenant, tenant
        self.watches.notify(TENANT_CHANGED, old, tenant)
