"""NUMA zones for the arbiter: pods within the published usage, determined by sums, and pods since then."""

from __future__ import annotations

from vkgateway.api.objects import Meta
from vkgateway.api.requests import MilliResources
from vkgateway.clusters.topology_views import TopologyView
from vkgateway.kube.client import encode
from vkgateway.runtime.views.pods import ComputePodView, decode_compute_pod
from vkgateway.scheduler.core.snapshot import Shape, Topology, Zone
from vkgateway.scheduler.service.occupancy import NodeZones

GPU = "nvidia.com/gpu"


def make_pod(uid: str, gpus: int, *, born: int = 0, node: str = "host-1", phase: str = "Running") -> ComputePodView:
    annotations = {"vkgateway.io/uid": uid, "vkgateway.io/requests": encode({GPU: gpus * 1000, "cpu": 500}).decode()}
    metadata = {
        "name": uid,
        "uid": f"below-{uid}",
        "creationTimestamp": f"2026-01-01T00:00:{born:02}Z",
        "annotations": annotations,
    }
    return decode_compute_pod(encode({"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": phase}}))


def make_view(*free: int, whole: int = 4) -> TopologyView:
    zones = tuple(
        Zone(name=f"node-{at}", allocatable={GPU: whole * 1000}, available={GPU: each * 1000})
        for at, each in enumerate(free)
    )
    return TopologyView(Meta(name="host-1"), "container", zones)


def make_topology(zones: NodeZones) -> Topology:
    found = zones.zones_of("host-1")
    assert found is not None
    return found


def counted_pods(zones: NodeZones) -> set[str]:
    return set(make_topology(zones).counted)


def pod_shape(_tenant: str, uid: str) -> Shape | None:
    """Return the shape of a pod that the arbiter placed."""
    return None if uid.startswith("foreign") else Shape.from_requests({GPU: 1000, uid: 1})


def published_zones(*free: int, pods: list[ComputePodView], used: MilliResources | None = None) -> NodeZones:
    zones = NodeZones(pod_shape)
    zones.follow_pods(pods)
    zones.node_published("host-1", make_view(*free), used=used or {})
    return zones


def test_oldest_pods_up_to_the_published_usage_count_as_published() -> None:
    pods = [make_pod("c", 2, born=3), make_pod("a", 2, born=1), make_pod("b", 1, born=2)]
    assert counted_pods(published_zones(4, 4, pods=pods)) == set()
    assert counted_pods(published_zones(2, 4, pods=pods)) == {"a"}
    assert counted_pods(published_zones(2, 3, pods=pods)) == {"a", "b"}
    assert counted_pods(published_zones(1, 2, pods=pods)) == {"a", "b", "c"}
    assert counted_pods(published_zones(3, 4, pods=pods)) == set(), (
        "the second alone would fit in, but it came after the first"
    )


def test_usage_of_unmanaged_pods_counts_as_published_first() -> None:
    zones = published_zones(2, 3, pods=[make_pod("a", 1)], used={GPU: 2000, "cpu": 4000})
    assert (counted_pods(zones), make_topology(zones).used) == ({"a"}, {GPU: 2000})
    zones = published_zones(3, 4, pods=[make_pod("a", 1)], used={GPU: 2000})
    assert (counted_pods(zones), make_topology(zones).used) == (set(), {GPU: 1000})


def test_only_running_pods_on_the_node_count() -> None:
    zones = NodeZones(pod_shape)
    zones.pod_changed(None, make_pod("unseen", 1))
    zones.follow_pods(
        [make_pod("a", 1), make_pod("elsewhere", 1, node="host-2"), make_pod("over", 1, phase="Succeeded")]
    )
    zones.pod_changed(None, make_pod("b", 1, born=1))
    zones.node_published("host-1", make_view(0, 0), used={})
    assert counted_pods(zones) == {"a", "b"}
    zones.pod_changed(make_pod("a", 1), None)
    zones.pod_changed(make_pod("b", 1), make_pod("b", 1, phase="Failed"))
    zones.node_published("host-1", make_view(0, 0), used={})
    assert counted_pods(zones) == set()


def test_only_changes_are_reported() -> None:
    zones = published_zones(4, 4, pods=[make_pod("a", 1)])
    assert zones.changed_nodes == {"host-1"}
    zones.changed_nodes = set()
    zones.node_published("host-1", make_view(4, 4), used={})
    assert zones.changed_nodes == set()
    zones.node_published("host-1", make_view(4, 3), used={})
    assert zones.changed_nodes == {"host-1"}
    zones.node_published("host-1", None, used={})
    assert zones.zones_of("host-1") is None
    zones.node_published("host-1", TopologyView(Meta(name="host-1"), "container", ()), used={})
    assert zones.zones_of("host-1") is None


def test_published_pod_that_ended_is_reported_with_its_usage() -> None:
    pods = [
        make_pod("a", 1, born=1),
        make_pod("b", 1, born=2),
        make_pod("foreign", 1, born=3),
        make_pod("late", 1, born=4),
    ]
    zones = published_zones(2, 3, pods=pods)
    assert (counted_pods(zones), make_topology(zones).gone) == ({"a", "b", "foreign"}, {})
    zones.changed_nodes = set()
    zones.pod_changed(pods[0], make_pod("a", 1, born=1, phase="Pending"))
    zones.pod_changed(pods[2], None)
    zones.pod_changed(pods[3], None)
    assert (make_topology(zones).gone, zones.changed_nodes) == ({}, set()), (
        "one is here still, the others were never told of"
    )
    ended = make_pod("a", 1, born=1, phase="Succeeded")
    zones.pod_changed(pods[0], ended)
    zones.pod_changed(ended, None)
    zones.pod_changed(pods[1], make_pod("again", 1))
    assert make_topology(zones).gone == {uid: pod_shape("", uid) for uid in ("a", "b")}
    assert (counted_pods(zones), zones.changed_nodes) == ({"a", "b", "foreign"}, {"host-1"})
    zones.node_published("host-1", make_view(4, 4), used={})
    assert (counted_pods(zones), make_topology(zones).gone) == (set(), {})
