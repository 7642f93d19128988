"""Places inside cells: no more on a node than the tenant may use there, bound cells first."""

from __future__ import annotations

from tests.unit.arbiter.sim import GPU, KEY, gang, node, quota
from vkgateway.arbiter.cells import Cells
from vkgateway.arbiter.facts import Node, Pool, Quota
from vkgateway.arbiter.inside import Inside, hold_where_placed
from vkgateway.arbiter.room import Room


def world(nodes: list[Node], *quotas: Quota) -> tuple[Room, Cells]:
    pool = Pool(key=KEY, nodes=tuple(nodes), governed=(GPU,), levels=("rack",))
    return Room(pool), Cells(pool, quotas)


def test_pods_share_the_node_of_a_cell_where_room_alone_would_part_them() -> None:
    # Four GPUs are held on each of the other nodes: the fullest would take one pod each.
    room, cells = world([node("n0"), node("n1"), node("n2")], quota("a", 8), quota("b", 16))
    pods = gang("g", "a", [4, 4]).pods
    room.take("n1", pods[0].shape)
    room.take("n2", pods[0].shape)

    found = Inside(cells, "a", pods)(room)

    assert found is not None
    assert set(found.values()) == {"n0"}


def test_what_is_bound_is_filled_first() -> None:
    room, cells = world([node("n0"), node("n1")], quota("a", 16, cells=(8, 8)))
    pods = gang("g", "a", [4]).pods
    room.take("n0", pods[0].shape)
    assert cells.hold("a", "n0", 4000)
    room.take("n1", gang("low", "b", [2]).pods[0].shape)

    assert Inside(cells, "a", pods)(room) == {"g-0": "n0"}


def test_nothing_is_held_by_looking() -> None:
    room, cells = world([node("n0")], quota("a", 8))
    pods = gang("g", "a", [4, 4]).pods
    inside = Inside(cells, "a", pods)

    found = inside(room)

    assert found is not None
    assert cells.unused("a") == {8: 1}
    assert room.free("n0")[GPU] == 8000
    inside.commit(found)
    assert cells.unused("a") == {}


def test_beyond_the_cells_there_is_no_place() -> None:
    room, cells = world([node("n0"), node("n1")], quota("a", 8))

    assert Inside(cells, "a", gang("g", "a", [8, 1]).pods)(room) is None


def test_a_required_level_holds_across_cells() -> None:
    room, cells = world([node("n0", rack="r0"), node("n1", rack="r1"), node("n2", rack="r1")], quota("a", 16))
    pods = gang("g", "a", [8, 8]).pods

    found = Inside(cells, "a", pods, required_level="rack")(room)

    assert found is not None
    assert set(found.values()) == {"n1", "n2"}


def test_cells_hold_all_that_is_placed_or_nothing() -> None:
    _, cells = world([node("n0"), node("n1")], quota("a", 8))
    pods = gang("g", "a", [8, 1]).pods

    assert not hold_where_placed(cells, "a", GPU, [(pods[0], "n0"), (pods[1], "n1")])
    assert cells.unused("a") == {8: 1}
    assert hold_where_placed(cells, "a", GPU, [(pods[0], "n0")])
