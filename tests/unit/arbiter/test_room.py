"""What is free, how many fit, trials and their undoing."""

from dataclasses import replace

import numpy as np
import pytest

from vkgateway.arbiter.facts import Node, Pool, Shape
from vkgateway.arbiter.room import Room
from vkgateway.arbiter.views import View

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
    return Shape.of({GPU: count * 1000, "cpu": cpu * 1000})


def test_nodes_stand_in_the_order_of_the_network() -> None:
    nodes = (node("d"), node("c", rack="2"), node("b", rack="1", zone="z"), node("a", rack="2", zone="z"))
    assert Room(pool(*nodes, levels=("zone", "rack"))).names == ("b", "a", "c", "d")
    assert Room(pool(*nodes)).names == ("a", "b", "c", "d")


def test_capacity_is_that_of_the_scarcest_resource() -> None:
    room = Room(pool(node("a"), node("b", used=3)))
    assert room.capacity(gpus(2)).tolist() == [4, 2]
    assert room.capacity(gpus(2, cpu=40)).tolist() == [1, 1]
    assert room.total(gpus(2)) == 6
    assert room.fits("b", gpus(2)) == 2


def test_nothing_fits_where_a_resource_is_unknown_or_a_node_unusable() -> None:
    room = Room(pool(node("a"), node("b", usable=False)))
    assert room.capacity(gpus(1)).tolist() == [8, 0]
    assert room.capacity(Shape.of({GPU: 1000, "example.com/fpga": 1})).tolist() == [0, 0]
    room.take("a", Shape.of({"example.com/fpga": 1}))
    assert room.free("a") == {"cpu": 64_000, GPU: 8000}


def test_a_whole_node_is_one_as_large_as_the_largest_that_is_usable() -> None:
    assert Room(pool(node("a", 8), node("b", 4), node("c", 16, usable=False))).whole == 8000
    assert Room(pool(node("c", 16, usable=False))).whole == 0


def test_capacity_among_some_nodes() -> None:
    room = Room(pool(node("a"), node("b"), node("c")))
    assert room.capacity(gpus(8), among=["c", "gone"]).tolist() == [0, 0, 1]
    assert room.capacity(gpus(8), among=room.mask(["a", "b"])).tolist() == [1, 1, 0]
    assert room.capacity(gpus(8), among=[]).tolist() == [0, 0, 0]


def test_what_runs_counts_even_beyond_what_there_is() -> None:
    room = Room(pool(node("a", 2)))
    room.take("a", gpus(1), 3)
    assert room.free("a")[GPU] == -1000
    assert room.capacity(gpus(1)).tolist() == [0]
    room.give("a", gpus(1), 2)
    assert room.capacity(gpus(1)).tolist() == [1]


def test_amounts_beyond_64_bits_do_not_wrap() -> None:
    vast = Shape.of({"memory": 2**80})
    room = Room(pool(Node(name="a", allocatable={GPU: 8000, "memory": 2**60, "cpu": 1})))
    assert room.capacity(vast).tolist() == [1]
    room.take("a", vast, 10)
    assert room.capacity(vast).tolist() == [0]


def test_a_foreign_node_is_an_error() -> None:
    room = Room(pool(node("a")))
    assert "b" not in room
    with pytest.raises(KeyError):
        room.take("b", gpus(1))
    with pytest.raises(KeyError):
        room.give("b", gpus(1))


def test_many_pods_at_once() -> None:
    room = Room(pool(node("a"), node("b")))
    mark = room.mark()
    room.take_all([("a", gpus(1)), ("b", gpus(2)), ("a", gpus(1)), ("a", gpus(4))])
    assert (room.free("a")[GPU], room.free("b")[GPU]) == (2000, 6000)
    room.undo(mark)
    with pytest.raises(KeyError):
        room.take_all([("a", gpus(1)), ("c", gpus(2))])
    assert room.free("a")[GPU] == 8000


def test_undo_goes_back_and_the_mark_stays_good() -> None:
    room = Room(pool(node("a"), node("b")))
    room.take("a", gpus(4))
    mark = room.mark()
    for _ in range(2):
        room.take("b", gpus(8))
        room.give("a", gpus(4))
        assert room.capacity(gpus(8)).tolist() == [1, 0]
        room.undo(mark)
        assert room.capacity(gpus(8)).tolist() == [0, 1]
        assert room.free("a")[GPU] == 4000


def test_trials_within_trials() -> None:
    room = Room(pool(node("a")))
    outer = room.mark()
    room.take("a", gpus(1))
    inner = room.mark()
    room.take("a", gpus(2))
    room.undo(inner)
    assert room.free("a")[GPU] == 7000
    room.undo(outer)
    assert room.free("a")[GPU] == 8000


def test_what_is_settled_stays() -> None:
    room = Room(pool(node("a")))
    room.take("a", gpus(1))
    room.settle()
    mark = room.mark()
    room.take("a", gpus(1))
    room.undo(mark)
    assert room.free("a")[GPU] == 7000


def test_the_version_grows_only_where_room_appears() -> None:
    room = Room(pool(node("a")))
    before = room.version
    room.take("a", gpus(1))
    assert room.version == before
    room.give("a", gpus(1))
    assert room.version > before


def test_what_did_not_fit_is_remembered_until_room_appears() -> None:
    room = Room(pool(node("a")))
    room.miss("gang")
    assert room.missed("gang")
    room.take("a", gpus(1))
    assert room.missed("gang")
    room.give("a", gpus(1))
    assert not room.missed("gang")


