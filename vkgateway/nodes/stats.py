"""/stats/summary, /metrics, /metrics/resource, /metrics/cadvisor, /metrics/probes: statistics of the tenant's pods.

The statistics come from the kubelets of the compute nodes (see `node_stats_reader`). The statistics of a virtual node
are sums over its pods. Pods on an unresponsive compute node are missing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from vkgateway.api.errors import InputError, NotFoundError
from vkgateway.api.objects import Object
from vkgateway.api.times import render_time
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.nodes.call import Call, Rejected
from vkgateway.nodes.exposition import NodeSamples, render_tenant_samples
from vkgateway.nodes.http import Reply
from vkgateway.nodes.limits import StreamLimiter
from vkgateway.nodes.node_stats_reader import (
    CADVISOR,
    PROBES,
    RESOURCE,
    SUMMARY,
    USAGE,
    NodeQuery,
    NodeStatsReader,
)
from vkgateway.nodes.podstats import NodePods, node_stats, tenant_pod_stats
from vkgateway.nodes.target import PlacedPod, PlacementLister, VirtualNodeLister, no_nodes

MAX_CONCURRENT_REQUESTS: Final = 8
"""Limit of a tenant's concurrent requests for statistics."""
_JSON: Final = "application/json"
_NANO: Final = 1e9
_encode: Final = msgspec.json.Encoder().encode


