"""Capacity of nodes with NUMA zones: certain where zones are known, exact for equal pods."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from tests.unit.arbiter.numa_machines import container_shape, zoned_node
from tests.unit.arbiter.simulated_cluster import (
    GPU,
    KEY,
    LOW,
    Cluster,
    capacity_on,
    gpu_shape,
    make_gang,
    make_node,
    make_quota,
    reports_by_gang,
)
from vkgateway.scheduler.core.capacity.node_resources import NodeResources
from vkgateway.scheduler.core.snapshot import Node, PodState, Pool, Shape, Topology, Zone


def make_resources(*nodes: Node) -> NodeResources:
    return NodeResources(Pool(key=KEY, nodes=nodes, governed=(GPU,)))


def published_node(name: str, allocatable: Iterable[int], available: Iterable[int], **fields: object) -> Node:
    """Return a node with pods on it, with its published zones."""
    zones = tuple(
        Zone(name=f"node-{at}", allocatable={GPU: whole * 1000}, available={GPU: free * 1000})
        for at, (whole, free) in enumerate(zip(allocatable, available, strict=True))
    )
    return replace(zoned_node(name, *allocatable), topology=Topology(zones=zones, **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(("size", "fit"), [(1, 8), (2, 4), (3, 2), (4, 2), (5, 0), (8, 0)])
def test_equal_pods_fit_by_zone(size: int, fit: int) -> None:
    made = make_resources(zoned_node("n0", 4, 4))
    assert capacity_on(made, "n0", gpu_shape(size)) == fit
    for left in reversed(range(fit)):
        made.add_pods("n0", gpu_shape(size))
        assert capacity_on(made, "n0", gpu_shape(size)) == left


def test_nodes_without_zones_are_unlimited() -> None:
    made = make_resources(make_node("n0"), zoned_node("n1", 4, 4))
    assert made.views[gpu_shape(8)].capacity.tolist() == [1, 0]
    assert make_resources(make_node("n0")).free.zones is None
    assert made.free.zones is not None
    assert [made.free.zones.is_zoned(name) for name in ("n0", "n1")] == [False, True]


def test_resources_outside_zones_are_ignored() -> None:
    made = make_resources(zoned_node("n0", 4, 4))
    assert capacity_on(made, "n0", gpu_shape(4, cpu=30)) == 2
    assert capacity_on(made, "n0", Shape.from_requests({"cpu": 1000})) == 64


def test_pod_of_unknown_zone_counts_as_worst_case() -> None:
    made = make_resources(zoned_node("n0", 4, 4))
    made.add_pods("n0", gpu_shape(1))
    assert capacity_on(made, "n0", gpu_shape(4)) == 1
    made.add_pods("n0", gpu_shape(1))
    assert capacity_on(made, "n0", gpu_shape(4)) == 0, "they may be in both zones"
    made.remove_pods("n0", gpu_shape(1))
    assert capacity_on(made, "n0", gpu_shape(4)) == 1


def test_published_amounts_count_their_pods_once() -> None:
    made = make_resources(published_node("n0", [4, 4], [2, 4], counted=frozenset({"x"})))
    made.add_pods("n0", gpu_shape(2))
    made.count_published("n0", gpu_shape(2))
    assert capacity_on(made, "n0", gpu_shape(4)) == 1
    assert capacity_on(made, "n0", gpu_shape(3)) == 1
    made.add_pods("n0", gpu_shape(2))
    assert capacity_on(made, "n0", gpu_shape(4)) == 0, "it may be in the zone that was free"
    assert capacity_on(made, "n0", gpu_shape(2)) == 2


def test_ended_published_pods_free_capacity_in_some_zone() -> None:
    made = make_resources(published_node("n0", [4, 4], [3, 1], counted=frozenset({"x", "y"}), gone={"y": gpu_shape(3)}))
    made.add_pods("n0", gpu_shape(1))
    made.count_published("n0", gpu_shape(1))
    assert [capacity_on(made, "n0", gpu_shape(size)) for size in (1, 2, 3, 4)] == [7, 3, 2, 1]
    made.add_pods("n0", gpu_shape(3))
    assert capacity_on(made, "n0", gpu_shape(3)) == 1
    held = make_resources(published_node("n0", [4, 4], [0, 0], gone={"y": container_shape(2, 1)}))
    assert capacity_on(held, "n0", gpu_shape(1)) == 8
    held.add_pods("n0", gpu_shape(4))
    held.add_pods("n0", gpu_shape(1))
    for size in (4, 1):
        held.count_published("n0", gpu_shape(size))
    assert [capacity_on(held, "n0", gpu_shape(size)) for size in (1, 2, 3)] == [3, 1, 0]


def test_ended_pod_counted_as_placed_frees_capacity_once() -> None:
    cluster = Cluster([zoned_node("n0", 4, 4)], [make_quota("a")])
    cluster.add(make_gang("a/x", "a", [4]), make_gang("a/y", "a", [1]))
    cluster.cycle()
    uids = frozenset(pod.uid for name in ("a/x", "a/y") for pod in cluster.gangs[name].pods)
    cluster.pool = replace(
        cluster.pool, nodes=(published_node("n0", [4, 4], [0, 3], counted=uids, gone={"a/x-0": gpu_shape(4)}),)
    )
    cluster.add(make_gang("a/z", "a", [4]))
    assert reports_by_gang(cluster.cycle())["a/z"].code == "WaitingForRoom"
    del cluster.gangs["a/x"]
    cluster.cycle()
    assert cluster.placed_nodes("a/z") == {"a/z-0": "n0"}


def test_no_further_eviction_until_node_publishes_zones() -> None:
    cluster = Cluster([zoned_node("n0", 4, 4)], [make_quota("a", 8), make_quota("b")], recreate=False)
    cluster.add(make_gang("b/one", "b", [1], band=LOW), make_gang("b/three", "b", [3], band=LOW))
    cluster.run_for(2)
    node = published_node("n0", [4, 4], [3, 1], counted=frozenset({"b/one-0", "b/three-0"}))
    cluster.pool = replace(cluster.pool, nodes=(node,))
    cluster.add(make_gang("a/x", "a", [3, 3]))
    assert [evict.gang for evict in cluster.cycle().evicts] == ["b/three"]
    del cluster.gangs["b/three"]
    assert node.topology is not None
    went = replace(node, topology=replace(node.topology, gone={"b/three-0": gpu_shape(3)}))
    cluster.pool = replace(cluster.pool, nodes=(went,))
    assert cluster.cycle().evicts == ()
    assert sorted(cluster.placed_nodes("a/x").values()) == ["n0", "n0"]


def test_empty_node_counts_whole_zones() -> None:
    made = make_resources(published_node("n0", [4, 4], [0, 0]))
    for _ in range(8):
        made.add_pods("n0", gpu_shape(1))
        made.count_published("n0", gpu_shape(1))
    assert capacity_on(made, "n0", gpu_shape(4)) == 0
    made.remove_pods("n0", gpu_shape(1), 6)
    assert capacity_on(made, "n0", gpu_shape(4)) == 0
    made.remove_pods("n0", gpu_shape(1))
    assert capacity_on(made, "n0", gpu_shape(4)) == 1, "the last can only be in one of them"


def test_devices_of_unmanaged_pods_count() -> None:
    stranger = published_node("n0", [4, 4], [4, 2], used={GPU: 2000})
    assert capacity_on(make_resources(replace(stranger, used={GPU: 2000})), "n0", gpu_shape(4)) == 1
    assert capacity_on(make_resources(replace(stranger, used={GPU: 3000})), "n0", gpu_shape(4)) == 0, (
        "one of them came since"
    )


def test_scope_decides_between_containers_and_pod() -> None:
    assert capacity_on(make_resources(zoned_node("n0", 4, 4)), "n0", container_shape(4, 4)) == 1
    assert capacity_on(make_resources(zoned_node("n0", 4, 4)), "n0", container_shape(2, 2)) == 2
    assert capacity_on(make_resources(zoned_node("n0", 4, 4)), "n0", container_shape(5, 1)) == 0
    assert capacity_on(make_resources(zoned_node("n0", 4, 4, scope="pod")), "n0", container_shape(4, 4)) == 0
    assert capacity_on(make_resources(zoned_node("n0", 4, 4, scope="pod")), "n0", container_shape(2, 2)) == 2


def test_exclusive_cpus_count() -> None:
    zone = {GPU: 4000, "cpu": 16_000}
    zones = tuple(Zone(name=name, allocatable=zone, available=zone) for name in ("a", "b"))
    made = make_resources(Node(name="n0", allocatable={GPU: 8000, "cpu": 32_000}, topology=Topology(zones=zones)))
    shared = gpu_shape(1, cpu=12)
    assert capacity_on(made, "n0", shared) == 2
    made.add_pods("n0", shared)
    own = replace(shared, parts=((("cpu", 12_000), (GPU, 1000)),))
    assert capacity_on(made, "n0", own) == 1
    assert capacity_on(made, "n0", replace(gpu_shape(1, cpu=17), parts=((("cpu", 17_000), (GPU, 1000)),))) == 0


def test_undo_and_copies_are_independent() -> None:
    made = make_resources(zoned_node("n0", 4, 4))
    with made.trial():
        made.add_pods("n0", gpu_shape(4), 2)
        other = made.copy()
    assert (capacity_on(made, "n0", gpu_shape(4)), capacity_on(other, "n0", gpu_shape(4))) == (2, 0)


# -- with the cycle
# -----------------------------------------------------------------------------------------------------


def test_pod_starts_on_node_with_fitting_zone_or_waits() -> None:
    cluster = Cluster([zoned_node("n0", 2, 6), zoned_node("n1", 4, 4)], [make_quota("a")])
    cluster.add(make_gang("a/six", "a", [6]))
    cluster.cycle()
    cluster.add(make_gang("a/five", "a", [5]), make_gang("a/whole", "a", [8]))
    decisions = cluster.cycle()
    assert cluster.placed_nodes("a/six") == {"a/six-0": "n0"}
    reports = reports_by_gang(decisions)
    assert {name: report.code for name, report in reports.items()} == {
        "a/five": "WaitingForRoom",
        "a/whole": "Infeasible",
    }
    assert reports["a/whole"].message.endswith("; a pod can have nvidia.com/gpu 6 at most")


def test_gang_fills_nodes_by_zone() -> None:
    cluster = Cluster([zoned_node("n0", 4, 4), zoned_node("n1", 4, 4)], [make_quota("a")])
    cluster.add(make_gang("a/x", "a", [3] * 4))
    cluster.cycle()
    assert sorted(cluster.placed_nodes("a/x").values()) == ["n0", "n0", "n1", "n1"]
    cluster.add(make_gang("a/y", "a", [2]))
    assert reports_by_gang(cluster.cycle())["a/y"].code == "WaitingForRoom", (
        "two are free on each node, one in each zone"
    )
    cluster.add(make_gang("a/z", "a", [1] * 4))
    cluster.cycle()
    assert len(cluster.placed_nodes("a/z")) == 4


def test_reclaim_evicts_until_zone_is_free() -> None:
    cluster = Cluster([zoned_node("n0", 4, 4), zoned_node("n1", 4, 4)], [make_quota("a", 8), make_quota("b")])
    cluster.add(*(make_gang(f"b/low{n}", "b", [1], band=LOW) for n in range(16)))
    cluster.run_for(2)
    assert len(cluster.running_gangs()) == 16
    cluster.add(make_gang("a/x", "a", [4]))
    decisions = cluster.cycle()
    gone = [uid for evict in decisions.evicts for uid in evict.pods]
    assert len(gone) == 7, "with more than one left both zones may be in use"
    cluster.run_for(20)
    assert cluster.placed_nodes("a/x")


def test_terminating_pods_on_zoned_node_are_awaited() -> None:
    cluster = Cluster([zoned_node("n0", 4, 4)], [make_quota("a", 8), make_quota("b")])
    cluster.add(
        make_gang("b/low0", "b", [3], band=LOW),
        make_gang("b/low1", "b", [1], band=LOW),
        make_gang("b/low2", "b", [1], band=LOW),
    )
    cluster.run_for(2)
    cluster.add(make_gang("a/x", "a", [3, 3]))
    cluster.run_for(9)
    assert not cluster.placed_nodes("a/x"), "by sums there is room for one of them at once"
    cluster.run_for(20)
    assert len(cluster.placed_nodes("a/x")) == 2


def test_new_zone_amounts_are_used() -> None:
    cluster = Cluster([zoned_node("n0", 4, 4)], [make_quota("a")])
    cluster.add(make_gang("a/x", "a", [1]), make_gang("a/y", "a", [1]))
    cluster.cycle()
    cluster.add(make_gang("a/z", "a", [4]))
    assert reports_by_gang(cluster.cycle())["a/z"].code == "WaitingForRoom"
    uids = frozenset(pod.uid for name in ("a/x", "a/y") for pod in cluster.gangs[name].pods)
    cluster.pool = replace(cluster.pool, nodes=(published_node("n0", [4, 4], [2, 4], counted=uids),))
    cluster.cycle()
    assert cluster.placed_nodes("a/z") == {"a/z-0": "n0"}


def test_terminating_pods_on_zoned_node_are_awaited_despite_free_sums() -> None:
    cluster = Cluster([zoned_node("n0", 4, 4)], [make_quota("a", 8), make_quota("b")])
    cluster.add(make_gang("b/low0", "b", [1], band=LOW), make_gang("b/low1", "b", [1], band=LOW))
    cluster.run_for(2)
    for name in ("b/low0", "b/low1"):
        (pod,) = cluster.gangs[name].pods
        ending = replace(pod, state=PodState.ENDING, deadline=cluster.now + 5)
        cluster.gangs[name] = replace(cluster.gangs[name], pods=(ending,))
    cluster.add(make_gang("a/x", "a", [4]))
    cluster.cycle()
    assert not cluster.placed_nodes("a/x")
    cluster.run_for(7)
    assert cluster.placed_nodes("a/x")
