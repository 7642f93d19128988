"""Compute nodes of a pool and their aggregates, computed once for all its virtual nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from vkgateway.api.names import is_reserved
from vkgateway.api.objects import NodeView, Object
from vkgateway.api.quantity import Quantity, sum_resources
from vkgateway.api.requests import MilliResources, is_extended, to_milli
from vkgateway.clusters.node_sizes import largest_nodes
from vkgateway.kinds.context import HOSTNAME_LABEL, VIRTUAL_NODE_LABELS

PASSTHROUGH_AMOUNT: Final = "1000000000"
"""Amount of a passed-through resource on a virtual node: more than any pod requests."""
_NO_LABEL_PREFIXES: Final = ("node-role.kubernetes.io/", "beta.kubernetes.io/")
_NO_RESOURCE_PREFIXES: Final = ("attachable-volumes-",)


def is_in_pool(node: NodeView, node_selector: Mapping[str, str], without_label: str = "") -> bool:
    """Return whether a selector selects a compute node that does not carry the label `without_label`."""
    labels = node.metadata.labels
    if without_label and without_label in labels:
        return False
    return all(labels.get(key) == value for key, value in node_selector.items())


def order_resources(governed: tuple[str, ...], cell_resource: str) -> tuple[str, ...]:
    """Return the resources of a pool's nodes with the resource of its cells, if set, in first place.

    It comes first even while no node offers it: devices disappear while their driver is upgraded.
    """
    if not is_extended(cell_resource):
        return governed
    return (cell_resource, *(name for name in governed if name != cell_resource))


class PoolNodes:
    """Compute nodes of a pool as last seen. Aggregates are cached: create a new object when a node changes."""

    def __init__(self, nodes: Iterable[NodeView]) -> None:
        self.nodes: Final = tuple(nodes)
        self._label_values: Final[dict[str, frozenset[str]]] = {}

    @cached_property
    def node_names(self) -> frozenset[str]:
        """Names of the nodes."""
        return frozenset(node.metadata.name for node in self.nodes)

    def label_values(self, label: str) -> frozenset[str]:
        """Return the values of a label on the nodes, including an empty one if some node does not carry it."""
        found = self._label_values.get(label)
        if found is None:
            found = frozenset(node.metadata.labels.get(label, "") for node in self.nodes)
            self._label_values[label] = found
        return found

    @cached_property
    def has_several_usable(self) -> bool:
        """Whether more than one node is usable."""
        return sum(node.is_usable for node in self.nodes) > 1

    @cached_property
    def pod_ranges(self) -> tuple[str, ...]:
        """CIDRs of the nodes' pods, sorted."""
        return tuple(sorted({cidr for node in self.nodes for cidr in node.spec.pod_cidrs}))

    @cached_property
    def total_allocatable(self) -> dict[str, str]:
        """Sum of allocatable resources of usable nodes."""
        return sum_resources(_summable_resources(node.status.allocatable) for node in self.nodes if node.is_usable)

    @cached_property
    def largest_sizes(self) -> tuple[MilliResources, ...]:
        """Sizes of the largest nodes, usable or not: see `largest_nodes`."""
        return largest_nodes(self.nodes)

    @cached_property
    def usable_sizes(self) -> tuple[MilliResources, ...]:
        """Sizes of the largest usable nodes."""
        return largest_nodes(node for node in self.nodes if node.is_usable)

    @cached_property
    def governed_resources(self) -> tuple[str, ...]:
        """Extended resources of usable nodes, ordered by the number of nodes that offer them."""
        offers = Counter(
            name
            for node in self.nodes
            if node.is_usable
            for name, amount in to_milli(node.status.allocatable).items()
            if amount > 0 and is_extended(name)
        )
        return tuple(sorted(offers, key=lambda name: (-offers[name], name)))

    def passthrough_resources(self, names: Iterable[str]) -> dict[str, str]:
        """Return an ample amount of each extended resource that no node offers but pods may request.

        A scheduler plug-in of the compute cluster implements such a resource.
        """
        return {name: PASSTHROUGH_AMOUNT for name in names if name not in self._offered_names}

    @cached_property
    def _offered_names(self) -> frozenset[str]:
        return frozenset(name for node in self.nodes for name in node.status.allocatable)

    @cached_property
    def common_labels(self) -> dict[str, str]:
        """Labels that all nodes share, except those that name a host, a role or platform objects."""
        if not self.nodes:
            return {}
        first, *rest = (node.metadata.labels for node in self.nodes)
        hidden = {node.metadata.name for node in self.nodes}
        hidden |= {entry.address for node in self.nodes for entry in node.status.addresses}
        return {
            key: value
            for key, value in first.items()
            if all(labels.get(key) == value for labels in rest)
            and value not in hidden
            and key not in VIRTUAL_NODE_LABELS
            and not key.startswith(_NO_LABEL_PREFIXES)
            and not is_reserved(key)
        }

    @cached_property
    def carried_labels(self) -> frozenset[str]:
        """Keys of labels that any node carries and that tenants may select by, without host names."""
        return frozenset(
            key
            for node in self.nodes
            for key, value in node.metadata.labels.items()
            if key != HOSTNAME_LABEL and value != node.metadata.name and not is_reserved(key)
        )

    @cached_property
    def kubelets(self) -> KubeletSummary:
        """Values that the kubelets of all nodes share."""
        return summarize_kubelets(self.nodes)


