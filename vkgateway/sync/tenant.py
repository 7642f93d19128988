"""All reconcilers of one tenant: what its watches wake, and who of them does what follows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping

from vkgateway.arbiter.facts import Quota
from vkgateway.kube.client import Client
from vkgateway.model.names import NAME_ANNOTATION
from vkgateway.model.objects import NamespaceView
from vkgateway.model.requests import Milli
from vkgateway.sync.admission.desk import ArbiterService
from vkgateway.sync.agenda import SWEEP_AGAIN, Agenda
from vkgateway.sync.budgets import DisruptionBudgets
from vkgateway.sync.compute.everywhere import everywhere
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.compute.ownership import CopyKind, Key
from vkgateway.sync.copies import Copies, Reference
from vkgateway.sync.engine import Engine, Item
from vkgateway.sync.events import EventRecorder
from vkgateway.sync.holdings import Holdings
from vkgateway.sync.mirrored_events import MirroredEvents
from vkgateway.sync.network.names import NameServers
from vkgateway.sync.network.network import Network
from vkgateway.sync.pods.case import Binding
from vkgateway.sync.pods.views import TenantPodView
from vkgateway.sync.shared import Shared
from vkgateway.sync.storage.storage import Storage
from vkgateway.sync.tenantpods import TenantPods
from vkgateway.translate.context import TenantContext
from vkgateway.translate.governed import VirtualNode


class TenantSync:
    """One tenant between its own API server and the compute clusters.

    `bindings` says what each virtual node (by name) stands for; `links` are all compute clusters, by name. Both may
    be changed by `rebind` while it runs.
    """

    def __init__(
        self,
        tenant: TenantContext,
        client: Client,
        *,
        links: Mapping[str, ComputeLink],
        bindings: Mapping[str, Binding],
        engine: Engine,
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
        self._agenda = Agenda(tenant.name, engine.queue)
        self.holdings = Holdings(
            client,
            on_pod=self._pod_changed,
            on_namespace=self._namespace_changed,
            on_source=self._source_changed,
            on_complete=self.look_at_everything,
        )
        shared = Shared(
            client=client,
            holdings=self.holdings,
            links=self.links,
            bindings=self.bindings,
            events=EventRecorder(client, clock=clock),
            agenda=self._agenda,
            clock=clock,
            monotonic=monotonic,
        )
        self._mirrored = MirroredEvents(tenant.name, client, self.holdings.pods, clock=clock)
        self.copies = Copies(tenant, client, self.holdings.sources)
        self.network = Network(tenant, shared, name_servers)
        self.budgets = DisruptionBudgets(tenant, shared, wake=self._agenda.budget)
        self.storage = Storage(tenant, shared, namespaces=self.network.namespaces, places_changed=self._volumes_moved)
        self.pods = TenantPods(
            tenant, shared, network=self.network, copies=self.copies, storage=self.storage, arbiter=arbiter
        )

    @property
    def complete(self) -> bool:
        """Whether everything the tenant has is known, so that absence is a fact."""
        return self.holdings.complete

    async def run(self) -> None:
        """Watch the tenant until cancelled; the engine's workers do the rest."""
        name = self.tenant.name
        self._engine.add(name, self)
        for link in self.links.values():
            link.listen(name, self)
        try:
            async with asyncio.TaskGroup() as group:
                for reflector in self.holdings.reflectors():
                    group.create_task(reflector.run(), name=f"tenant/{name}/watch")
                group.create_task(self.pods.desk.run(), name=f"tenant/{name}/admission")
                group.create_task(self.network.services.run(), name=f"tenant/{name}/services")
                group.create_task(self.storage.run(), name=f"tenant/{name}/storage")
                group.create_task(self.network.policies.run(), name=f"tenant/{name}/policies")
                group.create_task(self.budgets.run(), name=f"tenant/{name}/budgets")
        finally:
            for link in self.links.values():
                link.unlisten(name)
            self._engine.remove(name)

    def rebind(
        self, tenant: TenantContext, *, links: Mapping[str, ComputeLink], bindings: Mapping[str, Binding]
    ) -> None:
        """Take over a changed tenant: its policy, pools and compute clusters; everything is looked at again."""
        for gone in self.links.keys() - links.keys():
            self.links.pop(gone).unlisten(tenant.name)
        for name, link in links.items():
            self.links[name] = link
            link.listen(tenant.name, self)
        self.bindings.clear()
        self.bindings.update(bindings)
        self.tenant = tenant
        for part in (self.network, self.budgets, self.copies, self.pods, self.storage):
            part.tenant = tenant
        self.look_at_everything()

    def set_quotas(self, quotas: Iterable[Quota]) -> None:
        """Set what the tenant is guaranteed of each pool, and may use of it at most."""
        self.pods.desk.rebound(quotas)

    def set_limit(self, pool: str, limit: Milli) -> None:
        """Set what may be used of a pool, over all its virtual nodes, and reconcile the pods that were held there."""
        self.pods.set_limit(pool, limit)

    def set_node(self, name: str, node: VirtualNode) -> None:
        """Set what the tenant's API server shows of a virtual node: labels and taints, the tenant's own among them."""
        self.pods.desk.node_changed(name, node)

    # What the watches say; each only marks work to be done.

    def look_at_everything(self) -> None:
        """Look at every pod, namespace and copy again, above and below."""
        if not self.complete:
            return
        self.pods.look_at_everything()
        # What a list found changed was told before everything was known, and so was not acted upon.
        for reference in self.copies.wanted():
            self._agenda.copy(reference)
        for name, link in self.links.items():
            for key in link.events.of(self.tenant.name):
                self._agenda.event(name, key)
        self._agenda.sweep()
        if any(link.namespaces.of(self.tenant.name) for link in self.links.values()):
            self._need_below()
        self.network.look_at_everything()
        self.budgets.wake_all()
        self.storage.look_at_everything()

    def compute_pod_changed(self, key: Key) -> None:
        """See `Listener`."""
        self.pods.below_changed(key)
        self.network.services.pod_changed(key)

    def compute_tokens_gone(self, key: Key) -> None:
        """See `Listener`. Where somebody else deleted them, the pod's next start would wait for them."""
        if key in self.holdings.pods.items:
            self.pods.below_changed(key)

    def compute_copy_changed(self, kind: CopyKind, key: Key) -> None:
        """See `Listener`."""
        self._agenda.copy((kind, *key))

    def compute_namespace_changed(self, namespace: str) -> None:
        """See `Listener`."""
        self._agenda.namespace(namespace)
        self._need_below()
        self.network.services.wake_namespace(namespace)
        self._agenda.policies(namespace)
        self.budgets.wake_namespace(namespace)

    def compute_service_changed(self, key: Key) -> None:
        """See `Listener`."""
        self.network.service_changed(key)

    def compute_policy_changed(self, namespace: str) -> None:
        """See `Listener`."""
        self._agenda.policies(namespace)

    def compute_budget_changed(self, key: Key) -> None:
        """See `Listener`."""
        self._agenda.budget(key)

    def compute_names_changed(self) -> None:
        """See `Listener`."""
        self.network.names_changed()

    def compute_services_known(self) -> None:
        """See `Listener`."""
        self.network.look_at_everything()
        self.budgets.wake_all()

    def compute_claim_changed(self, uid: str) -> None:
        """See `Listener`."""
        self.storage.below_changed(uid)

    def compute_storage_known(self) -> None:
        """See `Listener`."""
        self.storage.look_at_everything()

    def compute_event_changed(self, link: str, key: Key) -> None:
        """See `Listener`."""
        self._agenda.event(link, key)

    def compute_reachable(self) -> None:
        """See `Listener`."""
        self.look_at_everything()

    def _pod_changed(self, old: TenantPodView | None, new: TenantPodView | None) -> None:
        self.pods.above_changed(old, new)

    def _namespace_changed(self, old: NamespaceView | None, new: NamespaceView | None) -> None:
        view = new or old
        assert view is not None
        if new is None:
            self._agenda.namespace(view.metadata.name)
        if old is None or new is None or old.metadata.labels != new.metadata.labels:
            self.network.policies.namespaces_changed()

    def _source_changed(self, reference: Reference) -> None:
        self.pods.source_changed(reference)
        if self.copies.users(reference):
            self._agenda.copy(reference)

    def _need_below(self) -> None:
        self.network.need()
        self.budgets.need()
        self.storage.need()

    def _volumes_moved(self) -> None:
        self.pods.desk.volumes_changed()

    # What is done about it, by the engine's workers.

    async def handle(self, item: Item) -> None:
        """Look at one thing; nothing is done before everything that the tenant has is known."""
        if not self.complete:
            return
        sort, kind, namespace, name = item
        if sort == "pod":
            await self.pods.reconciler.reconcile((namespace, name))
        elif sort == "gate":
            await self.pods.desk.gates.reconcile((namespace, name))
        elif sort == "namespace":
            await self.network.namespaces.reconcile(namespace, list(self.links.values()))
        elif sort == "copy":
            reference: Reference = ("configmaps" if kind == "configmaps" else "secrets", namespace, name)
            await self.copies.freshen(reference, list(self.links.values()))
        elif sort == "event":
            await self._mirror_event(kind, (namespace, name))
        elif sort in ("service", "addresses", "policies", "names"):
            await self.network.handle(item)
        elif sort == "budget":
            await self.budgets.reconcile((namespace, name))
        elif sort == "volume":
            await self.storage.volumes.reconcile(name)
        elif sort == "classes":
            await self.storage.classes.refresh()
        else:
            await self._sweep(repair=kind == SWEEP_AGAIN)

    async def _mirror_event(self, cluster: str, key: Key) -> None:
        link = self.links.get(cluster)
        if link is not None and (wait := await self._mirrored.mirror(link, key)) is not None:
            self._agenda.event(cluster, key, wait)

    async def _sweep(self, *, repair: bool) -> None:
        """Find what is left over below: copies without users, tokens without pods, namespaces without a namespace.

        With `repair` what fences namespaces in is made again, too: now and then, but not at each start.
        """

        async def sweep(link: ComputeLink) -> None:
            if not link.trusted:
                return
            for reference in self.copies.orphans(link):
                self._agenda.unused_copy(reference)
            # Taken anew for each link: pods may have come while the last one was swept.
            alive = {view.metadata.uid for view in self.holdings.pods.items.values()}
            await self.pods.tokens.sweep(link, alive.__contains__)

            async def look(namespace: NamespaceView) -> None:
                original = namespace.metadata.annotations.get(NAME_ANNOTATION, "")
                await self.network.namespaces.reconcile(original, [link], repair=repair)

            await everywhere(link.namespaces.of(self.tenant.name), look)

        await everywhere(list(self.links.values()), sweep)
        self.storage.look_at_classes(always=repair)
        self._agenda.next_sweep()
