"""All reconcilers of one tenant: what its watches wake, and who of them does what follows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping

from vkgateway.arbiter.snapshot import Quota
from vkgateway.kube.client import Client
from vkgateway.model.names import NAME_ANNOTATION
from vkgateway.model.objects import NamespaceView
from vkgateway.model.requests import MilliResources
from vkgateway.sync.admission.controller import ArbiterService
from vkgateway.sync.compute.fan_out import apply_to_each
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.copies import CopyReconciler
from vkgateway.sync.disruption_budgets import DisruptionBudgetReconciler
from vkgateway.sync.event_mirror import EventMirror
from vkgateway.sync.events import EventRecorder
from vkgateway.sync.network.name_service import NameServers
from vkgateway.sync.network.tenant_network import TenantNetwork
from vkgateway.sync.node_binding import VirtualNodeBinding
from vkgateway.sync.storage.tenant_storage import TenantStorage
from vkgateway.sync.tenant_cache import TenantCache
from vkgateway.sync.tenant_pods import TenantPods
from vkgateway.sync.tenant_scope import TenantScope
from vkgateway.sync.views.ownership import CopyKind, Key, Reference
from vkgateway.sync.views.pods import TenantPodView
from vkgateway.sync.work_queue import SWEEP_AGAIN, WorkQueue
from vkgateway.sync.workers import ReconcileRequest, WorkerPool
from vkgateway.translate.context import TenantContext
from vkgateway.translate.governed import VirtualNode


class TenantSync:
    """One tenant between its own API server and the compute clusters.

    `bindings` says what each virtual node (by name) stands for; `links` are all compute clusters, by name. Both may
    be changed by `update_tenant` while it runs.
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
        clock: Callable[[], float] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        clock = clock or arbiter.clock
        self.tenant = tenant
        self.links = dict(links)
        self.bindings = dict(bindings)
        self._engine = engine
        self._work_queue = WorkQueue(tenant.name, engine.queue)
        self.cache = TenantCache(
            client,
            on_pod=self._pod_changed,
            on_namespace=self._namespace_changed,
            on_source=self._source_changed,
            on_complete=self.enqueue_all,
        )
        shared = TenantScope(
            client=client,
            cache=self.cache,
            links=self.links,
            bindings=self.bindings,
            events=EventRecorder(client, clock=clock),
            work_queue=self._work_queue,
            clock=clock,
            monotonic=monotonic,
        )
        self._event_mirror = EventMirror(tenant.name, client, self.cache.pods, clock=clock)
        self.copies = CopyReconciler(tenant, client, self.cache.sources)
        self.network = TenantNetwork(tenant, shared, name_servers)
        self.budgets = DisruptionBudgetReconciler(tenant, shared, wake=self._work_queue.enqueue_budget)
        self.storage = TenantStorage(
            tenant, shared, namespaces=self.network.namespaces, places_changed=self._volume_locations_changed
        )
        self.pods = TenantPods(
            tenant, shared, network=self.network, copies=self.copies, storage=self.storage, arbiter=arbiter
        )

    @property
    def is_complete(self) -> bool:
        """Whether everything the tenant has is known, so that absence is a fact."""
        return self.cache.is_complete

    async def run(self) -> None:
        """Watch the tenant until cancelled; the engine's workers do the rest."""
        name = self.tenant.name
        self._engine.add_tenant(name, self)
        for link in self.links.values():
            link.add_listener(name, self)
        try:
            async with asyncio.TaskGroup() as group:
                for reflector in self.cache.all_reflectors():
                    group.create_task(reflector.run(), name=f"tenant/{name}/watch")
                group.create_task(self.pods.admission.run(), name=f"tenant/{name}/admission")
                group.create_task(self.network.services.run(), name=f"tenant/{name}/services")
                group.create_task(self.storage.run(), name=f"tenant/{name}/storage")
                group.create_task(self.network.policies.run(), name=f"tenant/{name}/policies")
                group.create_task(self.budgets.run(), name=f"tenant/{name}/budgets")
        finally:
            for link in self.links.values():
                link.remove_listener(name)
            self._engine.remove_tenant(name)

    def update_tenant(
        self, tenant: TenantContext, *, links: Mapping[str, ComputeLink], bindings: Mapping[str, VirtualNodeBinding]
    ) -> None:
        """Take over a changed tenant: its policy, pools and compute clusters; everything is looked at again."""
        for gone in self.links.keys() - links.keys():
            self.links.pop(gone).remove_listener(tenant.name)
        for name, link in links.items():
            self.links[name] = link
            link.add_listener(tenant.name, self)
        self.bindings.clear()
        self.bindings.update(bindings)
        self.tenant = tenant
        for part in (self.network, self.budgets, self.copies, self.pods, self.storage):
            part.tenant = tenant
        self.enqueue_all()

    def set_quotas(self, quotas: Iterable[Quota]) -> None:
        """Set what the tenant is guaranteed of each pool, and may use of it at most."""
        self.pods.admission.pools_changed(quotas)

    def set_limit(self, pool: str, limit: MilliResources) -> None:
        """Set what may be used of a pool, over all its virtual nodes, and reconcile the pods that were held there."""
        self.pods.set_limit(pool, limit)

    def set_node(self, name: str, node: VirtualNode) -> None:
        """Set what the tenant's API server shows of a virtual node: labels and taints, the tenant's own among them."""
        self.pods.admission.node_changed(name, node)

    # What the watches say; each only marks work to be done.

    def enqueue_all(self) -> None:
        """Look at every pod, namespace and copy again, above and below."""
        if not self.is_complete:
            return
        self.pods.enqueue_all()
        # What a list found changed was told before everything was known, and so was not acted upon.
        for reference in self.copies.referenced_objects():
            self._work_queue.enqueue_copy(reference)
        for name, link in self.links.items():
            for key in link.events.of_tenant(self.tenant.name):
                self._work_queue.enqueue_event(name, key)
        self._work_queue.enqueue_sweep()
        if any(link.namespaces.of_tenant(self.tenant.name) for link in self.links.values()):
            self._start_watching()
        self.network.enqueue_all()
        self.budgets.enqueue_all()
        self.storage.enqueue_all()

    def compute_pod_changed(self, key: Key) -> None:
        """See `Listener`."""
        self.pods.compute_pod_changed(key)
        self.network.services.pod_changed(key)

    def compute_tokens_gone(self, key: Key) -> None:
        """See `Listener`. Where somebody else deleted them, the pod's next start would wait for them."""
        if key in self.cache.pods.store:
            self.pods.compute_pod_changed(key)

    def compute_copy_changed(self, kind: CopyKind, key: Key) -> None:
        """See `Listener`."""
        self._work_queue.enqueue_copy((kind, *key))

    def compute_namespace_changed(self, namespace: str) -> None:
        """See `Listener`."""
        self._work_queue.enqueue_namespace(namespace)
        self._start_watching()
        self.network.services.enqueue_namespace(namespace)
        self._work_queue.enqueue_policies(namespace)
        self.budgets.enqueue_namespace(namespace)

    def compute_service_changed(self, key: Key) -> None:
        """See `Listener`."""
        self.network.service_changed(key)

    def compute_policy_changed(self, namespace: str) -> None:
        """See `Listener`."""
        self._work_queue.enqueue_policies(namespace)

    def compute_budget_changed(self, key: Key) -> None:
        """See `Listener`."""
        self._work_queue.enqueue_budget(key)

    def compute_names_changed(self) -> None:
        """See `Listener`."""
        self.network.names_changed()

    def compute_services_known(self) -> None:
        """See `Listener`."""
        self.network.enqueue_all()
        self.budgets.enqueue_all()

    def compute_claim_changed(self, uid: str) -> None:
        """See `Listener`."""
        self.storage.compute_claim_changed(uid)

    def compute_storage_known(self) -> None:
        """See `Listener`."""
        self.storage.enqueue_all()

    def compute_event_changed(self, link: str, key: Key) -> None:
        """See `Listener`."""
        self._work_queue.enqueue_event(link, key)

    def compute_reachable(self) -> None:
        """See `Listener`."""
        self.enqueue_all()

    def _pod_changed(self, old: TenantPodView | None, new: TenantPodView | None) -> None:
        self.pods.tenant_pod_changed(old, new)

    def _namespace_changed(self, old: NamespaceView | None, new: NamespaceView | None) -> None:
        view = new or old
        assert view is not None
        if new is None:
            self._work_queue.enqueue_namespace(view.metadata.name)
        if old is None or new is None or old.metadata.labels != new.metadata.labels:
            self.network.policies.namespaces_changed()

    def _source_changed(self, reference: Reference) -> None:
        self.pods.source_changed(reference)
        if self.copies.pods_using(reference):
            self._work_queue.enqueue_copy(reference)

    def _start_watching(self) -> None:
        self.network.start_watching()
        self.budgets.start_watching()
        self.storage.start_watching()

    def _volume_locations_changed(self) -> None:
        self.pods.admission.volumes_changed()

    # What is done about it, by the engine's workers.

    async def handle_request(self, item: ReconcileRequest) -> None:
        """Look at one thing; nothing is done before everything that the tenant has is known."""
        if not self.is_complete:
            return
        sort, kind, namespace, name = item
        if sort == "pod":
            await self.pods.reconciler.reconcile((namespace, name))
        elif sort == "gate":
            await self.pods.admission.gate_reconciler.reconcile((namespace, name))
        elif sort == "namespace":
            await self.network.namespaces.reconcile(namespace, list(self.links.values()))
        elif sort == "copy":
            reference: Reference = ("configmaps" if kind == "configmaps" else "secrets", namespace, name)
            await self.copies.reconcile(reference, list(self.links.values()))
        elif sort == "event":
            await self._mirror_event(kind, (namespace, name))
        elif sort in ("service", "addresses", "policies", "names"):
            await self.network.handle_request(item)
        elif sort == "budget":
            await self.budgets.reconcile((namespace, name))
        elif sort == "volume":
            await self.storage.volumes.reconcile(name)
        elif sort == "classes":
            await self.storage.classes.reconcile()
        else:
            await self._sweep_leftovers(repair=kind == SWEEP_AGAIN)

    async def _mirror_event(self, cluster: str, key: Key) -> None:
        link = self.links.get(cluster)
        if link is not None and (wait := await self._event_mirror.mirror_event(link, key)) is not None:
            self._work_queue.enqueue_event(cluster, key, wait)

    async def _sweep_leftovers(self, *, repair: bool) -> None:
        """Find what is left over below: copies without users, tokens without pods, namespaces without a namespace.

        With `repair` what fences namespaces in is made again, too: now and then, but not at each start.
        """

        async def sweep(link: ComputeLink) -> None:
            if not link.is_trusted:
                return
            for reference in self.copies.find_unused(link):
                self._work_queue.enqueue_unused_copy(reference)
            # Taken anew for each link: pods may have come while the last one was swept.
            alive = {view.metadata.uid for view in self.cache.pods.store.values()}
            await self.pods.tokens.delete_unused(link, alive.__contains__)

            async def look(namespace: NamespaceView) -> None:
                original = namespace.metadata.annotations.get(NAME_ANNOTATION, "")
                await self.network.namespaces.reconcile(original, [link], repair=repair)

            await apply_to_each(link.namespaces.of_tenant(self.tenant.name), look)

        await apply_to_each(list(self.links.values()), sweep)
        self.storage.enqueue_classes(always=repair)
        self._work_queue.schedule_sweep()
