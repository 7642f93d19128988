"""Differences between decisions without and with a change."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.arbiter.simulated_cluster import KEY, Cluster, make_gang, make_node, make_quota
from vkgateway.scheduler.core.decisions import (
    Admit,
    Decisions,
    Evict,
    PendingReason,
    PendingReport,
    Promote,
    Reprieve,
)
from vkgateway.scheduler.core.snapshot import PreemptionPlan
from vkgateway.scheduler.core.whatif.answers import EffectKind
from vkgateway.scheduler.core.whatif.difference import Difference
from vkgateway.scheduler.core.whatif.simulation import DecidedSnapshot, ObservedCycle, Simulation

G = "a/ns/gang/g"
UID = f"{G}-0"
STARTS = {"admits": (Admit(gang=G, pool=KEY, nodes={UID: "n0"}, borrowed=True),)}
EVICTED = {"evicts": (Evict(gang=G, pods=(UID,), whole=True, makes_room_for="x", deadline=1010.0, lost=0.0),)}
STAYS = {"reprieves": (Reprieve(gang=G, pods=(UID,)),)}
INSIDE = {"promotes": (Promote(gang=G, pods=(UID,)),)}
PLANNED = {"plans": {G: PreemptionPlan(pool=KEY, nodes={UID: "n0"}, borrowed=False)}}


def waiting_decisions(code: PendingReason = PendingReason.ROOM, likely: float | None = None) -> dict[str, Any]:
    return {"holds": (PendingReport(gang=G, code=code, message="waits", place=1, earliest=likely, likely=likely),)}


def compare_decisions(before: dict[str, Any], after: dict[str, Any], *, about: tuple[str, ...] = ()) -> Difference:
    cluster = Cluster([make_node("n0")], [make_quota("a")])
    cluster.add(make_gang(G, "a", [8]))
    snapshot = cluster.snapshot()
    trial = Simulation(ObservedCycle(snapshot=snapshot, decisions=Decisions(), time=cluster.now), cluster.now)
    first, then = DecidedSnapshot(snapshot, Decisions(**before)), DecidedSnapshot(snapshot, Decisions(**after))
    return Difference(trial, then, before=first, about=about)


@pytest.mark.parametrize(
    ("before", "after", "what", "texts"),
    [
        (waiting_decisions(), STARTS, EffectKind.STARTS, ("WaitingForRoom; expected start not known", "starts on n0")),
        (
            STARTS,
            waiting_decisions(),
            EffectKind.DOES_NOT_START,
            ("starts on n0", "WaitingForRoom; expected start not known"),
        ),
        (
            waiting_decisions(),
            {**waiting_decisions(PendingReason.EVICTION, 1015.0), **PLANNED},
            EffectKind.STARTS_AFTER_EVICTION,
            None,
        ),
        (EVICTED, {}, EffectKind.SPARED, ("is evicted", "runs")),
        ({}, STAYS, EffectKind.SPARED, ("runs", "stays")),
        (STAYS, {}, EffectKind.NOT_SPARED, ("stays", "runs")),
        (INSIDE, {}, EffectKind.BORROWS, ("runs, inside the guarantee", "runs")),
        ({}, INSIDE, EffectKind.INSIDE_GUARANTEE, ("runs", "runs, inside the guarantee")),
        (waiting_decisions(likely=2000.0), waiting_decisions(likely=1500.0), EffectKind.EARLIER, None),
        (waiting_decisions(), waiting_decisions(likely=1500.0), EffectKind.EARLIER, None),
        (waiting_decisions(likely=1500.0), waiting_decisions(likely=2000.0), EffectKind.LATER, None),
        (waiting_decisions(likely=1500.0), waiting_decisions(), EffectKind.LATER, None),
        (waiting_decisions(), waiting_decisions(PendingReason.QUOTA), EffectKind.REASON, None),
    ],
)
def test_effect_on_gang(
    before: dict[str, Any], after: dict[str, Any], what: EffectKind, texts: tuple[str, str] | None
) -> None:
    [effect] = compare_decisions(before, after).other_effects()
    assert (effect.gang.name, effect.what, effect.pods) == ("g", what, 1)
    if texts is not None:
        assert (effect.before, effect.after) == texts


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (waiting_decisions(likely=1500.0), waiting_decisions(likely=1550.0)),
        (STARTS, {"admits": (Admit(gang=G, pool=KEY, nodes={UID: "n1"}, borrowed=True),)}),
        ({}, EVICTED),
        (INSIDE, EVICTED),
    ],
    ids=["a minute", "another node", "told as an eviction", "told as one, too"],
)
def test_unchanged_gang_has_no_effect(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert compare_decisions(before, after).other_effects() == []


def test_gang_in_question_is_no_effect() -> None:
    assert compare_decisions(waiting_decisions(), STARTS, about=(G,)).other_effects() == []


def test_evictions_that_happen_anyway_are_omitted() -> None:
    assert compare_decisions(EVICTED, EVICTED).new_evictions() == []
    assert [each.pods for each in compare_decisions({}, EVICTED).new_evictions()] == [1]
