"""Places inside cells: no more on a node than the tenant may use there, bound cells first."""

from __future__ import annotations

from tests.unit.arbiter.sim import GPU, KEY, gang, node, quota
from vkgateway.arbiter.capacity.node_resources import NodeResources
from vkgateway.arbiter.guarantees.cell_placement import GuaranteedPlacement, allocate_placed
from vkgateway.arbiter.guarantees.cells import PoolCells
from vkgateway.arbiter.snapshot import Node, Pool, Quota


def world(nodes: list[Node], *quotas: Quota) -> tuple[NodeResources, PoolCells]:
    pool = Pool(key=KEY, nodes=tuple(nodes), governed=(GPU,), levels=("rack",))
    return NodeResources(pool), PoolCells(pool, quotas)


def test_pods_share_the_node_of_a_cell_where_room_alone_would_part_them() -> None:
    # Four GPUs are held on each of the other nodes: the fullest would take one pod each.
    room, cells = world([node("n0"), node("n1"), node("n2")], quota("a", 8), quota("b", 16))
    pods = gang("g", "a", [4, 4]).pods
    room.add_pods("n1", pods[0].shape)
    room.add_pods("n2", pods[0].shape)

    found = GuaranteedPlacement(cells, "a", pods)(room)

    assert found is not None
    assert set(found.values()) == {"n0"}


def test_what_is_bound_is_filled_first() -> None:
    room, cells = world([node("n0"), node("n1")], quota("a", 16, cells=(8, 8)))
    pods = gang("g", "a", [4]).pods
    room.add_pods("n0", pods[0].shape)
    assert cells.allocate_cells("a", "n0", 4000)
    room.add_pods("n1", gang("low", "b", [2]).pods[0].shape)

    assert GuaranteedPlacement(cells, "a", pods)(room) == {"g-0": "n0"}


def test_nothing_is_held_by_looking() -> None:
    room, cells = world([node("n0")], quota("a", 8))
    pods = gang("g", "a", [4, 4]).pods
    inside = GuaranteedPlacement(cells, "a", pods)

    found = inside(room)

    assert found is not None
    assert cells.unused_cells("a") == {8: 1}
    assert room.free_on_node("n0")[GPU] == 8000
    inside.commit_placement(found)
    assert cells.unused_cells("a") == {}


def test_beyond_the_cells_there_is_no_place() -> None:
    room, cells = world([node("n0"), node("n1")], quota("a", 8))

    assert GuaranteedPlacement(cells, "a", gang("g", "a", [8, 1]).pods)(room) is None


def test_a_required_level_holds_across_cells() -> None:
    room, cells = world([node("n0", rack="r0"), node("n1", rack="r1"), node("n2", rack="r1")], quota("a", 16))
    pods = gang("g", "a", [8, 8]).pods

    found = GuaranteedPlacement(cells, "a", pods, required_level="rack")(room)

    assert found is not None
    assert set(found.values()) == {"n1", "n2"}


def test_cells_hold_all_that_is_placed_or_nothing() -> None:
    _, cells = world([node("n0"), node("n1")], quota("a", 8))
    pods = gang("g", "a", [8, 1]).pods

    assert not allocate_placed(cells, "a", GPU, [(pods[0], "n0"), (pods[1], "n1")])
    assert cells.unused_cells("a") == {8: 1}
    assert allocate_placed(cells, "a", GPU, [(pods[0], "n0")])
