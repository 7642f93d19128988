"""What differs between decisions without and with a change, made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.arbiter.sim import KEY, Cluster, gang, node, quota
from vkgateway.arbiter.decisions import Admit, Decisions, Evict, Hold, HoldCode, Promote, Reprieve
from vkgateway.arbiter.facts import Plan
from vkgateway.arbiter.whatif.answers import Change
from vkgateway.arbiter.whatif.difference import Difference
from vkgateway.arbiter.whatif.trial import Case, Seen, Trial

G = "a/ns/gang/g"
UID = f"{G}-0"
STARTS = {"admits": (Admit(gang=G, pool=KEY, nodes={UID: "n0"}, borrowed=True),)}
EVICTED = {"evicts": (Evict(gang=G, pods=(UID,), whole=True, makes_room_for="x", deadline=1010.0, lost=0.0),)}
STAYS = {"reprieves": (Reprieve(gang=G, pods=(UID,)),)}
INSIDE = {"promotes": (Promote(gang=G, pods=(UID,)),)}
PLANNED = {"plans": {G: Plan(pool=KEY, nodes={UID: "n0"}, borrowed=False)}}


def waits(code: HoldCode = HoldCode.ROOM, likely: float | None = None) -> dict[str, Any]:
    return {"holds": (Hold(gang=G, code=code, message="waits", place=1, earliest=likely, likely=likely),)}


def compared(before: dict[str, Any], after: dict[str, Any], *, about: tuple[str, ...] = ()) -> Difference:
    there = Cluster([node("n0")], [quota("a")])
    there.add(gang(G, "a", [8]))
    snapshot = there.snapshot()
    trial = Trial(Seen(snapshot=snapshot, decisions=Decisions(), time=there.now), there.now)
    first, then = Case(snapshot, Decisions(**before)), Case(snapshot, Decisions(**after))
    return Difference(trial, then, before=first, about=about)


@pytest.mark.parametrize(
    ("before", "after", "what", "texts"),
    [
        (waits(), STARTS, Change.STARTS, ("WaitingForRoom; expected start not known", "starts on n0")),
        (STARTS, waits(), Change.DOES_NOT_START, ("starts on n0", "WaitingForRoom; expected start not known")),
        (waits(), {**waits(HoldCode.EVICTION, 1015.0), **PLANNED}, Change.STARTS_AFTER_EVICTION, None),
        (EVICTED, {}, Change.SPARED, ("is evicted", "runs")),
        ({}, STAYS, Change.SPARED, ("runs", "stays")),
        (STAYS, {}, Change.NOT_SPARED, ("stays", "runs")),
        (INSIDE, {}, Change.BORROWS, ("runs, inside the guarantee", "runs")),
        ({}, INSIDE, Change.INSIDE_GUARANTEE, ("runs", "runs, inside the guarantee")),
        (waits(likely=2000.0), waits(likely=1500.0), Change.EARLIER, None),
        (waits(), waits(likely=1500.0), Change.EARLIER, None),
        (waits(likely=1500.0), waits(likely=2000.0), Change.LATER, None),
        (waits(likely=1500.0), waits(), Change.LATER, None),
        (waits(), waits(HoldCode.QUOTA), Change.REASON, None),
    ],
)
def test_what_changes_for_a_gang(
    before: dict[str, Any], after: dict[str, Any], what: Change, texts: tuple[str, str] | None
) -> None:
    [effect] = compared(before, after).effects()
    assert (effect.gang.name, effect.what, effect.pods) == ("g", what, 1)
    if texts is not None:
        assert (effect.before, effect.after) == texts


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (waits(likely=1500.0), waits(likely=1550.0)),
        (STARTS, {"admits": (Admit(gang=G, pool=KEY, nodes={UID: "n1"}, borrowed=True),)}),
        ({}, EVICTED),
        (INSIDE, EVICTED),
    ],
    ids=["a minute", "another node", "told as an eviction", "told as one, too"],
)
def test_what_is_no_change_or_is_told_otherwise(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert compared(before, after).effects() == []


def test_what_is_asked_about_is_no_effect() -> None:
    assert compared(waits(), STARTS, about=(G,)).effects() == []


def test_what_is_evicted_anyway_is_not_counted() -> None:
    assert compared(EVICTED, EVICTED).evictions() == []
    assert [each.pods for each in compared({}, EVICTED).evictions()] == [1]
