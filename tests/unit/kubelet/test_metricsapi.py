"""metrics.k8s.io for the aggregation by a tenant's API server: content, format and authorization."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.unit.kubelet.conftest import Endpoint
from tests.unit.kubelet.nodes import Nodes, below, pod_stats
from vkgateway.kube.client import Client
from vkgateway.kube.tls import client_context
from vkgateway.nodes import metricsapi as labelselector
from vkgateway.nodes.node_stats_reader import NodeStatsReader
from vkgateway.nodes.stats import MAX_CONCURRENT_REQUESTS, StatsProvider
from vkgateway.nodes.target import PlacedPod
from vkgateway.planes.pki import Authority

BASE = "/apis/metrics.k8s.io/v1beta1"
LABELS = {"vkgateway.io/pool": "a100"}


@dataclass
class World:
    """Endpoint with pods of two tenants, and their front-proxy authorities."""

    endpoint: Endpoint
    nodes: Nodes
    authorities: Mapping[str, Authority]

    async def request(self, path: str, tenant: str = "alpha", **headers: str) -> tuple[int, Any]:
        """Ask as a tenant's API server does for an aggregated API."""
        return await self.request_as(self.authorities[tenant], path, **headers)

    async def request_as(self, authority: Authority, path: str, **headers: str) -> tuple[int, Any]:
        keys = authority.issue("front-proxy-client", client=True)
        context = client_context(ca=self.endpoint.authority.cert_pem, cert=keys.cert_pem, key=keys.key_pem)
        status, told_headers, body = await (await self.endpoint.connect(context)).request("GET", path, **headers)
        return status, json.loads(body) if told_headers["content-type"] == "application/json" else body.decode()

    async def names(self, path: str, tenant: str = "alpha") -> list[str]:
        status, found = await self.request(path, tenant)
        assert status == 200, found
        return [item["metadata"]["name"] for item in found["items"]]


@pytest.fixture
async def world(make: Callable[..., Awaitable[Endpoint]]) -> AsyncIterator[World]:
    pods: dict[str, list[PlacedPod]] = {}
    figures = StatsProvider(
        lambda tenant, node: (node, pods[tenant]),
        nodes=lambda _: {"a100.local": LABELS},
        reader=NodeStatsReader(cache_seconds=0.0),
    )
    endpoint = await make(stats_provider=figures)
    nodes = Nodes()
    endpoint.compute.script = nodes
    authorities = {name: Authority.create(f"{name} front proxy ca") for name in ("alpha", "beta")}
    for name, authority in authorities.items():
        endpoint.server.admit_tenant(name, front_proxy=authority.cert_pem)
    async with Client(endpoint.compute.server, name="compute") as client:
        web = below(client, "alpha", "web", labels={"app": "web"})
        other = below(client, "alpha", "db", labels={"app": "db"}, tenant_namespace="data")
        pods["alpha"], pods["beta"] = [web, other], [below(client, "beta", "web")]
        nodes.summary("gpu-host-7", [pod_stats(pod, memory=4096) for pod in (web, other, pods["beta"][0])])
        yield World(endpoint, nodes, authorities)


async def test_pod_metrics_have_container_usage_and_labels(world: World) -> None:
    status, found = await world.request(f"{BASE}/namespaces/default/pods/web")
    assert (status, found["kind"], found["metadata"]["labels"]) == (200, "PodMetrics", {"app": "web"})
    assert found["containers"] == [{"name": "main", "usage": {"cpu": "7n", "memory": "4Ki"}}]
    assert (found["timestamp"], found["window"]) == ("2026-01-02T03:04:05Z", "10s")


async def test_node_metrics_are_sums_over_pods(world: World) -> None:
    status, found = await world.request(f"{BASE}/nodes/a100.local")
    assert (status, found["kind"], found["metadata"]["labels"]) == (200, "NodeMetrics", LABELS)
    assert found["usage"] == {"cpu": "14n", "memory": "8Ki"}


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("pods", ["web", "db"]),
        ("namespaces/data/pods", ["db"]),
        ("pods?labelSelector=app%3Dweb", ["web"]),
        ("pods?labelSelector=app+notin+(web)", ["db"]),
        ("pods?fieldSelector=metadata.namespace%3Ddefault", ["web"]),
        ("namespaces/none/pods", []),
        ("nodes", ["a100.local"]),
        ("nodes?labelSelector=vkgateway.io/pool!%3Da100", []),
    ],
)
async def test_lists_are_filtered_by_namespace_and_selectors(world: World, path: str, names: list[str]) -> None:
    assert await world.names(f"{BASE}/{path}") == names


async def test_tenant_sees_only_its_pods(world: World) -> None:
    assert await world.names(f"{BASE}/pods", "beta") == ["web"]
    status, found = await world.request(f"{BASE}/namespaces/data/pods/db", "beta")
    assert (status, found["reason"]) == (404, "NotFound")


