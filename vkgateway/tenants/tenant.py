"""One tenant between its API server and the compute clusters: its scope, its watches and its reconcilers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from vkgateway.api.names import NAME_ANNOTATION
from vkgateway.api.objects import NamespaceView
from vkgateway.api.requests import MilliResources
from vkgateway.clusters.link import ComputeLink, apply_to_each
from vkgateway.kinds.catalogue import KINDS
from vkgateway.kinds.configs.reconciler import CopyReconciler
from vkgateway.kinds.context import TenantContext
from vkgateway.kinds.events.reconciler import EventMirror
from vkgateway.kinds.namespaces.reconciler import NamespaceReconciler
from vkgateway.kinds.pods.deleter import PodDeleter
from vkgateway.kinds.pods.event_handler import PodEventHandler
from vkgateway.kinds.pods.forwarder import PodForwarder
from vkgateway.kinds.pods.mirror import PodMirror, ReplacedPods
from vkgateway.kinds.pods.pod_context import PodPreparer
from vkgateway.kinds.pods.reconciler import Executor, PodReconciler
from vkgateway.kinds.pods.startups import PodStartups
from vkgateway.kinds.policies.reconciler import NetworkPolicyReconciler
from vkgateway.kinds.registry import Reconciler, Registry
from vkgateway.kinds.services.name_service import NameService
from vkgateway.kinds.services.platform_service import ApiServers, NameServers, Resolvers
from vkgateway.kinds.services.reconciler import ServiceReconciler
from vkgateway.kinds.services.service_cidr import TenantServiceCidr
from vkgateway.kinds.services.tenant_services import TenantServices
from vkgateway.kinds.sources import COMPUTE_REACHABLE, RESYNC, SERVER_ADDRESSES, TENANT_ACTIVE, TENANT_LISTED
from vkgateway.kinds.tenant_scope import TenantScope, VirtualNodeBinding
from vkgateway.kinds.tokens.reconciler import ServiceAccountTokens
from vkgateway.kinds.volumes.claim_users import ClaimUsers
from vkgateway.kinds.volumes.reconciler import VolumeReconciler
from vkgateway.kinds.volumes.storage_classes import StorageClassReconciler
from vkgateway.kinds.volumes.tenant_volumes import TenantVolumes
from vkgateway.kube.client import Client
from vkgateway.runtime.requests import RequestKind, WorkQueue
from vkgateway.runtime.workers import WorkerPool
from vkgateway.scheduler.core.snapshot import Quota
from vkgateway.scheduler.governed import VirtualNode
from vkgateway.scheduler.service.arbitration import Arbitration
from vkgateway.scheduler.service.controller import AdmissionController


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
        arbiter: Arbitration,
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
        self.reconcilers.admission.set_quotas(quotas)

    def set_limit(self, pool: str, limit: MilliResources) -> None:
        """Set what the tenant may use of a pool, over all its virtual nodes; reconcile pods that wait for it."""
        self.reconcilers.preparer.limit_tracker.set_limit(pool, limit)

    def set_node(self, name: str, node: VirtualNode) -> None:
        """Set the labels and taints of a virtual node, as the tenant's API server shows them."""
        self.reconcilers.admission.set_node(name, node)

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


