"""NUMA zones of a compute cluster's nodes for the arbiter, and the pods that their published usage includes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from vkgateway.api.requests import MilliResources, is_extended
from vkgateway.clusters.topology_views import TopologyView
from vkgateway.runtime.views.pods import ComputePodView
from vkgateway.scheduler.core.snapshot import Shape, Topology

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
