"""The compute nodes behind a pool, and what they amount to together: worked out once for all its virtual nodes."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from vkgateway.model.names import is_reserved
from vkgateway.model.objects import NodeView, Object
from vkgateway.model.quantity import Quantity, sum_resources
from vkgateway.model.requests import MilliResources, to_milli
from vkgateway.translate.context import HOSTNAME_LABEL, VIRTUAL_NODE_LABELS
from vkgateway.translate.governed import is_extended
from vkgateway.translate.node_sizes import largest_nodes

PASSTHROUGH_AMOUNT: Final = "1000000000"
"""The amount of a passed-through resource that a node shows: more than any pod asks for."""
_OPERATING_SYSTEM: Final = "kubernetes.io/os"
_ARCHITECTURE: Final = "kubernetes.io/arch"
_NO_LABEL_PREFIXES: Final = ("node-role.kubernetes.io/", "beta.kubernetes.io/")
_NO_RESOURCE_PREFIXES: Final = ("attachable-volumes-",)


def is_in_pool(node: NodeView, node_selector: Mapping[str, str], without_label: str = "") -> bool:
    """Tell whether a selector chooses a compute node, and the node does not carry the label `without_label`."""
    labels = node.metadata.labels
    if without_label and without_label in labels:
        return False
    return all(labels.get(key) == value for key, value in node_selector.items())


def order_resources(governed: tuple[str, ...], cell_resource: str) -> tuple[str, ...]:
    """The resources that a pool's nodes offer, with that which cells are pieces of before all others, if it is said.

    It is the first also while no node offers it: devices vanish for a while when their driver is renewed.
    """
    if not is_extended(cell_resource):
        return governed
    return (cell_resource, *(name for name in governed if name != cell_resource))


class PoolNodes:
    """A pool's compute nodes as last seen. What is derived from them is kept: make a new one when a node changes."""

    def __init__(self, nodes: Iterable[NodeView]) -> None:
        self.nodes: Final = tuple(nodes)

    @cached_property
    def node_names(self) -> frozenset[str]:
        """The names of the nodes."""
        return frozenset(node.metadata.name for node in self.nodes)

    def label_values(self, label: str) -> frozenset[str]:
        """Return the values of a label on the nodes, with an empty one if some node does not carry it."""
        return frozenset(node.metadata.labels.get(label, "") for node in self.nodes)

    @cached_property
    def total_allocatable(self) -> dict[str, str]:
        """The sum over nodes that are Ready and open."""
        return sum_resources(_summable_resources(node.status.allocatable) for node in self.nodes if node.is_usable)

    @cached_property
    def largest_sizes(self) -> tuple[MilliResources, ...]:
        """What the largest nodes offer, be they usable or not: see `largest`."""
        return largest_nodes(self.nodes)

    @cached_property
    def usable_sizes(self) -> tuple[MilliResources, ...]:
        """What the largest of the nodes offer that take pods now."""
        return largest_nodes(node for node in self.nodes if node.is_usable)

    @cached_property
    def governed_resources(self) -> tuple[str, ...]:
        """The extended resources that usable nodes offer, that of most nodes first."""
        offers = Counter(
            name
            for node in self.nodes
            if node.is_usable
            for name, amount in to_milli(node.status.allocatable).items()
            if amount > 0 and is_extended(name)
        )
        return tuple(sorted(offers, key=lambda name: (-offers[name], name)))

    def passthrough_resources(self, names: Iterable[str]) -> dict[str, str]:
        """Return an ample amount of each extended resource that no node offers and that pods may ask for all the same.

        A scheduler plug-in of the compute cluster gives such a resource its meaning.
        """
        offered = {name for node in self.nodes for name in node.status.allocatable}
        return {name: PASSTHROUGH_AMOUNT for name in names if name not in offered}

    @cached_property
    def common_labels(self) -> dict[str, str]:
        """Labels that all nodes share, without those that name a host, a role, or the platform's own things."""
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
        """Keys of the labels that any node carries and that tenants may choose by; never host names."""
        return frozenset(
            key
            for node in self.nodes
            for key, value in node.metadata.labels.items()
            if key != HOSTNAME_LABEL and value != node.metadata.name and not is_reserved(key)
        )

    @cached_property
    def platform_labels(self) -> dict[str, str]:
        """Operating system and architecture, as the nodes tell them where they carry no such label."""
        info = self._common_info
        made = {_OPERATING_SYSTEM: info.get("operatingSystem", ""), _ARCHITECTURE: info.get("architecture", "")}
        return {key: value for key, value in made.items() if value}

    @cached_property
    def node_info(self) -> Object:
        """What all nodes agree on; ids of hosts stay empty, and the oldest kubelet counts."""
        info = self._common_info
        versions = [str(node.status.node_info.get("kubeletVersion") or "") for node in self.nodes]
        return {
            "architecture": info.get("architecture", ""),
            "operatingSystem": info.get("operatingSystem", ""),
            "kernelVersion": info.get("kernelVersion", ""),
            "osImage": info.get("osImage", ""),
            "kubeletVersion": min(filter(None, versions), key=_version_key, default=""),
            "kubeProxyVersion": "",
            "machineID": "",
            "systemUUID": "",
            "bootID": "",
        }

    @cached_property
    def kubelet_features(self) -> dict[str, bool]:
        """What the kubelets can, each true if it is true of all of them."""
        return _all_true([node.status.features for node in self.nodes])

    @cached_property
    def declared_features(self) -> list[str]:
        """Features that all kubelets declare."""
        return sorted(_intersect_all([frozenset(node.status.declared_features) for node in self.nodes]))

    @cached_property
    def runtime_handlers(self) -> list[Object]:
        """Handlers that all nodes have, each with the features that it has on all of them."""
        offered = [{handler.name: handler.features for handler in node.status.runtime_handlers} for node in self.nodes]
        names = sorted(_intersect_all([frozenset(handlers) for handlers in offered]))
        return [{"name": name, "features": _all_true([handlers[name] for handlers in offered])} for name in names]

    @cached_property
    def _common_info(self) -> dict[str, Any]:
        return _common_entries([node.status.node_info for node in self.nodes])


def _summable_resources(resources: Mapping[str, str]) -> dict[str, Quantity]:
    return {name: value for name, value in resources.items() if not name.startswith(_NO_RESOURCE_PREFIXES)}


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
    """Features of the first map, each true if it is true in all of them."""
    if not maps:
        return {}
    return {name: all(other.get(name, False) for other in maps) for name in maps[0]}
