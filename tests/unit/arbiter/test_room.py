"""Free capacity, trials and undo."""

from dataclasses import replace

import numpy as np
import pytest

from vkgateway.arbiter.capacity.node_resources import NodeResources
from vkgateway.arbiter.capacity.shape_views import ShapeView
from vkgateway.arbiter.snapshot import Node, Pool, Shape

GPU = "nvidia.com/gpu"


def node(name: str, gpus: int = 8, *, used: int = 0, usable: bool = True, **labels: str) -> Node:
    return Node(
        name=name,
        allocatable={"cpu": 64_000, GPU: gpus * 1000},
        used={GPU: used * 1000},
        labels=labels,
        usable=usable,
    )


def pool(*nodes: Node, levels: tuple[str, ...] = ()) -> Pool:
    return Pool(key=("compute", "pool"), nodes=nodes, governed=(GPU,), levels=levels)


def gpus(count: int, cpu: int = 0) -> Shape:
    return Shape.from_requests({GPU: count * 1000, "cpu": cpu * 1000})


def test_nodes_are_in_topology_order() -> None:
    nodes = (node("d"), node("c", rack="2"), node("b", rack="1", zone="z"), node("a", rack="2", zone="z"))
    assert NodeResources(pool(*nodes, levels=("zone", "rack"))).names == ("b", "a", "c", "d")
    assert NodeResources(pool(*nodes)).names == ("a", "b", "c", "d")


def test_scarcest_resource_limits_capacity() -> None:
    room = NodeResources(pool(node("a"), node("b", used=3)))
    assert room.capacity_by_node(gpus(2)).tolist() == [4, 2]
    assert room.capacity_by_node(gpus(2, cpu=40)).tolist() == [1, 1]
    assert room.total_capacity(gpus(2)) == 6
    assert room.capacity_on_node("b", gpus(2)) == 2


def test_unknown_resource_or_unusable_node_has_no_capacity() -> None:
    room = NodeResources(pool(node("a"), node("b", usable=False)))
    assert room.capacity_by_node(gpus(1)).tolist() == [8, 0]
    assert room.capacity_by_node(Shape.from_requests({GPU: 1000, "example.com/fpga": 1})).tolist() == [0, 0]
    room.add_pods("a", Shape.from_requests({"example.com/fpga": 1}))
    assert room.free_on_node("a") == {"cpu": 64_000, GPU: 8000}


def test_largest_usable_node_defines_whole_node() -> None:
    assert NodeResources(pool(node("a", 8), node("b", 4), node("c", 16, usable=False))).largest_node_units == 8000
    assert NodeResources(pool(node("c", 16, usable=False))).largest_node_units == 0


def test_capacity_among_some_nodes() -> None:
    room = NodeResources(pool(node("a"), node("b"), node("c")))
    assert room.capacity_by_node(gpus(8), among=["c", "gone"]).tolist() == [0, 0, 1]
    assert room.capacity_by_node(gpus(8), among=room.node_mask(["a", "b"])).tolist() == [1, 1, 0]
    assert room.capacity_by_node(gpus(8), among=[]).tolist() == [0, 0, 0]


def test_running_pods_count_beyond_capacity() -> None:
    room = NodeResources(pool(node("a", 2)))
    room.add_pods("a", gpus(1), 3)
    assert room.free_on_node("a")[GPU] == -1000
    assert room.capacity_by_node(gpus(1)).tolist() == [0]
    room.remove_pods("a", gpus(1), 2)
    assert room.capacity_by_node(gpus(1)).tolist() == [1]


def test_huge_amounts_do_not_overflow() -> None:
    vast = Shape.from_requests({"memory": 2**80})
    room = NodeResources(pool(Node(name="a", allocatable={GPU: 8000, "memory": 2**60, "cpu": 1})))
    assert room.capacity_by_node(vast).tolist() == [1]
    room.add_pods("a", vast, 10)
    assert room.capacity_by_node(vast).tolist() == [0]


def test_unknown_node_raises() -> None:
    room = NodeResources(pool(node("a")))
    assert "b" not in room
    with pytest.raises(KeyError):
        room.add_pods("b", gpus(1))
    with pytest.raises(KeyError):
        room.remove_pods("b", gpus(1))


