"""Preemption candidates of a gang, and their arrays."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.arbiter.borrowed_pool import GPU, KEY, NOW, gpu_shape, placed_pod, running_gang, with_changed_pod
from vkgateway.scheduler.core.preemption.candidates import PreemptionCandidates
from vkgateway.scheduler.core.preemption.eviction_units import EvictionStage, candidates_of, select_min_members
from vkgateway.scheduler.core.snapshot import Gang, PodState, Shape


def candidates_in_pool(gang: Gang) -> list[tuple[list[str], EvictionStage, bool]]:
    return [
        ([pod.uid for pod in candidate.pods], candidate.stage, candidate.whole)
        for candidate in candidates_of(gang, KEY)
    ]


def test_gang_is_one_candidate() -> None:
    assert candidates_in_pool(running_gang("g", ["a", "b"], minimum=1)) == [(["g-0", "g-1"], EvictionStage.WORK, True)]


def test_surplus_pods_are_separate_candidates() -> None:
    assert candidates_in_pool(running_gang("g", ["a", "b", "c"], minimum=1, elastic=True)) == [
        (["g-1"], EvictionStage.SURPLUS, False),
        (["g-2"], EvictionStage.SURPLUS, False),
        (["g-0"], EvictionStage.WORK, True),
    ]
    assert candidates_in_pool(running_gang("g", ["a", "b"], minimum=2, elastic=True)) == [
        (["g-0", "g-1"], EvictionStage.WORK, True)
    ]


def test_pods_in_cells_are_no_candidates() -> None:
    gang = with_changed_pod(running_gang("g", ["a", "b", "c"], minimum=1), 0, borrowed=False)
    assert candidates_in_pool(gang) == [(["g-1"], EvictionStage.WORK, False), (["g-2"], EvictionStage.WORK, False)]
    assert candidates_in_pool(replace(gang, elastic=True))[0] == (["g-1"], EvictionStage.SURPLUS, False)


def test_borrowing_min_members_are_evicted_without_pods_in_cells() -> None:
    gang = with_changed_pod(running_gang("g", ["a", "b", "c"]), 0, borrowed=False)
    [candidate] = candidates_of(gang, KEY)
    assert [pod.uid for pod in candidate.evicted_pods] == ["g-1", "g-2"]
    elastic = replace(gang, elastic=True, minimum=2)
    assert candidates_in_pool(elastic) == [(["g-2"], EvictionStage.SURPLUS, False), (["g-1"], EvictionStage.WORK, True)]


def test_pods_in_cells_are_min_members_first() -> None:
    gang = replace(running_gang("g", ["a", "b", "c"], borrowed=False), elastic=True, minimum=2)
    assert candidates_in_pool(with_changed_pod(gang, 0, borrowed=True)) == [(["g-0"], EvictionStage.SURPLUS, False)]


def test_only_running_pods_of_pool_count() -> None:
    gang = running_gang("g", ["a", "b", "c", "d"], minimum=2, elastic=True)
    gang = with_changed_pod(with_changed_pod(gang, 0, state=PodState.NOTIFIED), 1, pool=("compute", "other"))
    assert candidates_in_pool(gang) == [(["g-2", "g-3"], EvictionStage.WORK, True)]
    assert candidates_in_pool(with_changed_pod(running_gang("g", ["a"]), 0, state=PodState.WAITING, node="")) == []


def test_min_members_satisfy_roles_before_ranks() -> None:
    pods = [replace(placed_pod(f"p{rank}", "a", rank=rank), role=role) for rank, role in enumerate("wwwp")]
    gang = replace(running_gang("g", []), pods=tuple(pods), minimum=3, role_minimum={"p": 1, "w": 1})
    assert [pod.uid for pod in select_min_members(gang, pods)] == ["p0", "p3", "p1"]


def test_candidate_rows_hold_freed_amounts_and_work() -> None:
    candidates = PreemptionCandidates(KEY, GPU)
    gang = running_gang(
        "g", ["a", "a", "b"], gpu_shape(2, 4), minimum=2, elastic=True, age=10, minimum_run=60, restart_cost=5
    )
    candidates.update_gang(replace(gang, checkpoint=NOW - 4))
    table = candidates.rows.as_table()
    assert table.stage.tolist() == [EvictionStage.SURPLUS, EvictionStage.WORK]
    assert table.units.tolist() == [2000, 6000]
    assert table.work_begun.tolist() == [2000 * (NOW - 4), 6000 * (NOW - 4)]
    assert table.restart_cost.tolist() == [0, 5]
    assert table.protected_until.tolist() == [NOW + 50, NOW + 50]
    assert candidates.dependents == {1: (0,)}
    columns = table.resources
    positions = candidates.rows.node_indices(("b", "a"))[table.row_node].tolist()
    freed = table.row_freed[[columns[GPU], columns["cpu"]]].T.tolist()
    assert list(zip(table.row_candidate.tolist(), positions, freed, strict=True)) == [
        (0, 0, [2000, 4000]),
        (1, 1, [4000, 8000]),
    ]


def test_resources_and_nodes_may_be_added_later() -> None:
    candidates = PreemptionCandidates(KEY, GPU)
    names = ("a",)
    candidates.update_gang(running_gang("one", ["a"], gpu_shape(1)))
    assert candidates.rows.node_indices(names)[candidates.rows.as_table().row_node].tolist() == [0]
    candidates.update_gang(running_gang("two", ["b"], Shape.from_requests({"tpu": 7})))
    table = candidates.rows.as_table()
    assert table.row_freed[table.resources["tpu"]].tolist() == [0, 7]
    assert table.row_freed[table.resources[GPU]].tolist() == [1000, 0]
    assert candidates.rows.node_indices(names)[table.row_node].tolist() == [0, -1]


def test_update_replaces_candidates_of_gang() -> None:
    candidates = PreemptionCandidates(KEY, GPU)
    candidates.update_gang(running_gang("g", ["a"], 1))
    candidates.update_gang(running_gang("g", ["b", "b"], 2))
    assert len(candidates) == 1
    assert candidates.rows.as_table().alive.tolist() == [0, 1]
    candidates.update_gang(running_gang("g", ["b"], borrowed=False))
    assert "g" not in candidates
    assert len(candidates) == 0
    candidates.remove_gang("g")


def test_removed_candidates_are_compacted() -> None:
    candidates = PreemptionCandidates(KEY, GPU)
    last = running_gang("last", ["x", "y"], 4, minimum=1, elastic=True)
    candidates.update_gang(last)
    for number in range(2500):
        candidates.update_gang(running_gang(f"g{number}", ["a"], gpu_shape(1, 1)))
        if number % 2:
            candidates.remove_gang(f"g{number - 1}")
            candidates.remove_gang(f"g{number}")
    assert len(candidates) == 2
    assert len(candidates.rows.as_table().alive) < 2500
    one, two = (candidate for candidate in candidates.candidates if candidate is not None)
    assert (one.candidate_id, two.candidate_id) == ("last/last-1", "last")
    numbers = candidates.numbers_of_gang("last")
    assert [candidates.candidates[number] for number in numbers] == [one, two]
    assert candidates.dependents == {numbers[1]: (numbers[0],)}
    table = candidates.rows.as_table()
    kept = [number in numbers for number in table.row_candidate.tolist()]
    assert table.row_freed[table.resources[GPU]][kept].tolist() == [4000, 4000]
