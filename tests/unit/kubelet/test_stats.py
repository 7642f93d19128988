"""Statistics of pods from the compute nodes: filtered by tenant, with the tenant's names."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families

from tests.support.machine import patience
from tests.support.waiting import wait_until
from tests.unit.kubelet.conftest import Endpoint
from tests.unit.kubelet.nodes import TIME, Nodes, below, pod_stats, uid
from vkgateway.api.errors import InputError, NotFoundError
from vkgateway.kube.client import Client
from vkgateway.nodes.node_stats_reader import NodeStatsReader
from vkgateway.nodes.simulation import read_simulation
from vkgateway.nodes.stats import MAX_CONCURRENT_REQUESTS, StatsProvider
from vkgateway.nodes.target import PlacedPod

NODE = "/nodes/a100.local"
PATHS = ("/stats/summary", "/metrics", "/metrics/resource", "/metrics/cadvisor", "/metrics/probes")
SECRETS = (b"gpu-host-7", b"--default", b"beta", b"0be10000", b"kubepods-besteffort", b"of-gpu-host")


@dataclass
class World:
    """Endpoint with pods of two tenants on shared compute nodes."""

    endpoint: Endpoint
    nodes: Nodes
    client: Client
    pods: dict[str, list[PlacedPod]] = field(default_factory=dict)

    async def get(self, path: str, tenant: str = "alpha", **headers: str) -> tuple[int, dict[str, str], bytes]:
        return await (await self.endpoint.call(tenant)).request("GET", path, **headers)

    async def samples(self, path: str, tenant: str = "alpha") -> list[Any]:
        status, headers, body = await self.get(f"{NODE}{path}", tenant)
        assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        return [sample for family in text_string_to_metric_families(body.decode()) for sample in family.samples]

    async def value(self, path: str, name: str, tenant: str = "alpha", **labels: str) -> float:
        [found] = [one.value for one in await self.samples(path, tenant) if (one.name, one.labels) == (name, labels)]
        return float(found)


@pytest.fixture
async def world(make: Callable[..., Awaitable[Endpoint]]) -> AsyncIterator[World]:
    pods: dict[str, list[PlacedPod]] = {}

    def placements(tenant: str, node: str) -> tuple[str, list[PlacedPod]]:
        if node == "several":
            raise InputError("say which")
        if node not in ("", "a100.local"):
            raise NotFoundError(f"there is no virtual node {node!r}")
        return "a100.local", pods.get(tenant, [])

    figures = StatsProvider(placements, reader=NodeStatsReader(cache_seconds=0.0))
    endpoint = await make(stats_provider=figures)
    nodes = Nodes()
    endpoint.compute.script = nodes
    endpoint.server.admit_tenant("beta")
    async with Client(endpoint.compute.server, name="compute") as client:
        pods["alpha"] = [below(client, "alpha", "web"), below(client, "alpha", "db", node="gpu-host-8")]
        pods["beta"] = [below(client, "beta", "web")]
        web, db, other = pods["alpha"][0], pods["alpha"][1], pods["beta"][0]
        nodes.summary(
            "gpu-host-7", [pod_stats(web), pod_stats(other, nanoseconds=10**12), pod_stats(below(client, "x", "y"))]
        )
        nodes.summary("gpu-host-8", [pod_stats(db, nanoseconds=2_000_000_000, memory=500)])
        nodes.says["gpu-host-7"] |= {"metrics/cadvisor": CADVISOR.encode(), "metrics/probes": PROBES.encode()}
        yield World(endpoint, nodes, client, pods)


def group(tenant: str, name: str) -> str:
    return f"/kubepods-besteffort.slice/kubepods-besteffort-pod{uid(tenant, name).replace('-', '_')}.slice/cri-c1.scope"


CADVISOR = f"""\
# HELP container_cpu_usage_seconds_total Cumulative cpu time consumed in seconds.
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{{container="",id="/",image="",name="",namespace="",pod=""}} 9 1767323045000
container_cpu_usage_seconds_total{{container="main",cpu="total",id="{group("alpha", "web")}",image="i",name="c1",\
namespace="alpha--default",pod="web"}} 12.5 1767323045000
container_cpu_usage_seconds_total{{container="main",cpu="total",id="{group("beta", "web")}",image="i",name="c2",\
namespace="beta--default",pod="web"}} 99 1767323045000
container_cpu_usage_seconds_total{{container="main",cpu="total",id="{group("old", "web")}",image="i",name="c3",\
namespace="alpha--default",pod="web"}} 77 1767323045000
container_cpu_usage_seconds_total{{container="main",cpu="total",id="/x",image="i",name="c4",\
namespace="kube-system",pod="web"}} 88 1767323045000
# HELP container_fs_reads_total Cumulative count of reads completed
# TYPE container_fs_reads_total counter
container_fs_reads_total{{container="main",device="/dev/mapper/gpu-host-7-root",id="{group("alpha", "web")}",image="i",\
name="c1",namespace="alpha--default",pod="web"}} 3 1767323045000
nonsense{{namespace="alpha--default",pod="web"}}
# HELP machine_cpu_cores Number of logical CPU cores.
# TYPE machine_cpu_cores gauge
machine_cpu_cores{{boot_id="b",machine_id="gpu-host-7",system_uuid="s"}} 64
"""
PROBES = f"""\
# HELP prober_probe_total [BETA] Cumulative number of probes.
# TYPE prober_probe_total counter
prober_probe_total{{container="main",namespace="alpha--default",pod="web",pod_uid="{uid("alpha", "web")}",\
probe_type="Readiness",result="successful"}} 4
prober_probe_total{{container="main",namespace="alpha--default",pod="web",pod_uid="{uid("old", "web")}",\
probe_type="Readiness",result="successful"}} 5
prober_probe_total{{container="main",namespace="beta--default",pod="web",pod_uid="{uid("beta", "web")}",\
probe_type="Readiness",result="failed"}} 6
"""


async def test_summary_contains_tenant_pods_with_tenant_names(world: World) -> None:
    status, headers, body = await world.get(f"{NODE}/stats/summary")
    assert (status, headers["content-type"]) == (200, "application/json")
    summary = json.loads(body)
    assert [pod["podRef"] for pod in summary["pods"]] == [
        {"name": "web", "namespace": "default", "uid": "above-alpha-web"},
        {"name": "db", "namespace": "default", "uid": "above-alpha-db"},
    ]
    assert summary["pods"][0]["volume"] == [
        {"name": "data", "usedBytes": 5, "capacityBytes": 9, "pvcRef": {"name": "c", "namespace": "default"}}
    ]
    assert set(summary["pods"][0]["containers"][0]) == {"name", "startTime", "cpu", "memory", "swap"}


async def test_node_statistics_are_sums_over_pods(world: World) -> None:
    node = json.loads((await world.get(f"{NODE}/stats/summary"))[2])["node"]
    assert (node["nodeName"], node["cpu"]["usageCoreNanoSeconds"], node["cpu"]["usageNanoCores"]) == (
        "a100.local",
        7_000_000_000,
        14,
    )
    assert node["memory"] == {"time": TIME, "usageBytes": 1502, "workingSetBytes": 1500, "rssBytes": 20}


@pytest.mark.parametrize("path", PATHS)
async def test_statistics_hide_machines_and_other_tenants(world: World, path: str) -> None:
    status, _, body = await world.get(f"{NODE}{path}")
    assert status == 200
    assert b"default" in body
    for secret in SECRETS:
        assert secret not in body, (secret, body)


@pytest.mark.parametrize("path", PATHS)
async def test_other_tenant_sees_only_its_pods(world: World, path: str) -> None:
    body = (await world.get(f"{NODE}{path}", "beta"))[2]
    assert b"alpha" not in body
    assert b'"db"' not in body


async def test_resource_metrics_have_kubelet_format(world: World) -> None:
    body = (await world.get(f"{NODE}/metrics/resource"))[2].decode()
    lines = body.splitlines()
    labels = 'namespace="default",pod="web",container="main"'
    assert f"container_cpu_usage_seconds_total{{{labels}}} 5.0 1767323045123" in lines
    assert f"container_memory_working_set_bytes{{{labels}}} 1000 1767323045123" in lines
    assert 'pod_cpu_usage_seconds_total{namespace="default",pod="db"} 2.0 1767323045123' in lines
    assert "node_cpu_usage_seconds_total 7.0 1767323045123" in lines
    assert "node_memory_working_set_bytes 1500.0 1767323045123" in lines
    assert "# TYPE container_cpu_usage_seconds_total counter" in lines
    assert "# TYPE node_cpu_usage_seconds_total counter" in lines
    assert {"resource_scrape_error 0.0", "scrape_error 0.0"} <= set(lines)
    assert len([line for line in lines if line.startswith("# TYPE")]) == 8


@pytest.mark.parametrize("value", ["NaN", "+Inf", "many", "1_0x"])
async def test_invalid_sample_is_skipped(world: World, value: str) -> None:
    metrics = world.nodes.says["gpu-host-7"]["metrics/resource"]
    world.nodes.says["gpu-host-7"]["metrics/resource"] = metrics.replace(b"} 5.0 ", f"}} {value} ".encode())
    body = (await world.get(f"{NODE}/metrics/resource"))[2]
    assert b"\nnode_cpu_usage_seconds_total 2.0 1767323045123\n" in body


async def test_cpu_and_memory_only_query_is_forwarded(world: World) -> None:
    await world.get(f"{NODE}/stats/summary?only_cpu_and_memory=true")
    assert {tuple(asked.query) for asked in world.endpoint.compute.asked} == {(("only_cpu_and_memory", "true"),)}


async def test_cpu_time_of_node_never_decreases(world: World) -> None:
    path, name = "/metrics/resource", "node_cpu_usage_seconds_total"
    assert await world.value(path, name) == 7
    web, db = world.pods["alpha"]
    world.nodes.summary("gpu-host-7", [pod_stats(web, nanoseconds=6_000_000_000)])
    assert await world.value(path, name) == 8
    world.pods["alpha"] = [web]
    assert await world.value(path, name) == 8, "what a pod used that has gone is not taken back"
    world.nodes.summary("gpu-host-7", [pod_stats(web, nanoseconds=5_500_000_000)])
    assert await world.value(path, name) == 8, "an older answer"
    world.pods["alpha"] = [web, db]
    assert await world.value(path, name) == 10, "after a new lookup, it is another pod"


async def test_cadvisor_samples_are_filtered_and_translated(world: World) -> None:
    [found] = await world.samples("/metrics/cadvisor")
    assert (found.name, found.value, found.timestamp) == ("container_cpu_usage_seconds_total", 12.5, 1767323045.0)
    assert found.labels == {
        "container": "main",
        "cpu": "total",
        "id": "/kubepods/podabove-alpha-web/c1",
        "image": "i",
        "name": "c1",
        "namespace": "default",
        "pod": "web",
    }


async def test_probe_samples_have_tenant_uids(world: World) -> None:
    [found] = await world.samples("/metrics/probes")
    assert (found.value, found.labels["pod_uid"], found.labels["result"]) == (4, "above-alpha-web", "successful")


async def test_kubelet_metrics_contain_pods_and_claims(world: World) -> None:
    found = {sample.name: sample for sample in await world.samples("/metrics")}
    assert found["kubelet_node_name"].labels == {"node": "a100.local"}
    assert (found["kubelet_running_pods"].value, found["kubelet_running_containers"].value) == (2, 2)
    claim = found["kubelet_volume_stats_capacity_bytes"]
    assert (claim.value, claim.labels) == (9, {"namespace": "default", "persistentvolumeclaim": "c"})


async def test_proxy_header_selects_node(world: World) -> None:
    uri = "/api/v1/nodes/{}/proxy/stats/summary"
    status, _, body = await world.get("/stats/summary", X_Forwarded_Uri=uri.format("a100.local"))
    assert (status, json.loads(body)["node"]["nodeName"]) == (200, "a100.local")
    for node in ("b100.local", "https:b100.local:10250"):
        assert (await world.get("/stats/summary", X_Forwarded_Uri=uri.format(node)))[0] == 404
    assert (await world.get("/stats/summary", X_Forwarded_Uri="/nonsense"))[0] == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [("/nodes/x/metrics", 404), ("/nodes/several/metrics", 400), ("/nodes/a100.local", 404), ("/nodes/a/b", 404)],
)
async def test_unknown_or_ambiguous_node_is_refused(world: World, path: str, status: int) -> None:
    assert (await world.get(path))[0] == status
    assert world.nodes.asked == []


async def test_replaced_compute_pod_is_not_confused_with_former(world: World) -> None:
    world.pods["alpha"][0] = below(world.client, "alpha", "web", uid="0be10000-0000-4000-8000-new000000000")
    pods = json.loads((await world.get(f"{NODE}/stats/summary"))[2])["pods"]
    assert [pod["podRef"]["name"] for pod in pods] == ["db"]
    assert await world.samples("/metrics/probes") == []


@pytest.mark.parametrize("answer", [b"", b"[]", b"{", b'{"pods":[1]}', None])
async def test_unresponsive_node_is_missing_and_logged_once(world: World, answer: bytes | None) -> None:
    if answer is None:
        del world.nodes.says["gpu-host-8"]
    else:
        world.nodes.says["gpu-host-8"]["stats/summary"] = answer
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            pods = json.loads((await world.get(f"{NODE}/stats/summary"))[2])["pods"]
            assert [pod["podRef"]["name"] for pod in pods] == ["web"]
    assert len([one for one in logs if "not read" in one["event"]]) == 1
    assert world.nodes.asked.count("gpu-host-8 stats/summary") == 1, "it is left alone for a while"


def played(world: World, **annotations: str) -> PlacedPod:
    """Return a running pod of two containers on a node that KWOK simulates."""
    status = {
        "startTime": "2026-01-02T03:00:00Z",
        "containerStatuses": [{"name": name, "state": {"running": {}}} for name in ("a", "b")],
    }
    found = read_simulation(status, {f"kwok.x-k8s.io/usage-{name}": value for name, value in annotations.items()})
    return below(world.client, "alpha", "hollow", node="a100-0", on_simulated_node=True, simulation=found)


async def test_pod_on_simulated_node_reports_zero_usage(world: World) -> None:
    world.pods["alpha"] = [played(world)]
    summary = json.loads((await world.get(f"{NODE}/stats/summary"))[2])
    (pod,) = summary["pods"]
    assert pod["podRef"] == {"name": "hollow", "namespace": "default", "uid": "above-alpha-hollow"}
    assert [(one["name"], one["cpu"]["usageNanoCores"]) for one in pod["containers"]] == [("a", 0), ("b", 0)]
    assert summary["node"]["memory"]["workingSetBytes"] == 0
    lines = (await world.get(f"{NODE}/metrics/resource"))[2].decode().splitlines()
    labels = 'namespace="default",pod="hollow"'
    for start in (f"pod_cpu_usage_seconds_total{{{labels}}} 0 ", f"container_memory_working_set_bytes{{{labels},"):
        assert any(line.startswith(start) for line in lines), (start, lines)
    assert world.nodes.asked == [], "such a node is not asked"


async def test_pod_on_simulated_node_reports_annotated_usage(world: World) -> None:
    world.pods["alpha"] = [played(world, cpu="250m", memory="1Mi"), below(world.client, "alpha", "web")]
    summary = json.loads((await world.get(f"{NODE}/stats/summary"))[2])
    pods = {pod["podRef"]["name"]: pod for pod in summary["pods"]}
    assert pods["hollow"]["cpu"]["usageNanoCores"] == 500_000_000
    assert [one["memory"]["workingSetBytes"] for one in pods["hollow"]["containers"]] == [1 << 20, 1 << 20]
    assert summary["node"]["memory"]["workingSetBytes"] == (2 << 20) + 1000


@pytest.mark.parametrize("amount", ["-1", "many", ""])
async def test_invalid_simulated_usage_is_zero(world: World, amount: str) -> None:
    world.pods["alpha"] = [played(world, cpu=amount)]
    (pod,) = json.loads((await world.get(f"{NODE}/stats/summary"))[2])["pods"]
    assert pod["cpu"]["usageNanoCores"] == 0


def test_pod_not_running_has_no_simulation() -> None:
    ended = {"startTime": TIME, "containerStatuses": [{"name": "a", "state": {"terminated": {}}}]}
    assert read_simulation(ended, {}) is None
    assert read_simulation({"phase": "Pending"}, {}) is None


async def test_slow_node_does_not_delay_others(world: World) -> None:
    world.endpoint.server.stats_provider.node_reader = NodeStatsReader(
        cache_seconds=0.01, node_timeout=patience(1.5), total_timeout=patience(1)
    )
    world.nodes.hanging.add("gpu-host-7")
    pods = json.loads((await world.get(f"{NODE}/stats/summary"))[2])["pods"]
    assert [pod["podRef"]["name"] for pod in pods] == ["db"]


async def test_unreachable_compute_cluster_leaves_empty_node(world: World) -> None:
    async with Client("http://127.0.0.1:1", name="away") as away:
        world.pods["alpha"] = [below(away, "alpha", "web")]
        status, _, body = await world.get(f"{NODE}/stats/summary")
        assert (status, json.loads(body)["pods"]) == (200, [])
        assert await world.value("/metrics/resource", "node_memory_working_set_bytes") == 0


async def test_node_is_queried_once_for_all_tenants(world: World) -> None:
    world.endpoint.server.stats_provider.node_reader._cache_seconds = 60
    await asyncio.gather(*(world.get(f"{NODE}/stats/summary", tenant) for tenant in ("alpha", "beta") * 3))
    await world.get(f"{NODE}/stats/summary")
    assert sorted(world.nodes.asked) == ["gpu-host-7 stats/summary", "gpu-host-8 stats/summary"]


async def test_questions_are_bounded_by_tenant(world: World) -> None:
    with contextlib.ExitStack() as under_way:
        for _ in range(MAX_CONCURRENT_REQUESTS):
            under_way.enter_context(world.endpoint.server.stats_provider.request_limiter.hold_stream("alpha"))
        assert (await world.get(f"{NODE}/metrics/resource"))[0] == 429
        assert (await world.get(f"{NODE}/metrics/resource", "beta"))[0] == 200


async def test_concurrent_node_queries_are_limited(world: World) -> None:
    reader = NodeStatsReader(max_concurrent=2, node_timeout=patience(60), total_timeout=0.1)
    world.endpoint.server.stats_provider.node_reader = reader
    names = [f"host-{number}" for number in range(5)]
    world.nodes.hanging.update(names)
    world.pods["alpha"] = [below(world.client, "alpha", "web", node=name) for name in names]
    assert (await world.get(f"{NODE}/stats/summary"))[0] == 200
    await wait_until(lambda: len(world.nodes.asked) >= 2)
    assert len(world.nodes.asked) == 2
