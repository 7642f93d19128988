"""Victim search: no unneeded victim, the required nodes, and searches with a placer or a ceiling."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.arbiter.borrowed_pool import (
    GPU,
    NOW,
    choose_for,
    evicted_pods,
    gpu_shape,
    make_node,
    make_nodes,
    mixed_gang,
    placed_pod,
    resources_and_candidates,
    running_gang,
    waiting_gang,
)
from vkgateway.scheduler.core.capacity.node_resources import NodeResources
from vkgateway.scheduler.core.capacity.placement import place_pods
from vkgateway.scheduler.core.preemption.victim_search import VictimChoice, choose_victims
from vkgateway.scheduler.core.snapshot import Gang


def test_no_victims_if_capacity_is_free() -> None:
    choice = choose_for(resources_and_candidates(make_nodes(2), [running_gang("a", ["n0"], 8)]), waiting_gang(1))
    assert choice == VictimChoice(nodes={"new-0": "n1"}, evicts=(), awaited_pods=(), lost=0, saved=0)


def test_search_leaves_node_resources_unchanged() -> None:
    cluster = resources_and_candidates(make_nodes(2), [running_gang("a", ["n0"], 8), running_gang("b", ["n1"], 8)])
    before = cluster[0].free.amounts_of(GPU).tolist()
    assert choose_for(cluster, waiting_gang(2)) is not None
    assert choose_for(cluster, waiting_gang(3)) is None
    assert cluster[0].free.amounts_of(GPU).tolist() == before


def test_no_unneeded_victims() -> None:
    # The cheap one alone is too small, and with the costly one it is not needed.
    cluster = resources_and_candidates(
        make_nodes(1), [running_gang("cheap", ["n0"], 1, age=1), running_gang("dear", ["n0"], 7, age=100)]
    )
    choice = choose_for(cluster, waiting_gang(1, 7))
    assert evicted_pods(choice) == {"dear": ("dear-0",)}
    assert choose_for(cluster, waiting_gang(1, 1)) is not None
    assert evicted_pods(choose_for(cluster, waiting_gang(1, 1))) == {"cheap": ("cheap-0",)}


def test_cheapest_required_domain_is_chosen() -> None:
    cluster = make_nodes(4, racks=2)
    gangs = [running_gang(f"g{index}", [f"n{index}"], 8, age=age) for index, age in enumerate([1, 90, 40, 40])]
    assert evicted_pods(
        choose_for(resources_and_candidates(cluster, gangs), waiting_gang(2, required_level="rack"))
    ).keys() == {
        "g2",
        "g3",
    }
    assert evicted_pods(choose_for(resources_and_candidates(cluster, gangs), waiting_gang(2))).keys() <= {
        "g0",
        "g2",
        "g3",
    }
    assert choose_for(resources_and_candidates(cluster, gangs), waiting_gang(3, required_level="rack")) is None


def test_many_required_domains() -> None:
    cluster = make_nodes(60, racks=30)
    gangs = [running_gang(f"g{index}", [f"n{index}"], 8, age=1000 - 7 * index) for index in range(60)]
    gangs[34] = running_gang("g34", ["n34"], 8, age=1)
    gangs[35] = running_gang("g35", ["n35"], 8, age=2)
    assert evicted_pods(
        choose_for(resources_and_candidates(cluster, gangs), waiting_gang(2, required_level="rack"))
    ).keys() == {
        "g34",
        "g35",
    }


def test_disallowed_and_unusable_nodes_are_not_emptied() -> None:
    gangs = [running_gang(name, [f"n{index}"], 8, age=index) for index, name in enumerate("abc")]
    cluster = make_nodes(3)
    cluster[0] = make_node("n0", usable=False)
    assert evicted_pods(choose_for(resources_and_candidates(cluster, gangs), waiting_gang(1))).keys() == {"b"}
    assert evicted_pods(
        choose_for(resources_and_candidates(cluster, gangs), waiting_gang(1), among=["n0", "n2"])
    ).keys() == {"c"}


def test_victims_for_other_resources() -> None:
    # GPUs are free: CPUs are short, and only one gang uses them.
    idle, busy = (
        running_gang("idle", ["n0"], gpu_shape(4), age=1),
        running_gang("busy", ["n0"], gpu_shape(0, 60), age=50),
    )
    assert evicted_pods(
        choose_for(resources_and_candidates(make_nodes(1), [idle, busy]), waiting_gang(1, gpu_shape(4, 32)))
    ).keys() == {"busy"}


def test_missing_resource_has_no_victims() -> None:
    assert (
        choose_for(resources_and_candidates(make_nodes(1), [running_gang("a", ["n0"], 8)]), waiting_gang(1, 9)) is None
    )
    strange = mixed_gang([replace(gpu_shape(1), requests=(("tpu", 1000),))])
    assert choose_for(resources_and_candidates(make_nodes(1), [running_gang("a", ["n0"], 8)]), strange) is None


def test_unequal_pods() -> None:
    cluster = make_nodes(3)
    gangs = [
        running_gang(f"g{index}", [f"n{index}"], gpu_shape(8, 60), age=age) for index, age in enumerate([30, 20, 10])
    ]
    choice = choose_for(
        resources_and_candidates(cluster, gangs), mixed_gang([gpu_shape(8, 8), gpu_shape(8, 8), gpu_shape(0, 40)])
    )
    assert choice is not None
    assert evicted_pods(choice).keys() == {"g1", "g2"}
    assert set(choice.nodes.values()) == {"n1", "n2"}


def test_shapes_that_compete_for_nodes() -> None:
    # By counting either node fits each shape, but both nodes are needed.
    gangs = [running_gang(f"g{index}", [f"n{index}"], gpu_shape(8, 64), age=index) for index in range(3)]
    choice = choose_for(
        resources_and_candidates(make_nodes(3), gangs),
        mixed_gang([gpu_shape(4, 40), gpu_shape(4, 30), gpu_shape(1, 50)]),
    )
    assert choice is not None
    assert evicted_pods(choice).keys() == {"g0", "g1"} or len(choice.evicts) == 3


def test_custom_placer_decides() -> None:
    gang = waiting_gang(1)
    cluster = resources_and_candidates(
        make_nodes(2), [running_gang("a", ["n0"], 8, age=1), running_gang("b", ["n1"], 8, age=50)]
    )
    choice = choose_for(cluster, gang, placer=lambda resources: place_pods(resources, gang.pods, among=["n1"]))
    assert evicted_pods(choice).keys() == {"b"}
    with pytest.raises(ValueError, match="placer"):
        choose_for(cluster, gang, ceiling=np.zeros(2, dtype=np.int64))


def test_ceiling_limits_freed_units_per_node() -> None:
    gang = waiting_gang(2, 4)
    cluster = resources_and_candidates(
        make_nodes(2), [running_gang(f"g{index}", [f"n{index // 2}"], 4, age=1 + index // 2) for index in range(4)]
    )
    choice = choose_for(
        cluster, gang, ceiling=np.array([4000, 4000]), placer=lambda resources: _one_each(resources, gang)
    )
    assert choice is not None
    assert sorted(choice.nodes.values()) == ["n0", "n1"]
    assert len(choice.evicts) == 2


def _one_each(resources: NodeResources, gang: Gang) -> dict[str, str] | None:
    first, second = (
        place_pods(resources, [pod], among=[name]) for pod, name in zip(gang.pods, ("n0", "n1"), strict=True)
    )
    return {**first, **second} if first is not None and second is not None else None


def test_gang_is_not_its_own_victim() -> None:
    gang = replace(waiting_gang(1), pods=(*waiting_gang(1).pods, placed_pod("old", "n0", 8)))
    cluster = resources_and_candidates(make_nodes(1), [gang])
    assert choose_victims(*cluster, gang, gang.pods[:1], now=NOW) is None


def test_placer_that_needs_one_node() -> None:
    # Single pods are cheap on several nodes, but the placer needs all of them on one node.
    gangs = [
        running_gang(f"g{index}{place}", [f"n{index}"], 2, age=1 + 10 * place)
        for index in range(4)
        for place in range(4)
    ]
    gangs[4:8] = [running_gang(f"one{place}", ["n1"], 2, age=9) for place in range(4)]
    gang = waiting_gang(4, 2)

    def together(resources: NodeResources) -> dict[str, str] | None:
        tries = (place_pods(resources, gang.pods, among=[name]) for name in resources.nodes.names)
        return next((found for found in tries if found is not None), None)

    choice = choose_for(resources_and_candidates(make_nodes(4), gangs), gang, placer=together)
    assert evicted_pods(choice).keys() == {f"one{place}" for place in range(4)}


def test_search_falls_back_to_all_candidates() -> None:
    # By counting a cheap node suffices; the placer takes only certain pairs of nodes.
    gangs = [running_gang(f"g{index}", [f"n{index}"], 8, age=1 + index) for index in range(4)]
    gang = waiting_gang(2)
    choice = choose_for(
        resources_and_candidates(make_nodes(4), gangs),
        gang,
        placer=lambda resources: place_pods(resources, gang.pods, among=["n1", "n3"]),
    )
    assert evicted_pods(choice).keys() == {"g1", "g3"}
    assert choice is not None
    assert choice.lost == 8 * (2 + 4)


def test_second_victim_on_same_node_if_cheapest() -> None:
    cluster = resources_and_candidates(
        make_nodes(2),
        [running_gang(f"g{age}", [on], 4, age=age) for age, on in ((1, "n0"), (2, "n0"), (3, "n1"), (9, "n1"))],
    )
    assert evicted_pods(choose_for(cluster, waiting_gang(2, 4))).keys() == {"g1", "g2"}
    assert evicted_pods(choose_for(cluster, waiting_gang(3, 4))).keys() == {"g1", "g2", "g3"}


def test_removed_candidate_frees_nothing() -> None:
    gone, dropped = running_gang("gone", ["elsewhere"], 8, age=0), running_gang("dropped", ["n0"], 8, age=0)
    resources, candidates = resources_and_candidates(
        make_nodes(2), [gone, running_gang("a", ["n0"], 8), running_gang("b", ["n1"], 8, age=200), dropped]
    )
    candidates.remove_gang("dropped")
    resources.remove_pods("n0", gpu_shape(8))
    assert evicted_pods(choose_for((resources, candidates), waiting_gang(1))).keys() == {"a"}
    assert evicted_pods(choose_for((resources, candidates), waiting_gang(2))).keys() == {"a", "b"}


def test_failed_trial_leaves_no_trace() -> None:
    # The placer needs more than the pod requests: it fails without the costly victim, and works without the cheap one.
    gang = waiting_gang(1, 2)
    cluster = resources_and_candidates(
        make_nodes(1), [running_gang("dear", ["n0"], 6, age=100), running_gang("cheap", ["n0"], 2, age=1)]
    )
    choice = choose_for(
        cluster,
        gang,
        placer=lambda resources: {"new-0": "n0"} if resources.free.amounts_on("n0")[GPU] >= 6000 else None,
    )
    assert evicted_pods(choice).keys() == {"dear"}