def test_what_did_not_fit_in_a_trial_is_forgotten_with_it() -> None:
    room = Room(pool(node("a")))
    mark = room.mark()
    room.take("a", gpus(8))
    room.miss("gang")
    room.undo(mark)
    assert not room.missed("gang")


def test_versions_are_not_used_twice() -> None:
    room = Room(pool(node("a")))
    room.take("a", gpus(8))
    room.miss("before")
    mark = room.mark()
    room.give("a", gpus(1))
    in_trial = room.version
    room.undo(mark)
    assert room.missed("before")
    room.give("a", gpus(2))
    assert room.version not in (in_trial, mark.version)


def test_a_copy_lives_its_own_life() -> None:
    room = Room(pool(node("a")))
    room.take("a", gpus(2))
    assert room.total(gpus(1)) == 6
    other = room.copy()
    other.take("a", gpus(6))
    assert (room.total(gpus(1)), other.total(gpus(1))) == (6, 0)
    room.take("a", gpus(1))
    assert (room.total(gpus(1)), other.total(gpus(1))) == (5, 0)


def test_a_ceiling_limits_what_is_offered() -> None:
    room = Room(pool(node("a"), node("b", used=6), node("c")))
    ceiling = np.array([4000, 4000, -1000])
    limited = room.limited(ceiling)
    assert limited.capacity(gpus(1)).tolist() == [4, 2, 0]
    assert limited.capacity(gpus(0, cpu=64)).tolist() == [1, 1, 1]
    limited.take("a", gpus(3))
    limited.take("a", gpus(0, cpu=32))
    assert limited.capacity(gpus(1)).tolist() == [1, 2, 0]
    assert limited.copy().capacity(gpus(1)).tolist() == [1, 2, 0]
    assert limited.free("a") == {"cpu": 32_000, GPU: 5000}
    assert room.capacity(gpus(1)).tolist() == [8, 2, 8]
    assert ceiling.tolist() == [4000, 4000, -1000]


def test_a_ceiling_does_not_make_a_whole_node_look_full() -> None:
    limited = Room(pool(node("a"), node("b", used=3))).limited(np.array([2000, 8000]))
    keys = limited.view(gpus(1)).key
    assert keys[1] < keys[0]


def test_neighbours_in_the_network() -> None:
    room = Room(pool(node("a", rack="1"), node("b", rack="2"), node("c", rack="1"), node("d"), node("e")))
    assert room.near("a", "rack").tolist() == [True, False, True, False, False]
    assert room.near("d", "rack").tolist() == [False, False, False, True, False]


def test_a_pool_without_nodes() -> None:
    room = Room(pool())
    assert room.total(gpus(1)) == 0
    assert room.capacity(gpus(1)).size == 0


def test_few_some_and_all_nodes_touched_come_to_the_same() -> None:
    nodes = [node(f"{index:03}", size, rack=str(index % 7)) for index, size in enumerate([8, 4, 8, 2] * 30)]
    nodes += [node(f"x{index}", usable=False) for index in range(5)]
    room = Room(pool(*nodes, levels=("rack",)))
    for touched in (1, 8, 9, 25, 31, 32, 125):
        shape = gpus(touched % 3, cpu=5)
        room.view(shape).sums("rack")
        room.take_at(range(touched), shape, [1 + position % 2 for position in range(touched)])
        for looked_at in (shape, gpus(1, cpu=2), gpus(4)):
            kept, new = room.view(looked_at), View(room._yard, looked_at)
            new.refresh()
            assert kept.total == new.total
            assert kept.key.tolist() == new.key.tolist()
            for part in ("capacity", "loose", "units"):
                assert getattr(kept.sums("rack"), part).tolist() == getattr(new.sums("rack"), part).tolist()


@pytest.mark.parametrize("number", [1, 3, 40, 500])
def test_what_was_saved_comes_back_however_much_was_changed(number: int) -> None:
    room, shape = Room(pool(*(node(f"{index:02}") for index in range(40)))), gpus(1, cpu=1)
    room.take("07", shape)
    room.miss("before")
    before, total, version = room.free("07"), room.total(shape), room.version
    saved = room.save()
    for index in range(number):
        room.take(f"{index % 40:02}", shape)
        room.total(shape)
        if index % 3 == 0:
            room.give("07", shape)
    room.miss("within")
    room.restore(saved)

    assert (room.free("07"), room.total(shape), room.version) == (before, total, version)
    assert (room.missed("before"), room.missed("within")) == (True, False)
    new = View(room._yard, shape)
    new.refresh()
    assert room.view(shape).key.tolist() == new.key.tolist()
    room.take("07", shape)
    assert room.total(shape) == total - 1


def test_images_that_no_node_has_make_no_difference() -> None:
    room = Room(pool(node("a"), node("b")))
    new, newer = (replace(gpus(1), images=frozenset({name})) for name in ("new", "newer"))
    assert room.view(new) is room.view(newer) is room.view(gpus(1))
    assert room.view(gpus(1)) is not room.view(gpus(2))


def test_many_shapes_and_many_changes_are_kept_apart() -> None:
    room = Room(pool(node("a"), node("b")))
    for count in range(1, 400):
        shape = Shape.of({GPU: 1000, "cpu": count})
        room.take("a", gpus(1))
        assert room.total(shape) == 15
        room.give("a", gpus(1))
        assert room.total(shape) == 16
