"""Connection to a compute cluster: one watch per kind for all tenants, and whether their state can be trusted.

`apply_to_each` runs an action in several clusters; a failure in one of them does not block the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

import msgspec

from vkgateway.api.clusters import ClusterIdentity
from vkgateway.api.errors import ConflictError, UnavailableError
from vkgateway.api.objects import NodeImage, NodeStatusView, NodeView
from vkgateway.clusters.cluster_watches import (
    LISTED,
    NETWORK_LISTED,
    NODES,
    REACHABILITY,
    STORAGE_CHANGED,
    TRUST,
    UNMANAGED_PODS,
    ClusterWatches,
)
from vkgateway.clusters.pods import ComputeCopies, ComputePods
from vkgateway.clusters.pool_nodes import PoolNodes, is_in_pool
from vkgateway.clusters.reachability import Reachability
from vkgateway.clusters.tenant_owners import GatewayIdentity, TenantOwners
from vkgateway.clusters.topologies import ComputeTopologies
from vkgateway.clusters.unmanaged_pods import (
    FIELD_SELECTOR,
    LABEL_SELECTOR,
    UnmanagedPodView,
    decode_unmanaged_pod,
)
from vkgateway.kinds.context import PoolContext
from vkgateway.kinds.namespaces.watch import ComputeEvents, ComputeNamespaces
from vkgateway.kinds.services.watch import ComputePolicies, ComputeServices, ComputeSlices
from vkgateway.kinds.sources import COMPUTE_NETWORK_LISTED, COMPUTE_REACHABLE, COMPUTE_STORAGE_CHANGED
from vkgateway.kinds.volumes.watch import ComputeClaims, ComputeClasses
from vkgateway.kube import resources
from vkgateway.kube.client import Client
from vkgateway.kube.errors import ApiError
from vkgateway.kube.reflector import Reflector
from vkgateway.runtime.views.ownership import COPY_RESOURCES, namespace_owner

T = TypeVar("T")
W = TypeVar("W", bound=Reflector[Any])


class ComputeLink:
    """Client of one compute cluster, the watched state of vkgateway's objects there, and whether to trust that state.

    An object belongs to a tenant only if its label, annotations and namespace name agree. The gateway never touches any
    other object, even one that carries the tenant label. `gateway` distinguishes this gateway from others that use the
    cluster. `kinds` has the constructors of further watches by their names; `watch_of` returns them.
    """

    def __init__(
        self,
        name: str,
        client: Client,
        gateway: GatewayIdentity | None = None,
        *,
        kinds: Mapping[str, Callable[[Client, ClusterWatches], Reflector[Any]]] = MappingProxyType({}),
    ) -> None:
        self.name = name
        self.client = client
        self.watches = watches = ClusterWatches()
        """Observers of the cluster, and the tenants that use it."""
        self.reachability = Reachability(name, client, watches)
        self.uid = ""
        """UID of the cluster; empty until it is read."""
        self.service_ranges: Sequence[str] = ()
        """Service CIDRs of the cluster as of the last read."""
        self.pods = ComputePods(client, watches, self.reachability)
        self.unmanaged_pods: Reflector[UnmanagedPodView] = Reflector(
            client,
            resources.PODS,
            decode=decode_unmanaged_pod,
            on_change=lambda old, new: watches.notify(UNMANAGED_PODS, old, new),
            label_selector=LABEL_SELECTOR,
            field_selector=FIELD_SELECTOR,
            on_complete=partial(watches.notify, LISTED),
        )
        self.nodes = ComputeNodes(client, watches)
        self.topologies = ComputeTopologies(name, client, watches)
        self.namespaces = ComputeNamespaces(client, watches)
        self.gateway = gateway if gateway is not None else GatewayIdentity("none")
        """Identity of this gateway, for objects that belong to no tenant."""
        self.owners = TenantOwners(name, client, gateway, on_lost=partial(watches.notify, TRUST))
        self.copies = {kind: ComputeCopies(kind, client, watches, self.owners) for kind in COPY_RESOURCES}
        self.services = ComputeServices(client, watches)
        self.slices = ComputeSlices(client, watches)
        self.claims = ComputeClaims(client, watches)
        self.classes = ComputeClasses(client, watches)
        self.policies = ComputePolicies(client, watches)
        self._kinds = {name: create(client, watches) for name, create in kinds.items()}
        self.events = ComputeEvents(name, client, watches, self.namespaces)
        watches.add(REACHABILITY, self._reachability_changed)
        watches.add(LISTED, self._list_completed)
        watches.add(NETWORK_LISTED, self._network_listed)
        watches.add(STORAGE_CHANGED, self._storage_changed)
        watches.add(NODES, self._nodes_changed)

    def watch_of(self, kind: type[W]) -> W:
        """Return the watch of a kind that the constructor created."""
        return next(watch for watch in self._kinds.values() if isinstance(watch, kind))

    @property
    def identity(self) -> ClusterIdentity:
        """Name and UID of the cluster."""
        return ClusterIdentity(self.name, self.uid)

    @property
    def is_reachable(self) -> bool:
        """Whether the cluster can be watched and answers."""
        return self.reachability.is_reachable

    @property
    def is_trusted(self) -> bool:
        """Whether the state of pods and namespaces may be acted upon: the cluster is reachable and the lists are
        complete.
        """
        return (
            self.is_reachable
            and self.pods.is_complete
            and self.namespaces.is_complete
            and self.copies["configmaps"].is_complete
            and self.copies["secrets"].is_complete
        )

    def is_usable_by(self, tenant: str) -> bool:
        """Return whether a tenant may use the cluster: its objects there belong to this gateway.

        While the state of the cluster cannot be trusted, no object is changed. A tenant without a known owner may then
        use it.
        """
        return self.owners.admits(tenant) or not (self.is_trusted or self.owners.is_foreign(tenant))

    async def take_tenant(self, tenant: str) -> None:
        """Make this gateway the owner of a tenant's objects in the cluster; see `TenantOwners.take`."""
        was_usable = self.is_usable_by(tenant)
        await self.owners.take(tenant)
        if not was_usable and (watches := self.watches.tenants.get(tenant)) is not None:
            watches.notify(COMPUTE_REACHABLE)

    @property
    def services_trusted(self) -> bool:
        """Whether the state of Services may be acted upon; pods do not wait for it."""
        return self.is_trusted and self.services.is_complete and self.slices.is_complete

    @property
    def claims_trusted(self) -> bool:
        """Whether the state of claims and storage classes may be acted upon; only pods that use claims wait for it."""
        return self.is_trusted and self.claims.is_complete and self.classes.is_complete

    def network_ranges(self) -> list[str]:
        """Return the known CIDRs of the cluster's Services and pods."""
        pods = (cidr for node in self.nodes.store.values() for cidr in node.spec.pod_cidrs)
        return list(dict.fromkeys((*self.service_ranges, *pods)))

    async def run(self) -> None:
        """Run all watches until cancelled or until a watch fails because of a defect."""
        try:
            async with asyncio.TaskGroup() as group:
                for kind, reflector in self._all_reflectors():
                    group.create_task(reflector.run(), name=f"compute/{self.name}/watch-{kind}")
                group.create_task(self.topologies.run(), name=f"compute/{self.name}/topologies")
                group.create_task(self.reachability.run(), name=f"compute/{self.name}/heartbeat")
        finally:
            # Some callers may hold this link for a while longer.
            self.reachability.mark_closed()

    def _all_reflectors(self) -> Iterator[tuple[str, Reflector[Any]]]:
        yield "pods", self.pods
        yield "unmanaged-pods", self.unmanaged_pods
        yield "nodes", self.nodes
        yield "namespaces", self.namespaces
        yield from self.copies.items()
        yield "services", self.services
        yield "endpointslices", self.slices
        yield "claims", self.claims
        yield "classes", self.classes
        yield "networkpolicies", self.policies
        yield "events", self.events
        yield from self._kinds.items()

    def _reachability_changed(self) -> None:
        self.pods.kept_features.clear()
        self._notify_trust()

    def _list_completed(self) -> None:
        if self.is_trusted:
            self._notify_trust()

    def _network_listed(self) -> None:
        if self.services_trusted:
            self.watches.notify_tenants(COMPUTE_NETWORK_LISTED)

    def _storage_changed(self) -> None:
        if self.claims_trusted:
            self.watches.notify_tenants(COMPUTE_STORAGE_CHANGED)

    def _notify_trust(self) -> None:
        if self.is_trusted:
            self.owners.cluster_listed(map(namespace_owner, self.namespaces.store.values()))
        self.watches.notify_tenants(COMPUTE_REACHABLE)
        self.watches.notify(TRUST)

    def _nodes_changed(self) -> None:
        if self.nodes.is_complete:
            self.reachability.mark_answered()


