"""The stats/summary of compute nodes, filtered by a tenant's pods, with the tenant's names. Pure.

The shape is `Summary` of k8s.io/kubelet/pkg/apis/stats/v1alpha1. Fields that are not listed here are dropped, because
they may expose machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from vkgateway.api.objects import Object
from vkgateway.nodes.target import PlacedPod

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
"""Separator of tenant and namespace in the name of every compute namespace of a tenant."""


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
"""Statistics of one compute node's pods (JSON) by the UID of the compute pod."""


def parse_summary(data: bytes) -> NodePods:
    """Return the pods of a stats/summary in namespaces of tenants. Raises msgspec.DecodeError."""
    found: dict[str, bytes] = {}
    for raw in _summary_decoder.decode(data).pods:
        ref = _pod_decoder.decode(raw).pod_ref
        if ref.uid and _NAMESPACE_SEPARATOR in ref.namespace:
            found[ref.uid] = bytes(raw)
    return found


def tenant_pod_stats(placed: Iterable[tuple[PlacedPod, NodePods]]) -> list[Object]:
    """Return the `PodStats` of the pods that their nodes reported, with the tenant's names."""
    return [_translate_pod(stats[pod.uid], pod) for pod, stats in placed if pod.uid in stats]


def _translate_pod(data: bytes, pod: PlacedPod) -> Object:
    stats = _object_decoder.decode(data)
    entry: Object = {
        "podRef": {"name": pod.tenant_name, "namespace": pod.tenant_namespace, "uid": pod.tenant_uid},
        **_select_fields(stats, _POD_FIELDS),
        "containers": [
            _select_fields(each, _CONTAINER_FIELDS)
            for each in stats.get("containers") or ()
            if each.get("name") in pod.containers
        ],
    }
    if volumes := stats.get("volume"):
        entry["volume"] = [_translate_volume(volume, pod) for volume in volumes]
    return entry


def _translate_volume(stats: Object, pod: PlacedPod) -> Object:
    entry = _select_fields(stats, _VOLUME_FIELDS)
    if claim := stats.get("pvcRef"):
        entry["pvcRef"] = {"name": claim.get("name", ""), "namespace": pod.tenant_namespace}
    return entry


def _select_fields(stats: Object, fields: Iterable[str]) -> Object:
    return {field: stats[field] for field in fields if field in stats}


def node_stats(name: str, pods: list[Object], *, since: str, core_nanoseconds: int, now: str) -> Object:
    """Return the `NodeStats` of a virtual node: sums over its pods, with the newest of their times, or `now`.

    `core_nanoseconds` is the CPU time since `since` of all pods, including deleted pods, so that it never decreases.
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
    """Return the sums of some fields of one part, with the newest time."""
    parts = [pod[part] for pod in pods if pod.get(part)]
    total: Object = {field: sum(int(stats.get(field) or 0) for stats in parts) for field in fields}
    times = [stats["time"] for stats in parts if stats.get("time")]
    return {"time": max(times)} | total if times else total
