"""NUMA zones of a compute cluster: narrow views, watched only if served, known before the first decision."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.support.waiting import let_pass, wait_until
from tests.unit.background import in_background
from vkgateway.clusters import topologies as module
from vkgateway.clusters.cluster_watches import NODES, TOPOLOGIES, ClusterWatches
from vkgateway.clusters.topologies import ComputeTopologies, decode_topology
from vkgateway.clusters.topology_views import TopologyView
from vkgateway.kube.resources import NODE_TOPOLOGIES
from vkgateway.scheduler.core.snapshot import Zone

GPU = "nvidia.com/gpu"


def publish_topology(name: str = "host-1", **fields: Any) -> dict[str, Any]:
    """Publish a topology as an updater does."""
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


def read_topology(**fields: Any) -> TopologyView:
    return decode_topology(json.dumps(publish_topology(**fields)).encode())


def policy_attributes(policy: str, scope: str | None = None) -> list[dict[str, str]]:
    found = [{"name": "topologyManagerPolicy", "value": policy}]
    return found if scope is None else [*found, {"name": "topologyManagerScope", "value": scope}]


def test_zones_of_a_node_are_read() -> None:
    found = read_topology()
    assert found.scope == "pod"
    assert found.zones == (
        Zone(name="node-0", allocatable={GPU: 4000, "cpu": 32_000}, available={GPU: 3000, "cpu": 0}),
    )
    assert found.metadata.name == "host-1"


@pytest.mark.parametrize("policy", ["none", "best-effort", "restricted", ""])
def test_zones_are_ignored_without_a_restrictive_kubelet_policy(policy: str) -> None:
    assert read_topology(attributes=policy_attributes(policy, "pod")).zones == ()
    assert read_topology(attributes=policy_attributes(policy), topologyPolicies=["SingleNUMANodePodLevel"]).zones == ()


@pytest.mark.parametrize(
    ("fields", "scope"),
    [
        ({"attributes": policy_attributes("single-numa-node")}, "container"),
        ({"attributes": policy_attributes("single-numa-node", "container")}, "container"),
        ({"attributes": None, "topologyPolicies": ["SingleNUMANodePodLevel"]}, "pod"),
        ({"attributes": [], "topologyPolicies": ["BestEffort", "SingleNUMANodeContainerLevel"]}, "container"),
    ],
)
def test_policy_and_scope_are_read_from_both_formats(fields: dict[str, Any], scope: str) -> None:
    found = read_topology(**fields)
    assert (found.scope, len(found.zones)) == (scope, 1)


def test_unreadable_zones_are_ignored() -> None:
    bad = [{"name": "node-0", "type": "Node", "resources": [{"name": GPU, "allocatable": "many"}]}]
    assert read_topology(zones=bad).zones == ()
    assert read_topology(attributes=None).zones == ()
    assert read_topology(zones=None).zones == ()


class Recorder:
    """Recorder of notifications about nodes."""

    def __init__(self) -> None:
        self.nodes: dict[str, TopologyView | None] = {}
        self.known = 0

    def record_change(self, node: str, view: TopologyView | None) -> None:
        self.nodes[node] = view

    def record_known(self) -> None:
        self.known += 1


@asynccontextmanager
async def watch_topologies(server: FakeApiServer) -> AsyncIterator[tuple[ComputeTopologies, Recorder]]:
    recorder = Recorder()
    async with server.client() as client:
        watches = ClusterWatches()
        watches.add(TOPOLOGIES, recorder.record_change)
        watches.add(NODES, recorder.record_known)
        created = ComputeTopologies("local", client, watches)
        async with in_background(created.run()):
            yield created, recorder


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as created:
        yield created


async def test_cluster_without_the_kind_costs_one_request(server: FakeApiServer) -> None:
    async with watch_topologies(server) as (created, recorder):
        await wait_until(lambda: created.is_known)
        await let_pass(0.05)
        assert server.requests == ["GET /apis/topology.node.k8s.io/v1alpha2"]
        assert (server.watches, recorder.known, created.topology_items()) == (0, 1, [])


async def test_added_changed_and_deleted_zones_are_reported(server: FakeApiServer) -> None:
    server.register(NODE_TOPOLOGIES)
    server.store.create(NODE_TOPOLOGIES, publish_topology())
    async with watch_topologies(server) as (created, recorder):
        await wait_until(lambda: created.is_known)
        assert [name for name, _ in created.topology_items()] == ["host-1"]
        server.store.update(NODE_TOPOLOGIES, publish_topology(zones=[]), name="host-1")
        await wait_until(lambda: (view := recorder.nodes["host-1"]) is not None and view.zones == ())
        server.store.delete(NODE_TOPOLOGIES, "host-1")
        await wait_until(lambda: recorder.nodes["host-1"] is None)
        assert recorder.known == 1


async def test_kind_installed_later_is_found(server: FakeApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DISCOVERY_INTERVAL", 0.05)
    async with watch_topologies(server) as (created, recorder):
        await wait_until(lambda: created.is_known)
        server.register(NODE_TOPOLOGIES)
        server.store.create(NODE_TOPOLOGIES, publish_topology())
        await wait_until(lambda: "host-1" in recorder.nodes)


async def test_forbidden_kind_counts_as_missing(server: FakeApiServer) -> None:
    server.register(NODE_TOPOLOGIES)
    server.fail("GET", "/noderesourcetopologies", status=403, times=100)
    async with watch_topologies(server) as (created, _):
        await wait_until(lambda: created.is_known)
        assert server.watches == 0


async def test_failing_server_is_asked_again_before_zones_count_as_known(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RETRY", 0.05)
    server.register(NODE_TOPOLOGIES)
    server.store.create(NODE_TOPOLOGIES, publish_topology())
    server.fail("GET", "/apis/topology.node.k8s.io/v1alpha2", status=503, times=2)
    async with watch_topologies(server) as (created, recorder):
        await wait_until(lambda: created.is_known)
        assert list(recorder.nodes) == ["host-1"]


async def test_failing_server_blocks_only_for_a_while(server: FakeApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KNOWN_TIMEOUT", 0.05)
    server.fail("GET", "/apis/topology.node.k8s.io/v1alpha2", status=503, times=1000)
    async with watch_topologies(server) as (created, recorder):
        await wait_until(lambda: created.is_known)
        assert recorder.known == 1


async def test_zones_are_dropped_with_their_kind(server: FakeApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DISCOVERY_INTERVAL", 0.05)
    server.register(NODE_TOPOLOGIES)
    server.store.create(NODE_TOPOLOGIES, publish_topology())
    async with watch_topologies(server) as (created, recorder):
        await wait_until(created.topology_items)
        server.fail("GET", "/apis/topology.node.k8s.io", status=404, times=1000)
        await wait_until(lambda: recorder.nodes["host-1"] is None)
        assert created.topology_items() == []
