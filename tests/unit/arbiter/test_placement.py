"""Placement of a gang: all or none, close together, with whole nodes kept whole."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vkgateway.api.objects import Taint
from vkgateway.scheduler.core.capacity.node_resources import NodeResources
from vkgateway.scheduler.core.capacity.placement import count_placeable, place_pods
from vkgateway.scheduler.core.snapshot import Node, Pod, Pool, Requirement, Shape, Toleration

GPU = "nvidia.com/gpu"
RATHER_NOT = Taint(key="old", effect="PreferNoSchedule")


def make_node(name: str, free: int = 8, *, size: int = 8, cpu: int = 64, **labels: str) -> Node:
    return Node(
        name=name,
        allocatable={"cpu": cpu * 1000, GPU: size * 1000},
        used={GPU: (size - free) * 1000},
        labels=labels,
    )


def make_racks(**free: Sequence[int]) -> tuple[Node, ...]:
    """Return nodes `a0`, `a1`, ... in rack `a`, with these free GPUs."""
    return tuple(
        make_node(f"{rack}{index}", each, rack=rack) for rack, all_ in free.items() for index, each in enumerate(all_)
    )


def make_resources(*nodes: Node, levels: tuple[str, ...] = ("rack",)) -> NodeResources:
    return NodeResources(Pool(key=("compute", "pool"), nodes=nodes, governed=(GPU,), levels=levels))


def gpu_shape(count: int, cpu: int = 0) -> Shape:
    return Shape.from_requests({GPU: count * 1000, "cpu": cpu * 1000})


def make_pods(*shapes: Shape) -> list[Pod]:
    return [Pod(uid=f"p{index}", shape=shape, rank=index) for index, shape in enumerate(shapes)]


def test_fullest_feasible_node_is_chosen() -> None:
    cluster = make_resources(make_node("a"), make_node("b", 3), make_node("c", 1))
    assert place_pods(cluster, make_pods(gpu_shape(2))) == {"p0": "b"}
    assert cluster.free.amounts_on("b")[GPU] == 1000


def test_all_or_nothing() -> None:
    cluster = make_resources(make_node("a", 8), make_node("b", 7))
    assert place_pods(cluster, make_pods(gpu_shape(8), gpu_shape(8))) is None
    assert cluster.free.amounts_on("a")[GPU] == 8000
    assert place_pods(cluster, make_pods(gpu_shape(8), gpu_shape(7))) == {"p0": "a", "p1": "b"}


def test_placement_of_no_pods_is_empty() -> None:
    assert place_pods(make_resources(), []) == {}


def test_largest_pods_are_placed_first() -> None:
    cluster = make_resources(make_node("a", 8), make_node("b", 4))
    found = place_pods(cluster, make_pods(gpu_shape(1), gpu_shape(1), gpu_shape(8), gpu_shape(2)))
    assert found == {"p0": "b", "p1": "b", "p2": "a", "p3": "b"}


def test_small_pods_leave_capacity_for_larger_ones() -> None:
    cluster = make_resources(make_node("x", 4), make_node("y", 5), make_node("w"))
    assert place_pods(cluster, make_pods(gpu_shape(1), gpu_shape(4), gpu_shape(4))) == {"p0": "y", "p1": "x", "p2": "y"}


def test_constrained_pods_are_placed_before_larger_ones_if_necessary() -> None:
    only_a = Shape(gpu_shape(2).requests, terms=((Requirement(key="kind", operator="In", values=("a",)),),))
    cluster = make_resources(make_node("a", 4, kind="a"), make_node("b", 5, kind="b"))
    assert place_pods(cluster, make_pods(gpu_shape(4), only_a)) == {"p0": "b", "p1": "a"}


def test_other_orders_are_tried_without_largest_pod() -> None:
    cluster = make_resources(make_node("a", 8), make_node("b", 4, size=4))
    assert place_pods(cluster, make_pods(gpu_shape(4, 8), gpu_shape(1, 40), gpu_shape(1, 40))) == {
        "p0": "a",
        "p1": "a",
        "p2": "b",
    }


def test_whole_nodes_stay_whole() -> None:
    cluster = make_resources(make_node("a"), make_node("b", 3), make_node("c", 3), make_node("d"))
    found = place_pods(cluster, make_pods(*[gpu_shape(1)] * 6))
    assert found is not None
    assert set(found.values()) == {"b", "c"}


def test_small_node_is_used_before_large_one() -> None:
    cluster = make_resources(make_node("a", 8), make_node("b", 4, size=4))
    assert place_pods(cluster, make_pods(gpu_shape(1))) == {"p0": "b"}


def test_pods_without_units_avoid_whole_nodes() -> None:
    cluster = make_resources(make_node("a", 8), make_node("b", 0))
    assert place_pods(cluster, make_pods(gpu_shape(0, cpu=4))) == {"p0": "b"}


def test_other_resources_break_ties() -> None:
    cluster = make_resources(make_node("a", cpu=64), make_node("b", cpu=64))
    cluster.add_pods("b", gpu_shape(0, cpu=30))
    assert place_pods(cluster, make_pods(gpu_shape(1, cpu=4))) == {"p0": "b"}


def test_present_images_break_ties() -> None:
    shape = Shape(gpu_shape(1).requests, images=frozenset({"train"}))
    with_image = Node(name="b", allocatable={GPU: 8000}, images=frozenset({"train"}))
    assert place_pods(make_resources(make_node("a"), with_image), make_pods(shape)) == {"p0": "b"}
    assert place_pods(make_resources(make_node("a", 7), with_image), make_pods(shape)) == {"p0": "a"}


def test_free_resources_outweigh_images() -> None:
    shape = replace(gpu_shape(1, cpu=4), images=frozenset({"train"}))
    cluster = make_resources(make_node("a", cpu=64), replace(make_node("b", cpu=64), images=frozenset({"train"})))
    assert place_pods(cluster, make_pods(shape)) == {"p0": "b"}

    cluster = make_resources(make_node("a", cpu=64), replace(make_node("b", cpu=64), images=frozenset({"train"})))
    cluster.add_pods("a", gpu_shape(0, cpu=30))
    assert place_pods(cluster, make_pods(shape)) == {"p0": "a"}


def test_node_with_soft_taint_is_used_before_whole_node() -> None:
    disliked = Node(name="b", allocatable={GPU: 8000}, used={GPU: 7000}, taints=(RATHER_NOT,))
    assert place_pods(make_resources(make_node("a", 5), disliked), make_pods(gpu_shape(1))) == {"p0": "a"}
    assert place_pods(make_resources(make_node("a", 8), disliked), make_pods(gpu_shape(1))) == {"p0": "b"}
    tolerant = Shape(gpu_shape(1).requests, tolerations=(Toleration(operator="Exists"),))
    assert place_pods(make_resources(make_node("a", 5), disliked), make_pods(tolerant)) == {"p0": "b"}


def test_names_break_ties_last() -> None:
    assert place_pods(make_resources(make_node("b"), make_node("a")), make_pods(gpu_shape(1))) == {"p0": "a"}


def test_only_allowed_nodes_are_used() -> None:
    cluster = make_resources(make_node("a", 1), make_node("b"))
    assert place_pods(cluster, make_pods(gpu_shape(1)), among=["b", "gone"]) == {"p0": "b"}
    assert place_pods(cluster, make_pods(gpu_shape(1)), among=cluster.nodes.mask_of(["a"])) == {"p0": "a"}
    assert place_pods(cluster, make_pods(gpu_shape(1)), among=["a"]) is None
    assert place_pods(cluster, make_pods(gpu_shape(1)), among=[]) is None


def test_required_level_uses_one_domain() -> None:
    cluster = make_resources(*make_racks(a=[8, 8], b=[8, 8, 8]))
    found = place_pods(cluster, make_pods(*[gpu_shape(8)] * 3), required_level="rack")
    assert found == {"p0": "b0", "p1": "b1", "p2": "b2"}
    assert place_pods(cluster, make_pods(*[gpu_shape(8)] * 3), required_level="rack") is None
    assert place_pods(cluster, make_pods(*[gpu_shape(8)] * 2), required_level="rack") == {"p0": "a0", "p1": "a1"}


def test_nodes_without_required_label_are_excluded() -> None:
    assert place_pods(make_resources(make_node("a")), make_pods(gpu_shape(1)), required_level="rack") is None
    assert place_pods(
        make_resources(make_node("a"), make_node("b", rack="1")), make_pods(gpu_shape(1)), required_level="rack"
    ) == {"p0": "b"}


def test_tightest_domain_is_chosen() -> None:
    cluster = make_resources(*make_racks(a=[8, 8, 8], b=[8, 8], c=[8, 8, 8, 8]))
    found = place_pods(cluster, make_pods(gpu_shape(8), gpu_shape(8)), required_level="rack")
    assert found == {"p0": "b0", "p1": "b1"}


def test_domain_that_keeps_whole_nodes_precedes_tighter_one() -> None:
    cluster = make_resources(*make_racks(a=[8], b=[4, 4, 4, 4]))
    found = place_pods(cluster, make_pods(*[gpu_shape(2)] * 4), required_level="rack")
    assert found is not None
    assert {name[0] for name in found.values()} == {"b"}


def test_next_domain_is_tried_if_unequal_pods_do_not_fit() -> None:
    # Rack a fits each shape by itself and in sum, but not both together.
    cluster = make_resources(*make_racks(a=[6, 5], b=[8, 8]))
    found = place_pods(cluster, make_pods(gpu_shape(5), gpu_shape(3), gpu_shape(3)), required_level="rack")
    assert found is not None
    assert {name[0] for name in found.values()} == {"b"} or found["p0"] == "a1"
    cluster = make_resources(*make_racks(a=[6, 6], b=[8, 8]))
    found = place_pods(cluster, make_pods(gpu_shape(4), gpu_shape(4), gpu_shape(3)), required_level="rack")
    assert found is not None
    assert {name[0] for name in found.values()} == {"b"}


def test_further_domains_are_tried_in_order() -> None:
    # In a the three do not fit together; b is tighter than c, but would break a whole node.
    cluster = make_resources(*make_racks(a=[6, 6], b=[8, 4], c=[7, 7]))
    found = place_pods(cluster, make_pods(gpu_shape(4), gpu_shape(4), gpu_shape(3)), required_level="rack")
    assert found is not None
    assert {name[0] for name in found.values()} == {"c"}


def test_preferred_level_uses_one_rack_before_two() -> None:
    cluster = make_resources(*make_racks(a=[8], b=[8, 8], c=[8]))
    assert place_pods(cluster, make_pods(gpu_shape(8), gpu_shape(8)), preferred_level="rack") == {
        "p0": "b0",
        "p1": "b1",
    }
    assert place_pods(cluster, make_pods(gpu_shape(8), gpu_shape(8)), preferred_level="rack") == {
        "p0": "a0",
        "p1": "c0",
    }


def test_fewest_racks_with_tightest_last_one() -> None:
    cluster = make_resources(*make_racks(a=[8, 8], b=[8], c=[8, 8, 8], d=[8, 8]))
    found = place_pods(cluster, make_pods(*[gpu_shape(8)] * 4), preferred_level="rack")
    assert found == {"p0": "b0", "p1": "c0", "p2": "c1", "p3": "c2"}


def test_unequal_pods_use_fewest_racks() -> None:
    cluster = make_resources(*make_racks(a=[8], b=[8, 8], c=[8, 8], d=[1]))
    found = place_pods(
        cluster, make_pods(gpu_shape(1), gpu_shape(8), gpu_shape(8), gpu_shape(8)), preferred_level="rack"
    )
    assert found is not None
    assert {name[0] for name in found.values()} == {"b", "c"}


def test_next_wider_level_is_used_if_one_rack_does_not_fit() -> None:
    nodes = [
        make_node(f"{zone}{rack}{index}", zone=zone, rack=f"{zone}{rack}")
        for zone, rack, count in (("x", "1", 3), ("y", "1", 2), ("y", "2", 2))
        for index in range(count)
    ]
    cluster = make_resources(*nodes, levels=("zone", "rack"))
    found = place_pods(cluster, make_pods(*[gpu_shape(8)] * 4), preferred_level="rack")
    assert found == {"p0": "y10", "p1": "y11", "p2": "y20", "p3": "y21"}


def test_wider_domain_with_fewest_racks_is_chosen() -> None:
    nodes = [
        make_node(f"{zone}{rack}{index}", zone=zone, rack=f"{zone}{rack}")
        for zone, rack, count in (("x", "1", 1), ("x", "2", 1), ("x", "3", 1), ("y", "1", 2), ("y", "2", 2))
        for index in range(count)
    ]
    found = place_pods(
        make_resources(*nodes, levels=("zone", "rack")), make_pods(*[gpu_shape(8)] * 3), preferred_level="rack"
    )
    assert found == {"p0": "y10", "p1": "y11", "p2": "y20"}


def test_required_and_preferred_levels_combine() -> None:
    nodes = [
        make_node(f"{zone}{rack}{index}", zone=zone, rack=f"{zone}{rack}")
        for zone, rack, count in (("x", "1", 2), ("x", "2", 1), ("y", "1", 1), ("y", "2", 1), ("y", "3", 2))
        for index in range(count)
    ]
    cluster = make_resources(*nodes, levels=("zone", "rack"))
    found = place_pods(cluster, make_pods(*[gpu_shape(8)] * 3), required_level="zone", preferred_level="rack")
    assert found == {"p0": "x10", "p1": "x11", "p2": "x20"}
    found = place_pods(cluster, make_pods(*[gpu_shape(8)] * 3), required_level="zone", preferred_level="rack")
    assert found == {"p0": "y10", "p1": "y30", "p2": "y31"}


def test_nodes_without_preferred_label_are_used_last() -> None:
    cluster = make_resources(*make_racks(a=[8]), make_node("z"))
    assert place_pods(cluster, make_pods(gpu_shape(8), gpu_shape(8)), preferred_level="rack") == {"p0": "a0", "p1": "z"}


def test_nodes_without_preferred_label_are_avoided() -> None:
    cluster = make_resources(*make_racks(a=[8], b=[8]), make_node("z", 1))
    assert place_pods(cluster, make_pods(gpu_shape(8), gpu_shape(6), gpu_shape(1)), preferred_level="rack") == {
        "p0": "a0",
        "p1": "b0",
        "p2": "b0",
    }


def test_single_host_is_domain() -> None:
    cluster = make_resources(make_node("a", 3, host="a"), make_node("b", 4, host="b"), make_node("c", 8, host="c"))
    found = place_pods(cluster, make_pods(*[gpu_shape(1)] * 4), preferred_level="host")
    assert found == dict.fromkeys(("p0", "p1", "p2", "p3"), "b")


def test_adjacent_ranks_are_adjacent_in_topology() -> None:
    cluster = make_resources(*make_racks(a=[4, 8], b=[2, 8]))
    gang = [Pod(uid=uid, shape=gpu_shape(2), rank=rank) for uid, rank in (("x", 3), ("y", 0), ("z", 1), ("w", 2))]
    found = place_pods(cluster, gang)
    assert found == {"x": "b1", "y": "a0", "z": "a0", "w": "b0"} or found == {
        "x": "b0",
        "y": "a0",
        "z": "a0",
        "w": "a1",
    }
    assert list(found) == ["x", "y", "z", "w"]


def test_adjacent_ranks_follow_level_outside_pool_levels() -> None:
    nodes = [make_node(name, row=row) for name, row in (("a", "1"), ("b", "2"), ("c", "1"), ("d", "2"))]
    found = place_pods(make_resources(*nodes, levels=()), make_pods(*[gpu_shape(8)] * 4), preferred_level="row")
    assert found == {"p0": "a", "p1": "c", "p2": "b", "p3": "d"}


def test_failed_search_is_not_repeated_until_capacity_is_freed() -> None:
    cluster = make_resources(make_node("a", 4))
    assert place_pods(cluster, make_pods(gpu_shape(8))) is None
    assert place_pods(cluster, make_pods(gpu_shape(8))) is None
    cluster.remove_pods("a", gpu_shape(4))
    assert place_pods(cluster, make_pods(gpu_shape(8))) == {"p0": "a"}


def test_failed_search_among_some_nodes_does_not_affect_others() -> None:
    cluster = make_resources(make_node("a", 4), make_node("b"))
    assert place_pods(cluster, make_pods(gpu_shape(8)), among=["a"]) is None
    assert place_pods(cluster, make_pods(gpu_shape(8))) == {"p0": "b"}


def test_count_placeable() -> None:
    cluster = make_resources(*make_racks(a=[8, 8], b=[8, 8, 2]))
    gang = make_pods(*[gpu_shape(8)] * 6)
    assert count_placeable(cluster, gang) == 4
    assert count_placeable(cluster, gang, required_level="rack") == 2
    assert count_placeable(cluster, gang, among=["a0", "b2"]) == 1
    assert (
        count_placeable(
            cluster, make_pods(gpu_shape(8), gpu_shape(1), gpu_shape(1), gpu_shape(16)), required_level="rack"
        )
        == 3
    )
    assert count_placeable(cluster, gang, required_level="zone") == 0
    assert place_pods(cluster, make_pods(*[gpu_shape(8)] * 4)) is not None


def test_preferred_nodes_come_first_among_equals() -> None:
    cluster = make_resources(*(make_node(f"n{at}", 4) for at in range(6)), make_node("u7", 7), make_node("whole"))
    for liked in ([1, 4], [0, 1, 2, 3, 4, 5], [5], [7], []):
        mask = np.isin(np.arange(8), liked)
        first = [at for at in liked if at < 6]
        others = [at for at in range(6) if at not in first]
        for among in (None, np.arange(8) % 3 < 2):
            names = [f"n{at}" for at in (*first, *others) if among is None or among[at]]
            for count in range(2, len(names) + 1):
                mark = cluster.journal.mark()
                found = place_pods(cluster, make_pods(*[gpu_shape(4)] * count), preferred_nodes=mask, among=among)
                cluster.journal.undo(mark)
                assert found is not None
                assert sorted(found.values()) == sorted(names[:count])
