"""A compute cluster as the reconcilers see it: one watch a kind for all tenants, sorted by whose the objects are."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Literal, Protocol

import msgspec
import structlog

from vkgateway.kube import resources
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.kube.resources import Resource
from vkgateway.model.names import (
    NAME_ANNOTATION,
    NAMESPACE_ANNOTATION,
    SYSTEM_NAMESPACE,
    TENANT_LABEL,
    UID_ANNOTATION,
    compute_namespace,
)
from vkgateway.model.objects import Meta, NamespaceView, NodeStatusView, NodeView, ObjectView
from vkgateway.sync.eventviews import SELECTOR, EventView, decode_event
from vkgateway.sync.heartbeat import Heartbeat
from vkgateway.sync.marks import TOKEN_OF
from vkgateway.sync.nodeviews import decode_node
from vkgateway.sync.pods.views import ComputePodView, decode_compute_pod
from vkgateway.sync.strangers import FIELD_SELECTOR, LABEL_SELECTOR, StrangerView, decode_stranger
from vkgateway.translate.netpolicies import PolicyView
from vkgateway.translate.poolnodes import PoolNodes, in_pool
from vkgateway.translate.services import MANAGED_BY_LABEL, OUR_SLICES, ServiceView, SliceView
from vkgateway.translate.storage.views import ClaimView, ClassView, decode_claim, decode_class

log = structlog.get_logger(__name__)

Key = tuple[str, str]
"""Namespace and name in the tenant."""

_NOT_YET: Final = "not connected yet"

CopyKind = Literal["configmaps", "secrets"]
COPY_RESOURCES: dict[CopyKind, Resource] = {"configmaps": resources.CONFIG_MAPS, "secrets": resources.SECRETS}

AnyReflector = (
    Reflector[ComputePodView]
    | Reflector[NodeView]
    | Reflector[NamespaceView]
    | Reflector[ObjectView]
    | Reflector[EventView]
    | Reflector[StrangerView]
    | Reflector[ServiceView]
    | Reflector[SliceView]
    | Reflector[ClaimView]
    | Reflector[ClassView]
    | Reflector[PolicyView]
)

decode_object = msgspec.json.Decoder(ObjectView).decode
decode_namespace = msgspec.json.Decoder(NamespaceView).decode
decode_service = msgspec.json.Decoder(ServiceView).decode
decode_slice = msgspec.json.Decoder(SliceView).decode
decode_policy = msgspec.json.Decoder(PolicyView).decode


class Listener(Protocol):
    """What a tenant's reconcilers want to hear from a compute cluster; each call only marks work to be done."""

    def compute_pod_changed(self, key: Key) -> None:
        """The compute pod that stands for a tenant pod appeared, changed or went."""

    def compute_copy_changed(self, kind: CopyKind, key: Key) -> None:
        """A copy of a ConfigMap or Secret appeared, changed or went."""

    def compute_namespace_changed(self, namespace: str) -> None:
        """The compute namespace of a tenant namespace appeared, changed or went."""

    def compute_service_changed(self, key: Key) -> None:
        """The compute Service, or a slice of ours, that stands for a tenant's of this key appeared, changed or went."""

    def compute_services_known(self) -> None:
        """All Services, slices and network policies of ours are known: look at them again."""

    def compute_policy_changed(self, namespace: str) -> None:
        """A network policy in the compute namespace of a tenant namespace appeared, changed or went."""

    def compute_names_changed(self) -> None:
        """What of ours stands in the gateway's own namespace for the tenant appeared, changed or went."""

    def compute_claim_changed(self, uid: str) -> None:
        """The compute claim that stands for a tenant's of this UID appeared, changed or went."""

    def compute_storage_known(self) -> None:
        """Storage classes changed, or all claims and classes became known: look at them again."""

    def compute_event_changed(self, link: str, key: Key) -> None:
        """An event in one of the tenant's compute namespaces appeared or changed; `key` is its own."""

    def compute_reachable(self) -> None:
        """The cluster became reachable or unreachable, or a list became complete: look at everything again."""


