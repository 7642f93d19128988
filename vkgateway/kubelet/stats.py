"""/stats/summary, /metrics, /metrics/resource, /metrics/cadvisor, /metrics/probes: figures of the caller's pods.

They come from the kubelets of the compute nodes, see `noderead`; a virtual node's own figures are sums over its pods. A
compute node that does not answer is missing in them, as are its pods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final

import msgspec

from vkgateway.kubelet import resourcemetrics
from vkgateway.kubelet.call import Call, Rejected
from vkgateway.kubelet.cputime import CpuTimes
from vkgateway.kubelet.exposition import NodeText, tenant_text
from vkgateway.kubelet.http import Reply
from vkgateway.kubelet.noderead import CADVISOR, PROBES, RESOURCE, SUMMARY, USAGE, NodeReader, Question
from vkgateway.kubelet.podstats import NodePods, node_stats, tenant_pods
from vkgateway.kubelet.streams import Streams
from vkgateway.kubelet.target import PlacedPod, Placements, VirtualNodes, no_nodes
from vkgateway.model.errors import InputError, NotFoundError
from vkgateway.model.objects import Object
from vkgateway.model.times import render

AT_ONCE: Final = 8
"""How many questions for figures a tenant may ask at once."""
_JSON: Final = "application/json"
_NANO: Final = 1e9
_encode: Final = msgspec.json.Encoder().encode


class Figures:
    """Everything that the endpoints of this file share. `clock` tells the time of day."""

    def __init__(
        self,
        placements: Placements,
        *,
        nodes: VirtualNodes = no_nodes,
        reader: NodeReader | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.reader = reader or NodeReader()
        self.asked = Streams(AT_ONCE, what="requests for figures")
        self.nodes = nodes
        self._placements = placements
        self._cpu = CpuTimes()
        self._clock = clock

    def forget(self, tenant: str) -> None:
        """Drop what is remembered of a tenant."""
        self._cpu.forget(tenant)

    async def close(self) -> None:
        """End what is under way."""
        await self.reader.close()

    def placed(self, tenant: str, node: str) -> tuple[str, list[PlacedPod]]:
        """The virtual node and the pods on it. Raises Rejected."""
        try:
            return self._placements(tenant, node)
        except NotFoundError as error:
            raise Rejected(Reply.text(404, str(error))) from error
        except InputError as error:
            raise Rejected(Reply.text(400, str(error))) from error

    async def pods(self, tenant: str, node: str, question: Question[NodePods]) -> tuple[Object, list[Object], int]:
        """The node's `NodeStats`, its pods' `PodStats`, and how many pods run on it."""
        name, placed = self.placed(tenant, node)
        pods = tenant_pods(await self.reader.read(placed, question))
        counter = self._cpu.of(tenant, name, now=self._clock())
        cpu = {pod["podRef"]["uid"]: int((pod.get("cpu") or {}).get("usageCoreNanoSeconds") or 0) for pod in pods}
        used = counter.look(cpu, there=(pod.tenant_uid for pod in placed))
        told = node_stats(name, pods, since=counter.since, core_nanoseconds=used, now=render(self._clock()))
        return told, pods, sum(pod.running for pod in placed)

    async def usages(
        self, tenant: str, nodes: Iterable[str], *, chosen: Callable[[PlacedPod], bool]
    ) -> list[tuple[PlacedPod, Object]]:
        """CPU and memory of those pods on these nodes that are chosen, as `PodStats`."""
        placed = [pod for node in nodes for pod in self.placed(tenant, node)[1] if chosen(pod)]
        told = await self.reader.read(placed, USAGE)
        return [(pod, stats) for pod, said in told for stats in tenant_pods([(pod, said)])]

    def now(self) -> str:
        """The time of day (RFC 3339)."""
        return render(self._clock())

    async def resources(self, tenant: str, node: str) -> bytes:
        """What metrics-server reads of the node and its pods. Times are finer here than in a summary."""
        name, placed = self.placed(tenant, node)
        told = await self.reader.read(placed, RESOURCE)
        usages = resourcemetrics.pod_usages(told)
        counter = self._cpu.of(tenant, name, now=self._clock())
        used = counter.look(
            {pod.uid: round(pod.cpu * _NANO) for pod in usages if pod.cpu is not None},
            there=(pod.tenant_uid for pod in placed),
        )
        now = self._clock().timestamp()
        return await asyncio.to_thread(tenant_text, told) + resourcemetrics.node_resources(
            usages, cpu_seconds=used / _NANO, now=now
        )

    async def text(self, tenant: str, node: str, question: Question[NodeText]) -> bytes:
        """Samples of the node's pods in the text format."""
        _, placed = self.placed(tenant, node)
        return await asyncio.to_thread(tenant_text, await self.reader.read(placed, question))


async def summary(call: Call) -> Reply:
    """GET /stats/summary: JSON; with `only_cpu_and_memory=true` no more than these."""
    question = USAGE if ("only_cpu_and_memory", "true") in call.request.query else SUMMARY
    with call.figures.asked.hold(call.tenant):
        node, pods, _ = await call.figures.pods(call.tenant, call.node, question)
    return Reply(200, _encode({"node": node, "pods": pods}), _JSON)


async def resource(call: Call) -> Reply:
    """GET /metrics/resource: what metrics-server reads."""
    with call.figures.asked.hold(call.tenant):
        text = await call.figures.resources(call.tenant, call.node)
    return Reply(200, text, resourcemetrics.CONTENT_TYPE)


async def own(call: Call) -> Reply:
    """GET /metrics."""
    with call.figures.asked.hold(call.tenant):
        node, pods, running = await call.figures.pods(call.tenant, call.node, SUMMARY)
    text = resourcemetrics.own_metrics(node["nodeName"], pods, running=running)
    return Reply(200, text, resourcemetrics.CONTENT_TYPE)


async def cadvisor(call: Call) -> Reply:
    """GET /metrics/cadvisor."""
    return await _text(call, CADVISOR)


async def probes(call: Call) -> Reply:
    """GET /metrics/probes."""
    return await _text(call, PROBES)


async def _text(call: Call, question: Question[NodeText]) -> Reply:
    with call.figures.asked.hold(call.tenant):
        return Reply(200, await call.figures.text(call.tenant, call.node, question), resourcemetrics.CONTENT_TYPE)
