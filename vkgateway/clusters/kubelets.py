"""Values that all kubelets of a pool share, which its virtual nodes report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vkgateway.api.objects import NodeView, Object

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
