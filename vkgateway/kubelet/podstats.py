"""What compute nodes' stats/summary says, cut to a tenant's pods and told in the tenant's words. Pure.

The shape is `Summary` of k8s.io/kubelet/pkg/apis/stats/v1alpha1. Fields that are not listed here do not pass: they
may speak of machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from vkgateway.kubelet.target import PlacedPod
from vkgateway.model.objects import Object

_POD_FIELDS: Final = (
    "startTime",
    "cpu",
    "memory",
    "io",
    "network",
    "ephemeral-storage",
    "process_stats",
    "swap",
)
_CONTAINER_FIELDS: Final = ("name", "startTime", "cpu", "memory", "io", "rootfs", "logs", "swap")
_VOLUME_FIELDS: Final = (
    "time",
    "availableBytes",
    "capacityBytes",
    "usedBytes",
    "inodesFree",
    "inodes",
    "inodesUsed",
    "name",
    "volumeHealthStats",
)
_NAMESPACE_SEPARATOR: Final = "--"
"""What stands between tenant and namespace in the name of every compute namespace of a tenant."""


class _Ref(msgspec.Struct):
    uid: str = ""
    namespace: str = ""


class _Pod(msgspec.Struct, rename="camel"):
    pod_ref: _Ref = msgspec.field(default_factory=_Ref)


class _Summary(msgspec.Struct):
    pods: list[msgspec.Raw] = []


_summary_decoder: Final = msgspec.json.Decoder(_Summary)
_pod_decoder: Final = msgspec.json.Decoder(_Pod)
_object_decoder: Final = msgspec.json.Decoder(dict[str, Any])

NodePods = Mapping[str, bytes]
"""Statistics of one compute node's pods, JSON, by the UIDs of the compute pods."""


def parse_summary(data: bytes) -> NodePods:
    """Split a stats/summary; pods in namespaces of no tenant are left out. Raises msgspec.DecodeError."""
    found: dict[str, bytes] = {}
    for raw in _summary_decoder.decode(data).pods:
        ref = _pod_decoder.decode(raw).pod_ref
        if ref.uid and _NAMESPACE_SEPARATOR in ref.namespace:
            found[ref.uid] = bytes(raw)
    return found


def tenant_pod_stats(placed: Iterable[tuple[PlacedPod, NodePods]]) -> list[Object]:
    """The `PodStats` of those pods that their nodes told of, in the tenant's words."""
    return [_translate_pod(stats[pod.uid], pod) for pod, stats in placed if pod.uid in stats]


def _translate_pod(data: bytes, pod: PlacedPod) -> Object:
    told = _object_decoder.decode(data)
    entry: Object = {
        "podRef": {"name": pod.tenant_name, "namespace": pod.tenant_namespace, "uid": pod.tenant_uid},
        **_select_fields(told, _POD_FIELDS),
        "containers": [_select_fields(one, _CONTAINER_FIELDS) for one in told.get("containers") or ()],
    }
    if volumes := told.get("volume"):
        entry["volume"] = [_translate_volume(one, pod) for one in volumes]
    return entry


def _translate_volume(told: Object, pod: PlacedPod) -> Object:
    entry = _select_fields(told, _VOLUME_FIELDS)
    if claim := told.get("pvcRef"):
        entry["pvcRef"] = {"name": claim.get("name", ""), "namespace": pod.tenant_namespace}
    return entry


def _select_fields(told: Object, fields: Iterable[str]) -> Object:
    return {field: told[field] for field in fields if field in told}


def node_stats(name: str, pods: list[Object], *, since: str, core_nanoseconds: int, now: str) -> Object:
    """The `NodeStats` of a virtual node: sums over its pods, as of the newest of them, or of `now` without any.

    `core_nanoseconds` is the CPU time of all pods since `since`, of those that have gone too: it never falls.
    """
    cpu = _sum_fields(pods, "cpu", ("usageNanoCores",)) | {"usageCoreNanoSeconds": core_nanoseconds}
    stats: Object = {
        "nodeName": name,
        "startTime": since,
        "cpu": {"time": now} | cpu,
        "memory": {"time": now} | _sum_fields(pods, "memory", ("usageBytes", "workingSetBytes", "rssBytes")),
    }
    if any("swap" in pod for pod in pods):
        stats["swap"] = _sum_fields(pods, "swap", ("swapUsageBytes",))
    return stats


def _sum_fields(pods: list[Object], part: str, fields: tuple[str, ...]) -> Object:
    """Sums of some fields of one part, with the newest time in it."""
    parts = [pod[part] for pod in pods if pod.get(part)]
    total: Object = {field: sum(int(one.get(field) or 0) for one in parts) for field in fields}
    times = [one["time"] for one in parts if one.get("time")]
    return {"time": max(times)} | total if times else total
