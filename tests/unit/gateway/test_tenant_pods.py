"""Tests of the compute pods of tenant pods on a virtual node."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from vkgateway.api.objects import Meta, NodeView
from vkgateway.clusters.link import ComputeLink
from vkgateway.runtime.views.ownership import Key
from vkgateway.runtime.views.pods import ComputePodView, decode_compute_pod, decode_tenant_pod
from vkgateway.tenants.pods import placed_pods, pod_target


class Pods:
    """Compute pods of one tenant."""

    def __init__(self, *pods: ComputePodView) -> None:
        self.now = list(pods)

    def of_tenant(self, _tenant: str) -> list[ComputePodView]:
        return self.now

    def find_pod(self, _tenant: str, key: Key) -> ComputePodView | None:
        return next((pod for pod in self.now if pod.tenant_key == key), None)


class Link:
    """Link with the parts that placements use."""

    client = object()

    def __init__(self, *pods: ComputePodView, nodes: tuple[NodeView, ...] = ()) -> None:
        self.pods = Pods(*pods)
        self.nodes = SimpleNamespace(store={node.metadata.key: node for node in nodes})


def above(uid: str = "above", node: str = "a100.local") -> Any:
    metadata = {"name": "web", "namespace": "default", "uid": uid}
    return decode_tenant_pod(json.dumps({"metadata": metadata, "spec": {"nodeName": node}}).encode())


def below(uid: str = "below", of: str = "above", node: str = "gpu-host-7", phase: str = "Running") -> ComputePodView:
    annotations = {"vkgateway.io/namespace": "default", "vkgateway.io/name": "web", "vkgateway.io/uid": of}
    metadata = {"name": "web", "namespace": "alpha--default", "uid": uid, "annotations": annotations}
    document = {"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": phase}}
    return decode_compute_pod(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("pod", "compute", "count"),
    [
        (above(), below(), 1),
        (above(), below(of="another"), 0),
        (above(node="v100.local"), below(), 0),
        (above(), below(node=""), 0),
    ],
)
def test_only_matching_compute_pods_are_placed(pod: Any, compute: ComputePodView, count: int) -> None:
    link = cast("ComputeLink", Link(compute))
    found = placed_pods("alpha", {("default", "web"): pod}, link=link, node="a100.local")
    assert len(found) == count
    assert placed_pods("alpha", {}, link=link, node="a100.local") == []


@pytest.mark.parametrize("is_played", [True, False])
def test_pod_on_simulated_node_has_running_containers(is_played: bool) -> None:
    annotations = {"kwok.x-k8s.io/node": "fake"} if is_played else {}
    node = NodeView(metadata=Meta(name="gpu-host-7", annotations=annotations))
    compute = below()
    running = {"startTime": "2026-01-01T00:00:00Z", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}
    compute.status = json.dumps(running).encode()
    link = cast("ComputeLink", Link(compute, nodes=(node,)))
    (found,) = placed_pods("alpha", {("default", "web"): above()}, link=link, node="a100.local")
    assert found.on_simulated_node is is_played
    assert (found.simulation.containers if found.simulation else ()) == (("main",) if is_played else ())


@pytest.mark.parametrize(
    ("now", "alive"),
    [([below()], True), ([below(phase="Failed")], False), ([below(uid="new")], False), ([], False)],
)
def test_target_is_alive_while_its_pod_runs(now: list[ComputePodView], alive: bool) -> None:
    link = Link(below())
    target = pod_target("alpha", above(), below(), link=cast("ComputeLink", link))
    assert target.is_alive()
    link.pods.now = now
    assert target.is_alive() is alive
