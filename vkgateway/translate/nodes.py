"""The virtual node of a pool: a Node object made from the compute nodes behind it and what the tenant may use."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from vkgateway.model import times
from vkgateway.model.names import is_reserved, virtual_node_name
from vkgateway.model.objects import NodeView, Object
from vkgateway.model.quantity import Quantity, least, total
from vkgateway.translate.context import HOSTNAME_LABEL, VIRTUAL_KEYS, PoolContext

COMPUTE_CONNECTED: Final = "vkgateway.io/ComputeConnected"

_OPERATING_SYSTEM: Final = "kubernetes.io/os"
_ARCHITECTURE: Final = "kubernetes.io/arch"
_NO_LABEL_PREFIXES: Final = ("node-role.kubernetes.io/", "beta.kubernetes.io/")
_NO_RESOURCE_PREFIXES: Final = ("attachable-volumes-",)
_PRESSURES: Final = (
    ("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("NetworkUnavailable", "ComputeNetwork", "the compute nodes have networks of their own"),
)


def in_pool(node: NodeView, node_selector: Mapping[str, str]) -> bool:
    """Tell whether a compute node belongs to the pool that a selector chooses."""
    labels = node.metadata.labels
    return all(labels.get(key) == value for key, value in node_selector.items())


def capacity(nodes: Iterable[NodeView], *, limit: Mapping[str, Quantity]) -> dict[str, str]:
    """What a virtual node offers: the least of the tenant's limit and the sum over nodes that are Ready and open."""
    held = total(_counted(node.status.allocatable) for node in nodes if node.usable)
    return least(held, limit)


def _counted(resources: Mapping[str, str]) -> dict[str, Quantity]:
    return {name: value for name, value in resources.items() if not name.startswith(_NO_RESOURCE_PREFIXES)}


def common_labels(nodes: Sequence[NodeView]) -> dict[str, str]:
    """Labels that all nodes share, without those that name a host, a role, or the platform's own things."""
    if not nodes:
        return {}
    first, *rest = (node.metadata.labels for node in nodes)
    hidden = {node.metadata.name for node in nodes}
    hidden |= {entry.address for node in nodes for entry in node.status.addresses}
    return {
        key: value
        for key, value in first.items()
        if all(labels.get(key) == value for labels in rest)
        and value not in hidden
        and key not in VIRTUAL_KEYS
        and not key.startswith(_NO_LABEL_PREFIXES)
        and not is_reserved(key)
    }


def carried_labels(nodes: Iterable[NodeView]) -> frozenset[str]:
    """Keys of the labels that any node of a pool carries and that tenants may choose by; never host names."""
    return frozenset(
        key
        for node in nodes
        for key, value in node.metadata.labels.items()
        if key != HOSTNAME_LABEL and value != node.metadata.name and not is_reserved(key)
    )


def pool_context(
    *,
    name: str,
    compute_cluster: str,
    node_selector: dict[str, str],
    tolerations: Sequence[dict[str, Any]],
    nodes: Sequence[NodeView],
) -> PoolContext:
    """Gather a pool's context from the compute nodes that belong to it."""
    return PoolContext(
        name=name,
        compute_cluster=compute_cluster,
        node_name=virtual_node_name(name, compute_cluster),
        node_selector=node_selector,
        tolerations=tuple(tolerations),
        node_labels=common_labels(nodes),
        carried=carried_labels(nodes),
    )


