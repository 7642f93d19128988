"""Answers about drained nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.arbiter.placed_gangs import place_gang
from tests.unit.arbiter.simulated_cluster import (
    GPU,
    KEY,
    LOW,
    OTHER,
    Cluster,
    gpu_shape,
    make_gang,
    make_node,
    make_quota,
)
from tests.unit.arbiter.whatif.question_asking import ask_question
from vkgateway.api.errors import InputError, NotFoundError
from vkgateway.scheduler.core.snapshot import PodState, Requirement
from vkgateway.scheduler.core.whatif.answers import Answer, EffectKind, Verdict
from vkgateway.scheduler.core.whatif.questions import DrainQuestion

BY_RACK = {KEY: frozenset({"pool", "rack"})}


def drain_nodes(cluster: Cluster, *nodes: str) -> Answer:
    return ask_question(cluster, DrainQuestion(nodes=nodes))


def test_node_without_gangs_moves_nothing() -> None:
    cluster = Cluster([make_node("n0"), make_node("n1")], [make_quota("a", 8)])
    answer = drain_nodes(cluster, "n0")
    assert (answer.verdict, answer.gangs, answer.evictions, answer.guarantees) == (Verdict.UNUSED, (), (), ())
    assert answer.summary == "No gang's pods run there: nothing must move."
    assert answer.notes == ()
    [pool] = answer.pools
    assert pool.before is not None
    assert pool.after is not None
    assert (pool.before.usable_nodes, pool.after.usable_nodes, pool.after.free) == (2, 1, 8)


def test_pods_restart_on_free_capacity() -> None:
    cluster = Cluster([make_node("n0"), make_node("n1")], [make_quota("a", 8)])
    cluster.add(make_gang("a/ns/gang/g", "a", [4, 2]))
    cluster.run_for(1)
    [on] = {pod.node for pod in cluster.gangs["a/ns/gang/g"].pods}
    answer = drain_nodes(cluster, on)
    [outcome] = answer.gangs
    assert (answer.verdict, outcome.verdict) == (Verdict.RESTARTS, Verdict.STARTS)
    assert (outcome.pods, outcome.starting, outcome.running, outcome.borrowed) == (2, 2, 0, False)
    assert [(each.node, each.pods) for each in outcome.placements] == [("n1" if on == "n0" else "n0", 2)]
    assert answer.summary == "2 pods must move: 1 gang restarts at once."
    assert answer.effects == ()


def test_evictions_for_moved_pods_are_listed() -> None:
    cluster = Cluster([make_node("n0"), make_node("n1")], [make_quota("a", 8), make_quota("b")])
    cluster.add(place_gang(make_gang("a/ns/gang/g", "a", [8], created=900.0), ["n0"], borrowed=False))
    cluster.add(place_gang(make_gang("b/ns/gang/low", "b", [8], created=900.0, band=LOW), ["n1"], borrowed=True))
    answer = drain_nodes(cluster, "n0")
    assert [(each.gang.name, each.makes_room_for) for each in answer.evictions] == [("low", "a/ns/gang/g")]
    assert (answer.verdict, answer.gangs[0].verdict) == (Verdict.RESTARTS, Verdict.STARTS_AFTER_EVICTION)
    assert answer.summary == "1 pod must move: 1 gang restarts after evictions of 1 pod."


def test_pods_without_capacity_wait_and_guarantee_is_reduced() -> None:
    cluster = Cluster([make_node("n0"), make_node("n1")], [make_quota("a", 16)])
    for number in range(2):
        cluster.add(
            place_gang(make_gang(f"a/ns/gang/g{number}", "a", [8], created=900.0), [f"n{number}"], borrowed=False)
        )
    answer = drain_nodes(cluster, "n1")
    assert (answer.verdict, answer.gangs[0].verdict, answer.gangs[0].code) == (
        Verdict.SOME_WAIT,
        Verdict.WAITS,
        "WaitingForRoom",
    )
    [cut] = answer.guarantees
    assert (cut.tenant, cut.pool, cut.units_lost_before, cut.units_lost_after) == ("a", "pool.compute", 0, 8)
    assert (cut.before, cut.after) == ("2x8", "2x8 -> 8")
    assert answer.summary == "1 pod must move: 1 gang waits."


def test_pods_on_other_nodes_keep_running() -> None:
    cluster = Cluster([make_node("n0"), make_node("n1")], [make_quota("a")])
    cluster.add(place_gang(make_gang("a/ns/gang/g", "a", [8, 8], created=900.0), ["n0", "n1"], borrowed=True))
    [outcome] = drain_nodes(cluster, "n1").gangs
    assert (outcome.pods, outcome.running, outcome.verdict) == (1, 1, Verdict.WAITS)
    assert drain_nodes(cluster, "n0", "n1").gangs[0].running == 0


def test_waiting_gangs_start_later() -> None:
    cluster = Cluster([make_node("n0"), make_node("n1")], [make_quota("a")])
    cluster.add(
        place_gang(make_gang("a/ns/gang/long", "a", [8], created=900.0, run_limit=7200.0), ["n0"], borrowed=True)
    )
    cluster.add(
        place_gang(make_gang("a/ns/gang/short", "a", [8], created=900.0, run_limit=600.0), ["n1"], borrowed=True)
    )
    cluster.add(make_gang("a/ns/gang/waits", "a", [8]))
    answer = drain_nodes(cluster, "n1")
    assert [(each.gang.name, each.what) for each in answer.effects] == [("waits", EffectKind.LATER)]


def test_terminating_pods_are_omitted() -> None:
    cluster = Cluster([make_node("n0"), make_node("n1")], [make_quota("a", 8), make_quota("b", 8)])
    cluster.add(place_gang(make_gang("b/ns/gang/low", "b", [8], created=900.0, band=LOW), ["n0"], borrowed=True))
    cluster.add(place_gang(make_gang("b/ns/gang/inside", "b", [8], created=900.0), ["n1"], borrowed=False))
    cluster.add(make_gang("a/ns/gang/g", "a", [8]))
    cluster.cycle()
    assert cluster.gangs["b/ns/gang/low"].pods[0].state is PodState.NOTIFIED
    answer = drain_nodes(cluster, "n0")
    assert (answer.verdict, answer.gangs, answer.evictions) == (Verdict.UNUSED, (), ())
    assert [(each.gang.name, each.what) for each in answer.effects] == [("g", EffectKind.LATER)]
    assert "Pods there that were notified of an eviction are omitted: they terminate anyway." in answer.notes


def test_notes_mention_unmanaged_pods_and_closed_nodes() -> None:
    cluster = Cluster([replace(make_node("n0"), used={GPU: 2000}), make_node("n1", usable=False)], [make_quota("a")])
    assert drain_nodes(cluster, "n0", "n1").notes == (
        "n1 of pool.compute: already closed, or not ready.",
        f"Unmanaged pods use {GPU} 2 there; where they will run is unknown.",
    )


def test_nodes_are_found_by_name_and_cluster() -> None:
    cluster = Cluster([make_node("n0")], [make_quota("a"), make_quota("a", pool=OTHER)], more=[make_node("m0")])
    cluster.add(make_gang("a/ns/gang/g", "a", [8], pools=(OTHER,)))
    cluster.run_for(1)
    assert drain_nodes(cluster, "compute/m0").verdict is Verdict.SOME_WAIT
    with pytest.raises(NotFoundError, match="node 'm00' is in no pool") as caught:
        drain_nodes(cluster, "m00")
    assert caught.value.hint == "Did you mean m0? Available nodes: m0, n0."
    with pytest.raises(NotFoundError):
        drain_nodes(cluster, "elsewhere/m0")
    with pytest.raises(InputError, match="nodes: 0 are named"):
        drain_nodes(cluster)


def test_pods_may_restart_in_every_part_of_divided_pool() -> None:
    """A running pod requests the part to which it was admitted; a re-created pod does not."""
    cluster = Cluster([make_node("n0", rack="r0"), make_node("n1", rack="r1")], [make_quota("a", 8)])
    bound = replace(gpu_shape(8), terms=((Requirement(key="rack", operator="In", values=("r0",)),),))
    cluster.add(place_gang(make_gang("a/ns/gang/g", "a", [bound], created=900.0), ["n0"], borrowed=False))
    answer = ask_question(cluster, DrainQuestion(nodes=("n0",)), divided=BY_RACK)
    assert answer.gangs[0].placements[0].node == "n1"
    assert any(note.startswith("Drained pods count as free to restart in every part") for note in answer.notes)
    kept = drain_nodes(cluster, "n0")
    assert (kept.verdict, len(kept.notes)) == (Verdict.SOME_WAIT, 1), "of a pool that is not divided it asks so itself"


def test_other_node_requirements_are_kept() -> None:
    cluster = Cluster([make_node("n0", rack="r0"), make_node("n1", rack="r1")], [make_quota("a", 8)])
    terms = tuple(Requirement(key=key, operator="In", values=("r0",)) for key in ("rack", "disk"))
    bound = replace(gpu_shape(8), terms=(terms,))
    cluster.add(place_gang(make_gang("a/ns/gang/g", "a", [bound], created=900.0), ["n0"], borrowed=False))
    assert ask_question(cluster, DrainQuestion(nodes=("n0",)), divided=BY_RACK).verdict is Verdict.SOME_WAIT


def test_gang_that_restarts_in_other_pool_is_noted() -> None:
    cluster = Cluster(
        [make_node("n0")],
        [make_quota("a"), make_quota("a", pool=OTHER), make_quota("b")],
        more=[make_node("m0"), make_node("m1")],
    )
    cluster.add(place_gang(make_gang("a/ns/gang/moves", "a", [8], created=900.0), ["n0"], borrowed=True))
    answer = drain_nodes(cluster, "n0")
    assert answer.verdict is Verdict.SOME_WAIT
    assert answer.notes[-1] == (
        "Of the waiting gangs, these restart if their pods select no pool: a moves in other.compute."
    )
    part = tuple(Requirement(key=key, operator="In", values=("r0",)) for key in ("pool", "rack"))
    cluster.gangs = {}
    bound = replace(gpu_shape(8), terms=(part,))
    cluster.add(place_gang(make_gang("a/ns/gang/moves", "a", [bound], created=900.0), ["n0"], borrowed=True))
    divided = ask_question(cluster, DrainQuestion(nodes=("n0",)), divided=BY_RACK)
    assert divided.notes[-1].endswith("a moves in other.compute."), (
        "what chose the part of its pool chooses nothing there"
    )
    cluster.gangs = {}
    cluster.add(place_gang(make_gang("b/ns/gang/stays", "b", [8], created=900.0), ["n0"], borrowed=True))
    assert "Of the waiting gangs" not in drain_nodes(cluster, "n0").notes[-1]


def test_ambiguous_node_name_needs_cluster() -> None:
    cluster = Cluster([make_node("n0")], [make_quota("a")], more=[make_node("n0")])
    cluster.other = replace(cluster.other, key=("east", "pool"))
    with pytest.raises(InputError, match="node 'n0' exists in 2 compute clusters") as caught:
        drain_nodes(cluster, "n0")
    assert caught.value.hint == "Name one of: compute/n0, east/n0."
    assert drain_nodes(cluster, "east/n0").verdict is Verdict.UNUSED
