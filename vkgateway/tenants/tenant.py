"""One tenant between its API server and the compute clusters: its scope, its watches and its reconcilers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from vkgateway.api.requests import MilliResources
from vkgateway.clusters.link import ComputeLink
from vkgateway.kinds.context import TenantContext
from vkgateway.kinds.registry import Registry
from vkgateway.kinds.services.platform_service import ApiServers, NameServers
from vkgateway.kinds.sources import COMPUTE_REACHABLE, RESYNC, SERVER_ADDRESSES, TENANT_ACTIVE, TENANT_LISTED
from vkgateway.kinds.tenant_scope import TenantScope, VirtualNodeBinding
from vkgateway.kube.client import Client
from vkgateway.runtime.requests import WorkQueue
from vkgateway.runtime.workers import WorkerPool
from vkgateway.scheduler.core.snapshot import Quota
from vkgateway.scheduler.governed import VirtualNode
from vkgateway.scheduler.service.controller import ArbiterService
from vkgateway.tenants.reconcilers import TenantReconcilers


class TenantSync:
    """Synchronizes one tenant with the compute clusters.

    `bindings` are the pools of its virtual nodes, by the node's name; `links` are all compute clusters, by name. Both
    may be changed by `update_tenant` while it runs.
    """

    def __init__(
        self,
        tenant: TenantContext,
        client: Client,
        *,
        links: Mapping[str, ComputeLink],
        bindings: Mapping[str, VirtualNodeBinding],
        engine: WorkerPool,
        arbiter: ArbiterService,
        name_servers: NameServers | None = None,
        api_servers: ApiServers | None = None,
    ) -> None:
        self._engine = engine
        work_queue = WorkQueue(tenant.name, engine.queue)
        self.scope = TenantScope(
            tenant=tenant,
            client=client,
            all_links=dict(links),
            bindings=dict(bindings),
            work_queue=work_queue,
            clock=arbiter.clock,
        )
        self.reconcilers = TenantReconcilers(
            self.scope, arbiter=arbiter, name_servers=name_servers, api_servers=api_servers
        )
        self.registry = Registry(self.scope.watches, work_queue, self.scope.cache)
        self.registry.set_up(self.reconcilers.in_order())
        self.registry.watches_each((TENANT_LISTED, COMPUTE_REACHABLE), self.resync)

    @property
    def is_complete(self) -> bool:
        """Whether all of the tenant's objects are known, so that an object which is not in the cache does not exist."""
        return self.scope.cache.is_complete

    async def run(self) -> None:
        """Watch the tenant until cancelled; the workers reconcile its objects."""
        name = self.scope.name
        self._engine.add_tenant(name, self.registry)
        for link in self.scope.all_links.values():
            link.watches.tenants[name] = self.scope.watches
        try:
            async with asyncio.TaskGroup() as group:
                for reflector in self.scope.cache.all_reflectors():
                    group.create_task(reflector.run(), name=f"tenant/{name}/watch")
                for task, run in self.registry.background_tasks().items():
                    group.create_task(run(), name=f"tenant/{name}/{task}")
        finally:
            for link in self.scope.all_links.values():
                link.watches.tenants.pop(name, None)
            self._engine.remove_tenant(name)

    def update_tenant(
        self, tenant: TenantContext, *, links: Mapping[str, ComputeLink], bindings: Mapping[str, VirtualNodeBinding]
    ) -> None:
        """Apply a changed tenant, with its policy, pools and compute clusters, and reconcile everything."""
        self.scope.update_tenant(tenant, links=links, bindings=bindings)
        self.resync()

    def set_quotas(self, quotas: Iterable[Quota]) -> None:
        """Set what the tenant is guaranteed of each pool, and may use of it at most."""
        self.reconcilers.admission.event_handler.set_quotas(quotas)

    def set_limit(self, pool: str, limit: MilliResources) -> None:
        """Set what the tenant may use of a pool, over all its virtual nodes; reconcile pods that wait for it."""
        self.reconcilers.preparer.limit_tracker.set_limit(pool, limit)

    def set_node(self, name: str, node: VirtualNode) -> None:
        """Set the labels and taints of a virtual node, as the tenant's API server shows them."""
        self.reconcilers.admission.event_handler.set_node(name, node)

    def unreachable_servers(self) -> list[str]:
        """Return why pods of compute clusters cannot reach servers of the tenant, one sentence each."""
        reasons = self.reconcilers.name_service.unreachable
        return [reasons[key] for key in sorted(reasons) if key[0] in self.scope.links]

    def servers_changed(self) -> None:
        """Check the addresses of the tenant's API server and name servers."""
        if self.is_complete:
            self.scope.watches.notify(SERVER_ADDRESSES)

    def resync(self) -> None:
        """Reconcile every object of the tenant, in its cluster and in the compute clusters, once all are known."""
        if not self.is_complete:
            return
        self.scope.watches.notify(RESYNC)
        if any(link.namespaces.of_tenant(self.scope.name) for link in self.scope.links.values()):
            self.scope.watches.notify(TENANT_ACTIVE)