def virtual_node(
    pool: PoolContext,
    *,
    nodes: Sequence[NodeView],
    limit: Mapping[str, Quantity],
    address: str,
    port: int,
    version: str,
    connected: bool,
    message: str = "",
    now: datetime,
    previous: Object | None = None,
) -> Object:
    """The Node object of a pool, status included, as the tenant's API server is to hold it.

    `nodes` are the pool's compute nodes as last seen; `address` and `port` the gateway's kubelet endpoint; `version`
    the gateway's. If the compute cluster is not `connected`, the node keeps its shape and is not Ready, with
    `message` as the reason why. `previous` is the Node as it stands: transition times are taken over from it.
    """
    offered = capacity(nodes, limit=limit)
    labels = {**common_labels(nodes), **_platform_labels(nodes), **pool.virtual_labels()}
    status: Object = {
        "capacity": offered,
        "allocatable": offered,
        "conditions": _conditions(connected, message, now, previous or {}),
        "addresses": [
            {"type": "InternalIP", "address": address},
            {"type": "Hostname", "address": pool.node_name},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "nodeInfo": _node_info(nodes, version),
        "runtimeHandlers": _runtime_handlers(nodes),
        "features": _all_true([node.status.features for node in nodes]),
        "declaredFeatures": _declared_features(nodes),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": pool.node_name, "labels": labels},
        "spec": {},
        "status": {key: value for key, value in status.items() if value not in ([], {})},
    }


def _platform_labels(nodes: Sequence[NodeView]) -> dict[str, str]:
    """Operating system and architecture, as the nodes tell them where they carry no such label."""
    info = _common([node.status.node_info for node in nodes])
    made = {_OPERATING_SYSTEM: info.get("operatingSystem", ""), _ARCHITECTURE: info.get("architecture", "")}
    return {key: value for key, value in made.items() if value}


def _conditions(connected: bool, message: str, now: datetime, previous: Mapping[str, Any]) -> list[Object]:
    if connected:
        told = [
            ("Ready", "True", "ComputeReady", "the compute cluster takes pods"),
            (COMPUTE_CONNECTED, "True", "Connected", "the compute cluster answers"),
        ]
    else:
        why = message or "the compute cluster does not answer"
        told = [
            ("Ready", "False", "ComputeUnreachable", why),
            (COMPUTE_CONNECTED, "False", "Unreachable", why),
        ]
    told += [(kind, "False", reason, text) for kind, reason, text in _PRESSURES]
    standing = {entry["type"]: entry for entry in (previous.get("status") or {}).get("conditions") or ()}
    stamp = times.render(now)
    return [
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": text,
            "lastHeartbeatTime": stamp,
            "lastTransitionTime": _since(standing.get(kind), status) or stamp,
        }
        for kind, status, reason, text in told
    ]


def _since(standing: Mapping[str, Any] | None, status: str) -> str | None:
    if standing is None or standing["status"] != status:
        return None
    since: str | None = standing.get("lastTransitionTime")
    return since


def _node_info(nodes: Sequence[NodeView], version: str) -> Object:
    """What all nodes agree on; ids of hosts stay empty, and the oldest kubelet counts."""
    info = _common([node.status.node_info for node in nodes])
    versions = [str(node.status.node_info.get("kubeletVersion") or "") for node in nodes]
    return {
        "architecture": info.get("architecture", ""),
        "operatingSystem": info.get("operatingSystem", ""),
        "kernelVersion": info.get("kernelVersion", ""),
        "osImage": info.get("osImage", ""),
        "containerRuntimeVersion": f"vkgateway://{version}",
        "kubeletVersion": min(filter(None, versions), key=_version_key, default=""),
        "kubeProxyVersion": "",
        "machineID": "",
        "systemUUID": "",
        "bootID": "",
    }


def _version_key(version: str) -> tuple[int, ...]:
    numbers = version.removeprefix("v").split("-")[0].split("+")[0].split(".")
    return tuple(int(number) if number.isdigit() else 0 for number in numbers)


def _common(maps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    if not maps:
        return {}
    first, *rest = maps
    return {key: value for key, value in first.items() if all(other.get(key) == value for other in rest)}


def _declared_features(nodes: Sequence[NodeView]) -> list[str]:
    return sorted(_in_all([frozenset(node.status.declared_features) for node in nodes]))


def _runtime_handlers(nodes: Sequence[NodeView]) -> list[Object]:
    """Handlers that all nodes have, each with the features that it has on all of them."""
    offered = [{handler.name: handler.features for handler in node.status.runtime_handlers} for node in nodes]
    names = sorted(_in_all([frozenset(handlers) for handlers in offered]))
    return [{"name": name, "features": _all_true([handlers[name] for handlers in offered])} for name in names]


def _in_all(sets: Sequence[frozenset[str]]) -> frozenset[str]:
    return sets[0].intersection(*sets[1:]) if sets else frozenset()


def _all_true(maps: Sequence[Mapping[str, bool]]) -> dict[str, bool]:
    """Features of the first map, each true if it is true in all of them."""
    if not maps:
        return {}
    return {name: all(other.get(name, False) for other in maps) for name in maps[0]}