class ComputeLink:
    """One compute cluster: its client, what it holds of ours, and whether that knowledge can be trusted now.

    Objects count as a tenant's only where label, annotations and the namespace's name agree; anything else that
    merely wears our label is nobody's, and is never touched.
    """

    def __init__(self, name: str, client: Client) -> None:
        self.name = name
        self.client = client
        self.reachable = False
        self.why_unreachable = _NOT_YET
        self.minor: int | None = None
        """Its Kubernetes release's second number (36 of 1.36.3), once it is known."""
        self.service_ranges: Sequence[str] = ()
        """The ranges of its Services' addresses, as they were looked at last."""
        self.on_nodes_changed: list[Callable[[], None]] = []
        self.on_reachable_changed: list[Callable[[], None]] = []
        self.on_pod_changed: list[Callable[[ComputePodView | None, ComputePodView | None], None]] = []
        self.on_stranger_changed: list[Callable[[StrangerView | None, StrangerView | None], None]] = []
        self._listeners: dict[str, Listener] = {}
        self._pods: dict[str, dict[Key, ComputePodView]] = defaultdict(dict)
        self._watching = False, self.why_unreachable
        self._answering = True, ""
        self._heartbeat = Heartbeat(client, on_change=self._beats)
        ours = TENANT_LABEL
        self.pods: Reflector[ComputePodView] = Reflector(
            client,
            resources.PODS,
            decode=decode_compute_pod,
            on_change=self._pod_changed,
            label_selector=ours,
            on_reachable=self._watches,
            on_complete=self._completed,
        )
        self.strangers: Reflector[StrangerView] = Reflector(
            client,
            resources.PODS,
            decode=decode_stranger,
            on_change=self._stranger_changed,
            label_selector=LABEL_SELECTOR,
            field_selector=FIELD_SELECTOR,
            on_complete=self._completed,
        )
        self.nodes: Reflector[NodeView] = Reflector(
            client,
            resources.NODES,
            decode=decode_node,
            on_change=self._node_changed,
            on_complete=self._nodes_known,
        )
        self.namespaces: Reflector[NamespaceView] = Reflector(
            client,
            resources.NAMESPACES,
            decode=decode_namespace,
            on_change=self._namespace_changed,
            label_selector=ours,
            on_complete=self._completed,
        )
        self.copies: dict[CopyKind, Reflector[ObjectView]] = {
            kind: Reflector(
                client,
                resource,
                decode=decode_object,
                on_change=self._copy_listener(kind),
                label_selector=ours,
                on_complete=self._completed,
            )
            for kind, resource in COPY_RESOURCES.items()
        }
        self.services: Reflector[ServiceView] = Reflector(
            client,
            resources.SERVICES,
            decode=decode_service,
            on_change=self._service_changed,
            label_selector=ours,
            on_complete=self._services_completed,
        )
        self.slices: Reflector[SliceView] = Reflector(
            client,
            resources.ENDPOINT_SLICES,
            decode=decode_slice,
            on_change=self._slice_changed,
            # Slices that Kubernetes makes for our Services carry their labels, and change with every pod of theirs.
            label_selector=f"{ours},{MANAGED_BY_LABEL}={OUR_SLICES}",
            on_complete=self._services_completed,
        )
        self.claims: Reflector[ClaimView] = Reflector(
            client,
            resources.PERSISTENT_VOLUME_CLAIMS,
            decode=decode_claim,
            on_change=self._claim_changed,
            label_selector=ours,
            on_complete=self._storage_known,
        )
        self.classes: Reflector[ClassView] = Reflector(
            client,
            resources.STORAGE_CLASSES,
            decode=decode_class,
            on_change=lambda _old, _new: self._storage_known(),
            on_complete=self._storage_known,
        )
        self._claims: dict[str, dict[str, Key]] = defaultdict(dict)
        self.policies: Reflector[PolicyView] = Reflector(
            client,
            resources.NETWORK_POLICIES,
            decode=decode_policy,
            on_change=self._policy_changed,
            label_selector=ours,
            on_complete=self._services_completed,
        )
        self.events: Reflector[EventView] = Reflector(
            client, resources.EVENTS, decode=decode_event, on_change=self._event_changed, field_selector=SELECTOR
        )
        self._events: dict[str, set[Key]] = defaultdict(set)
        self._pool_nodes: dict[frozenset[tuple[str, str]], PoolNodes] = {}

    @property
    def judged(self) -> bool:
        """Whether the cluster has shown by now that it can be reached, or that it cannot."""
        return self.reachable or self.why_unreachable != _NOT_YET

    @property
    def trusted(self) -> bool:
        """Whether what is known of pods and namespaces may be acted upon: reachable, and the lists complete."""
        return (
            self.reachable
            and self.pods.complete
            and self.namespaces.complete
            and all(copies.complete for copies in self.copies.values())
        )

    @property
    def services_trusted(self) -> bool:
        """Whether what is known of Services may be acted upon; pods do not wait for that."""
        return self.trusted and self.services.complete and self.slices.complete

    @property
    def claims_trusted(self) -> bool:
        """Whether what is known of claims and storage classes may be acted upon; only pods that use claims wait."""
        return self.trusted and self.claims.complete and self.classes.complete

    def listen(self, tenant: str, listener: Listener) -> None:
        """Send a tenant's changes to its reconcilers from now on."""
        self._listeners[tenant] = listener

    def unlisten(self, tenant: str) -> None:
        """Stop telling a tenant's reconcilers."""
        self._listeners.pop(tenant, None)

    def pod(self, tenant: str, key: Key) -> ComputePodView | None:
        """The compute pod that stands for a tenant's pod."""
        return self._pods[tenant].get(key)

    def pod_keys(self, tenant: str) -> list[Key]:
        """All tenant pods that something stands for here."""
        return list(self._pods[tenant])

    def pods_of(self, tenant: str) -> list[ComputePodView]:
        """All compute pods that stand for a tenant's."""
        return list(self._pods[tenant].values())

    def pool_nodes(self, selector: Mapping[str, str]) -> PoolNodes:
        """The nodes that a selector chooses, as seen last; kept until a node changes."""
        chosen = frozenset(selector.items())
        found = self._pool_nodes.get(chosen)
        if found is None:
            found = PoolNodes(node for node in self.nodes.items.values() if in_pool(node, selector))
            self._pool_nodes[chosen] = found
        return found

    def claim(self, tenant: str, uid: str) -> ClaimView | None:
        """The compute claim that stands for a tenant's claim of this UID."""
        key = self._claims[tenant].get(uid)
        return self.claims.items.get(key) if key is not None else None

    def claim_uids(self, tenant: str) -> list[str]:
        """UIDs of all the tenant's claims that something stands for here."""
        return list(self._claims[tenant])

    def class_names(self) -> list[str]:
        """The storage classes that there are."""
        return [name for _, name in self.classes.items]

    def networks(self) -> list[str]:
        """The ranges of its Services' and pods' addresses, as far as they are known."""
        pods = (cidr for node in self.nodes.items.values() for cidr in node.spec.pod_cidrs)
        return list(dict.fromkeys((*self.service_ranges, *pods)))

    def copies_of(self, tenant: str, kind: CopyKind) -> Iterator[Key]:
        """Namespace and name, in the tenant, of everything that a copy is here of."""
        for view in list(self.copies[kind].items.values()):
            if is_copy(tenant, view.metadata):
                yield source_key(view.metadata)

    def namespace(self, tenant: str, namespace: str) -> NamespaceView | None:
        """The compute namespace that stands for a tenant's namespace."""
        found = self.namespaces.items.get(("", compute_namespace(tenant, namespace)))
        return found if found is not None and namespace_owner(found) == tenant else None

    def namespaces_of(self, tenant: str) -> list[NamespaceView]:
        """The compute namespaces that belong to a tenant."""
        return [view for view in self.namespaces.items.values() if namespace_owner(view) == tenant]

    def policy_namespaces(self, tenant: str) -> set[str]:
        """The tenant namespaces in whose compute namespaces there are network policies of ours."""
        views = self.policies.items.values()
        return {source_key(view.metadata)[0] for view in views if owned_by(tenant, view.metadata)}

    def events_of(self, tenant: str) -> list[Key]:
        """Where the events in a tenant's compute namespaces are found."""
        names = (view.metadata.name for view in self.namespaces_of(tenant))
        return [key for name in names for key in self._events.get(name, ())]

    async def run(self) -> None:
        """Watch for ever; ends only when cancelled or when a watcher fails for a reason that is a defect."""
        try:
            async with asyncio.TaskGroup() as group:
                for kind, reflector in self._reflectors():
                    group.create_task(reflector.run(), name=f"compute/{self.name}/watch-{kind}")
                group.create_task(self._heartbeat.run(), name=f"compute/{self.name}/heartbeat")
        finally:
            # Some may hold this link a while longer: what it knew is no ground to act on.
            self.reachable, self.why_unreachable = False, "not connected any more"

    def _reflectors(self) -> Iterator[tuple[str, AnyReflector]]:
        yield "pods", self.pods
        yield "strangers", self.strangers
        yield "nodes", self.nodes
        yield "namespaces", self.namespaces
        yield from self.copies.items()
        yield "services", self.services
        yield "endpointslices", self.slices
        yield "claims", self.claims
        yield "classes", self.classes
        yield "networkpolicies", self.policies
        yield "events", self.events

    def _completed(self) -> None:
        if self.trusted:
            self._tell_everybody()

    def _services_completed(self) -> None:
        if self.services_trusted:
            for listener in list(self._listeners.values()):
                listener.compute_services_known()

    def _storage_known(self) -> None:
        if self.claims_trusted:
            for listener in list(self._listeners.values()):
                listener.compute_storage_known()

    def _watches(self, reachable: bool, why: str) -> None:
        self._watching = reachable, why
        self._judge()

    def _beats(self, answers: bool, why: str) -> None:
        self._answering = answers, why
        self._judge()

    def _judge(self) -> None:
        """Reachable is a cluster that can be watched and that answers."""
        reachable, why = self._watching if not self._watching[0] else self._answering
        changed, self.why_unreachable = reachable != self.reachable, why
        if not changed:
            return
        self.reachable = reachable
        log.info("compute cluster reachability", compute=self.name, reachable=reachable, why=why)
        self._tell_everybody()

    def _tell_everybody(self) -> None:
        for listener in list(self._listeners.values()):
            listener.compute_reachable()
        for callback in self.on_reachable_changed:
            callback()

    def _pod_changed(self, old: ComputePodView | None, new: ComputePodView | None) -> None:
        view = new or old
        if view is None or not owned_by(view.tenant, view.metadata):
            return
        tenant, key = view.tenant, view.tenant_key
        if new is not None:
            self._pods[tenant][key] = new
        elif (known := self._pods[tenant].get(key)) is not None and known.metadata.uid == view.metadata.uid:
            del self._pods[tenant][key]
        for callback in self.on_pod_changed:
            callback(old, new)
        listener = self._listeners.get(tenant)
        if listener is not None:
            listener.compute_pod_changed(key)

    def _stranger_changed(self, old: StrangerView | None, new: StrangerView | None) -> None:
        for callback in self.on_stranger_changed:
            callback(old, new)

    def _event_changed(self, old: EventView | None, new: EventView | None) -> None:
        """What has no tenant's namespace is only kept, in case the namespace is told of later."""
        view = new or old
        assert view is not None
        namespace, key = view.metadata.namespace, view.metadata.key
        if new is None:
            self._events[namespace].discard(key)
            if not self._events[namespace]:
                del self._events[namespace]
            return
        self._events[namespace].add(key)
        above = self.namespaces.items.get(("", namespace))
        listener = self._listeners.get(namespace_owner(above)) if above is not None else None
        if listener is not None:
            listener.compute_event_changed(self.name, key)

    def _node_changed(self, old: NodeView | None, new: NodeView | None) -> None:
        if old is not None and new is not None and same_for_us(old, new):
            return
        self._pool_nodes.clear()
        self._nodes_known()

    def _nodes_known(self) -> None:
        for callback in self.on_nodes_changed:
            callback()

    def _namespace_changed(self, old: NamespaceView | None, new: NamespaceView | None) -> None:
        view = new or old
        if view is None:
            return
        tenant = namespace_owner(view)
        listener = self._listeners.get(tenant)
        if listener is not None:
            listener.compute_namespace_changed(view.metadata.annotations.get(NAME_ANNOTATION, ""))

    def _service_changed(self, old: ServiceView | None, new: ServiceView | None) -> None:
        view = new or old
        assert view is not None
        self._tell_service(view.metadata, view.metadata.annotations.get(NAME_ANNOTATION, ""))

    def _slice_changed(self, old: SliceView | None, new: SliceView | None) -> None:
        view = new or old
        assert view is not None
        self._tell_service(view.metadata, view.service)

    def _policy_changed(self, old: PolicyView | None, new: PolicyView | None) -> None:
        view = new or old
        assert view is not None
        tenant = view.metadata.labels.get(TENANT_LABEL, "")
        listener = self._listeners.get(tenant)
        if listener is not None and owned_by(tenant, view.metadata):
            listener.compute_policy_changed(view.metadata.annotations[NAMESPACE_ANNOTATION])

    def _tell_service(self, metadata: Meta, name: str) -> None:
        tenant = metadata.labels.get(TENANT_LABEL, "")
        listener = self._listeners.get(tenant)
        if listener is None:
            return
        if metadata.namespace == SYSTEM_NAMESPACE:
            listener.compute_names_changed()
        elif owned_by(tenant, metadata):
            listener.compute_service_changed((metadata.annotations[NAMESPACE_ANNOTATION], name))

    def _claim_changed(self, old: ClaimView | None, new: ClaimView | None) -> None:
        view = new or old
        assert view is not None
        metadata = view.metadata
        tenant, uid = metadata.labels.get(TENANT_LABEL, ""), metadata.annotations.get(UID_ANNOTATION, "")
        if not owned_by(tenant, metadata):
            return
        if new is not None:
            self._claims[tenant][uid] = metadata.key
        elif self._claims[tenant].get(uid) == metadata.key:
            del self._claims[tenant][uid]
        listener = self._listeners.get(tenant)
        if listener is not None:
            listener.compute_claim_changed(uid)

    def _copy_listener(self, kind: CopyKind) -> Callable[[ObjectView | None, ObjectView | None], None]:
        def changed(old: ObjectView | None, new: ObjectView | None) -> None:
            view = new or old
            if view is None:
                return
            tenant = view.metadata.labels.get(TENANT_LABEL, "")
            listener = self._listeners.get(tenant)
            if listener is None or not owned_by(tenant, view.metadata):
                return
            if is_copy(tenant, view.metadata):
                listener.compute_copy_changed(kind, source_key(view.metadata))
            elif new is None:
                # Tokens that somebody deleted: the pod's next start would wait for them.
                annotations = view.metadata.annotations
                listener.compute_pod_changed((annotations[NAMESPACE_ANNOTATION], annotations[TOKEN_OF]))

        return changed