async def apply_to_each(places: Iterable[T], action: Callable[[T], Awaitable[None]]) -> None:
    """Run an action for each place, one after the other; an error does not stop the following places.

    A tenant can have pools in several compute clusters, and one that fails must not delay the others. Raises the first
    ApiError, ConflictError or UnavailableError after the last place.
    """
    first_error: Exception | None = None
    for place in places:
        try:
            await action(place)
        except (ApiError, ConflictError, UnavailableError) as error:
            first_error = first_error or error
    if first_error is not None:
        raise first_error


# Equal image entries are shared between nodes.
MAX_IMAGES: Final = 50
"""Images retained per node; kubelets report up to 50 by default."""
_MAX_NAMES: Final = 8

_decode = msgspec.json.Decoder(NodeView).decode
_shared: WeakValueDictionary[tuple[str, ...], NodeImage] = WeakValueDictionary()
"""Shared image entries by names. Entries are dropped when no node has them."""


class ComputeNodes(Reflector[NodeView]):
    """All nodes, ready or not. Observers are notified of changes that a virtual node shows, and when all are known."""

    def __init__(self, client: Client, watches: ClusterWatches) -> None:
        super().__init__(
            client,
            resources.NODES,
            decode=decode_node,
            on_change=self.handle_change,
            on_complete=partial(watches.notify, NODES),
        )
        self._watches = watches
        self._pools: dict[tuple[frozenset[tuple[str, str]], str], PoolNodes] = {}

    def pool_nodes(self, selector: Mapping[str, str], *, without_label: str = "") -> PoolNodes:
        """Return the nodes that match a selector and do not carry the label `without_label`.

        The result is the same object until a node changes.
        """
        key = frozenset(selector.items()), without_label
        found = self._pools.get(key)
        if found is None:
            found = PoolNodes(node for node in self.store.values() if is_in_pool(node, selector, without_label))
            self._pools[key] = found
        return found

    def nodes_behind(self, pool: PoolContext) -> PoolNodes:
        """Return the compute nodes behind a virtual node."""
        return self.pool_nodes(pool.node_selector, without_label=pool.without_label)

    def handle_change(self, old: NodeView | None, new: NodeView | None) -> None:
        """Handle a node that was added, changed or deleted."""
        if old is not None and new is not None and is_unchanged(old, new):
            return
        self._pools.clear()
        self._watches.notify(NODES)


def is_unchanged(old: NodeView, new: NodeView) -> bool:
    """Return whether two states of a node look the same on a virtual node; heartbeats and images do not count."""
    return (
        old.is_usable == new.is_usable
        and old.spec == new.spec
        and old.metadata.labels == new.metadata.labels
        and _without_conditions(old.status) == _without_conditions(new.status)
    )


def _without_conditions(status: NodeStatusView) -> NodeStatusView:
    return msgspec.structs.replace(status, conditions=(), images=())


def decode_node(data: bytes) -> NodeView:
    """Decode a node from its JSON."""
    view = _decode(data)
    if view.status.images:
        kept = view.status.images[:MAX_IMAGES]
        view.status.images = tuple(_intern_image(image, image.names) for image in kept if image.names)
    return view


def _intern_image(image: NodeImage, names: tuple[str, ...]) -> NodeImage:
    kept = names[:_MAX_NAMES]
    return _shared.setdefault(kept, image if len(kept) == len(names) else NodeImage(names=kept))
