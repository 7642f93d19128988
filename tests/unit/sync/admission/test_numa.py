"""Zones as the arbiter is told of them: who is in what was published, by sums, and who came since."""

from __future__ import annotations

from vkgateway.arbiter.snapshot import Shape, Topology, Zone
from vkgateway.kube.client import encode
from vkgateway.model.objects import Meta
from vkgateway.model.requests import MilliResources
from vkgateway.sync.admission.numa import NodeZones
from vkgateway.sync.compute.topologies import TopologyView
from vkgateway.sync.views.pods import ComputePodView, decode_compute_pod

GPU = "nvidia.com/gpu"


def pod(uid: str, gpus: int, *, born: int = 0, node: str = "host-1", phase: str = "Running") -> ComputePodView:
    annotations = {"vkgateway.io/uid": uid, "vkgateway.io/requests": encode({GPU: gpus * 1000, "cpu": 500}).decode()}
    metadata = {
        "name": uid,
        "uid": f"below-{uid}",
        "creationTimestamp": f"2026-01-01T00:00:{born:02}Z",
        "annotations": annotations,
    }
    return decode_compute_pod(encode({"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": phase}}))


def view(*free: int, whole: int = 4) -> TopologyView:
    zones = tuple(
        Zone(name=f"node-{at}", allocatable={GPU: whole * 1000}, available={GPU: each * 1000})
        for at, each in enumerate(free)
    )
    return TopologyView(Meta(name="host-1"), "container", zones)


def topology(zones: NodeZones) -> Topology:
    found = zones.zones_of("host-1")
    assert found is not None
    return found


def counted(zones: NodeZones) -> set[str]:
    return set(topology(zones).counted)


def shape_of(_tenant: str, uid: str) -> Shape | None:
    """Of pods that the arbiter placed."""
    return None if uid.startswith("foreign") else Shape.from_requests({GPU: 1000, uid: 1})


def published(*free: int, pods: list[ComputePodView], used: MilliResources | None = None) -> NodeZones:
    zones = NodeZones(shape_of)
    zones.follow_pods(pods)
    zones.node_published("host-1", view(*free), used=used or {})
    return zones


def test_the_oldest_pods_are_in_what_was_given_out_and_those_beyond_it_are_not() -> None:
    pods = [pod("c", 2, born=3), pod("a", 2, born=1), pod("b", 1, born=2)]
    assert counted(published(4, 4, pods=pods)) == set()
    assert counted(published(2, 4, pods=pods)) == {"a"}
    assert counted(published(2, 3, pods=pods)) == {"a", "b"}
    assert counted(published(1, 2, pods=pods)) == {"a", "b", "c"}
    assert counted(published(3, 4, pods=pods)) == set(), "the second alone would fit in, but it came after the first"


def test_what_others_hold_was_given_out_before() -> None:
    zones = published(2, 3, pods=[pod("a", 1)], used={GPU: 2000, "cpu": 4000})
    assert (counted(zones), topology(zones).used) == ({"a"}, {GPU: 2000})
    zones = published(3, 4, pods=[pod("a", 1)], used={GPU: 2000})
    assert (counted(zones), topology(zones).used) == (set(), {GPU: 1000})


def test_pods_are_followed_and_only_those_on_the_node_that_have_not_ended_count() -> None:
    zones = NodeZones(shape_of)
    zones.pod_changed(None, pod("unseen", 1))
    zones.follow_pods([pod("a", 1), pod("elsewhere", 1, node="host-2"), pod("over", 1, phase="Succeeded")])
    zones.pod_changed(None, pod("b", 1, born=1))
    zones.node_published("host-1", view(0, 0), used={})
    assert counted(zones) == {"a", "b"}
    zones.pod_changed(pod("a", 1), None)
    zones.pod_changed(pod("b", 1), pod("b", 1, phase="Failed"))
    zones.node_published("host-1", view(0, 0), used={})
    assert counted(zones) == set()


def test_only_news_are_told_as_changed() -> None:
    zones = published(4, 4, pods=[pod("a", 1)])
    assert zones.changed_nodes == {"host-1"}
    zones.changed_nodes = set()
    zones.node_published("host-1", view(4, 4), used={})
    assert zones.changed_nodes == set()
    zones.node_published("host-1", view(4, 3), used={})
    assert zones.changed_nodes == {"host-1"}
    zones.node_published("host-1", None, used={})
    assert zones.zones_of("host-1") is None
    zones.node_published("host-1", TopologyView(Meta(name="host-1"), "container", ()), used={})
    assert zones.zones_of("host-1") is None


def test_who_was_in_what_was_published_and_has_gone_is_told_with_what_it_held() -> None:
    pods = [pod("a", 1, born=1), pod("b", 1, born=2), pod("foreign", 1, born=3), pod("late", 1, born=4)]
    zones = published(2, 3, pods=pods)
    assert (counted(zones), topology(zones).gone) == ({"a", "b", "foreign"}, {})
    zones.changed_nodes = set()
    zones.pod_changed(pods[0], pod("a", 1, born=1, phase="Pending"))
    zones.pod_changed(pods[2], None)
    zones.pod_changed(pods[3], None)
    assert (topology(zones).gone, zones.changed_nodes) == ({}, set()), (
        "one is here still, the others were never told of"
    )
    ended = pod("a", 1, born=1, phase="Succeeded")
    zones.pod_changed(pods[0], ended)
    zones.pod_changed(ended, None)
    zones.pod_changed(pods[1], pod("again", 1))
    assert topology(zones).gone == {uid: shape_of("", uid) for uid in ("a", "b")}
    assert (counted(zones), zones.changed_nodes) == ({"a", "b", "foreign"}, {"host-1"})
    zones.node_published("host-1", view(4, 4), used={})
    assert (counted(zones), topology(zones).gone) == (set(), {})