class TenantReconcilers:
    """All reconcilers of one tenant. Those that need nothing of another kind are listed in `kinds/catalogue.py`."""

    def __init__(
        self,
        scope: TenantScope,
        *,
        arbiter: Arbitration,
        name_servers: NameServers | None,
        api_servers: ApiServers | None,
    ) -> None:
        own_range = TenantServiceCidr(scope)
        resolvers = Resolvers(scope, name_servers, own_range=own_range)
        self.policies = NetworkPolicyReconciler(scope, resolvers)
        self.namespaces = NamespaceReconciler(scope, self.policies)
        self.tenant_services = TenantServices(scope)
        self.services = ServiceReconciler(scope, self.tenant_services, namespaces=self.namespaces, own_range=own_range)
        self.name_service = NameService(
            scope,
            resolvers,
            self.tenant_services,
            services=self.services,
            own_range=own_range,
            api_servers=api_servers,
        )
        self.tenant_volumes = TenantVolumes(scope)
        self.claim_users = ClaimUsers(scope, self.tenant_volumes)
        self.classes = StorageClassReconciler(scope)
        self.volumes = VolumeReconciler(scope, self.tenant_volumes, namespaces=self.namespaces)
        self.copies = CopyReconciler(scope)
        self.tokens = ServiceAccountTokens(scope)
        self.event_mirror = EventMirror(scope)
        self.startups = PodStartups(scope)
        mirror = PodMirror(scope)
        forwarder = PodForwarder(
            scope,
            mirror,
            namespaces=self.namespaces,
            copies=self.copies,
            tokens=self.tokens,
            name_service=self.name_service,
        )
        self.admission = AdmissionController(scope, arbiter, mirror=mirror, claims=self.claim_users)
        self.executor = Executor(
            mirror,
            forwarder,
            deleter=PodDeleter(scope, arbiter),
            replaced=ReplacedPods(scope, mirror),
            admission=self.admission,
        )
        self.pod_events = PodEventHandler(scope, self.executor, self.admission)
        self.preparer = PodPreparer(
            scope,
            mirror,
            copies=self.copies,
            tokens=self.tokens,
            claims=self.claim_users,
            admission=self.admission,
        )
        self.kinds = {name: kind.reconciler(scope) for name, kind in KINDS.items()}
        self.pods = PodReconciler(scope, self.executor, preparer=self.preparer, admission=self.admission)
        self.sweeper = Sweeper(
            scope, copies=self.copies, tokens=self.tokens, namespaces=self.namespaces, classes=self.classes
        )

    def in_order(self) -> list[Reconciler]:
        """Return the reconcilers in the order in which they are notified of a change."""
        return [
            self.admission,
            self.pod_events,
            self.pods,
            self.copies,
            self.event_mirror,
            self.startups,
            self.sweeper,
            self.namespaces,
            self.tenant_services,
            self.services,
            self.policies,
            self.name_service,
            self.tenant_volumes,
            self.classes,
            self.volumes,
            self.claim_users,
            *self.kinds.values(),
        ]


SWEEP: Final = RequestKind[bool]("sweep")
"""The key says whether to repair compute namespaces, too: periodically, but not at each start."""
_SWEEP_SECONDS: Final = 600.0


class Sweeper:
    """Deleter of copies without users, tokens without pods, and compute namespaces without a tenant namespace."""

    def __init__(
        self,
        scope: TenantScope,
        *,
        copies: CopyReconciler,
        tokens: ServiceAccountTokens,
        namespaces: NamespaceReconciler,
        classes: StorageClassReconciler,
    ) -> None:
        self._scope = scope
        self._copies = copies
        self._tokens = tokens
        self._namespaces = namespaces
        self._classes = classes

    def set_up(self, registry: Registry) -> None:
        """See `Reconciler`."""
        registry.for_(SWEEP, self.reconcile).watches(RESYNC, lambda: self._scope.work_queue.enqueue(SWEEP, key=False))

    async def reconcile(self, repair: bool) -> None:
        """Sweep all compute clusters, and again after 10 minutes. With `repair`, rewrite the objects of namespaces."""
        await apply_to_each(list(self._scope.links.values()), lambda link: self._sweep_cluster(link, repair=repair))
        self._classes.enqueue(always=repair)
        self._scope.work_queue.enqueue(SWEEP, True, _SWEEP_SECONDS)

    async def _sweep_cluster(self, link: ComputeLink, *, repair: bool) -> None:
        if not link.is_trusted:
            return
        for reference in self._copies.find_unused(link):
            self._copies.enqueue_unused(reference)
        # Collected for each cluster: pods may be created while another cluster is swept.
        alive = {view.metadata.uid for view in self._scope.cache.pods.store.values()}
        await self._tokens.delete_unused(link, alive)

        async def reconcile(view: NamespaceView) -> None:
            original = view.metadata.annotations.get(NAME_ANNOTATION, "")
            await self._namespaces.reconcile_in(link, original, repair=repair)

        await apply_to_each(link.namespaces.of_tenant(self._scope.name), reconcile)
