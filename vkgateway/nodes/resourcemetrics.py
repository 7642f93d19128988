"""Samples of the virtual node for /metrics/resource, and /metrics. Pure.

Names, labels and help texts are those of pkg/kubelet/metrics/collectors (resource_metrics.go, volume_stats.go) in
Kubernetes 1.36.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from vkgateway.api.objects import Object
from vkgateway.nodes.exposition import NodeSamples
from vkgateway.nodes.target import PlacedPod

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
_CPU: Final = "pod_cpu_usage_seconds_total"
_MEMORY: Final = "pod_memory_working_set_bytes"
_SWAP: Final = "pod_swap_usage_bytes"
_CLAIM: Final = ("namespace", "persistentvolumeclaim")
_VOLUME: Final = (
    ("kubelet_volume_stats_capacity_bytes", "Capacity in bytes of the volume", "capacityBytes"),
    ("kubelet_volume_stats_available_bytes", "Number of available bytes in the volume", "availableBytes"),
    ("kubelet_volume_stats_used_bytes", "Number of used bytes in the volume", "usedBytes"),
    ("kubelet_volume_stats_inodes", "Maximum number of inodes in the volume", "inodes"),
    ("kubelet_volume_stats_inodes_free", "Number of free inodes in the volume", "inodesFree"),
    ("kubelet_volume_stats_inodes_used", "Number of used inodes in the volume", "inodesUsed"),
)


@dataclass(frozen=True, slots=True)
class PodUsage:
    """Usage of a pod: CPU time in core-seconds, memory and swap in bytes. None if not reported.

    `as_of` is the time of the samples in seconds since the epoch, or None.
    """

    uid: str
    cpu: float | None
    memory: float | None
    swap: float | None
    as_of: float | None


def pod_usages(pod_samples: Iterable[tuple[PlacedPod, NodeSamples]]) -> list[PodUsage]:
    """Return the usage of pods from their nodes' /metrics/resource. `uid` is the UID of the tenant pod."""
    found = []
    for pod, node_samples in pod_samples:
        values: dict[str, float] = {}
        stamps: list[float] = []
        for line in node_samples.samples.get((pod.namespace, pod.name), ()):
            value, _, stamp = line.value_and_time.partition(" ")
            if line.name in (_CPU, _MEMORY, _SWAP) and math.isfinite(amount := _parse_number(value)):
                values[line.name] = amount
                stamps.extend([int(stamp) / 1000] if stamp else [])
        if values:
            amounts = values.get(_CPU), values.get(_MEMORY), values.get(_SWAP)
            found.append(PodUsage(pod.tenant_uid, *amounts, max(stamps, default=None)))
    return found


def _parse_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


class _FamilyCollector(Collector):
    """Families for `generate_latest`. Like in a kubelet, families without samples are skipped."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = [family for family in families if family.samples]

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def render_node_resources(pods: list[PodUsage], *, cpu_seconds: float, now: float) -> bytes:
    """Return the node's part of /metrics/resource: sums over its pods, with the newest of their times, or `now`."""
    as_of = max((pod.as_of for pod in pods if pod.as_of is not None), default=now)
    cpu = CounterMetricFamily(
        "node_cpu_usage_seconds", "[STABLE] Cumulative cpu time consumed by the node in core-seconds"
    )
    cpu.add_metric((), cpu_seconds, timestamp=as_of)
    memory = GaugeMetricFamily("node_memory_working_set_bytes", "[STABLE] Current working set of the node in bytes")
    memory.add_metric((), sum(pod.memory or 0.0 for pod in pods), timestamp=as_of)
    swap = GaugeMetricFamily(
        "node_swap_usage_bytes",
        "[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows systems",
    )
    if any(pod.swap is not None for pod in pods):
        swap.add_metric((), sum(pod.swap or 0.0 for pod in pods), timestamp=as_of)
    return _render_families(
        [cpu, memory, swap, _zero_error("resource_scrape_error", "STABLE"), _zero_error("scrape_error", "ALPHA")]
    )


def render_kubelet_metrics(node: str, pods: list[Object], *, running: int) -> bytes:
    """Return /metrics: a kubelet's metrics of pods and their volumes. `running` is the number of running pods."""
    name = GaugeMetricFamily("kubelet_node_name", "The node's name. The count is always 1.", labels=("node",))
    name.add_metric((node,), 1)
    of_pods = GaugeMetricFamily("kubelet_running_pods", "Number of pods that have a running pod sandbox")
    of_pods.add_metric((), running)
    of_containers = GaugeMetricFamily(
        "kubelet_running_containers", "Number of containers currently running", labels=("container_state",)
    )
    of_containers.add_metric(("running",), sum(len(pod["containers"]) for pod in pods))
    return _render_families([name, of_containers, of_pods, *_volume_families(pods)])


def _volume_families(pods: list[Object]) -> list[Metric]:
    """Return the metrics of claims. A claim that several pods use occurs once."""
    claims: dict[tuple[str, str], Object] = {}
    for pod in pods:
        for volume in pod.get("volume", ()):
            if claim := volume.get("pvcRef"):
                claims.setdefault((claim["namespace"], claim["name"]), volume)
    families: list[Metric] = []
    for name, text, field in _VOLUME:
        family = GaugeMetricFamily(name, text, labels=_CLAIM)
        for key, volume in claims.items():
            if volume.get(field) is not None:
                family.add_metric(key, volume[field])
        families.append(family)
    return families


def _zero_error(name: str, stability: str) -> Metric:
    text = f"[{stability}] 1 if there was an error while getting container metrics, 0 otherwise"
    return GaugeMetricFamily(name, text, value=0)


def _render_families(families: Iterable[Metric]) -> bytes:
    registry = CollectorRegistry()
    registry.register(_FamilyCollector(families))
    return generate_latest(registry)