def owned_by(tenant: str, metadata: Meta) -> bool:
    """Whether a namespaced compute object is a tenant's: its label, annotations and namespace must agree."""
    namespace = metadata.annotations.get(NAMESPACE_ANNOTATION, "")
    return (
        bool(tenant)
        and metadata.labels.get(TENANT_LABEL) == tenant
        and metadata.namespace == compute_namespace(tenant, namespace)
    )


def is_copy(tenant: str, metadata: Meta) -> bool:
    """Whether a compute object is the copy of a tenant's object; a Secret of tokens is a tenant's, but no copy."""
    return owned_by(tenant, metadata) and TOKEN_OF not in metadata.annotations


def source_key(metadata: Meta) -> Key:
    """Namespace and name of the tenant object that a compute object stands for."""
    return metadata.annotations.get(NAMESPACE_ANNOTATION, ""), metadata.annotations.get(NAME_ANNOTATION, "")


def same_for_us(old: NodeView, new: NodeView) -> bool:
    """Whether two states of a node differ in nothing that a virtual node shows; heartbeats and images are no news."""
    return (
        old.usable == new.usable
        and old.spec == new.spec
        and old.metadata.labels == new.metadata.labels
        and _unconditional(old.status) == _unconditional(new.status)
    )


def _unconditional(status: NodeStatusView) -> NodeStatusView:
    return msgspec.structs.replace(status, conditions=(), images=())


def namespace_owner(view: NamespaceView) -> str:
    """The tenant whose namespace it is, or nothing where label, annotation and name do not agree."""
    tenant = view.metadata.labels.get(TENANT_LABEL, "")
    original = view.metadata.annotations.get(NAME_ANNOTATION, "")
    return tenant if view.metadata.name == compute_namespace(tenant, original) else ""