def test_many_pods_are_added_and_removed() -> None:
    room = NodeResources(pool(node("a"), node("b")))
    mark = room.mark()
    room.add_many([("a", gpus(1)), ("b", gpus(2)), ("a", gpus(1)), ("a", gpus(4))])
    assert (room.free_on_node("a")[GPU], room.free_on_node("b")[GPU]) == (2000, 6000)
    room.undo(mark)
    with pytest.raises(KeyError):
        room.add_many([("a", gpus(1)), ("c", gpus(2))])
    assert room.free_on_node("a")[GPU] == 8000


def test_undo_restores_state_and_mark_stays_valid() -> None:
    room = NodeResources(pool(node("a"), node("b")))
    room.add_pods("a", gpus(4))
    mark = room.mark()
    for _ in range(2):
        room.add_pods("b", gpus(8))
        room.remove_pods("a", gpus(4))
        assert room.capacity_by_node(gpus(8)).tolist() == [1, 0]
        room.undo(mark)
        assert room.capacity_by_node(gpus(8)).tolist() == [0, 1]
        assert room.free_on_node("a")[GPU] == 4000


def test_nested_trials() -> None:
    room = NodeResources(pool(node("a")))
    outer = room.mark()
    room.add_pods("a", gpus(1))
    inner = room.mark()
    room.add_pods("a", gpus(2))
    room.undo(inner)
    assert room.free_on_node("a")[GPU] == 7000
    room.undo(outer)
    assert room.free_on_node("a")[GPU] == 8000


def test_forgotten_marks_keep_changes() -> None:
    room = NodeResources(pool(node("a")))
    room.add_pods("a", gpus(1))
    room.forget_marks()
    mark = room.mark()
    room.add_pods("a", gpus(1))
    room.undo(mark)
    assert room.free_on_node("a")[GPU] == 7000


def test_version_grows_only_when_capacity_is_freed() -> None:
    room = NodeResources(pool(node("a")))
    before = room.version
    room.add_pods("a", gpus(1))
    assert room.version == before
    room.remove_pods("a", gpus(1))
    assert room.version > before


def test_unfit_shapes_are_remembered_until_capacity_is_freed() -> None:
    room = NodeResources(pool(node("a")))
    room.remember_unfit("gang")
    assert room.is_known_unfit("gang")
    room.add_pods("a", gpus(1))
    assert room.is_known_unfit("gang")
    room.remove_pods("a", gpus(1))
    assert not room.is_known_unfit("gang")


def test_undo_forgets_unfit_shapes_of_trial() -> None:
    room = NodeResources(pool(node("a")))
    mark = room.mark()
    room.add_pods("a", gpus(8))
    room.remember_unfit("gang")
    room.undo(mark)
    assert not room.is_known_unfit("gang")


def test_versions_are_never_reused() -> None:
    room = NodeResources(pool(node("a")))
    room.add_pods("a", gpus(8))
    room.remember_unfit("before")
    mark = room.mark()
    room.remove_pods("a", gpus(1))
    in_trial = room.version
    room.undo(mark)
    assert room.is_known_unfit("before")
    room.remove_pods("a", gpus(2))
    assert room.version not in (in_trial, mark.version)


def test_copy_is_independent() -> None:
    room = NodeResources(pool(node("a")))
    room.add_pods("a", gpus(2))
    assert room.total_capacity(gpus(1)) == 6
    other = room.copy()
    other.add_pods("a", gpus(6))
    assert (room.total_capacity(gpus(1)), other.total_capacity(gpus(1))) == (6, 0)
    room.add_pods("a", gpus(1))
    assert (room.total_capacity(gpus(1)), other.total_capacity(gpus(1))) == (5, 0)


def test_ceiling_limits_capacity() -> None:
    room = NodeResources(pool(node("a"), node("b", used=6), node("c")))
    ceiling = np.array([4000, 4000, -1000])
    limited = room.with_ceiling(ceiling)
    assert limited.capacity_by_node(gpus(1)).tolist() == [4, 2, 0]
    assert limited.capacity_by_node(gpus(0, cpu=64)).tolist() == [1, 1, 1]
    limited.add_pods("a", gpus(3))
    limited.add_pods("a", gpus(0, cpu=32))
    assert limited.capacity_by_node(gpus(1)).tolist() == [1, 2, 0]
    assert limited.copy().capacity_by_node(gpus(1)).tolist() == [1, 2, 0]
    assert limited.free_on_node("a") == {"cpu": 32_000, GPU: 5000}
    assert room.capacity_by_node(gpus(1)).tolist() == [8, 2, 8]
    assert ceiling.tolist() == [4000, 4000, -1000]