async def test_kubectl_get_gets_table(world: World) -> None:
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    _, found = await world.request(f"{BASE}/pods", Accept=accept)
    assert found["kind"] == "Table"
    assert [row["cells"] for row in found["rows"]] == [["web", "7n", "4Ki", "10s"], ["db", "7n", "4Ki", "10s"]]


async def test_pod_measured_once_has_no_metrics(world: World) -> None:
    figures = world.endpoint.server.stats_provider
    pod = figures.placed_pods("alpha", "a100.local")[1][0]
    stats = pod_stats(pod)
    del stats["containers"][0]["cpu"]
    world.nodes.summary("gpu-host-7", [stats | {"containers": [{"name": "main", "cpu": {}, "memory": {}}]}])
    assert await world.names(f"{BASE}/namespaces/default/pods") == []


async def test_probe_of_the_api_server_gets_no_body(world: World) -> None:
    """It would close the connection of each probe, because it does not read bodies."""
    aggregator = {"x-remote-user": "system:kube-aggregator"}
    assert await world.request(BASE, **aggregator) == (200, "")
    status, found = await world.request(BASE, **aggregator, accept="application/json")
    assert (status, found["kind"]) == (200, "APIResourceList")


async def test_discovery_lists_both_resources(world: World) -> None:
    status, found = await world.request(BASE)
    assert (status, found["groupVersion"]) == (200, "metrics.k8s.io/v1beta1")
    assert {entry["name"]: entry["kind"] for entry in found["resources"]} == {
        "nodes": "NodeMetrics",
        "pods": "PodMetrics",
    }


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"{BASE}/pods?labelSelector=a%3D%3D%3Db", 400),
        (f"{BASE}/pods?watch=true", 405),
        (f"{BASE}/services", 404),
        ("/apis/metrics.k8s.io/v1/pods", 404),
        ("/apis/apps/v1/deployments", 404),
        ("/apis", 404),
        ("/openapi/v2", 404),
    ],
)
async def test_unknown_path_is_refused(world: World, path: str, status: int) -> None:
    assert (await world.request(path))[0] == status


@pytest.mark.parametrize(
    "path", ["/containerLogs/default/web/main", "/exec/default/web/main?command=id", "/pods", "/nodes/a100.local/pods"]
)
async def test_front_proxy_cannot_use_kubelet_api(world: World, path: str) -> None:
    """The API server uses this certificate for all paths of an APIService."""
    assert (await world.request(path))[0] == 404


async def test_front_proxy_cannot_use_path_of_another_tenant(world: World) -> None:
    assert await world.names(f"/tenants/beta/nodes/a100.local{BASE}/pods") == ["web", "db"]


async def test_kubelet_client_cannot_use_aggregated_apis(world: World) -> None:
    status, _, body = await (await world.endpoint.call("alpha")).request("GET", f"{BASE}/pods")
    assert (status, b"front proxy" in body) == (403, True)


async def test_other_authority_of_same_name_is_refused(world: World) -> None:
    forged = Authority.create("alpha front proxy ca")
    with pytest.raises((OSError, EOFError)):
        await world.request_as(forged, f"{BASE}/pods")


async def test_front_proxy_of_revoked_tenant_is_refused(world: World) -> None:
    world.endpoint.server.revoke_tenant("alpha")
    assert (await world.request(f"{BASE}/pods"))[0] == 403


async def test_requests_are_limited_per_tenant(world: World) -> None:
    figures = world.endpoint.server.stats_provider
    held = [figures.request_limiter.hold_stream("alpha") for _ in range(MAX_CONCURRENT_REQUESTS)]
    for one in held:
        one.__enter__()
    try:
        assert (await world.request(f"{BASE}/pods"))[0] == 429
    finally:
        for one in held:
            one.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("selector", "labels", "meets"),
    [
        ("", {}, True),
        ("a=b", {"a": "b"}, True),
        ("a==b", {"a": "c"}, False),
        ("a!=b", {}, True),
        ("a in (b, c),d", {"a": "c", "d": ""}, True),
        ("a notin (b,c)", {"a": "b"}, False),
        ("a", {}, False),
        ("!a", {}, True),
        ("a=", {"a": ""}, True),
    ],
)
def test_selector_matches_labels(selector: str, labels: dict[str, str], meets: bool) -> None:
    assert labelselector.parse(selector)(labels) is meets


@pytest.mark.parametrize("selector", ["a=b=c", "a in b", ",", "a in (b", "=b"])
def test_invalid_selector_is_refused(selector: str) -> None:
    with pytest.raises(ValueError, match="is not part of a selector"):
        labelselector.parse(selector)