class StatsProvider:
    """Statistics for the endpoints of this module."""

    def __init__(
        self,
        placements: PlacementLister,
        *,
        nodes: VirtualNodeLister = no_nodes,
        reader: NodeStatsReader | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.node_reader = reader or NodeStatsReader()
        self.request_limiter = StreamLimiter(MAX_CONCURRENT_REQUESTS, what="requests for statistics")
        self.virtual_nodes = nodes
        self._placements = placements
        self._cpu_counters = CpuTimeCounters()
        self._clock = clock

    def forget_tenant(self, tenant: str) -> None:
        """Drop the state of a tenant."""
        self._cpu_counters.forget_tenant(tenant)

    async def close(self) -> None:
        """Cancel all requests to compute nodes."""
        await self.node_reader.close()

    def placed_pods(self, tenant: str, node: str) -> tuple[str, list[PlacedPod]]:
        """Return the name of the virtual node and its pods. Raises Rejected."""
        try:
            return self._placements(tenant, node)
        except NotFoundError as error:
            raise Rejected(Reply.from_text(404, str(error))) from error
        except InputError as error:
            raise Rejected(Reply.from_text(400, str(error))) from error

    async def read_stats(self, tenant: str, node: str, query: NodeQuery[NodePods]) -> tuple[Object, list[Object], int]:
        """Return the node's `NodeStats`, its pods' `PodStats`, and the number of running pods."""
        name, placed = self.placed_pods(tenant, node)
        pods = tenant_pod_stats(await self.node_reader.read_pods(placed, query))
        counter = self._cpu_counters.get_counter(tenant, name, now=self._clock.now())
        cpu = {pod["podRef"]["uid"]: int((pod.get("cpu") or {}).get("usageCoreNanoSeconds") or 0) for pod in pods}
        used = counter.add_usage(cpu, current_uids=(pod.tenant_uid for pod in placed))
        stats = node_stats(name, pods, since=counter.started_at, core_nanoseconds=used, now=self.render_now())
        return stats, pods, sum(pod.is_running for pod in placed)

    async def read_usages(
        self, tenant: str, nodes: Iterable[str], *, selected: Callable[[PlacedPod], bool]
    ) -> list[tuple[PlacedPod, Object]]:
        """Return the `PodStats` (CPU and memory) of the selected pods on some virtual nodes."""
        placed = [pod for node in nodes for pod in self.placed_pods(tenant, node)[1] if selected(pod)]
        node_pods = await self.node_reader.read_pods(placed, USAGE)
        return [(pod, stats) for pod, raw in node_pods for stats in tenant_pod_stats([(pod, raw)])]

    def render_now(self) -> str:
        """Return the time of day (RFC 3339)."""
        return render_time(self._clock.now())

    async def render_resources(self, tenant: str, node: str) -> bytes:
        """Return the metrics that metrics-server reads. Their timestamps are more precise than those of a summary."""
        name, placed = self.placed_pods(tenant, node)
        pod_samples = await self.node_reader.read_pods(placed, RESOURCE)
        usages = pod_usages(pod_samples)
        counter = self._cpu_counters.get_counter(tenant, name, now=self._clock.now())
        used = counter.add_usage(
            {pod.uid: round(pod.cpu * _NANO) for pod in usages if pod.cpu is not None},
            current_uids=(pod.tenant_uid for pod in placed),
        )
        now = self._clock.now().timestamp()
        return await asyncio.to_thread(render_tenant_samples, pod_samples) + render_node_resources(
            usages, cpu_seconds=used / _NANO, now=now
        )

    async def render_samples(self, tenant: str, node: str, query: NodeQuery[NodeSamples]) -> bytes:
        """Return the samples of the node's pods in the text format."""
        _, placed = self.placed_pods(tenant, node)
        return await asyncio.to_thread(render_tenant_samples, await self.node_reader.read_pods(placed, query))


async def serve_summary(call: Call) -> Reply:
    """Serve GET /stats/summary; with `only_cpu_and_memory=true`, only CPU and memory."""
    query = USAGE if ("only_cpu_and_memory", "true") in call.request.query else SUMMARY
    with call.stats_provider.request_limiter.hold_stream(call.tenant):
        node, pods, _ = await call.stats_provider.read_stats(call.tenant, call.node, query)
    return Reply(200, _encode({"node": node, "pods": pods}), _JSON)


async def serve_resource_metrics(call: Call) -> Reply:
    """Serve GET /metrics/resource, for metrics-server."""
    with call.stats_provider.request_limiter.hold_stream(call.tenant):
        text = await call.stats_provider.render_resources(call.tenant, call.node)
    return Reply(200, text, CONTENT_TYPE)


async def serve_kubelet_metrics(call: Call) -> Reply:
    """Serve GET /metrics."""
    with call.stats_provider.request_limiter.hold_stream(call.tenant):
        node, pods, running = await call.stats_provider.read_stats(call.tenant, call.node, SUMMARY)
    text = render_kubelet_metrics(node["nodeName"], pods, running=running)
    return Reply(200, text, CONTENT_TYPE)


async def serve_cadvisor_metrics(call: Call) -> Reply:
    """Serve GET /metrics/cadvisor."""
    return await _serve_samples(call, CADVISOR)


async def serve_probe_metrics(call: Call) -> Reply:
    """Serve GET /metrics/probes."""
    return await _serve_samples(call, PROBES)


async def _serve_samples(call: Call, query: NodeQuery[NodeSamples]) -> Reply:
    with call.stats_provider.request_limiter.hold_stream(call.tenant):
        return Reply(
            200,
            await call.stats_provider.render_samples(call.tenant, call.node, query),
            CONTENT_TYPE,
        )


# Names, labels and help texts are those of pkg/kubelet/metrics/collectors (resource_metrics.go, volume_stats.go) in
# Kubernetes 1.36.
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
    # Names, labels and help texts, here and below: pkg/kubelet/metrics/collectors (resource_metrics.go,
    # volume_stats.go) in Kubernetes 1.36.
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


class CpuTimeCounter:
    """Counter of one virtual node. It starts with the first request, like a node's counter starts with its boot."""

    def __init__(self, *, now: datetime) -> None:
        self.started_at = render_time(now)
        """Time of the start (RFC 3339)."""
        self.total_nanoseconds = 0
        """Core-nanoseconds."""
        self._last_usage: dict[str, int] = {}

    def add_usage(self, usages: Mapping[str, int], *, current_uids: Iterable[str]) -> int:
        """Add the pods' usage since the last call, and return the total. `usages` are core-nanoseconds by UID.

        `current_uids` are the UIDs of the tenant's pods on the node; the usage of other pods is no longer tracked. A
        pod's counter never decreases, because its control group outlives its containers. A lower value is an older
        answer.
        """
        for uid, usage in usages.items():
            increase = max(0, usage - self._last_usage.get(uid, 0))
            self.total_nanoseconds += increase
            self._last_usage[uid] = self._last_usage.get(uid, 0) + increase
        for uid in self._last_usage.keys() - set(current_uids):
            del self._last_usage[uid]
        return self.total_nanoseconds


class CpuTimeCounters:
    """Counters of all virtual nodes of all tenants."""

    def __init__(self) -> None:
        self._counters: dict[str, dict[str, CpuTimeCounter]] = {}

    def get_counter(self, tenant: str, node: str, *, now: datetime) -> CpuTimeCounter:
        """Return the counter of a node, and create it if necessary."""
        return self._counters.setdefault(tenant, {}).setdefault(node, CpuTimeCounter(now=now))

    def forget_tenant(self, tenant: str) -> None:
        """Drop the counters of a tenant."""
        self._counters.pop(tenant, None)