def test_ceiling_does_not_affect_whole_nodes() -> None:
    limited = NodeResources(pool(node("a"), node("b", used=3))).with_ceiling(np.array([2000, 8000]))
    keys = limited.shape_view(gpus(1)).key
    assert keys[1] < keys[0]


def test_nodes_in_domain() -> None:
    room = NodeResources(pool(node("a", rack="1"), node("b", rack="2"), node("c", rack="1"), node("d"), node("e")))
    assert room.nodes_in_domain("a", "rack").tolist() == [True, False, True, False, False]
    assert room.nodes_in_domain("d", "rack").tolist() == [False, False, False, True, False]


def test_a_pool_without_nodes() -> None:
    room = NodeResources(pool())
    assert room.total_capacity(gpus(1)) == 0
    assert room.capacity_by_node(gpus(1)).size == 0


def test_partial_and_full_refresh_agree() -> None:
    nodes = [node(f"{index:03}", size, rack=str(index % 7)) for index, size in enumerate([8, 4, 8, 2] * 30)]
    nodes += [node(f"x{index}", usable=False) for index in range(5)]
    room = NodeResources(pool(*nodes, levels=("rack",)))
    for touched in (1, 8, 9, 25, 31, 32, 125):
        shape = gpus(touched % 3, cpu=5)
        room.shape_view(shape).domain_sums("rack")
        room.add_pods_at(range(touched), shape, [1 + position % 2 for position in range(touched)])
        for looked_at in (shape, gpus(1, cpu=2), gpus(4)):
            kept, new = room.shape_view(looked_at), ShapeView(room._free_capacity, looked_at)
            new.refresh()
            assert kept.total == new.total
            assert kept.key.tolist() == new.key.tolist()
            for part in ("capacity", "loose", "units"):
                assert (
                    getattr(kept.domain_sums("rack"), part).tolist() == getattr(new.domain_sums("rack"), part).tolist()
                )


@pytest.mark.parametrize("number", [1, 3, 40, 500])
def test_restore_after_any_number_of_changes(number: int) -> None:
    room, shape = NodeResources(pool(*(node(f"{index:02}") for index in range(40)))), gpus(1, cpu=1)
    room.add_pods("07", shape)
    room.remember_unfit("before")
    before, total, version = room.free_on_node("07"), room.total_capacity(shape), room.version
    saved = room.save()
    for index in range(number):
        room.add_pods(f"{index % 40:02}", shape)
        room.total_capacity(shape)
        if index % 3 == 0:
            room.remove_pods("07", shape)
    room.remember_unfit("within")
    room.restore(saved)

    assert (room.free_on_node("07"), room.total_capacity(shape), room.version) == (before, total, version)
    assert (room.is_known_unfit("before"), room.is_known_unfit("within")) == (True, False)
    new = ShapeView(room._free_capacity, shape)
    new.refresh()
    assert room.shape_view(shape).key.tolist() == new.key.tolist()
    room.add_pods("07", shape)
    assert room.total_capacity(shape) == total - 1


def test_unknown_images_do_not_matter() -> None:
    room = NodeResources(pool(node("a"), node("b")))
    new, newer = (replace(gpus(1), images=frozenset({name})) for name in ("new", "newer"))
    assert room.shape_view(new) is room.shape_view(newer) is room.shape_view(gpus(1))
    assert room.shape_view(gpus(1)) is not room.shape_view(gpus(2))


def test_views_of_many_shapes_stay_correct() -> None:
    room = NodeResources(pool(node("a"), node("b")))
    for count in range(1, 400):
        shape = Shape.from_requests({GPU: 1000, "cpu": count})
        room.add_pods("a", gpus(1))
        assert room.total_capacity(shape) == 15
        room.remove_pods("a", gpus(1))
        assert room.total_capacity(shape) == 16
