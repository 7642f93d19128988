"""What fits into the NUMA zones of nodes: certain where told, exact for equal pods, no limit where none is known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from tests.unit.arbiter.numa import containers, split
from tests.unit.arbiter.sim import GPU, KEY, LOW, Cluster, gang, gpus, held, node, quota
from vkgateway.arbiter.capacity.node_resources import NodeResources
from vkgateway.arbiter.snapshot import Node, PodState, Pool, Shape, Topology, Zone


def room(*nodes: Node) -> NodeResources:
    return NodeResources(Pool(key=KEY, nodes=nodes, governed=(GPU,)))


def published(name: str, allocatable: Iterable[int], available: Iterable[int], **fields: object) -> Node:
    """A node with pods on it, as its zones were published."""
    zones = tuple(
        Zone(name=f"node-{at}", allocatable={GPU: whole * 1000}, available={GPU: free * 1000})
        for at, (whole, free) in enumerate(zip(allocatable, available, strict=True))
    )
    return replace(split(name, *allocatable), topology=Topology(zones=zones, **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(("size", "fit"), [(1, 8), (2, 4), (3, 2), (4, 2), (5, 0), (8, 0)])
def test_of_equal_pods_as_many_fit_as_there_is_room_for_in_the_zones(size: int, fit: int) -> None:
    made = room(split("n0", 4, 4))
    assert made.capacity_on_node("n0", gpus(size)) == fit
    for left in reversed(range(fit)):
        made.add_pods("n0", gpus(size))
        assert made.capacity_on_node("n0", gpus(size)) == left


def test_nodes_without_zones_are_as_ever() -> None:
    made = room(node("n0"), split("n1", 4, 4))
    assert made.capacity_by_node(gpus(8)).tolist() == [1, 0]
    assert not room(node("n0")).has_zones
    assert [made.is_zoned(name) for name in ("n0", "n1")] == [False, True]


def test_what_zones_do_not_have_is_no_matter_of_theirs() -> None:
    made = room(split("n0", 4, 4))
    assert made.capacity_on_node("n0", gpus(4, cpu=30)) == 2
    assert made.capacity_on_node("n0", Shape.from_requests({"cpu": 1000})) == 64


def test_a_pod_whose_zone_is_not_known_is_in_the_worst() -> None:
    made = room(split("n0", 4, 4))
    made.add_pods("n0", gpus(1))
    assert made.capacity_on_node("n0", gpus(4)) == 1
    made.add_pods("n0", gpus(1))
    assert made.capacity_on_node("n0", gpus(4)) == 0, "they may be in both zones"
    made.remove_pods("n0", gpus(1))
    assert made.capacity_on_node("n0", gpus(4)) == 1


def test_what_was_published_counts_and_those_in_it_are_not_counted_twice() -> None:
    made = room(published("n0", [4, 4], [2, 4], counted=frozenset({"x"})))
    made.add_pods("n0", gpus(2))
    made.count_published("n0", gpus(2))
    assert made.capacity_on_node("n0", gpus(4)) == 1
    assert made.capacity_on_node("n0", gpus(3)) == 1
    made.add_pods("n0", gpus(2))
    assert made.capacity_on_node("n0", gpus(4)) == 0, "it may be in the zone that was free"
    assert made.capacity_on_node("n0", gpus(2)) == 2


def test_what_those_held_that_were_in_what_was_published_and_have_gone_is_free_in_some_zone() -> None:
    made = room(published("n0", [4, 4], [3, 1], counted=frozenset({"x", "y"}), gone={"y": gpus(3)}))
    made.add_pods("n0", gpus(1))
    made.count_published("n0", gpus(1))
    assert [made.capacity_on_node("n0", gpus(size)) for size in (1, 2, 3, 4)] == [7, 3, 2, 1]
    made.add_pods("n0", gpus(3))
    assert made.capacity_on_node("n0", gpus(3)) == 1
    assert room(published("n0", [4, 4], [0, 0], gone={"y": containers(2, 1)})).capacity_on_node("n0", gpus(1)) == 8
    held = room(published("n0", [4, 4], [0, 0], gone={"y": containers(2, 1)}))
    held.add_pods("n0", gpus(4))
    held.add_pods("n0", gpus(1))
    for size in (4, 1):
        held.count_published("n0", gpus(size))
    assert [held.capacity_on_node("n0", gpus(size)) for size in (1, 2, 3)] == [3, 1, 0]


def test_one_that_has_gone_and_counts_as_placed_still_gives_no_room_twice() -> None:
    there = Cluster([split("n0", 4, 4)], [quota("a")])
    there.add(gang("a/x", "a", [4]), gang("a/y", "a", [1]))
    there.cycle()
    uids = frozenset(pod.uid for name in ("a/x", "a/y") for pod in there.gangs[name].pods)
    there.pool = replace(there.pool, nodes=(published("n0", [4, 4], [0, 3], counted=uids, gone={"a/x-0": gpus(4)}),))
    there.add(gang("a/z", "a", [4]))
    assert held(there.cycle())["a/z"].code == "WaitingForRoom"
    del there.gangs["a/x"]
    there.cycle()
    assert there.placed("a/z") == {"a/z-0": "n0"}


def test_nobody_else_is_told_to_go_while_the_node_of_those_who_went_has_not_published() -> None:
    there = Cluster([split("n0", 4, 4)], [quota("a", 8), quota("b")], recreate=False)
    there.add(gang("b/one", "b", [1], band=LOW), gang("b/three", "b", [3], band=LOW))
    there.settle(2)
    told = published("n0", [4, 4], [3, 1], counted=frozenset({"b/one-0", "b/three-0"}))
    there.pool = replace(there.pool, nodes=(told,))
    there.add(gang("a/x", "a", [3, 3]))
    assert [evict.gang for evict in there.cycle().evicts] == ["b/three"]
    del there.gangs["b/three"]
    assert told.topology is not None
    went = replace(told, topology=replace(told.topology, gone={"b/three-0": gpus(3)}))
    there.pool = replace(there.pool, nodes=(went,))
    assert there.cycle().evicts == ()
    assert sorted(there.placed("a/x").values()) == ["n0", "n0"]


def test_once_all_others_have_gone_the_whole_of_each_zone_counts_whatever_was_published() -> None:
    made = room(published("n0", [4, 4], [0, 0]))
    for _ in range(8):
        made.add_pods("n0", gpus(1))
        made.count_published("n0", gpus(1))
    assert made.capacity_on_node("n0", gpus(4)) == 0
    made.remove_pods("n0", gpus(1), 6)
    assert made.capacity_on_node("n0", gpus(4)) == 0
    made.remove_pods("n0", gpus(1))
    assert made.capacity_on_node("n0", gpus(4)) == 1, "the last can only be in one of them"


def test_devices_of_others_count() -> None:
    stranger = published("n0", [4, 4], [4, 2], used={GPU: 2000})
    assert room(replace(stranger, used={GPU: 2000})).capacity_on_node("n0", gpus(4)) == 1
    assert room(replace(stranger, used={GPU: 3000})).capacity_on_node("n0", gpus(4)) == 0, "one of them came since"


def test_containers_are_judged_one_by_one_unless_the_scope_is_the_pod() -> None:
    assert room(split("n0", 4, 4)).capacity_on_node("n0", containers(4, 4)) == 1
    assert room(split("n0", 4, 4)).capacity_on_node("n0", containers(2, 2)) == 2
    assert room(split("n0", 4, 4)).capacity_on_node("n0", containers(5, 1)) == 0
    assert room(split("n0", 4, 4, scope="pod")).capacity_on_node("n0", containers(4, 4)) == 0
    assert room(split("n0", 4, 4, scope="pod")).capacity_on_node("n0", containers(2, 2)) == 2


def test_cpus_count_where_a_pod_has_them_for_itself() -> None:
    zone = {GPU: 4000, "cpu": 16_000}
    zones = tuple(Zone(name=name, allocatable=zone, available=zone) for name in ("a", "b"))
    made = room(Node(name="n0", allocatable={GPU: 8000, "cpu": 32_000}, topology=Topology(zones=zones)))
    shared = gpus(1, cpu=12)
    assert made.capacity_on_node("n0", shared) == 2
    made.add_pods("n0", shared)
    own = replace(shared, parts=((("cpu", 12_000), (GPU, 1000)),))
    assert made.capacity_on_node("n0", own) == 1
    assert made.capacity_on_node("n0", replace(gpus(1, cpu=17), parts=((("cpu", 17_000), (GPU, 1000)),))) == 0


def test_trials_and_copies_leave_no_trace() -> None:
    made = room(split("n0", 4, 4))
    saved, mark = made.save(), made.mark()
    made.add_pods("n0", gpus(4), 2)
    other = made.copy()
    made.undo(mark)
    assert (made.capacity_on_node("n0", gpus(4)), other.capacity_on_node("n0", gpus(4))) == (2, 0)
    made.add_pods("n0", gpus(1), 2)
    for _ in range(2):
        made.restore(saved)
        assert made.capacity_on_node("n0", gpus(4)) == 2


# -- the whole of it ---------------------------------------------------------------------------------------------------


def test_a_pod_goes_to_the_node_that_has_it_in_one_zone_or_waits() -> None:
    there = Cluster([split("n0", 2, 6), split("n1", 4, 4)], [quota("a")])
    there.add(gang("a/six", "a", [6]))
    there.cycle()
    there.add(gang("a/five", "a", [5]), gang("a/whole", "a", [8]))
    decisions = there.cycle()
    assert there.placed("a/six") == {"a/six-0": "n0"}
    holds = held(decisions)
    assert {name: hold.code for name, hold in holds.items()} == {"a/five": "WaitingForRoom", "a/whole": "Infeasible"}
    assert holds["a/whole"].message.endswith("; a pod can have nvidia.com/gpu 6 at most")


def test_a_gang_fills_nodes_as_their_zones_allow() -> None:
    there = Cluster([split("n0", 4, 4), split("n1", 4, 4)], [quota("a")])
    there.add(gang("a/x", "a", [3] * 4))
    there.cycle()
    assert sorted(there.placed("a/x").values()) == ["n0", "n0", "n1", "n1"]
    there.add(gang("a/y", "a", [2]))
    assert held(there.cycle())["a/y"].code == "WaitingForRoom", "two are free on each node, one in each zone"
    there.add(gang("a/z", "a", [1] * 4))
    there.cycle()
    assert len(there.placed("a/z")) == 4


def test_a_guarantee_is_called_in_until_a_zone_is_free() -> None:
    there = Cluster([split("n0", 4, 4), split("n1", 4, 4)], [quota("a", 8), quota("b")])
    there.add(*(gang(f"b/low{n}", "b", [1], band=LOW) for n in range(16)))
    there.settle(2)
    assert len(there.running()) == 16
    there.add(gang("a/x", "a", [4]))
    decisions = there.cycle()
    gone = [uid for evict in decisions.evicts for uid in evict.pods]
    assert len(gone) == 7, "with more than one left both zones may be in use"
    there.settle(20)
    assert there.placed("a/x")


def test_what_is_ending_on_a_node_with_zones_is_waited_for() -> None:
    there = Cluster([split("n0", 4, 4)], [quota("a", 8), quota("b")])
    there.add(
        gang("b/low0", "b", [3], band=LOW), gang("b/low1", "b", [1], band=LOW), gang("b/low2", "b", [1], band=LOW)
    )
    there.settle(2)
    there.add(gang("a/x", "a", [3, 3]))
    there.settle(9)
    assert not there.placed("a/x"), "by sums there is room for one of them at once"
    there.settle(20)
    assert len(there.placed("a/x")) == 2


def test_news_of_zones_are_taken_in() -> None:
    there = Cluster([split("n0", 4, 4)], [quota("a")])
    there.add(gang("a/x", "a", [1]), gang("a/y", "a", [1]))
    there.cycle()
    there.add(gang("a/z", "a", [4]))
    assert held(there.cycle())["a/z"].code == "WaitingForRoom"
    uids = frozenset(pod.uid for name in ("a/x", "a/y") for pod in there.gangs[name].pods)
    there.pool = replace(there.pool, nodes=(published("n0", [4, 4], [2, 4], counted=uids),))
    there.cycle()
    assert there.placed("a/z") == {"a/z-0": "n0"}


def test_who_ends_anyway_on_a_node_with_zones_is_waited_for_though_by_sums_there_is_room() -> None:
    there = Cluster([split("n0", 4, 4)], [quota("a", 8), quota("b")])
    there.add(gang("b/low0", "b", [1], band=LOW), gang("b/low1", "b", [1], band=LOW))
    there.settle(2)
    for name in ("b/low0", "b/low1"):
        (pod,) = there.gangs[name].pods
        ending = replace(pod, state=PodState.ENDING, deadline=there.now + 5)
        there.gangs[name] = replace(there.gangs[name], pods=(ending,))
    there.add(gang("a/x", "a", [4]))
    there.cycle()
    assert not there.placed("a/x")
    there.settle(7)
    assert there.placed("a/x")
