"""NUMA zones out of a compute cluster: read narrowly, watched only where there are any, known before they matter."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.unit.background import in_background
from tests.unit.sync.world import until
from vkgateway.arbiter.snapshot import Zone
from vkgateway.kube.resources import NODE_TOPOLOGIES
from vkgateway.sync.compute import topologies as module
from vkgateway.sync.compute.topologies import ComputeTopologies, TopologyView, decode_topology

GPU = "nvidia.com/gpu"


def published(name: str = "host-1", **fields: Any) -> dict[str, Any]:
    """As an updater writes it."""
    amounts = [{"name": GPU, "capacity": "4", "allocatable": "4", "available": "3"}, {"name": "cpu", "allocatable": 32}]
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": name},
        "attributes": [
            {"name": "topologyManagerPolicy", "value": "single-numa-node"},
            {"name": "topologyManagerScope", "value": "pod"},
        ],
        "zones": [
            {"name": "node-0", "type": "Node", "costs": [{"name": "node-0", "value": 10}], "resources": amounts},
            {"name": "core-0", "type": "Core"},
        ],
        **fields,
    }


def read(**fields: Any) -> TopologyView:
    return decode_topology(json.dumps(published(**fields)).encode())


def attributes(policy: str, scope: str | None = None) -> list[dict[str, str]]:
    found = [{"name": "topologyManagerPolicy", "value": policy}]
    return found if scope is None else [*found, {"name": "topologyManagerScope", "value": scope}]


def test_the_zones_of_a_node_are_read() -> None:
    found = read()
    assert found.scope == "pod"
    assert found.zones == (
        Zone(name="node-0", allocatable={GPU: 4000, "cpu": 32_000}, available={GPU: 3000, "cpu": 0}),
    )
    assert found.metadata.name == "host-1"


@pytest.mark.parametrize("policy", ["none", "best-effort", "restricted", ""])
def test_what_a_kubelet_does_not_reject_pods_for_is_no_matter(policy: str) -> None:
    assert read(attributes=attributes(policy, "pod")).zones == ()
    assert read(attributes=attributes(policy), topologyPolicies=["SingleNUMANodePodLevel"]).zones == ()


@pytest.mark.parametrize(
    ("fields", "scope"),
    [
        ({"attributes": attributes("single-numa-node")}, "container"),
        ({"attributes": attributes("single-numa-node", "container")}, "container"),
        ({"attributes": None, "topologyPolicies": ["SingleNUMANodePodLevel"]}, "pod"),
        ({"attributes": [], "topologyPolicies": ["BestEffort", "SingleNUMANodeContainerLevel"]}, "container"),
    ],
)
def test_policy_and_scope_are_told_in_either_way(fields: dict[str, Any], scope: str) -> None:
    found = read(**fields)
    assert (found.scope, len(found.zones)) == (scope, 1)


def test_what_cannot_be_read_tells_nothing() -> None:
    bad = [{"name": "node-0", "type": "Node", "resources": [{"name": GPU, "allocatable": "many"}]}]
    assert read(zones=bad).zones == ()
    assert read(attributes=None).zones == ()
    assert read(zones=None).zones == ()


class Heard:
    """What is told of nodes."""

    def __init__(self) -> None:
        self.nodes: dict[str, TopologyView | None] = {}
        self.known = 0

    def changed(self, node: str, view: TopologyView | None) -> None:
        self.nodes[node] = view

    def all_known(self) -> None:
        self.known += 1


@asynccontextmanager
async def watched(server: FakeApiServer) -> AsyncIterator[tuple[ComputeTopologies, Heard]]:
    heard = Heard()
    async with server.client() as client:
        made = ComputeTopologies("local", client, on_change=heard.changed, on_known=heard.all_known)
        async with in_background(made.run()):
            yield made, heard


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as made:
        yield made


async def test_a_cluster_without_the_kind_costs_one_request(server: FakeApiServer) -> None:
    async with watched(server) as (made, heard):
        await until(lambda: made.is_known)
        await asyncio.sleep(0.05)
        assert server.requests == ["GET /apis/topology.node.k8s.io/v1alpha2"]
        assert (server.watches, heard.known, made.topology_items()) == (0, 1, [])


async def test_what_comes_changes_and_goes_is_told(server: FakeApiServer) -> None:
    server.register(NODE_TOPOLOGIES)
    server.store.create(NODE_TOPOLOGIES, published())
    async with watched(server) as (made, heard):
        await until(lambda: made.is_known)
        assert [name for name, _ in made.topology_items()] == ["host-1"]
        server.store.update(NODE_TOPOLOGIES, published(zones=[]), name="host-1")
        await until(lambda: (view := heard.nodes["host-1"]) is not None and view.zones == ())
        server.store.delete(NODE_TOPOLOGIES, "host-1")
        await until(lambda: heard.nodes["host-1"] is None)
        assert heard.known == 1


async def test_a_kind_that_comes_later_is_found(server: FakeApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK", 0.05)
    async with watched(server) as (made, heard):
        await until(lambda: made.is_known)
        server.register(NODE_TOPOLOGIES)
        server.store.create(NODE_TOPOLOGIES, published())
        await until(lambda: "host-1" in heard.nodes)


async def test_one_that_may_not_be_read_is_as_good_as_none(server: FakeApiServer) -> None:
    server.register(NODE_TOPOLOGIES)
    server.fail("GET", "/noderesourcetopologies", status=403, times=100)
    async with watched(server) as (made, _):
        await until(lambda: made.is_known)
        assert server.watches == 0


async def test_a_server_in_trouble_is_asked_again_before_anything_counts_as_known(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RETRY", 0.05)
    server.register(NODE_TOPOLOGIES)
    server.store.create(NODE_TOPOLOGIES, published())
    server.fail("GET", "/apis/topology.node.k8s.io/v1alpha2", status=503, times=2)
    async with watched(server) as (made, heard):
        await until(lambda: made.is_known)
        assert list(heard.nodes) == ["host-1"]


async def test_nothing_waits_for_long_for_a_server_that_cannot_tell(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.05)
    server.fail("GET", "/apis/topology.node.k8s.io/v1alpha2", status=503, times=1000)
    async with watched(server) as (made, heard):
        await until(lambda: made.is_known)
        assert heard.known == 1


async def test_what_was_told_by_a_kind_that_is_gone_is_forgotten(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOOK", 0.05)
    server.register(NODE_TOPOLOGIES)
    server.store.create(NODE_TOPOLOGIES, published())
    async with watched(server) as (made, heard):
        await until(made.topology_items)
        server.fail("GET", "/apis/topology.node.k8s.io", status=404, times=1000)
        await until(lambda: heard.nodes["host-1"] is None)
        assert made.topology_items() == []
