"""Usage on the compute nodes of one cluster by pods that the arbiter does not place."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from vkgateway.api.objects import NodeView
from vkgateway.api.requests import MilliResources, is_extended
from vkgateway.clusters.topology_views import TopologyView
from vkgateway.runtime.views.pods import ComputePodView
from vkgateway.scheduler.core.snapshot import Shape, Topology

Owner = tuple[str, str]
"""A tenant and a pool."""


@dataclass(frozen=True, slots=True)
class _Allocation:
    node: str
    amounts: MilliResources
    owner: Owner | None
    selectors: frozenset[str]


class Occupancy:
    """Sums of usage by node and by owner, updated as pods change; a pod's key is its compute UID."""

    def __init__(self) -> None:
        self._allocations: dict[str, _Allocation] = {}
        self._nodes: dict[str, MilliResources] = defaultdict(dict)
        self._owners: dict[Owner, MilliResources] = defaultdict(dict)
        self._peers: dict[str, Counter[str]] = defaultdict(Counter)
        """Number of pods by node and selector."""
        self.changed_nodes: set[str] = set()
        """Nodes whose sum changed; the reader clears it."""

    def count_pod(
        self,
        uid: str,
        *,
        node: str,
        amounts: MilliResources,
        owner: Owner | None = None,
        selectors: frozenset[str] = frozenset(),
    ) -> None:
        """Count a pod; `node` is empty for unbound pods. `selectors` of `PeerRules` select it."""
        new = _Allocation(node, amounts, owner, selectors)
        if self._allocations.get(uid) == new:
            return
        self.drop_pod(uid)
        self._allocations[uid] = new
        self._add_allocation(new, 1)

    def drop_pod(self, uid: str) -> None:
        """Stop counting a pod: it has ended, or the arbiter places it."""
        old = self._allocations.pop(uid, None)
        if old is not None:
            self._add_allocation(old, -1)

    def used_on(self, node: str) -> MilliResources:
        """Return the usage on a node, in thousandths."""
        return _without_zeros(self._nodes.get(node, {}))

    def peers_on(self, node: str) -> dict[str, int]:
        """Return the number of pods on a node by the selectors of `PeerRules` that select them."""
        return dict(self._peers.get(node, ()))

    def used_by(self, owner: Owner) -> MilliResources:
        """Return the usage of a tenant's pods in a pool, in thousandths."""
        return _without_zeros(self._owners.get(owner, {}))

    def _add_allocation(self, holding: _Allocation, sign: int) -> None:
        if holding.node:
            self.changed_nodes.add(holding.node)
            _add_amounts(self._nodes[holding.node], holding.amounts, sign)
            if not self.used_on(holding.node):
                del self._nodes[holding.node]
            if holding.selectors:
                self._count_peers(holding, sign)
        if holding.owner is not None:
            _add_amounts(self._owners[holding.owner], holding.amounts, sign)
            if not self.used_by(holding.owner):
                del self._owners[holding.owner]

    def _count_peers(self, holding: _Allocation, sign: int) -> None:
        counts = self._peers[holding.node]
        for selector in holding.selectors:
            counts[selector] += sign
            if not counts[selector]:
                del counts[selector]
        if not counts:
            del self._peers[holding.node]


def _add_amounts(total: MilliResources, amounts: Mapping[str, int], sign: int) -> None:
    for name, value in amounts.items():
        total[name] = total.get(name, 0) + sign * value


def _without_zeros(amounts: Mapping[str, int]) -> MilliResources:
    return {name: value for name, value in amounts.items() if value}


ShapeOf = Callable[[str, str], Shape | None]
"""Shape by tenant and tenant pod UID; None if the arbiter did not place the pod, or has forgotten it."""


