"""Unit-hours of a tenant's pods, from the pods that still exist (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from vkgateway.api import times
from vkgateway.api.names import COMPUTE_CLUSTER_LABEL, POOL_LABEL
from vkgateway.api.objects import TERMINAL_PHASES, Object
from vkgateway.api.requests import device_requests
from vkgateway.cli.pending_gangs import gang_of
from vkgateway.kinds.pods.translation.to_compute import pod_band

PodKey = Literal["namespace", "gang", "pod", "band", "pool", "computeCluster", "resource"]
KEYS: Final[tuple[PodKey, ...]] = ("namespace", "gang", "pod", "band", "pool", "computeCluster", "resource")


class PodHours(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Usage of one group of pods; hours are unit-hours (GPU-hours)."""

    by: dict[str, str]
    hours: float
    pods: int


def sum_hours(
    pods: Iterable[Object], nodes: Iterable[Object], *, since: float, until: float, by: Sequence[PodKey]
) -> list[PodHours]:
    """Return the usage between two times (seconds since the epoch), grouped and sorted by the keys `by`.

    A pod counts from its start time to the end of its last container, or until `until` while it runs. Pool and
    compute cluster are those of the labels of its node.
    """
    labels = {node["metadata"]["name"]: node["metadata"].get("labels") or {} for node in nodes}
    hours: dict[tuple[str, ...], float] = {}
    counts: dict[tuple[str, ...], set[str]] = {}
    for pod in pods:
        start, end = run_interval(pod, now=until)
        start, end = max(start, since), min(end, until)
        if end <= start:
            continue
        for resource, amount in device_requests(pod).items():
            facts = _facts(pod, labels) | {"resource": resource}
            key = tuple(facts[name] for name in by)
            hours[key] = hours.get(key, 0.0) + (end - start) * amount / 1000 / 3600
            counts.setdefault(key, set()).add(f"{facts['namespace']}/{facts['pod']}")
    return [
        PodHours(by=dict(zip(by, key, strict=True)), hours=hours[key], pods=len(counts[key])) for key in sorted(hours)
    ]


def run_interval(pod: Object, *, now: float) -> tuple[float, float]:
    """Return when a pod started and ended, in seconds since the epoch; equal times if it did not start.

    A pod has started when a kubelet or a virtual node accepted it (`status.startTime`).
    """
    status = pod.get("status") or {}
    start = times.parse_seconds(status.get("startTime"))
    if not start or not (pod.get("spec") or {}).get("nodeName"):
        return now, now
    if status.get("phase") not in TERMINAL_PHASES:
        return start, now
    statuses = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    ends = (((entry.get("state") or {}).get("terminated") or {}).get("finishedAt") for entry in statuses)
    return start, max((times.parse_seconds(end) for end in ends if end), default=start)


def _facts(pod: Object, labels: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    metadata, spec = pod["metadata"], pod.get("spec") or {}
    node = spec.get("nodeName") or ""
    _, source, gang = gang_of(pod).split("/", 2)
    return {
        "namespace": metadata["namespace"],
        "pod": metadata["name"],
        "gang": gang if source != "pod" else "",
        "band": pod_band(spec),
        "pool": labels.get(node, {}).get(POOL_LABEL) or node,
        "computeCluster": labels.get(node, {}).get(COMPUTE_CLUSTER_LABEL, ""),
    }
