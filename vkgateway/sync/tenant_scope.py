"""What the reconcilers of one tenant share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vkgateway.kube.client import Client
from vkgateway.kube.clock import Clock
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.events import EventRecorder
from vkgateway.sync.metrics import PodMeter
from vkgateway.sync.node_binding import VirtualNodeBinding
from vkgateway.sync.runtime.requests import GATE, POD, WorkQueue
from vkgateway.sync.runtime.sources import TENANT_CHANGED
from vkgateway.sync.runtime.watches import Watches
from vkgateway.sync.tenant_cache import TenantCache
from vkgateway.sync.views.ownership import Key
from vkgateway.translate.context import TenantContext
from vkgateway.translate.governed import VirtualNode


@dataclass(slots=True, kw_only=True, eq=False)
class TenantScope:
    """One tenant: its client and cache, its compute clusters and virtual nodes, its work queue and its watches.

    Every reconciler of the tenant holds the same scope, and reads from it what may change: `tenant`, `links` (all
    compute clusters that may hold objects of the tenant, by name) and `bindings` (the pool of each virtual node).
    """

    tenant: TenantContext
    client: Client
    links: dict[str, ComputeLink]
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
        for removed in self.links.keys() - links.keys():
            self.links.pop(removed).watches.tenants.pop(tenant.name, None)
        for name, link in links.items():
            self.links[name] = link
            link.watches.tenants[tenant.name] = self.watches
        self.bindings.clear()
        self.bindings.update(bindings)
        old, self.tenant = self.tenant, tenant
        self.watches.notify(TENANT_CHANGED, old, tenant)
