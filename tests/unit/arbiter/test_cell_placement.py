"""Placement inside cells: within the usable amount of each node, bound cells first."""

from __future__ import annotations

from tests.unit.arbiter.simulated_cluster import GPU, KEY, make_gang, make_node, make_quota
from vkgateway.arbiter.capacity.node_resources import NodeResources
from vkgateway.arbiter.guarantees.cell_placement import GuaranteedPlacement, allocate_placed
from vkgateway.arbiter.guarantees.cells import PoolCells
from vkgateway.arbiter.snapshot import Node, Pool, Quota


def resources_and_cells(nodes: list[Node], *quotas: Quota) -> tuple[NodeResources, PoolCells]:
    pool = Pool(key=KEY, nodes=tuple(nodes), governed=(GPU,), levels=("rack",))
    return NodeResources(pool), PoolCells(pool, quotas)


def test_pods_share_node_of_their_cell() -> None:
    # Four GPUs are used on each of the other nodes: the fullest nodes would take one pod each.
    resources, cells = resources_and_cells(
        [make_node("n0"), make_node("n1"), make_node("n2")], make_quota("a", 8), make_quota("b", 16)
    )
    pods = make_gang("g", "a", [4, 4]).pods
    resources.add_pods("n1", pods[0].shape)
    resources.add_pods("n2", pods[0].shape)

    found = GuaranteedPlacement(cells, "a", pods)(resources)

    assert found is not None
    assert set(found.values()) == {"n0"}


def test_bound_cells_are_filled_first() -> None:
    resources, cells = resources_and_cells([make_node("n0"), make_node("n1")], make_quota("a", 16, cells=(8, 8)))
    pods = make_gang("g", "a", [4]).pods
    resources.add_pods("n0", pods[0].shape)
    assert cells.allocate_cells("a", "n0", 4000)
    resources.add_pods("n1", make_gang("low", "b", [2]).pods[0].shape)

    assert GuaranteedPlacement(cells, "a", pods)(resources) == {"g-0": "n0"}


def test_search_changes_no_state() -> None:
    resources, cells = resources_and_cells([make_node("n0")], make_quota("a", 8))
    pods = make_gang("g", "a", [4, 4]).pods
    inside = GuaranteedPlacement(cells, "a", pods)

    found = inside(resources)

    assert found is not None
    assert cells.unused_cells("a") == {8: 1}
    assert resources.free.amounts_on("n0")[GPU] == 8000
    inside.commit_placement(found)
    assert cells.unused_cells("a") == {}


def test_no_placement_beyond_cells() -> None:
    resources, cells = resources_and_cells([make_node("n0"), make_node("n1")], make_quota("a", 8))

    assert GuaranteedPlacement(cells, "a", make_gang("g", "a", [8, 1]).pods)(resources) is None


def test_required_level_applies_across_cells() -> None:
    resources, cells = resources_and_cells(
        [make_node("n0", rack="r0"), make_node("n1", rack="r1"), make_node("n2", rack="r1")], make_quota("a", 16)
    )
    pods = make_gang("g", "a", [8, 8]).pods

    found = GuaranteedPlacement(cells, "a", pods, required_level="rack")(resources)

    assert found is not None
    assert set(found.values()) == {"n1", "n2"}


def test_allocation_of_placed_pods_is_all_or_nothing() -> None:
    _, cells = resources_and_cells([make_node("n0"), make_node("n1")], make_quota("a", 8))
    pods = make_gang("g", "a", [8, 1]).pods

    assert not allocate_placed(cells, "a", GPU, [(pods[0], "n0"), (pods[1], "n1")])
    assert cells.unused_cells("a") == {8: 1}
    assert allocate_placed(cells, "a", GPU, [(pods[0], "n0")])
