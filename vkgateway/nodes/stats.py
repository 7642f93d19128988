"""/stats/summary, /metrics, /metrics/resource, /metrics/cadvisor, /metrics/probes: statistics of the tenant's pods.

The statistics come from the kubelets of the compute nodes (see `node_stats_reader`). The statistics of a virtual node
are sums over its pods. Pods on an unresponsive compute node are missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from vkgateway.api.errors import InputError, NotFoundError
from vkgateway.api.objects import Object
from vkgateway.api.times import render_time
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.nodes import resourcemetrics
from vkgateway.nodes.call import Call, Rejected
from vkgateway.nodes.cputime import CpuTimeCounters
from vkgateway.nodes.exposition import NodeSamples, render_tenant_samples
from vkgateway.nodes.http import Reply
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
from vkgateway.nodes.stream_limiter import StreamLimiter
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
        usages = resourcemetrics.pod_usages(pod_samples)
        counter = self._cpu_counters.get_counter(tenant, name, now=self._clock.now())
        used = counter.add_usage(
            {pod.uid: round(pod.cpu * _NANO) for pod in usages if pod.cpu is not None},
            current_uids=(pod.tenant_uid for pod in placed),
        )
        now = self._clock.now().timestamp()
        return await asyncio.to_thread(render_tenant_samples, pod_samples) + resourcemetrics.render_node_resources(
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
    return Reply(200, text, resourcemetrics.CONTENT_TYPE)


async def serve_kubelet_metrics(call: Call) -> Reply:
    """Serve GET /metrics."""
    with call.stats_provider.request_limiter.hold_stream(call.tenant):
        node, pods, running = await call.stats_provider.read_stats(call.tenant, call.node, SUMMARY)
    text = resourcemetrics.render_kubelet_metrics(node["nodeName"], pods, running=running)
    return Reply(200, text, resourcemetrics.CONTENT_TYPE)


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
            resourcemetrics.CONTENT_TYPE,
        )
