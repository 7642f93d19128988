"""Preemption cost: which candidates are evicted first, by lost work, surplus, protection and ties."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.arbiter.borrowed_pool import (
    NOW,
    choose_for,
    evicted_pods,
    gpu_shape,
    make_node,
    make_nodes,
    placed_pod,
    resources_and_candidates,
    running_gang,
    waiting_gang,
    with_changed_pod,
)
from vkgateway.scheduler.core.preemption.victim_search import VictimChoice
from vkgateway.scheduler.core.snapshot import PodState


def test_candidate_with_least_lost_work_is_evicted() -> None:
    cluster = resources_and_candidates(
        make_nodes(3),
        [
            running_gang("old", ["n0"], 8, age=50),
            running_gang("young", ["n1"], 8, age=5),
            running_gang("mid", ["n2"], 8),
        ],
    )
    choice = choose_for(cluster, waiting_gang(1))
    assert choice is not None
    assert choice.nodes == {"new-0": "n1"}
    [evict] = choice.evicts
    assert (evict.gang, evict.pods, evict.whole, evict.makes_room_for) == ("young", ("young-0",), True, "new")
    assert (evict.deadline, evict.lost, choice.lost) == (NOW + 10, 40, 40)


def test_node_with_smallest_total_cost_is_emptied() -> None:
    # Each of the four on n1 has lost less than each of the two on n0, but not together.
    dear = [running_gang(f"d{index}", ["n0"], 4, age=30) for index in range(2)]
    cheap = [running_gang(f"c{index}", ["n1"], 2, age=40) for index in range(4)]
    cheap[0] = running_gang("c0", ["n1"], 2, age=1)
    assert evicted_pods(
        choose_for(resources_and_candidates(make_nodes(2), [*dear, *cheap]), waiting_gang(1))
    ).keys() == {"d0", "d1"}


def test_saved_work_is_reported() -> None:
    # Evicting `a` frees n0, too; but `b` is evicted whole and then frees two nodes.
    choice = choose_for(
        resources_and_candidates(
            make_nodes(3), [running_gang("a", ["n0"], 1, age=9), running_gang("b", ["n2", "n1"], 4, age=50)]
        ),
        waiting_gang(2),
    )
    assert evicted_pods(choice) == {"b": ("b-0", "b-1")}
    assert choice is not None
    assert (choice.lost, choice.saved) == (400, 9)
    assert [(evict.lost, evict.saved) for evict in choice.evicts] == [(400, 9)]


def test_nothing_is_saved_without_spared_candidates() -> None:
    cluster = resources_and_candidates(
        make_nodes(1),
        [running_gang("a", ["n0"], 2, age=1), running_gang("b", ["n0"], 6, age=3), running_gang("c", ["n0"], 0, age=9)],
    )
    choice = choose_for(cluster, waiting_gang(1, 5))
    assert evicted_pods(choice) == {"b": ("b-0",)}
    assert choice is not None
    assert (choice.lost, choice.saved) == (18, 0)


def test_terminating_pods_are_used_first() -> None:
    ending = [replace(placed_pod("e", "n1", 8), state=PodState.ENDING, deadline=NOW + 5)]
    cluster = resources_and_candidates(make_nodes(2), [running_gang("a", ["n0"], 8, age=0)])
    cluster[0].add_pods("n1", gpu_shape(8))
    choice = choose_for(cluster, waiting_gang(1), ending=ending)
    assert choice == VictimChoice(nodes={"new-0": "n1"}, evicts=(), awaited_pods=("e",), lost=0, saved=0)


def test_only_needed_terminating_pods_are_awaited() -> None:
    late, soon = (placed_pod(uid, "n0", 4) for uid in ("late", "soon"))
    coming = [
        replace(late, state=PodState.ENDING, deadline=NOW + 9),
        replace(soon, state=PodState.ENDING, deadline=NOW),
    ]
    cluster = resources_and_candidates(make_nodes(1))
    cluster[0].add_pods("n0", gpu_shape(4), 2)
    choice = choose_for(cluster, waiting_gang(1, 4), ending=coming)
    assert choice is not None
    assert choice.awaited_pods == ("soon",)


def test_surplus_is_evicted_before_work_without_loss() -> None:
    elastic = running_gang("elastic", ["n0", "n0"], 4, age=9999, minimum=1, elastic=True)
    cluster = resources_and_candidates(make_nodes(2), [elastic, running_gang("young", ["n1"], 8, age=1)])
    choice = choose_for(cluster, waiting_gang(1, 4))
    assert choice is not None
    [evict] = choice.evicts
    assert (evict.pods, evict.whole, evict.lost) == (("elastic-1",), False, 0)


def test_only_needed_surplus_of_highest_ranks_is_evicted() -> None:
    elastic = running_gang("elastic", ["n0"] * 8, 1, minimum=2, elastic=True)
    assert evicted_pods(choose_for(resources_and_candidates(make_nodes(1), [elastic]), waiting_gang(2, 1))) == {
        "elastic": ("elastic-6", "elastic-7")
    }


def test_whole_gang_is_evicted_below_minimum() -> None:
    elastic = running_gang("elastic", ["n0", "n0", "n1"], 4, minimum=2, elastic=True)
    choice = choose_for(
        resources_and_candidates([make_node("n0"), make_node("n1", size=4)], [elastic]), waiting_gang(1, 8)
    )
    assert choice is not None
    [evict] = choice.evicts
    assert (evict.pods, evict.whole) == (("elastic-0", "elastic-1", "elastic-2"), True)


def test_terminating_pods_do_not_count_for_minimum() -> None:
    elastic = with_changed_pod(
        running_gang("elastic", ["n0"] * 4, 2, minimum=3, elastic=True), 0, state=PodState.ENDING
    )
    choice = choose_for(resources_and_candidates(make_nodes(1), [elastic]), waiting_gang(1, 2))
    assert choice is not None
    [evict] = choice.evicts
    assert (evict.pods, evict.whole) == (("elastic-1", "elastic-2", "elastic-3"), True)


def test_each_role_keeps_its_minimum() -> None:
    gang = running_gang("elastic", ["n0"] * 4, 2, minimum=2, elastic=True)
    gang = replace(with_changed_pod(gang, 3, role="ps"), role_minimum={"ps": 1})
    assert evicted_pods(choose_for(resources_and_candidates(make_nodes(1), [gang]), waiting_gang(1, 2))) == {
        "elastic": ("elastic-2",)
    }
    inside = with_changed_pod(gang, 2, borrowed=False)
    assert evicted_pods(choose_for(resources_and_candidates(make_nodes(1), [inside]), waiting_gang(1, 4))) == {
        "elastic": ("elastic-0", "elastic-1")
    }


def test_borrowing_pods_are_evicted_and_pods_in_cells_stay() -> None:
    assert (
        choose_for(
            resources_and_candidates(make_nodes(1), [running_gang("cells", ["n0"], 8, borrowed=False)]), waiting_gang(1)
        )
        is None
    )
    both = with_changed_pod(running_gang("both", ["n0", "n1"], 8), 1, borrowed=False)
    choice = choose_for(resources_and_candidates(make_nodes(2), [both]), waiting_gang(1))
    assert evicted_pods(choice) == {"both": ("both-0",)}
    assert choice is not None
    assert choice.lost == 1600  # the remaining pods do no work without it


def test_cost_includes_idled_pods_in_cells() -> None:
    both = with_changed_pod(running_gang("both", ["n0", "n1"], 8), 1, borrowed=False)
    old = running_gang("old", ["n2"], 8, age=150)
    assert evicted_pods(choose_for(resources_and_candidates(make_nodes(3), [both, old]), waiting_gang(1))) == {
        "old": ("old-0",)
    }


def test_borrowed_surplus_of_gang_in_cells_is_reclaimable() -> None:
    for elastic, lost in ((True, 0), (False, 800)):
        gang = with_changed_pod(running_gang("g", ["n0", "n1"], 8, minimum=1, elastic=elastic), 0, borrowed=False)
        choice = choose_for(resources_and_candidates(make_nodes(2), [gang]), waiting_gang(1))
        assert evicted_pods(choice) == {"g": ("g-1",)}
        assert choice is not None
        assert (choice.lost, choice.evicts[0].whole) == (lost, False)


def test_inelastic_gang_is_evicted_whole() -> None:
    gang = running_gang("stiff", ["n0", "n0"], 4, minimum=1)
    assert evicted_pods(choose_for(resources_and_candidates(make_nodes(1), [gang]), waiting_gang(1, 4))) == {
        "stiff": ("stiff-0", "stiff-1")
    }


def test_checkpoint_and_restart_cost_count() -> None:
    saved = running_gang("saved", ["n0"], 8, age=9000, checkpoint=NOW - 10)
    costly = running_gang("costly", ["n1"], 8, age=9000, checkpoint=NOW - 2, restart_cost=100)
    choice = choose_for(resources_and_candidates(make_nodes(2), [saved, costly]), waiting_gang(1))
    assert choice is not None
    assert evicted_pods(choice).keys() == {"saved"}
    assert choice.lost == 80


def test_exempt_gangs_are_not_evicted() -> None:
    cluster = resources_and_candidates(
        make_nodes(2), [running_gang("a", ["n0"], 8, age=1), running_gang("b", ["n1"], 8)]
    )
    assert evicted_pods(choose_for(cluster, waiting_gang(1), exempt=frozenset({"a"}))).keys() == {"b"}
    assert choose_for(cluster, waiting_gang(1), exempt=frozenset({"a", "b"})) is None


def test_clock_jumps_cost_nothing() -> None:
    future = running_gang("future", ["n0"], 8, age=-500)
    choice = choose_for(
        resources_and_candidates(make_nodes(2), [future, running_gang("a", ["n1"], 8, age=1)]), waiting_gang(1)
    )
    assert choice is not None
    assert (list(evicted_pods(choice)), choice.lost) == (["future"], 0)


def test_gang_in_minimum_run_time_is_last_resort() -> None:
    young = running_gang("young", ["n0"], 8, age=1, minimum_run=60)
    old = running_gang("old", ["n1"], 8, age=9000, minimum_run=60)
    assert evicted_pods(choose_for(resources_and_candidates(make_nodes(2), [young, old]), waiting_gang(1))).keys() == {
        "old"
    }
    assert evicted_pods(choose_for(resources_and_candidates(make_nodes(2), [young, old]), waiting_gang(2))).keys() == {
        "old",
        "young",
    }
    assert evicted_pods(choose_for(resources_and_candidates(make_nodes(1), [young]), waiting_gang(1))).keys() == {
        "young"
    }


def test_fewest_gangs_in_minimum_run_time_are_evicted() -> None:
    young = [running_gang(f"young{index}", [f"n{index}"], 8, age=1, minimum_run=60) for index in range(3)]
    old = running_gang("old", ["n3"], 8, age=9000)
    assert "old" in evicted_pods(choose_for(resources_and_candidates(make_nodes(4), [*young, old]), waiting_gang(2)))


@pytest.mark.parametrize("attribute", [{"tenant": "over"}, {"priority": -1}, {"age": 99.0, "size": 8}])
def test_tie_breakers(attribute: dict[str, object]) -> None:
    # Furthest over its guarantee, lower priority, younger; the restart cost offsets what the young have not lost.
    gangs = [running_gang(name, [f"n{index}"], 8) for index, name in enumerate("abc")]
    options: dict[str, object] = dict(attribute)
    options.pop("size", None)
    if "age" in options:
        options["restart_cost"] = 8.0
    gangs[1] = running_gang("b", ["n1"], 8, **options)  # type: ignore[arg-type]
    assert evicted_pods(
        choose_for(resources_and_candidates(make_nodes(3), gangs), waiting_gang(1), excess={"over": 2.0, "low": 1.0})
    ).keys() == {"b"}


def test_gang_on_many_nodes_is_priced_by_useful_capacity() -> None:
    # One gang on two nodes that frees both costs less than two gangs, though more than each.
    wide = running_gang("wide", ["n0", "n1"], 8, age=6)
    one, two = running_gang("one", ["n2"], 8, age=10), running_gang("two", ["n3"], 8, age=10)
    assert evicted_pods(
        choose_for(resources_and_candidates(make_nodes(4), [wide, one, two]), waiting_gang(2))
    ).keys() == {"wide"}
    assert evicted_pods(
        choose_for(resources_and_candidates(make_nodes(4), [wide, one, two]), waiting_gang(1))
    ).keys() == {"one"} or evicted_pods(
        choose_for(resources_and_candidates(make_nodes(4), [wide, one, two]), waiting_gang(1))
    ).keys() == {"two"}


def test_wide_gang_that_frees_no_whole_node_is_spared() -> None:
    # Cheap per GPU, but costly gangs also run on its nodes.
    wide = running_gang("wide", ["n0", "n1", "n2", "n3"], 4, age=1)
    dear = [running_gang(f"dear{index}", [f"n{index}"], 4, age=1000) for index in range(4)]
    plain = running_gang("plain", ["n4"], 8, age=100)
    assert evicted_pods(
        choose_for(resources_and_candidates(make_nodes(5), [wide, *dear, plain]), waiting_gang(1))
    ).keys() == {"plain"}


def test_costliest_candidate_is_spared_first() -> None:
    # All three suffice, and so does the last with either of the others: the cheaper of these is evicted with it.
    sizes = {"small": (2, 1), "middle": (3, 2), "large": (6, 3)}
    gangs = [running_gang(name, ["n0"], size, age=age) for name, (size, age) in sizes.items()]
    choice = choose_for(resources_and_candidates([make_node("n0", size=11)], gangs), waiting_gang(1))
    assert choice is not None
    assert evicted_pods(choice).keys() == {"small", "large"}
    assert (choice.lost, choice.saved) == (2 + 18, 6)


def test_surplus_is_evicted_before_young_work() -> None:
    elastic = running_gang("elastic", ["n2", "n0"], 4, minimum=1, elastic=True)
    both = [running_gang(f"old{index}", [f"n{index}"], 4, age=1) for index in range(2)]
    fresh, dear = running_gang("fresh", ["n1"], 4, tenant="over", age=0), running_gang("dear", ["n2"], 4)
    cluster = resources_and_candidates(make_nodes(3), [elastic, *both, fresh, dear])
    assert evicted_pods(choose_for(cluster, waiting_gang(1), excess={"over": 1.0})).keys() == {"elastic", "old0"}


def test_cost_of_wide_gang_counts_only_useful_nodes() -> None:
    # The wide gang seems to cost half on each of its nodes, but a costly gang also runs on one of them.
    wide, dear = running_gang("wide", ["n0", "n1"], gpu_shape(4, 64), age=20), running_gang("dear", ["n1"], 4, age=9000)
    half = running_gang("half", ["n0"], gpu_shape(4, 0), age=0)
    plain = [running_gang(f"plain{index}", [f"n{index}"], 8, age=12) for index in (2, 3)]
    choice = choose_for(resources_and_candidates(make_nodes(4), [wide, dear, half, *plain]), waiting_gang(2))
    assert evicted_pods(choice).keys() == {"plain2", "plain3"}
