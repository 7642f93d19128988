"""Node object of a pool, made from its compute nodes and the tenant's quota."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from vkgateway.api import times
from vkgateway.api.names import virtual_node_name
from vkgateway.api.objects import Object
from vkgateway.api.quantity import Quantity, cap_resources
from vkgateway.clusters.pool_nodes import PoolNodes
from vkgateway.kinds.context import PoolContext

COMPUTE_CONNECTED: Final = "vkgateway.io/ComputeConnected"

_PRESSURE_CONDITIONS: Final = (
    ("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("NetworkUnavailable", "ComputeNetwork", "the compute nodes have networks of their own"),
)


def pool_context(
    *,
    name: str,
    compute_cluster: str,
    node_selector: dict[str, str],
    tolerations: Sequence[dict[str, Any]],
    nodes: PoolNodes,
    value: str = "",
    without_label: str = "",
) -> PoolContext:
    """Return the context of a virtual node, from the compute nodes behind it.

    `value` is these nodes' value of the label that divides the pool, if there is one.
    """
    return PoolContext(
        name=name,
        compute_cluster=compute_cluster,
        node_name=virtual_node_name(name, compute_cluster, value),
        node_selector=node_selector,
        without_label=without_label,
        tolerations=tuple(tolerations),
        node_labels=nodes.common_labels,
        carried_labels=nodes.carried_labels,
    )


def virtual_node(
    pool: PoolContext,
    *,
    nodes: PoolNodes,
    limit: Mapping[str, Quantity],
    address: str,
    port: int,
    version: str,
    connected: bool,
    message: str = "",
    now: datetime,
    previous: Object | None = None,
) -> Object:
    """Return the Node object of a pool, including its status, for the tenant's API server.

    `nodes` are the pool's compute nodes as last seen. `address` and `port` are the gateway's kubelet endpoint, and
    `version` is its version. If the compute cluster is not `connected`, the node keeps its capacity and is not Ready,
    with `message` as the reason. `previous` is the current Node, whose transition times are kept.
    """
    offered = cap_resources(nodes.total_allocatable, limit)
    labels = {**nodes.common_labels, **nodes.kubelets.platform_labels, **pool.virtual_labels()}
    status: Object = {
        "capacity": offered,
        "allocatable": offered,
        "conditions": _node_conditions(connected, message, now, previous or {}),
        "addresses": [
            {"type": "InternalIP", "address": address},
            {"type": "Hostname", "address": pool.node_name},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "nodeInfo": {**nodes.kubelets.node_info, "containerRuntimeVersion": f"vkgateway://{version}"},
        "runtimeHandlers": nodes.kubelets.runtime_handlers,
        "features": nodes.kubelets.features,
        "declaredFeatures": nodes.kubelets.declared_features,
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": pool.node_name, "labels": labels},
        "spec": {},
        "status": {key: value for key, value in status.items() if value not in ([], {})},
    }


def _node_conditions(connected: bool, message: str, now: datetime, previous: Mapping[str, Any]) -> list[Object]:
    if connected:
        conditions = [
            ("Ready", "True", "ComputeReady", "the compute cluster takes pods"),
            (COMPUTE_CONNECTED, "True", "Connected", "the compute cluster answers"),
        ]
    else:
        why = message or "the compute cluster does not answer"
        conditions = [
            ("Ready", "False", "ComputeUnreachable", why),
            (COMPUTE_CONNECTED, "False", "Unreachable", why),
        ]
    conditions += [(kind, "False", reason, text) for kind, reason, text in _PRESSURE_CONDITIONS]
    current = {entry["type"]: entry for entry in (previous.get("status") or {}).get("conditions") or ()}
    stamp = times.render_time(now)
    return [
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": text,
            "lastHeartbeatTime": stamp,
            "lastTransitionTime": _transition_time(current.get(kind), status) or stamp,
        }
        for kind, status, reason, text in conditions
    ]


def _transition_time(current: Mapping[str, Any] | None, status: str) -> str | None:
    if current is None or current["status"] != status:
        return None
    since: str | None = current.get("lastTransitionTime")
    return since
