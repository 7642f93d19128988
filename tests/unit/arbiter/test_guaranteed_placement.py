"""Placement inside guarantees: where it costs no promise first."""

from __future__ import annotations

from tests.unit.arbiter.simulated_cluster import GPU, KEY, make_gang, make_node, make_quota
from vkgateway.scheduler.core.capacity.node_resources import NodeResources
from vkgateway.scheduler.core.guarantees.guaranteed_placement import GuaranteedPlacement
from vkgateway.scheduler.core.guarantees.pool_guarantees import PoolGuarantees, use_for_pods
from vkgateway.scheduler.core.snapshot import Node, Pool, Quota


def make_state(nodes: list[Node], *quotas: Quota) -> tuple[NodeResources, PoolGuarantees]:
    pool = Pool(key=KEY, nodes=tuple(nodes), governed=(GPU,), levels=("rack",))
    return NodeResources(pool), PoolGuarantees(pool, quotas)


def test_pods_share_the_node_of_their_guarantee() -> None:
    # Four GPUs are used on each of the other nodes: the fullest nodes would take one pod each.
    resources, guarantees = make_state(
        [make_node("n0"), make_node("n1"), make_node("n2")], make_quota("a", 8), make_quota("b", 16)
    )
    pods = make_gang("g", "a", [4, 4]).pods
    resources.add_pods("n1", pods[0].shape)
    resources.add_pods("n2", pods[0].shape)

    found = GuaranteedPlacement(guarantees, "a", pods)(resources)

    assert found is not None
    assert set(found.values()) == {"n0"}


def test_own_nodes_are_filled_first() -> None:
    resources, guarantees = make_state([make_node("n0"), make_node("n1")], make_quota("a", 16, cells=(8, 8)))
    pods = make_gang("g", "a", [4]).pods
    resources.add_pods("n0", pods[0].shape)
    assert guarantees.use("a", "n0", 4000)
    resources.add_pods("n1", make_gang("low", "b", [2]).pods[0].shape)

    assert GuaranteedPlacement(guarantees, "a", pods)(resources) == {"g-0": "n0"}


def test_search_changes_no_state() -> None:
    resources, guarantees = make_state([make_node("n0")], make_quota("a", 8))
    pods = make_gang("g", "a", [4, 4]).pods
    inside = GuaranteedPlacement(guarantees, "a", pods)

    found = inside(resources)

    assert found is not None
    assert guarantees.unused_cells("a") == {8: 1}
    assert resources.free.amounts_on("n0")[GPU] == 8000
    inside.commit_placement(found, GPU)
    assert guarantees.unused_cells("a") == {}


def test_no_placement_beyond_the_guarantee() -> None:
    resources, guarantees = make_state([make_node("n0"), make_node("n1")], make_quota("a", 8))

    assert GuaranteedPlacement(guarantees, "a", make_gang("g", "a", [8, 1]).pods)(resources) is None


def test_required_level_applies_across_nodes() -> None:
    resources, guarantees = make_state(
        [make_node("n0", rack="r0"), make_node("n1", rack="r1"), make_node("n2", rack="r1")], make_quota("a", 16)
    )
    pods = make_gang("g", "a", [8, 8]).pods

    found = GuaranteedPlacement(guarantees, "a", pods, required_level="rack")(resources)

    assert found is not None
    assert set(found.values()) == {"n1", "n2"}


def test_use_for_placed_pods_is_all_or_nothing() -> None:
    _, guarantees = make_state([make_node("n0"), make_node("n1")], make_quota("a", 8))
    pods = make_gang("g", "a", [8, 1]).pods

    assert not use_for_pods(guarantees, "a", GPU, [(pods[0], "n0"), (pods[1], "n1")])
    assert guarantees.unused_cells("a") == {8: 1}
    assert use_for_pods(guarantees, "a", GPU, [(pods[0], "n0")])
