"""Where a gang's pods go: all or none, near each other, whole nodes kept whole."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vkgateway.arbiter.capacity.node_resources import NodeResources
from vkgateway.arbiter.capacity.placement import count_placeable, place_pods
from vkgateway.arbiter.snapshot import Node, Pod, Pool, Requirement, Shape, Toleration
from vkgateway.model.objects import Taint

GPU = "nvidia.com/gpu"
RATHER_NOT = Taint(key="old", effect="PreferNoSchedule")


def node(name: str, free: int = 8, *, size: int = 8, cpu: int = 64, **labels: str) -> Node:
    return Node(
        name=name,
        allocatable={"cpu": cpu * 1000, GPU: size * 1000},
        used={GPU: (size - free) * 1000},
        labels=labels,
    )


def racks(**free: Sequence[int]) -> tuple[Node, ...]:
    """Nodes `a0`, `a1` and so on in rack `a`, with so many GPUs free."""
    return tuple(
        node(f"{rack}{index}", each, rack=rack) for rack, all_ in free.items() for index, each in enumerate(all_)
    )


def room(*nodes: Node, levels: tuple[str, ...] = ("rack",)) -> NodeResources:
    return NodeResources(Pool(key=("compute", "pool"), nodes=nodes, governed=(GPU,), levels=levels))


def gpus(count: int, cpu: int = 0) -> Shape:
    return Shape.from_requests({GPU: count * 1000, "cpu": cpu * 1000})


def pods(*shapes: Shape) -> list[Pod]:
    return [Pod(uid=f"p{index}", shape=shape, rank=index) for index, shape in enumerate(shapes)]


def test_a_pod_goes_to_the_fullest_node_that_takes_it() -> None:
    there = room(node("a"), node("b", 3), node("c", 1))
    assert place_pods(there, pods(gpus(2))) == {"p0": "b"}
    assert there.free_on_node("b")[GPU] == 1000


def test_all_or_nothing() -> None:
    there = room(node("a", 8), node("b", 7))
    assert place_pods(there, pods(gpus(8), gpus(8))) is None
    assert there.free_on_node("a")[GPU] == 8000
    assert place_pods(there, pods(gpus(8), gpus(7))) == {"p0": "a", "p1": "b"}


def test_nothing_to_place() -> None:
    assert place_pods(room(), []) == {}


def test_unequal_pods_are_placed_largest_first() -> None:
    there = room(node("a", 8), node("b", 4))
    found = place_pods(there, pods(gpus(1), gpus(1), gpus(8), gpus(2)))
    assert found == {"p0": "b", "p1": "b", "p2": "a", "p3": "b"}


def test_small_pods_do_not_take_what_larger_ones_need() -> None:
    there = room(node("x", 4), node("y", 5), node("w"))
    assert place_pods(there, pods(gpus(1), gpus(4), gpus(4))) == {"p0": "y", "p1": "x", "p2": "y"}


def test_pods_of_little_choice_are_placed_before_larger_ones_if_they_must() -> None:
    only_a = Shape(gpus(2).requests, terms=((Requirement(key="kind", operator="In", values=("a",)),),))
    there = room(node("a", 4, kind="a"), node("b", 5, kind="b"))
    assert place_pods(there, pods(gpus(4), only_a)) == {"p0": "b", "p1": "a"}


def test_where_no_pod_is_the_largest_in_all_other_orders_are_tried() -> None:
    there = room(node("a", 8), node("b", 4, size=4))
    assert place_pods(there, pods(gpus(4, 8), gpus(1, 40), gpus(1, 40))) == {"p0": "a", "p1": "a", "p2": "b"}


def test_no_whole_node_is_broken_into_without_need() -> None:
    there = room(node("a"), node("b", 3), node("c", 3), node("d"))
    found = place_pods(there, pods(*[gpus(1)] * 6))
    assert found is not None
    assert set(found.values()) == {"b", "c"}


def test_a_small_node_is_used_before_a_large_one() -> None:
    there = room(node("a", 8), node("b", 4, size=4))
    assert place_pods(there, pods(gpus(1))) == {"p0": "b"}


def test_pods_without_units_stay_off_whole_nodes() -> None:
    there = room(node("a", 8), node("b", 0))
    assert place_pods(there, pods(gpus(0, cpu=4))) == {"p0": "b"}


def test_of_equally_full_nodes_the_one_with_less_left_of_the_rest() -> None:
    there = room(node("a", cpu=64), node("b", cpu=64))
    there.add_pods("b", gpus(0, cpu=30))
    assert place_pods(there, pods(gpus(1, cpu=4))) == {"p0": "b"}


def test_images_that_are_there_decide_among_equals() -> None:
    shape = Shape(gpus(1).requests, images=frozenset({"train"}))
    with_image = Node(name="b", allocatable={GPU: 8000}, images=frozenset({"train"}))
    assert place_pods(room(node("a"), with_image), pods(shape)) == {"p0": "b"}
    assert place_pods(room(node("a", 7), with_image), pods(shape)) == {"p0": "a"}


def test_images_count_less_than_what_is_free_of_the_other_resources() -> None:
    shape = replace(gpus(1, cpu=4), images=frozenset({"train"}))
    there = room(node("a", cpu=64), replace(node("b", cpu=64), images=frozenset({"train"})))
    assert place_pods(there, pods(shape)) == {"p0": "b"}

    there = room(node("a", cpu=64), replace(node("b", cpu=64), images=frozenset({"train"})))
    there.add_pods("a", gpus(0, cpu=30))
    assert place_pods(there, pods(shape)) == {"p0": "a"}


def test_disliked_nodes_come_after_others_but_before_a_whole_one() -> None:
    disliked = Node(name="b", allocatable={GPU: 8000}, used={GPU: 7000}, taints=(RATHER_NOT,))
    assert place_pods(room(node("a", 5), disliked), pods(gpus(1))) == {"p0": "a"}
    assert place_pods(room(node("a", 8), disliked), pods(gpus(1))) == {"p0": "b"}
    tolerant = Shape(gpus(1).requests, tolerations=(Toleration(operator="Exists"),))
    assert place_pods(room(node("a", 5), disliked), pods(tolerant)) == {"p0": "b"}


def test_names_decide_at_last() -> None:
    assert place_pods(room(node("b"), node("a")), pods(gpus(1))) == {"p0": "a"}


def test_only_nodes_that_are_allowed() -> None:
    there = room(node("a", 1), node("b"))
    assert place_pods(there, pods(gpus(1)), among=["b", "gone"]) == {"p0": "b"}
    assert place_pods(there, pods(gpus(1)), among=there.node_mask(["a"])) == {"p0": "a"}
    assert place_pods(there, pods(gpus(1)), among=["a"]) is None
    assert place_pods(there, pods(gpus(1)), among=[]) is None


def test_a_required_level_holds_all_in_one_domain() -> None:
    there = room(*racks(a=[8, 8], b=[8, 8, 8]))
    found = place_pods(there, pods(*[gpus(8)] * 3), required_level="rack")
    assert found == {"p0": "b0", "p1": "b1", "p2": "b2"}
    assert place_pods(there, pods(*[gpus(8)] * 3), required_level="rack") is None
    assert place_pods(there, pods(*[gpus(8)] * 2), required_level="rack") == {"p0": "a0", "p1": "a1"}


def test_nodes_without_the_required_label_are_left_out() -> None:
    assert place_pods(room(node("a")), pods(gpus(1)), required_level="rack") is None
    assert place_pods(room(node("a"), node("b", rack="1")), pods(gpus(1)), required_level="rack") == {"p0": "b"}


def test_the_domain_with_least_left_over_is_chosen() -> None:
    there = room(*racks(a=[8, 8, 8], b=[8, 8], c=[8, 8, 8, 8]))
    found = place_pods(there, pods(gpus(8), gpus(8)), required_level="rack")
    assert found == {"p0": "b0", "p1": "b1"}


def test_a_domain_that_keeps_its_whole_nodes_is_chosen_before_a_tighter_one() -> None:
    there = room(*racks(a=[8], b=[4, 4, 4, 4]))
    found = place_pods(there, pods(*[gpus(2)] * 4), required_level="rack")
    assert found is not None
    assert {name[0] for name in found.values()} == {"b"}


def test_the_next_domain_is_tried_where_unequal_pods_do_not_fit_together() -> None:
    # Rack a has room for each shape by itself and in sum, but not for both.
    there = room(*racks(a=[6, 5], b=[8, 8]))
    found = place_pods(there, pods(gpus(5), gpus(3), gpus(3)), required_level="rack")
    assert found is not None
    assert {name[0] for name in found.values()} == {"b"} or found["p0"] == "a1"
    there = room(*racks(a=[6, 6], b=[8, 8]))
    found = place_pods(there, pods(gpus(4), gpus(4), gpus(3)), required_level="rack")
    assert found is not None
    assert {name[0] for name in found.values()} == {"b"}


def test_further_domains_are_tried_in_order_too() -> None:
    # In a the three do not fit together; b is tighter than c, but a whole node of it would be broken into.
    there = room(*racks(a=[6, 6], b=[8, 4], c=[7, 7]))
    found = place_pods(there, pods(gpus(4), gpus(4), gpus(3)), required_level="rack")
    assert found is not None
    assert {name[0] for name in found.values()} == {"c"}


def test_one_rack_before_two() -> None:
    there = room(*racks(a=[8], b=[8, 8], c=[8]))
    assert place_pods(there, pods(gpus(8), gpus(8)), preferred_level="rack") == {"p0": "b0", "p1": "b1"}
    assert place_pods(there, pods(gpus(8), gpus(8)), preferred_level="rack") == {"p0": "a0", "p1": "c0"}


def test_the_fewest_racks_and_the_last_as_tight_as_can_be() -> None:
    there = room(*racks(a=[8, 8], b=[8], c=[8, 8, 8], d=[8, 8]))
    found = place_pods(there, pods(*[gpus(8)] * 4), preferred_level="rack")
    assert found == {"p0": "b0", "p1": "c0", "p2": "c1", "p3": "c2"}


def test_unequal_pods_in_the_fewest_racks() -> None:
    there = room(*racks(a=[8], b=[8, 8], c=[8, 8], d=[1]))
    found = place_pods(there, pods(gpus(1), gpus(8), gpus(8), gpus(8)), preferred_level="rack")
    assert found is not None
    assert {name[0] for name in found.values()} == {"b", "c"}


def test_within_the_next_wider_level_where_one_rack_does_not_do() -> None:
    nodes = [
        node(f"{zone}{rack}{index}", zone=zone, rack=f"{zone}{rack}")
        for zone, rack, count in (("x", "1", 3), ("y", "1", 2), ("y", "2", 2))
        for index in range(count)
    ]
    there = room(*nodes, levels=("zone", "rack"))
    found = place_pods(there, pods(*[gpus(8)] * 4), preferred_level="rack")
    assert found == {"p0": "y10", "p1": "y11", "p2": "y20", "p3": "y21"}


def test_of_wider_domains_the_one_that_needs_fewest_racks() -> None:
    nodes = [
        node(f"{zone}{rack}{index}", zone=zone, rack=f"{zone}{rack}")
        for zone, rack, count in (("x", "1", 1), ("x", "2", 1), ("x", "3", 1), ("y", "1", 2), ("y", "2", 2))
        for index in range(count)
    ]
    found = place_pods(room(*nodes, levels=("zone", "rack")), pods(*[gpus(8)] * 3), preferred_level="rack")
    assert found == {"p0": "y10", "p1": "y11", "p2": "y20"}


def test_required_and_preferred_together() -> None:
    nodes = [
        node(f"{zone}{rack}{index}", zone=zone, rack=f"{zone}{rack}")
        for zone, rack, count in (("x", "1", 2), ("x", "2", 1), ("y", "1", 1), ("y", "2", 1), ("y", "3", 2))
        for index in range(count)
    ]
    there = room(*nodes, levels=("zone", "rack"))
    found = place_pods(there, pods(*[gpus(8)] * 3), required_level="zone", preferred_level="rack")
    assert found == {"p0": "x10", "p1": "x11", "p2": "x20"}
    found = place_pods(there, pods(*[gpus(8)] * 3), required_level="zone", preferred_level="rack")
    assert found == {"p0": "y10", "p1": "y30", "p2": "y31"}


def test_nodes_without_the_preferred_label_are_used_at_last() -> None:
    there = room(*racks(a=[8]), node("z"))
    assert place_pods(there, pods(gpus(8), gpus(8)), preferred_level="rack") == {"p0": "a0", "p1": "z"}


def test_nodes_without_the_preferred_label_are_left_alone_where_the_others_do() -> None:
    there = room(*racks(a=[8], b=[8]), node("z", 1))
    assert place_pods(there, pods(gpus(8), gpus(6), gpus(1)), preferred_level="rack") == {
        "p0": "a0",
        "p1": "b0",
        "p2": "b0",
    }


def test_one_host_may_be_a_domain() -> None:
    there = room(node("a", 3, host="a"), node("b", 4, host="b"), node("c", 8, host="c"))
    found = place_pods(there, pods(*[gpus(1)] * 4), preferred_level="host")
    assert found == dict.fromkeys(("p0", "p1", "p2", "p3"), "b")


def test_neighbours_in_rank_are_neighbours_in_the_network() -> None:
    there = room(*racks(a=[4, 8], b=[2, 8]))
    gang = [Pod(uid=uid, shape=gpus(2), rank=rank) for uid, rank in (("x", 3), ("y", 0), ("z", 1), ("w", 2))]
    found = place_pods(there, gang)
    assert found == {"x": "b1", "y": "a0", "z": "a0", "w": "b0"} or found == {
        "x": "b0",
        "y": "a0",
        "z": "a0",
        "w": "a1",
    }
    assert list(found) == ["x", "y", "z", "w"]


def test_neighbours_in_rank_along_a_level_that_the_pool_does_not_name() -> None:
    nodes = [node(name, row=row) for name, row in (("a", "1"), ("b", "2"), ("c", "1"), ("d", "2"))]
    found = place_pods(room(*nodes, levels=()), pods(*[gpus(8)] * 4), preferred_level="row")
    assert found == {"p0": "a", "p1": "c", "p2": "b", "p3": "d"}


def test_what_did_not_fit_is_not_looked_for_again_until_there_is_room() -> None:
    there = room(node("a", 4))
    assert place_pods(there, pods(gpus(8))) is None
    assert place_pods(there, pods(gpus(8))) is None
    there.remove_pods("a", gpus(4))
    assert place_pods(there, pods(gpus(8))) == {"p0": "a"}


def test_what_did_not_fit_among_some_nodes_may_fit_among_others() -> None:
    there = room(node("a", 4), node("b"))
    assert place_pods(there, pods(gpus(8)), among=["a"]) is None
    assert place_pods(there, pods(gpus(8))) == {"p0": "b"}


def test_the_most_that_would_fit() -> None:
    there = room(*racks(a=[8, 8], b=[8, 8, 2]))
    gang = pods(*[gpus(8)] * 6)
    assert count_placeable(there, gang) == 4
    assert count_placeable(there, gang, required_level="rack") == 2
    assert count_placeable(there, gang, among=["a0", "b2"]) == 1
    assert count_placeable(there, pods(gpus(8), gpus(1), gpus(1), gpus(16)), required_level="rack") == 3
    assert count_placeable(there, gang, required_level="zone") == 0
    assert place_pods(there, pods(*[gpus(8)] * 4)) is not None


def test_of_equal_nodes_the_liked_come_first_and_the_order_stays() -> None:
    there = room(*(node(f"n{at}", 4) for at in range(6)), node("u7", 7), node("whole"))
    for liked in ([1, 4], [0, 1, 2, 3, 4, 5], [5], [7], []):
        mask = np.isin(np.arange(8), liked)
        first = [at for at in liked if at < 6]
        others = [at for at in range(6) if at not in first]
        for among in (None, np.arange(8) % 3 < 2):
            names = [f"n{at}" for at in (*first, *others) if among is None or among[at]]
            for count in range(2, len(names) + 1):
                mark = there.mark()
                found = place_pods(there, pods(*[gpus(4)] * count), preferred_nodes=mask, among=among)
                there.undo(mark)
                assert found is not None
                assert sorted(found.values()) == sorted(names[:count])
