"""What decisions with a change hold that those without it do not: evictions, and effects on other gangs (pure)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from vkgateway.arbiter.decisions import Decisions, Hold, Loss
from vkgateway.arbiter.facts import WAITING, Gang, PoolKey
from vkgateway.arbiter.losses import cells_text, change_text
from vkgateway.arbiter.poolsums import node_name
from vkgateway.arbiter.report import summary
from vkgateway.arbiter.state import PoolState
from vkgateway.arbiter.whatif.answers import Answer, Change, Effect, Eviction, GuaranteeChange, PoolChange
from vkgateway.arbiter.whatif.outcomes import gang_name, start_text
from vkgateway.arbiter.whatif.questions import Question
from vkgateway.arbiter.whatif.trial import Case, Trial

_MOST_EFFECTS: Final = 1000
"""Effects that an answer lists."""
_NOTABLE: Final = 60.0
"""Seconds by which an expected start differs at least."""


@dataclass(slots=True)
class _Fate:
    """What one cycle decides about a gang, by uids of its pods."""

    starts: dict[str, str] = field(default_factory=dict)
    evicted: set[str] = field(default_factory=set)
    reprieved: set[str] = field(default_factory=set)
    inside: set[str] = field(default_factory=set)
    planned: bool = False
    hold: Hold | None = None


class Difference:
    """Compares what is decided about a changed snapshot with what is decided otherwise.

    `about` are the ids of the gangs that are asked about. `before`: None is the trial's case without any change.
    """

    def __init__(self, trial: Trial, changed: Case, *, before: Case | None = None, about: Collection[str] = ()) -> None:
        self._trial = trial
        self._before = before or trial.case
        self._changed = changed
        self._about = frozenset(about)
        self._gangs: Mapping[str, Gang] = {gang.id: gang for gang in changed.snapshot.gangs}

    def evictions(self) -> list[Eviction]:
        """Return what is evicted, and would not be otherwise; gangs in the order in which they are evicted."""
        anyway = {uid for evict in self._before.decisions.evicts for uid in evict.pods}
        found = []
        for evict in self._changed.decisions.evicts:
            more = [uid for uid in evict.pods if uid not in anyway]
            gang = self._gangs[evict.gang]
            pods = [pod for pod in gang.pods if pod.uid in more]
            if pods:
                found.append(
                    Eviction(
                        gang=gang_name(gang.id, self._trial.names),
                        pods=len(pods),
                        of=sum(pod.state is not WAITING for pod in gang.pods),
                        whole=evict.whole,
                        inside=not any(pod.borrowed for pod in pods),
                        nodes=tuple(sorted({pod.node for pod in pods})),
                        makes_room_for=evict.makes_room_for,
                        notice=max(0.0, evict.deadline - self._trial.now),
                        deadline=evict.deadline,
                        grace=gang.grace,
                        lost=evict.lost,
                    )
                )
        return found

    def effects(self) -> list[Effect]:
        """Return what else differs, gang by gang in the order of their ids."""
        before, after = _fates(self._before.decisions), _fates(self._changed.decisions)
        names = sorted((before.keys() | after.keys()) & self._gangs.keys() - self._about)
        nothing = _Fate()
        fates = ((self._gangs[name], before.get(name, nothing), after.get(name, nothing)) for name in names)
        return [
            effect for gang, old, new in fates if old != new and (effect := self._effect(gang, old, new)) is not None
        ]

    def _effect(self, gang: Gang, old: _Fate, new: _Fate) -> Effect | None:
        found = next(_changes(old, new), None)
        if found is None:
            return None
        what, pods = found
        return Effect(
            gang=gang_name(gang.id, self._trial.names),
            what=what,
            pods=pods or sum(pod.state is WAITING for pod in gang.pods),
            before=_text(old, self._trial.now),
            after=_text(new, self._trial.now),
        )

    def guarantees(self) -> list[GuaranteeChange]:
        """Return the guarantees of which the nodes hold more or less."""
        before = {(loss.tenant, loss.pool): loss for loss in self._before.decisions.losses}
        after = {(loss.tenant, loss.pool): loss for loss in self._changed.decisions.losses}
        return [
            GuaranteeChange(
                tenant=tenant,
                pool=node_name(pool),
                units_lost_before=old.units if old is not None else 0,
                units_lost_after=new.units if new is not None else 0,
                before=_cells(old, new),
                after=_cells(new, old),
            )
            for tenant, pool in sorted(before.keys() | after.keys())
            for old, new in [(before.get((tenant, pool)), after.get((tenant, pool)))]
            if old != new
        ]

    def pools(self) -> list[PoolChange]:
        """Return the pools that stand otherwise."""
        before, after = (_states(case, self._trial.now) for case in (self._before, self._changed))
        return [
            PoolChange(before=before.get(key), after=after.get(key))
            for key in dict.fromkeys([*before, *after])
            if before.get(key) != after.get(key)
        ]


def answered(question: Question, trial: Trial, difference: Difference, **said: Any) -> Answer:
    """Return the answer, with all that differs in it beside what is said."""
    effects = difference.effects()
    given = {
        "question": question,
        "time": trial.now,
        "seen": trial.seen.time,
        "evictions": tuple(difference.evictions()),
        "effects": tuple(effects[:_MOST_EFFECTS]),
        "more_effects": len(effects[_MOST_EFFECTS:]),
        "guarantees": tuple(difference.guarantees()),
        "pools": tuple(difference.pools()),
        **said,
    }
    return Answer(**given)


def _fates(decisions: Decisions) -> dict[str, _Fate]:
    found: dict[str, _Fate] = {}
    for hold in decisions.holds:
        found.setdefault(hold.gang, _Fate()).hold = hold
    for admit in decisions.admits:
        found.setdefault(admit.gang, _Fate()).starts |= admit.nodes
    for evict in decisions.evicts:
        found.setdefault(evict.gang, _Fate()).evicted |= set(evict.pods)
    for reprieve in decisions.reprieves:
        found.setdefault(reprieve.gang, _Fate()).reprieved |= set(reprieve.pods)
    for promote in decisions.promotes:
        found.setdefault(promote.gang, _Fate()).inside |= set(promote.pods)
    for name in decisions.plans:
        found.setdefault(name, _Fate()).planned = True
    return found


def _changes(old: _Fate, new: _Fate) -> Iterator[tuple[Change, int]]:
    """Yield what differs, the weightiest first, and for how many pods; 0: for all that wait.

    Evictions are told by themselves, and nodes that differ are not told.
    """
    for what, more, less in (
        (Change.DOES_NOT_START, set(old.starts), set(new.starts)),
        (Change.STARTS, set(new.starts), set(old.starts)),
        (Change.SPARED, old.evicted, new.evicted),
        (Change.SPARED, new.reprieved, old.reprieved),
        (Change.NOT_SPARED, old.reprieved, new.reprieved | new.evicted),
        (Change.BORROWS, old.inside, new.inside | new.evicted),
        (Change.INSIDE_GUARANTEE, new.inside, old.inside),
    ):
        if more - less:
            yield what, len(more - less)
    if new.planned and not old.planned:
        yield Change.STARTS_AFTER_EVICTION, 0
    if old.hold is not None and new.hold is not None:
        yield from _waits_otherwise(old.hold, new.hold)


def _waits_otherwise(old: Hold, new: Hold) -> Iterator[tuple[Change, int]]:
    if old.likely is not None and (new.likely is None or new.likely - old.likely > _NOTABLE):
        yield Change.LATER, 0
    elif new.likely is not None and (old.likely is None or old.likely - new.likely > _NOTABLE):
        yield Change.EARLIER, 0
    elif old.code is not new.code:
        yield Change.REASON, 0


def _text(fate: _Fate, now: float) -> str:
    """Return what becomes of a gang, in a few words."""
    if fate.evicted:
        return "is evicted"
    if fate.starts:
        return f"starts on {', '.join(sorted(set(fate.starts.values()))[:3])}"
    if fate.hold is not None:
        when = start_text(fate.hold, now)
        return f"{fate.hold.code.value}; expected start {when}" if when else fate.hold.code.value
    if fate.reprieved:
        return "stays"
    return "runs, inside the guarantee" if fate.inside else "runs"


def _cells(loss: Loss | None, other: Loss | None) -> str:
    if loss is not None:
        return change_text(loss)
    return cells_text(other.asked) if other is not None else ""


def _states(case: Case, now: float) -> dict[tuple[PoolKey, str], PoolState]:
    pools = summary(case.snapshot, case.decisions, now).pools
    return {((pool.compute_cluster, pool.pool), pool.resource): pool for pool in pools}