class NodeZones:
    """Zones of nodes, updated as pods change and nodes publish; free of cost without published topologies."""

    def __init__(self, shape_of: ShapeOf) -> None:
        self._shape_of = shape_of
        self._topologies: dict[str, Topology] = {}
        self._counted_shapes: dict[str, dict[str, Shape]] = {}
        """Usage of pods that a node's published topology includes, by node and tenant pod UID."""
        self._pods: dict[str, dict[str, ComputePodView]] = {}
        """Compute pods by node and UID, as soon as any node has published a topology."""
        self.follows_pods = False
        """Whether pods are tracked."""
        self.changed_nodes: set[str] = set()
        """Nodes whose known usage changed; the reader clears it."""

    def zones_of(self, name: str) -> Topology | None:
        """Return a node's zones; None if no relevant zones are known."""
        return self._topologies.get(name)

    def follow_pods(self, pods: Iterable[ComputePodView]) -> None:
        """Track pods from now on, beginning with these."""
        self.follows_pods = True
        for pod in pods:
            self.pod_changed(None, pod)

    def pod_changed(self, old: ComputePodView | None, new: ComputePodView | None) -> None:
        """Handle a change of a compute pod."""
        if not self.follows_pods:
            return
        holds = new if new is not None and _holds_resources(new) else None
        if old is not None and _holds_resources(old) and (holds is None or holds.metadata.uid != old.metadata.uid):
            self._pods.get(old.spec.node_name, {}).pop(old.metadata.uid, None)
            self._release_pod(old)
        if holds is not None:
            self._pods.setdefault(holds.spec.node_name, {})[holds.metadata.uid] = holds

    def _release_pod(self, pod: ComputePodView) -> None:
        """Release a pod's usage, though its node has not published the release yet."""
        node, uid = pod.spec.node_name, pod.tenant_uid
        shape = self._counted_shapes.get(node, {}).pop(uid, None)
        if shape is not None:
            told = self._topologies[node]
            self._topologies[node] = replace(told, gone={**told.gone, uid: shape})
            self.changed_nodes.add(node)

    def node_published(self, name: str, view: TopologyView | None, *, used: MilliResources) -> None:
        """Replace the topology of a node; `used` is the usage of other pods there."""
        old = self._topologies.pop(name, None)
        self._counted_shapes.pop(name, None)
        if view is not None and view.zones:
            self._topologies[name] = self._build_topology(name, view, used)
        if self._topologies.get(name) != old:
            self.changed_nodes.add(name)

    def _build_topology(self, name: str, view: TopologyView, used: MilliResources) -> Topology:
        """Return the topology without the usage of the arbiter's own pods.

        A node publishes sums only: they include other pods and the oldest of ours; pods beyond the sums started later.
        Counting a pod as included that was not yet would report too much free capacity; the opposite error only too
        little.
        """
        left: Counter[str] = Counter()
        for zone in view.zones:
            for resource, amount in zone.allocatable.items():
                if is_extended(resource):
                    left[resource] += amount - zone.available.get(resource, 0)
        theirs = {resource: min(used.get(resource, 0), amount) for resource, amount in left.items() if amount > 0}
        left.subtract(theirs)
        counted = set()
        shapes = self._counted_shapes[name] = {}
        for pod in sorted(self._pods.get(name, {}).values(), key=_age_key):
            held = {resource: amount for resource, amount in (pod.admitted_requests or {}).items() if resource in left}
            if any(amount > left[resource] for resource, amount in held.items()):
                break
            left.subtract(held)
            counted.add(pod.tenant_uid)
            if (shape := self._shape_of(pod.tenant_name, pod.tenant_uid)) is not None:
                shapes[pod.tenant_uid] = shape
        return Topology(
            zones=view.zones,
            scope=view.scope,
            counted=frozenset(counted),
            used={resource: amount for resource, amount in theirs.items() if amount},
        )


def _holds_resources(pod: ComputePodView) -> bool:
    return bool(pod.spec.node_name) and not pod.has_ended


def _age_key(pod: ComputePodView) -> tuple[str, str]:
    return pod.metadata.creation_timestamp or "", pod.metadata.uid


_RELIST_SECONDS: Final = 300.0
"""Seconds after which the images of nodes are read again."""


class NodeImages:
    """Last known images of nodes.

    Nodes pull images all the time, and each change would rebuild a pool of the snapshot. So images are read when a pod
    requests an image for the first time, and otherwise periodically. Images that no pod requests are left out.
    """

    def __init__(self) -> None:
        self._requested: frozenset[str] = frozenset()
        self._updated_at: float | None = None
        self._images: dict[str, frozenset[str]] = {}

    def images_on(self, name: str) -> frozenset[str]:
        """Return the requested images on a node."""
        return self._images.get(name, frozenset())

    def update_images(self, nodes: Iterable[NodeView], asked: frozenset[str], *, now: float) -> set[str]:
        """Read the nodes' images if that is due; return the names of nodes whose known images changed.

        `asked` are the images that pods request, `now` is in seconds since the epoch.
        """
        due = self._updated_at is None or not self._updated_at <= now < self._updated_at + _RELIST_SECONDS
        if not due and asked <= self._requested:
            return set()
        # Images that no pod requests any more stay until the next full read.
        self._requested = asked if due else self._requested | asked
        self._updated_at = now if due else self._updated_at
        old, self._images = self._images, self._find_images(nodes)
        return {name for name in old.keys() | self._images.keys() if old.get(name) != self._images.get(name)}

    def _find_images(self, nodes: Iterable[NodeView]) -> dict[str, frozenset[str]]:
        if not self._requested:
            return {}
        asked, found = self._requested, {}
        sets: dict[frozenset[str], frozenset[str]] = {}
        for node in nodes:
            names = [name for image in node.status.images for name in image.names or () if name in asked]
            if names:
                there = frozenset(names)
                found[node.metadata.name] = sets.setdefault(there, there)
        return found


def requested_images(parts: Iterable[Mapping[str, int]]) -> frozenset[str]:
    """Return the images that pods of any tenant request."""
    return frozenset().union(*parts)
