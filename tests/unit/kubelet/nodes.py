"""Fake compute nodes behind an API server's node proxy, with the statistics of their kubelets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.unit.kubelet.compute import Asked, Reader, Writer
from vkgateway.api.names import compute_namespace
from vkgateway.nodes.target import NodeProxy, PlacedPod

TIME = "2026-01-02T03:04:05Z"
Object = dict[str, Any]


def uid(tenant: str, name: str) -> str:
    """Return the UID of a compute pod."""
    return f"0be10000-0000-4000-8000-{abs(hash((tenant, name))) % 10**12:012d}"


def below(cluster: NodeProxy, tenant: str, name: str, *, node: str = "gpu-host-7", **changes: Any) -> PlacedPod:
    """Return a compute pod of a tenant."""
    pod = PlacedPod(
        cluster=cluster,
        node=node,
        namespace=compute_namespace(tenant, "default"),
        name=name,
        uid=uid(tenant, name),
        tenant_namespace="default",
        tenant_name=name,
        tenant_uid=f"above-{tenant}-{name}",
        virtual_node="a100.local",
    )
    return replace(pod, **changes)


def pod_stats(
    pod: PlacedPod, *, nanoseconds: int = 5_000_000_000, memory: int = 1000, more: Object | None = None
) -> Object:
    """Return a kubelet's `PodStats`."""
    cpu = {"time": TIME, "usageNanoCores": 7, "usageCoreNanoSeconds": nanoseconds}
    ram = {"time": TIME, "usageBytes": memory + 1, "workingSetBytes": memory, "rssBytes": 10}
    container = {
        "name": "main",
        "startTime": "2026-01-02T03:00:00Z",
        "cpu": cpu,
        "memory": ram,
        "swap": {"time": TIME, "swapUsageBytes": 3},
        "userDefinedMetrics": [{"name": "of-gpu-host-7"}],
    }
    return {
        "podRef": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
        "startTime": "2026-01-02T03:00:00Z",
        "containers": [container],
        "cpu": cpu,
        "memory": ram,
        "volume": [
            {"name": "data", "usedBytes": 5, "capacityBytes": 9, "pvcRef": {"name": "c", "namespace": pod.namespace}}
        ],
        "hostWords": "gpu-host-7",
    } | (more or {})


def resources(pods: list[Object]) -> bytes:
    """Return a kubelet's /metrics/resource with pods and its machine."""
    lines = ["# HELP node_cpu_usage_seconds_total x", "# TYPE node_cpu_usage_seconds_total counter"]
    lines.append("node_cpu_usage_seconds_total 1e+06 1767323045123")
    for name, kind in (("cpu_usage_seconds_total", "counter"), ("memory_working_set_bytes", "gauge")):
        for of in ("container", "pod"):
            lines += [f"# HELP {of}_{name} [STABLE] x", f"# TYPE {of}_{name} {kind}"]
            for pod in pods:
                reference = pod["podRef"]
                labels = 'container="main",' if of == "container" else ""
                labels += f'namespace="{reference["namespace"]}",pod="{reference["name"]}"'
                cpu, memory = pod["cpu"]["usageCoreNanoSeconds"] / 1e9, pod["memory"]["workingSetBytes"]
                lines.append(f"{of}_{name}{{{labels}}} {cpu if 'cpu' in name else memory} 1767323045123")
    return "\n".join((*lines, "scrape_error 0", "")).encode()


@dataclass
class Nodes:
    """Script of a `FakeCompute`: the responses of kubelets by node and path."""

    says: dict[str, dict[str, bytes]] = field(default_factory=dict)
    hanging: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)

    def summary(self, node: str, pods: Iterable[Object]) -> None:
        document: Object = {"node": {"nodeName": node, "cpu": {"usageCoreNanoSeconds": 10**15}}, "pods": list(pods)}
        self.says.setdefault(node, {})["stats/summary"] = json.dumps(document).encode()
        self.says[node]["metrics/resource"] = resources(document["pods"])

    async def __call__(self, asked: Asked, reader: Reader, writer: Writer) -> None:
        node, _, path = asked.path.removeprefix("/api/v1/nodes/").partition("/proxy/")
        self.asked.append(f"{node} {path}")
        if node in self.hanging:
            await reader.read()
            return
        body = self.says.get(node, {}).get(path)
        status = "200 OK" if body is not None else "404 Not Found"
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body or b'')}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + (body or b""))
        await writer.drain()
        await asyncio.sleep(0)
