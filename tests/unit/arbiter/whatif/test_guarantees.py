"""Answers about a guarantee: whether it fits, which cells bind, and evictions if it is fully used."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.arbiter.placed_gangs import place_gang
from tests.unit.arbiter.simulated_cluster import GPU, LOW, Cluster, make_gang, make_node, make_quota
from tests.unit.arbiter.whatif.question_asking import ask_question
from vkgateway.api.errors import InputError, NotFoundError, VkgatewayError
from vkgateway.scheduler.core.whatif.answers import Answer, EffectKind, Verdict
from vkgateway.scheduler.core.whatif.questions import GuaranteeQuestion


def ask_guarantee(cluster: Cluster, tenant: str, gpus: int | str, **fields: Any) -> Answer:
    given: dict[str, Any] = {"pool": "pool", "guarantee": {GPU: gpus}, **fields}
    return ask_question(cluster, GuaranteeQuestion(tenant=tenant, **given))


def cell_states(answer: Answer) -> list[tuple[int, bool, str, Verdict]]:
    return [(cell.size, cell.in_use, cell.node, cell.verdict) for cell in answer.cells]


def test_new_tenant_binds_all_cells_on_idle_nodes() -> None:
    cluster = Cluster([make_node("n0"), make_node("n1"), make_node("n2")], [make_quota("a", 8)])
    answer = ask_guarantee(cluster, "new", 9)
    assert (answer.verdict, answer.evictions) == (Verdict.ACCEPTED, ())
    assert [(size, bound, verdict) for size, bound, _, verdict in cell_states(answer)] == [
        (8, False, Verdict.STARTS),
        (1, False, Verdict.STARTS),
    ]
    assert answer.summary == "It fits next to the existing guarantees. Of its 2 cells, used at once: 2 free now."


def test_borrowing_pods_are_evicted_from_used_cells() -> None:
    cluster = Cluster([make_node("n0"), make_node("n1")], [make_quota("b")])
    cluster.add(make_gang("b/ns/gang/one", "b", [8], band=LOW), make_gang("b/ns/gang/other", "b", [8], band=LOW))
    cluster.run_for(2)
    answer = ask_guarantee(cluster, "new", 16)
    assert [cell.verdict for cell in answer.cells] == [Verdict.STARTS_AFTER_EVICTION] * 2
    assert {cell.node for cell in answer.cells} == {"n0", "n1"}
    assert sorted(each.gang.name for each in answer.evictions) == ["one", "other"]
    assert all(each.makes_room_for.startswith("new/") for each in answer.evictions)
    assert answer.summary.endswith("Of its 2 cells, used at once: 2 after evictions of 2 pods.")
    assert answer.effects == (), "by the guarantee alone nothing changes"


def test_refused_guarantee_lists_remedies() -> None:
    cluster = Cluster([make_node("n0"), make_node("n1")], [make_quota("a", 8)])
    answer = ask_guarantee(cluster, "new", 16)
    assert (answer.verdict, answer.cells, answer.evictions, answer.pools) == (Verdict.REFUSED, (), (), ())
    assert "of which other guarantees leave 8; the largest guarantee that fits is 8." in answer.summary
    assert answer.notes == (
        "1 more node like n0 would hold it: see `vkgateway whatif grow pool.compute`.",
        f"{GPU} is guaranteed to: a 8. A smaller guarantee of one of them frees capacity, too.",
    )


def test_invalid_cells_have_no_node_remedy() -> None:
    cluster = Cluster([make_node("n0"), make_node("n1")], [make_quota("a", 8)])
    answer = ask_guarantee(cluster, "new", 5, cells=(3, 2))
    assert (answer.verdict, answer.notes) == (Verdict.REFUSED, ())
    assert "the cell sizes of the pool are 8, 4, 2, 1" in answer.summary


def test_guaranteed_pods_defer_new_guarantee() -> None:
    cluster = Cluster([make_node("n0"), make_node("n1"), make_node("n2")], [make_quota("a", 2, cells=(1, 1))])
    for number, end in ((0, 3000.0), (1, 9000.0)):
        one = make_gang(f"a/ns/gang/g{number}", "a", [1], created=900.0, run_limit=end)
        cluster.add(place_gang(one, [f"n{number}"], borrowed=False))
    answer = ask_guarantee(cluster, "new", 16)
    assert answer.verdict is Verdict.ACCEPTED_LATER
    assert answer.summary.startswith("Its cells fit into empty nodes, but guaranteed pods block them")
    assert [cell.verdict for cell in answer.cells] == [Verdict.STARTS, Verdict.WAITS], "what it could use now"
    assert answer.guarantees == ()
    later = [note for note in answer.notes if note.startswith("By the known ends")]
    assert later == ["By the known ends, enough have ended at about 01:05 UTC."]


def test_deferral_without_known_ends_is_reported() -> None:
    cluster = Cluster([make_node("n0"), make_node("n1")], [make_quota("a", 1)])
    cluster.add(place_gang(make_gang("a/ns/gang/g", "a", [1], created=900.0), ["n0"], borrowed=False))
    answer = ask_guarantee(cluster, "new", 8)
    assert answer.verdict is Verdict.ACCEPTED
    cluster.add(place_gang(make_gang("a/ns/gang/h", "a", [1], created=900.0), ["n1"], borrowed=False))
    cluster.quotas = (make_quota("a", 2, cells=(1, 1)),)
    answer = ask_guarantee(cluster, "new", 8)
    assert answer.verdict is Verdict.ACCEPTED_LATER
    assert any(note.startswith("No known end makes it fit") for note in answer.notes)


def test_larger_guarantee_includes_borrowing_pods() -> None:
    cluster = Cluster([make_node("n0"), make_node("n1"), make_node("n2")], [make_quota("a", 8), make_quota("b")])
    cluster.add(make_gang("a/ns/gang/inside", "a", [8]))
    cluster.run_for(1)
    cluster.add(make_gang("a/ns/gang/borrows", "a", [8]))
    cluster.run_for(1)
    answer = ask_guarantee(cluster, "a", 24)
    assert [(bound, verdict) for _, bound, _, verdict in cell_states(answer)] == [
        (True, Verdict.STARTS),
        (True, Verdict.STARTS),
        (False, Verdict.STARTS),
    ]
    assert [(each.gang.name, each.what) for each in answer.effects] == [("borrows", EffectKind.INSIDE_GUARANTEE)]
    assert answer.summary.endswith("Of its 3 cells, used at once: 2 in use, 1 free now.")
    [pool] = answer.pools
    assert pool.before is not None
    assert pool.after is not None
    assert (pool.before.guaranteed, pool.after.guaranteed) == (8, 24)


def test_only_first_of_many_cells_are_filled() -> None:
    cluster = Cluster([make_node(f"n{number}") for number in range(70)], [make_quota("a")])
    answer = ask_guarantee(cluster, "new", 70 * 8)
    assert len(answer.cells) == 64
    assert answer.summary.endswith("Of its 70 cells, used at once: 64 free now, 6 not tried.")


def test_a_smaller_guarantee_is_always_accepted() -> None:
    """This holds even where the nodes do not hold the current guarantee."""
    cluster = Cluster([make_node("n0", usable=False), make_node("n1")], [make_quota("a", 16), make_quota("b", 0)])
    assert ask_guarantee(cluster, "a", 12).verdict is Verdict.ACCEPTED
    assert ask_guarantee(cluster, "b", 8).verdict is Verdict.REFUSED


def test_limit_keeps_cells_unused() -> None:
    cluster = Cluster([make_node("n0"), make_node("n1")], [make_quota("a", limit=16)])
    answer = ask_guarantee(cluster, "a", 16)
    assert [cell.verdict for cell in answer.cells] == [Verdict.STARTS] * 2, "the limit stays as it is"
    with pytest.raises(InputError, match=f"limit: {GPU} 8 is less than the guarantee of 16"):
        ask_guarantee(cluster, "a", 16, limit={GPU: 8})


def test_used_limit_makes_cells_wait() -> None:
    cluster = Cluster([make_node("n0"), make_node("n1")], [make_quota("a", limit=8)])
    cluster.add(make_gang("a/ns/gang/low", "a", [4, 4], band=LOW, preempts=False))
    cluster.run_for(1)
    answer = ask_guarantee(cluster, "a", 8, limit={GPU: 8})
    assert [cell.verdict for cell in answer.cells] == [Verdict.STARTS_AFTER_EVICTION]
    assert [each.gang.id for each in answer.evictions] == ["a/ns/gang/low"], "its own low work goes for it"


def test_usage_of_unmanaged_pods_is_not_guaranteed() -> None:
    cluster = Cluster([replace(make_node("n0"), used={GPU: 1000})], [make_quota("a")])
    answer = ask_guarantee(cluster, "a", 8)
    assert answer.verdict is Verdict.REFUSED
    assert "1 are used by unmanaged pods" in answer.summary


def test_a_guarantee_of_cpu_is_a_sum() -> None:
    cluster = Cluster([make_node("n0"), make_node("n1")], [replace(make_quota("a"), guarantee={"cpu": 100_000})])
    fits = ask_question(cluster, GuaranteeQuestion(tenant="new", pool="pool", guarantee={"cpu": "28"}))
    assert (fits.verdict, fits.cells) == (Verdict.ACCEPTED, ())
    assert fits.notes[0].startswith("A guarantee of cpu or memory is a sum without cells")
    assert fits.summary == "It fits next to the existing guarantees."
    refused = ask_question(cluster, GuaranteeQuestion(tenant="new", pool="pool", guarantee={"cpu": "28500m"}))
    assert refused.verdict is Verdict.REFUSED
    assert "has 128, of which 100 are guaranteed to other tenants; request at most 28" in refused.summary


@pytest.mark.parametrize(
    ("fields", "kind", "message", "hint"),
    [
        ({"tenant": "No"}, InputError, "tenant name 'No'", "lower-case"),
        ({"pool": "b100"}, NotFoundError, "pool 'b100' does not exist", "pool.compute"),
        ({"guarantee": {"nvidia.com/gup": 8}}, InputError, "'nvidia.com/gup' is offered by no node", GPU),
        ({"guarantee": {GPU: "-8"}}, InputError, "-8 is not more than 0", ""),
        ({"guarantee": {GPU: "8.5"}}, InputError, "8.5 is not a whole number", ""),
        ({"cells": (8, 0)}, InputError, "cells: 0 is not 1 or more", "1 unit"),
        ({"cells": (1,) * 1025}, InputError, "cells: 1025 are more than 1024", "larger or fewer"),
        ({"weight": 0.0}, InputError, "weight: 0.0 is not more than 0", "2.5"),
        ({"limit": {GPU: "x"}}, InputError, "limit of nvidia.com/gpu", "as in Kubernetes"),
    ],
)
def test_invalid_question_is_rejected_with_hint(
    fields: dict[str, Any], kind: type[VkgatewayError], message: str, hint: str
) -> None:
    given: dict[str, Any] = {"tenant": "new", "pool": "pool", "guarantee": {GPU: 8}, **fields}
    with pytest.raises(kind) as caught:
        ask_question(Cluster([make_node("n0")], [make_quota("a")]), GuaranteeQuestion(**given))
    assert message in str(caught.value)
    assert hint in caught.value.hint