def _summable_resources(resources: Mapping[str, str]) -> dict[str, Quantity]:
    return {name: value for name, value in resources.items() if not name.startswith(_NO_RESOURCE_PREFIXES)}


_OPERATING_SYSTEM: Final = "kubernetes.io/os"
_ARCHITECTURE: Final = "kubernetes.io/arch"


@dataclass(frozen=True, slots=True)
class KubeletSummary:
    """Values that all kubelets share."""

    node_info: Object
    """Host ids are empty, and the oldest kubelet version counts."""
    platform_labels: dict[str, str]
    """Operating system and architecture, for nodes without such labels."""
    features: dict[str, bool]
    """Features, each True if all kubelets have it."""
    declared_features: list[str]
    """Features that all kubelets declare."""
    runtime_handlers: list[Object]
    """Runtime handlers that all nodes have, each with the features that it has on all of them."""


def summarize_kubelets(nodes: Sequence[NodeView]) -> KubeletSummary:
    """Return what the kubelets of these nodes share."""
    info = _common_entries([node.status.node_info for node in nodes])
    versions = [str(node.status.node_info.get("kubeletVersion") or "") for node in nodes]
    labels = {_OPERATING_SYSTEM: info.get("operatingSystem", ""), _ARCHITECTURE: info.get("architecture", "")}
    return KubeletSummary(
        node_info={
            "architecture": info.get("architecture", ""),
            "operatingSystem": info.get("operatingSystem", ""),
            "kernelVersion": info.get("kernelVersion", ""),
            "osImage": info.get("osImage", ""),
            "kubeletVersion": min(filter(None, versions), key=_version_key, default=""),
            "kubeProxyVersion": "",
            "machineID": "",
            "systemUUID": "",
            "bootID": "",
        },
        platform_labels={key: value for key, value in labels.items() if value},
        features=_all_true([node.status.features for node in nodes]),
        declared_features=sorted(_intersect_all([frozenset(node.status.declared_features) for node in nodes])),
        runtime_handlers=_common_handlers(nodes),
    )


def _common_handlers(nodes: Sequence[NodeView]) -> list[Object]:
    offered = [{handler.name: handler.features for handler in node.status.runtime_handlers} for node in nodes]
    names = sorted(_intersect_all([frozenset(handlers) for handlers in offered]))
    return [{"name": name, "features": _all_true([handlers[name] for handlers in offered])} for name in names]


def _version_key(version: str) -> tuple[int, ...]:
    numbers = version.removeprefix("v").split("-")[0].split("+")[0].split(".")
    return tuple(int(number) if number.isdigit() else 0 for number in numbers)


def _common_entries(maps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    if not maps:
        return {}
    first, *rest = maps
    return {key: value for key, value in first.items() if all(other.get(key) == value for other in rest)}


def _intersect_all(sets: Sequence[frozenset[str]]) -> frozenset[str]:
    return sets[0].intersection(*sets[1:]) if sets else frozenset()


def _all_true(maps: Sequence[Mapping[str, bool]]) -> dict[str, bool]:
    """Return the features of the first map, each True if it is True in all maps."""
    if not maps:
        return {}
    return {name: all(other.get(name, False) for other in maps) for name in maps[0]}
