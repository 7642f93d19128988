"""All reconcilers of one tenant: its watches, what they wake, and what is done about it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import structlog

from vkgateway.arbiter.facts import Quota
from vkgateway.arbiter.limits import Limits
from vkgateway.kube import resources
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.model.errors import UnavailableError
from vkgateway.model.names import NAME_ANNOTATION, UID_ANNOTATION
from vkgateway.model.objects import NamespaceView, Object, ObjectView, decode_namespace, decode_object
from vkgateway.model.requests import Milli
from vkgateway.sync.admission.desk import ArbiterService, Desk
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.compute.ownership import COPY_RESOURCES, CopyKind, Key
from vkgateway.sync.copies import Copies, Reference
from vkgateway.sync.engine import Engine, Item
from vkgateway.sync.events import EventRecorder
from vkgateway.sync.metrics import pod_meter
from vkgateway.sync.mirrored_events import MirroredEvents
from vkgateway.sync.names import Names, NameServers
from vkgateway.sync.namespaces import Namespaces
from vkgateway.sync.netpolicies import NetworkPolicies
from vkgateway.sync.ownrange import OwnRange
from vkgateway.sync.pods.case import Binding
from vkgateway.sync.pods.downward import Downward
from vkgateway.sync.pods.hands import Hands
from vkgateway.sync.pods.reconciler import PodReconciler
from vkgateway.sync.pods.upward import Upward
from vkgateway.sync.pods.views import TenantPodView, decode_tenant_pod
from vkgateway.sync.services import Services
from vkgateway.sync.storage.storage import Storage
from vkgateway.sync.tokens import Tokens
from vkgateway.translate.context import TenantContext
from vkgateway.translate.governed import VirtualNode
from vkgateway.translate.policy import refusals

log = structlog.get_logger(__name__)

_LINGER: Final = 30.0
"""Seconds for which a copy stays after its last pod: Jobs come one after another with the same references."""
_GATHER: Final = 0.02
"""Seconds in which changes of one Service and its slices are gathered."""
_SWEEP_EVERY: Final = 600.0
_PERIODIC: Final = "periodic"


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
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.tenant = tenant
        self.client = client
        self.links = dict(links)
        self.bindings = dict(bindings)
        self._engine = engine
        self.limits = Limits()
        self.pods: Reflector[TenantPodView] = Reflector(
            client,
            resources.PODS,
            decode=decode_tenant_pod,
            on_change=self._tenant_pod_changed,
            on_complete=self.look_at_everything,
        )
        self.namespaces: Reflector[NamespaceView] = Reflector(
            client,
            resources.NAMESPACES,
            decode=decode_namespace,
            on_change=self._tenant_namespace_changed,
            on_complete=self.look_at_everything,
        )
        self.sources: dict[CopyKind, Reflector[ObjectView]] = {
            kind: Reflector(
                client,
                resource,
                decode=decode_object,
                on_change=self._source_listener(kind),
                on_complete=self.look_at_everything,
            )
            for kind, resource in COPY_RESOURCES.items()
        }
        self.events = EventRecorder(client, clock=clock)
        self._mirrored = MirroredEvents(tenant.name, client, self.pods, clock=clock)
        self._policies = NetworkPolicies(
            tenant,
            client,
            events=self.events,
            namespaces=self._namespace_labels,
            resolvers=self._resolvers,
            wake=self.compute_policy_changed,
        )
        self._namespaces = Namespaces(tenant, policies=self._policies.fence)
        self.copies = Copies(tenant, client, self.sources)
        own_range = OwnRange(tenant)
        self.services = Services(
            tenant,
            client,
            events=self.events,
            namespaces=self._namespaces,
            own_range=own_range,
            namespace_uid=self._namespace_uid,
            wake=self.compute_service_changed,
            on_complete=self.compute_services_known,
        )
        self._names = Names(tenant, name_servers, self.services, own_range=own_range, wake=self._look_at_names)
        self.storage = Storage(
            tenant,
            client,
            links=self.links,
            bindings=self.bindings,
            events=self.events,
            namespaces=self._namespaces,
            namespace_uid=self._namespace_uid,
            queue=engine.queue,
            later=self._look_later,
            places_changed=self._volumes_moved,
            clock=clock,
        )
        self._tokens = Tokens(tenant.name, client, clock=clock)
        meter = pod_meter(tenant.name)
        upward = self._upward = Upward(client, events=self.events, meter=meter, clock=clock)
        self._downward = Downward(
            tenant,
            upward=upward,
            namespaces=self._namespaces,
            copies=self.copies,
            tokens=self._tokens,
            namespace_uid=self._namespace_uid,
            seen_from=self._seen_from,
            namespace_labels=self._namespace_labels,
            later=self._look_later,
            meter=meter,
            clock=clock,
        )
        self._desk = Desk(
            tenant.name,
            client,
            self.pods,
            links=self.links,
            bindings=self.bindings,
            service=arbiter,
            events=self.events,
            sent=self._downward.created,
            whole=upward.whole,
            places=self.storage.users.places,
            refuse=self._refuse,
            look_at_gate=self._look_at_gate,
            look_at_pod=self._look_later,
            clock=clock,
        )
        self._pods = PodReconciler(
            tenant,
            self.pods,
            links=self.links,
            bindings=self.bindings,
            hands=Hands(
                upward=upward,
                downward=self._downward,
                notices=self._desk.notices,
                tell_held=self._desk.tell_held,
            ),
            copies=self.copies,
            tokens=self._tokens,
            claims=self.storage.users,
            limits=self.limits,
            arbiter=self._desk,
            wake=self._look_at_pod,
            later=self._look_later,
            freshen=self._look_at_copy,
            release=self._copy_unused,
            clock=clock,
        )

    @property
    def complete(self) -> bool:
        """Whether everything the tenant has is known, so that absence is a fact."""
        return (
            self.pods.complete
            and self.namespaces.complete
            and all(reflector.complete for reflector in self.sources.values())
        )

    async def run(self) -> None:
        """Watch the tenant until cancelled; the engine's workers do the rest."""
        name = self.tenant.name
        self._engine.add(name, self)
        for link in self.links.values():
            link.listen(name, self)
        watches: list[Reflector[Any]] = [self.pods, self.namespaces, *self.sources.values()]
        try:
            async with asyncio.TaskGroup() as group:
                for reflector in watches:
                    group.create_task(reflector.run(), name=f"tenant/{name}/watch")
                group.create_task(self._desk.run(), name=f"tenant/{name}/admission")
                group.create_task(self.services.run(), name=f"tenant/{name}/services")
                group.create_task(self.storage.run(), name=f"tenant/{name}/storage")
                group.create_task(self._policies.run(), name=f"tenant/{name}/policies")
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
        for part in (
            self._namespaces,
            self._policies,
            self.copies,
            self.services,
            self._names,
            self._downward,
            self._pods,
            self.storage,
        ):
            part.tenant = tenant
        self._pods.forget_plans()
        self.look_at_everything()

    def set_quotas(self, quotas: Iterable[Quota]) -> None:
        """Set what the tenant is guaranteed of each pool, and may use of it at most."""
        self._desk.rebound(quotas)

    def set_limit(self, node: str, limit: Milli) -> None:
        """Set what may be used of a virtual node (what it shows as allocatable), and look at what it held back."""
        for key in self._pods.set_limit(node, limit):
            self._look_at_pod(key)

    def set_node(self, name: str, node: VirtualNode) -> None:
        """Set what the tenant's API server shows of a virtual node: labels and taints, the tenant's own among them."""
        self._desk.node_changed(name, node)

    # What the watches say; each only marks work to be done.

    def look_at_everything(self) -> None:
        """Look at every pod, namespace and copy again, above and below."""
        if not self.complete:
            return
        self._desk.listed()
        for key in self.pods.items:
            self._look_at_pod(key)
        for link in self.links.values():
            for key in link.pods.keys(self.tenant.name):
                self._look_at_pod(key)
        # What a list found changed was told before everything was known, and so was not acted upon.
        for reference in self.copies.wanted():
            self._look_at_copy(reference)
        for name, link in self.links.items():
            for key in link.events.of(self.tenant.name):
                self.compute_event_changed(name, key)
        self._engine.queue.add(self.tenant.name, ("sweep", "", "", ""))
        if any(link.namespaces.of(self.tenant.name) for link in self.links.values()):
            self._need_network()
            self.storage.need()
        self.services.wake_all(self.links.values())
        self._policies.wake_all(self.links.values())
        self._look_at_names()
        self.storage.look_at_everything()

    def compute_pod_changed(self, key: Key) -> None:
        """See `Listener`."""
        self._desk.below_changed(key)
        self._look_at_pod(key)
        self.services.pods_changed()

    def compute_copy_changed(self, kind: CopyKind, key: Key) -> None:
        """See `Listener`."""
        self._look_at_copy((kind, *key))

    def compute_namespace_changed(self, namespace: str) -> None:
        """See `Listener`."""
        self._engine.queue.add(self.tenant.name, ("namespace", "", namespace, ""))
        self._need_network()
        self.storage.need()
        self.services.wake_namespace(namespace)
        self.compute_policy_changed(namespace)

    def compute_service_changed(self, key: Key) -> None:
        """See `Listener`."""
        self._engine.queue.add(self.tenant.name, ("service", "", *key), delay=_GATHER)
        self._look_at_names()

    def compute_policy_changed(self, namespace: str) -> None:
        """See `Listener`."""
        self._engine.queue.add(self.tenant.name, ("policies", "", namespace, ""), delay=_GATHER)

    def compute_names_changed(self) -> None:
        """See `Listener`."""
        self._look_at_names()
        self._policies.surroundings_changed()

    def compute_services_known(self) -> None:
        """See `Listener`."""
        self.services.wake_all(self.links.values())
        self._policies.wake_all(self.links.values())
        self._look_at_names()

    def compute_claim_changed(self, uid: str) -> None:
        """See `Listener`."""
        self.storage.below_changed(uid)

    def compute_storage_known(self) -> None:
        """See `Listener`."""
        self.storage.look_at_everything()

    def compute_event_changed(self, link: str, key: Key) -> None:
        """See `Listener`."""
        self._engine.queue.add(self.tenant.name, ("event", link, *key))

    def compute_reachable(self) -> None:
        """See `Listener`."""
        self.look_at_everything()

    def _tenant_pod_changed(self, old: TenantPodView | None, new: TenantPodView | None) -> None:
        view = new or old
        assert view is not None
        if new is None:
            self._pods.hands.forget(view.metadata.uid)
        self._desk.pod_changed(old, new)
        key = view.metadata.key
        is_below = any(link.pods.find(self.tenant.name, key) is not None for link in self.links.values())
        if old is not None or view.spec.node_name or is_below:
            self._look_at_pod(key)

    def _tenant_namespace_changed(self, old: NamespaceView | None, new: NamespaceView | None) -> None:
        view = new or old
        assert view is not None
        if new is None:
            self._engine.queue.add(self.tenant.name, ("namespace", "", view.metadata.name, ""))
        if old is None or new is None or old.metadata.labels != new.metadata.labels:
            self._policies.surroundings_changed()

    def _need_network(self) -> None:
        self.services.need()
        self._policies.need()

    def _source_listener(self, kind: CopyKind) -> Callable[[ObjectView | None, ObjectView | None], None]:
        def changed(old: ObjectView | None, new: ObjectView | None) -> None:
            view = new or old
            assert view is not None
            reference: Reference = (kind, *view.metadata.key)
            for key in self._pods.waiting.pop(reference, ()):
                self._look_at_pod(key)
            if self.copies.users(reference):
                self._look_at_copy(reference)

        return changed

    async def _refuse(self, view: TenantPodView, pod: Object) -> bool:
        """Fail a pod that waits for admission and breaks the policy; whether it does."""
        found = refusals(pod, tenant=self.tenant, pool=None)
        if found:
            await self._upward.refuse_pod(view, found)
        return bool(found)

    def _volumes_moved(self) -> None:
        self._desk.volumes_changed()

    def _look_at_pod(self, key: Key) -> None:
        self._engine.queue.add(self.tenant.name, ("pod", "", *key))

    def _look_at_gate(self, key: Key, seconds: float) -> None:
        self._engine.queue.add(self.tenant.name, ("gate", "", *key), delay=seconds)

    def _look_later(self, key: Key, seconds: float) -> None:
        self._engine.queue.add(self.tenant.name, ("pod", "", *key), delay=seconds)

    def _look_at_names(self) -> None:
        if self._names.active:
            self._engine.queue.add(self.tenant.name, ("names", "", "", ""), delay=_GATHER)

    def _look_at_copy(self, reference: Reference, *, delay: float = 0.0) -> None:
        self._engine.queue.add(self.tenant.name, ("copy", *reference), delay=delay)

    def _copy_unused(self, reference: Reference) -> None:
        self._look_at_copy(reference, delay=_LINGER)

    # What is done about it, by the engine's workers.

    async def handle(self, item: Item) -> None:
        """Look at one thing; nothing is done before everything that the tenant has is known."""
        if not self.complete:
            return
        sort, kind, namespace, name = item
        if sort == "pod":
            await self._pods.reconcile((namespace, name))
        elif sort == "gate":
            await self._desk.gates.reconcile((namespace, name))
        elif sort == "namespace":
            await self._reconcile_namespace(namespace)
        elif sort == "copy":
            await self._reconcile_copy(kind, namespace, name)
        elif sort == "event":
            await self._mirror_event(kind, (namespace, name))
        elif sort == "service":
            await self._reconcile_service((namespace, name))
        elif sort == "policies":
            await self._reconcile_policies(namespace)
        elif sort == "names":
            await self._names.refresh(self.links)
        elif sort == "volume":
            await self.storage.volumes.reconcile(name)
        elif sort == "classes":
            await self.storage.classes.refresh()
        else:
            await self._sweep(repair=kind == _PERIODIC)

    async def _mirror_event(self, cluster: str, key: Key) -> None:
        link = self.links.get(cluster)
        if link is not None and (wait := await self._mirrored.mirror(link, key)) is not None:
            self._engine.queue.add(self.tenant.name, ("event", cluster, *key), delay=wait)

    async def _reconcile_service(self, key: Key) -> None:
        if self.services.complete:
            await self.services.reconcile(key, self.links)

    async def _reconcile_policies(self, namespace: str) -> None:
        above = self.namespaces.items.get(("", namespace))
        if above is not None and above.metadata.deletion_timestamp is None:
            await self._policies.reconcile(namespace, above.metadata.uid, self.links)

    async def _reconcile_copy(self, kind: str, namespace: str, name: str) -> None:
        for link in list(self.links.values()):
            below = self._below(link, namespace)
            if not link.trusted or below is None or below.metadata.deletion_timestamp is not None:
                continue
            reference: Reference = ("configmaps" if kind == "configmaps" else "secrets", namespace, name)
            await self.copies.ensure(link, reference)

    async def _reconcile_namespace(self, namespace: str, *, repair: bool = False) -> None:
        for link in list(self.links.values()):
            below = self._below(link, namespace)
            if not link.trusted or below is None:
                continue
            above = self.namespaces.items.get(("", namespace))
            if above is None or above.metadata.uid != below.metadata.annotations.get(UID_ANNOTATION):
                await self._namespaces.remove(link, below)
            elif repair and below.metadata.deletion_timestamp is None:
                await self._namespaces.repair(link, namespace, above.metadata.uid)

    async def _sweep(self, *, repair: bool) -> None:
        """Find what is left over below: copies without users, tokens without pods, namespaces without a namespace.

        With `repair` what fences namespaces in is made again, too: now and then, but not at each start.
        """
        for link in list(self.links.values()):
            if not link.trusted:
                continue
            for namespace in link.namespaces.of(self.tenant.name):
                await self._reconcile_namespace(namespace.metadata.annotations.get(NAME_ANNOTATION, ""), repair=repair)
            for reference in self.copies.orphans(link):
                self._copy_unused(reference)
            # Taken anew for each link: pods may have come while the last one was swept.
            alive = {view.metadata.uid for view in self.pods.items.values()}
            await self._tokens.sweep(link, alive.__contains__)
        self.storage.look_at_classes(always=repair)
        self._engine.queue.add(self.tenant.name, ("sweep", _PERIODIC, "", ""), delay=_SWEEP_EVERY)

    def _below(self, link: ComputeLink, namespace: str) -> NamespaceView | None:
        return link.namespaces.find(self.tenant.name, namespace)

    def _namespace_labels(self) -> dict[str, dict[str, str]]:
        return {view.metadata.name: view.metadata.labels for view in self.namespaces.items.values()}

    async def _seen_from(self, link: ComputeLink, namespace: str, *, with_services: bool) -> TenantContext:
        """What a pod must know of the tenant; `with_services`, once its kubelet can tell it those of the namespace."""
        if with_services:
            await self.services.settle(namespace, self.links)
        return await self._names.seen_from(link)

    def _resolvers(self, link: ComputeLink) -> list[tuple[str, int]]:
        return self._names.resolvers(link)

    def _namespace_uid(self, namespace: str) -> str:
        view = self.namespaces.items.get(("", namespace))
        if view is None:
            raise UnavailableError(f"namespace {namespace} is gone", hint="nothing to do; its pods go with it")
        return view.metadata.uid
