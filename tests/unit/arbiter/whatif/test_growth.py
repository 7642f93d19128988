"""Answers about additional nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.arbiter.placed_gangs import place_gang
from tests.unit.arbiter.simulated_cluster import GPU, KEY, LOW, OTHER, Cluster, make_gang, make_node, make_quota
from tests.unit.arbiter.whatif.question_asking import ask_question
from vkgateway.api.errors import InputError, NotFoundError
from vkgateway.scheduler.core.snapshot import PodState
from vkgateway.scheduler.core.whatif.answers import Answer, EffectKind, Verdict
from vkgateway.scheduler.core.whatif.questions import GrowQuestion


def grow_pool(cluster: Cluster, nodes: int, *, like: str = "", pool: str = "pool") -> Answer:
    return ask_question(cluster, GrowQuestion(pool=pool, nodes=nodes, like=like))


def full_cluster(*waiting: int, **fields: object) -> Cluster:
    """Return a full node, and gangs that each wait for this number of GPUs."""
    cluster = Cluster([make_node("n0")], [make_quota("a")])
    cluster.add(place_gang(make_gang("a/ns/gang/long", "a", [8], created=900.0, **fields), ["n0"], borrowed=True))
    cluster.add(*(make_gang(f"a/ns/gang/w{number}", "a", [gpus]) for number, gpus in enumerate(waiting)))
    return cluster


def test_growth_without_waiting_gangs_has_no_effect() -> None:
    answer = grow_pool(full_cluster(), 2)
    assert (answer.verdict, answer.effects) == (Verdict.NO_EFFECT, ())
    assert answer.summary == "No waiting gang starts, or starts earlier."
    assert answer.notes == (
        f"The new nodes are like n0: {GPU} 8, cpu 64, with its labels, ready now.",
        f"The largest guarantee for one more tenant grows from {GPU} 8 to 24.",
    )
    [pool] = answer.pools
    assert pool.after is not None
    assert (pool.after.nodes, pool.after.free, pool.after.whole_nodes) == (3, 16, 2)


def test_waiting_gangs_start_on_new_nodes() -> None:
    answer = grow_pool(full_cluster(8, 8, 8), 2)
    assert [(each.gang.name, each.what, each.after) for each in answer.effects] == [
        ("w0", EffectKind.STARTS, "starts on new-1"),
        ("w1", EffectKind.STARTS, "starts on new-2"),
    ]
    assert answer.summary == "With these nodes, 2 gangs start now."


def test_later_gangs_start_earlier() -> None:
    answer = grow_pool(full_cluster(8, 8, run_limit=3600.0), 1)
    assert [(each.gang.name, each.what) for each in answer.effects] == [
        ("w0", EffectKind.STARTS),
        ("w1", EffectKind.EARLIER),
    ]
    assert answer.summary == "With these nodes, 1 gang starts now, 1 gang starts earlier."


def test_evictions_are_withdrawn_with_new_nodes() -> None:
    cluster = Cluster([make_node("n0")], [make_quota("a", 8), make_quota("b")])
    notified = {"state": PodState.NOTIFIED, "deadline": 1030.0, "evicted_for": "a/ns/gang/g"}
    cluster.add(
        place_gang(make_gang("b/ns/gang/low", "b", [8], created=900.0, band=LOW), ["n0"], borrowed=True, **notified)
    )
    cluster.add(make_gang("a/ns/gang/g", "a", [8]))
    answer = grow_pool(cluster, 1)
    assert {(each.gang.name, each.what) for each in answer.effects} == {
        ("low", EffectKind.SPARED),
        ("g", EffectKind.STARTS),
    }
    assert answer.verdict is Verdict.HELPS


def test_reduced_guarantees_are_restored() -> None:
    cluster = Cluster([make_node("n0"), make_node("n1", usable=False)], [make_quota("a", 16)])
    answer = grow_pool(cluster, 1)
    [restored] = answer.guarantees
    assert (restored.units_lost_before, restored.units_lost_after, restored.after) == (8, 0, "2x8")
    assert answer.verdict is Verdict.HELPS
    assert answer.summary == "With these nodes, the nodes hold more of 1 guarantee."


def test_new_nodes_copy_most_common_or_named_node() -> None:
    cluster = Cluster([make_node("n0", 4), make_node("n1"), make_node("n2")], [make_quota("a")])
    assert grow_pool(cluster, 1).notes[0].startswith("The new nodes are like n1:")
    named = grow_pool(cluster, 1, like="n0")
    assert named.notes[0].startswith(f"The new nodes are like n0: {GPU} 4")
    with pytest.raises(NotFoundError, match="node 'n9' is in no pool"):
        grow_pool(cluster, 1, like="n9")


def test_new_nodes_have_common_usage() -> None:
    """Pods of DaemonSets, for example."""
    held = [replace(make_node(f"n{number}"), used={"cpu": 1000 * (number + 1)}) for number in range(2)]
    cluster = Cluster(held, [make_quota("a")])
    cluster.add(make_gang("a/ns/gang/w", "a", [9]))
    state = grow_pool(cluster, 1)
    assert state.pools[0].after is not None
    from vkgateway.scheduler.core.whatif.growth import commonest_node
    from vkgateway.scheduler.core.whatif.growth import with_nodes as larger

    model = commonest_node(cluster.pool)
    assert model is not None
    assert larger(cluster.pool, model, 1).nodes[-1].used == {"cpu": 1000}


def test_existing_node_names_are_not_reused() -> None:
    cluster = Cluster([make_node("new-1")], [make_quota("a")])
    cluster.add(make_gang("a/ns/gang/two", "a", [8, 8]))
    [effect] = grow_pool(cluster, 1).effects
    assert effect.after == "starts on new-1, new-2"


def test_pool_without_nodes_needs_model_node() -> None:
    cluster = Cluster([make_node("n0")], [make_quota("a"), make_quota("a", pool=OTHER)])
    cluster.other = replace(cluster.pool, key=OTHER, nodes=())
    empty = replace(cluster.snapshot(), pools=(cluster.pool, cluster.other))
    cluster.snapshot = lambda: empty  # type: ignore[method-assign]
    with pytest.raises(InputError, match=r"pool other\.compute has no node to copy"):
        grow_pool(cluster, 1, pool="other")
    assert grow_pool(cluster, 1, pool="other", like="n0").verdict is Verdict.NO_EFFECT


@pytest.mark.parametrize("number", [0, -1, 10_001])
def test_number_of_nodes_is_limited(number: int) -> None:
    with pytest.raises(InputError, match=f"nodes: {number} is not between 1 and 10000"):
        grow_pool(full_cluster(), number)


def test_unknown_pool_is_rejected() -> None:
    with pytest.raises(NotFoundError, match="pool 'a100' does not exist"):
        grow_pool(full_cluster(), 1, pool="a100")
    assert KEY[1] == "pool"
