"""Difference between decisions with and without a change: evictions, and effects on other gangs (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from vkgateway.scheduler.core.decisions import (
    PERMANENT_REASONS,
    Admit,
    Decisions,
    GuaranteeLoss,
    PendingReason,
    PendingReport,
)
from vkgateway.scheduler.core.reasons.gang_names import Names, name_gangs, split_gang_id
from vkgateway.scheduler.core.reasons.pool_sums import cells_text, change_text
from vkgateway.scheduler.core.reasons.report import build_summary
from vkgateway.scheduler.core.reasons.report_types import PoolReport
from vkgateway.scheduler.core.snapshot import PLACED, WAITING, Gang, Pod, PoolKey, node_name
from vkgateway.scheduler.core.whatif.answers import (
    Answer,
    Effect,
    EffectKind,
    Eviction,
    GangName,
    GuaranteeChange,
    Outcome,
    Placement,
    PoolChange,
    Verdict,
)
from vkgateway.scheduler.core.whatif.questions import Question
from vkgateway.scheduler.core.whatif.simulation import DecidedSnapshot, Simulation
from vkgateway.scheduler.pending_message import render_expected_start

_MOST_EFFECTS: Final = 1000
"""Number of effects that an answer lists."""
_MIN_START_CHANGE: Final = 60.0
"""Smallest reported change of an expected start, in seconds."""


@dataclass(slots=True)
class _GangFate:
    """Decisions of one cycle about a gang, by uids of its pods."""

    starts: dict[str, str] = field(default_factory=dict)
    evicted: set[str] = field(default_factory=set)
    reprieved: set[str] = field(default_factory=set)
    inside: set[str] = field(default_factory=set)
    planned: bool = False
    report: PendingReport | None = None


class Difference:
    """Comparison of the decisions about a changed snapshot with those otherwise.

    `about` are the ids of the gangs in question. `before`: None is the unchanged case.
    """

    def __init__(
        self,
        simulation: Simulation,
        changed: DecidedSnapshot,
        *,
        before: DecidedSnapshot | None = None,
        about: Collection[str] = (),
    ) -> None:
        self._trial = simulation
        self._before = before or simulation.unchanged
        self._changed = changed
        self._about = frozenset(about)
        self._gangs: Mapping[str, Gang] = {gang.id: gang for gang in changed.snapshot.gangs}

    def new_evictions(self) -> list[Eviction]:
        """Return the evictions that would not happen otherwise, in the order in which gangs are evicted."""
        evicted_before = {uid for evict in self._before.decisions.evicts for uid in evict.pods}
        found = []
        for evict in self._changed.decisions.evicts:
            added = [uid for uid in evict.pods if uid not in evicted_before]
            gang = self._gangs[evict.gang]
            pods = [pod for pod in gang.pods if pod.uid in added]
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

    def other_effects(self) -> list[Effect]:
        """Return the other effects by gang id."""
        before, after = _fates_by_gang(self._before.decisions), _fates_by_gang(self._changed.decisions)
        names = sorted((before.keys() | after.keys()) & self._gangs.keys() - self._about)
        nothing = _GangFate()
        fates = ((self._gangs[name], before.get(name, nothing), after.get(name, nothing)) for name in names)
        return [
            effect for gang, old, new in fates if old != new and (effect := self._effect_on(gang, old, new)) is not None
        ]

    def _effect_on(self, gang: Gang, old: _GangFate, new: _GangFate) -> Effect | None:
        found = next(_effect_kinds(old, new), None)
        if found is None:
            return None
        effect_kind, pods = found
        return Effect(
            gang=gang_name(gang.id, self._trial.names),
            what=effect_kind,
            pods=pods or sum(pod.state is WAITING for pod in gang.pods),
            before=_fate_text(old, self._trial.now),
            after=_fate_text(new, self._trial.now),
        )

    def changed_guarantees(self) -> list[GuaranteeChange]:
        """Return the guarantees whose held part changes."""
        before = {(loss.tenant, loss.pool): loss for loss in self._before.decisions.losses}
        after = {(loss.tenant, loss.pool): loss for loss in self._changed.decisions.losses}
        return [
            GuaranteeChange(
                tenant=tenant,
                pool=node_name(pool),
                units_lost_before=old.units if old is not None else 0,
                units_lost_after=new.units if new is not None else 0,
                before=_cells_text(old, new),
                after=_cells_text(new, old),
            )
            for tenant, pool in sorted(before.keys() | after.keys())
            for old, new in [(before.get((tenant, pool)), after.get((tenant, pool)))]
            if old != new
        ]

    def changed_pools(self) -> list[PoolChange]:
        """Return the pools whose reports change."""
        before, after = (_pool_reports(case, self._trial.now) for case in (self._before, self._changed))
        return [
            PoolChange(before=before.get(key), after=after.get(key))
            for key in dict.fromkeys([*before, *after])
            if before.get(key) != after.get(key)
        ]


def build_answer(question: Question, simulation: Simulation, difference: Difference, **fields: Any) -> Answer:
    """Return the answer with all effects and the given fields."""
    effects = difference.other_effects()
    defaults = {
        "question": question,
        "time": simulation.now,
        "seen": simulation.observed.time,
        "evictions": tuple(difference.new_evictions()),
        "effects": tuple(effects[:_MOST_EFFECTS]),
        "more_effects": len(effects[_MOST_EFFECTS:]),
        "guarantees": tuple(difference.changed_guarantees()),
        "pools": tuple(difference.changed_pools()),
        **fields,
    }
    return Answer(**defaults)


def _fates_by_gang(decisions: Decisions) -> dict[str, _GangFate]:
    found: dict[str, _GangFate] = {}
    for report in decisions.holds:
        found.setdefault(report.gang, _GangFate()).report = report
    for admit in decisions.admits:
        found.setdefault(admit.gang, _GangFate()).starts |= admit.nodes
    for evict in decisions.evicts:
        found.setdefault(evict.gang, _GangFate()).evicted |= set(evict.pods)
    for reprieve in decisions.reprieves:
        found.setdefault(reprieve.gang, _GangFate()).reprieved |= set(reprieve.pods)
    for promote in decisions.promotes:
        found.setdefault(promote.gang, _GangFate()).inside |= set(promote.pods)
    for name in decisions.plans:
        found.setdefault(name, _GangFate()).planned = True
    return found


def _effect_kinds(old: _GangFate, new: _GangFate) -> Iterator[tuple[EffectKind, int]]:
    """Yield the effects, the most important first, with the number of pods; 0: all waiting pods.

    Evictions are reported separately; different nodes are not reported.
    """
    for effect_kind, added, removed in (
        (EffectKind.DOES_NOT_START, set(old.starts), set(new.starts)),
        (EffectKind.STARTS, set(new.starts), set(old.starts)),
        (EffectKind.SPARED, old.evicted, new.evicted),
        (EffectKind.SPARED, new.reprieved, old.reprieved),
        (EffectKind.NOT_SPARED, old.reprieved, new.reprieved | new.evicted),
        (EffectKind.BORROWS, old.inside, new.inside | new.evicted),
        (EffectKind.INSIDE_GUARANTEE, new.inside, old.inside),
    ):
        if added - removed:
            yield effect_kind, len(added - removed)
    if new.planned and not old.planned:
        yield EffectKind.STARTS_AFTER_EVICTION, 0
    if old.report is not None and new.report is not None:
        yield from _waiting_changes(old.report, new.report)


def _waiting_changes(old: PendingReport, new: PendingReport) -> Iterator[tuple[EffectKind, int]]:
    if old.likely is not None and (new.likely is None or new.likely - old.likely > _MIN_START_CHANGE):
        yield EffectKind.LATER, 0
    elif new.likely is not None and (old.likely is None or old.likely - new.likely > _MIN_START_CHANGE):
        yield EffectKind.EARLIER, 0
    elif old.code is not new.code:
        yield EffectKind.REASON, 0


def _fate_text(fate: _GangFate, now: float) -> str:
    """Return the decision about a gang in a few words."""
    if fate.evicted:
        return "is evicted"
    if fate.starts:
        return f"starts on {', '.join(sorted(set(fate.starts.values()))[:3])}"
    if fate.report is not None:
        when = start_text(fate.report, now)
        return f"{fate.report.code.value}; expected start {when}" if when else fate.report.code.value
    if fate.reprieved:
        return "stays"
    return "runs, inside the guarantee" if fate.inside else "runs"


def _cells_text(loss: GuaranteeLoss | None, other: GuaranteeLoss | None) -> str:
    if loss is not None:
        return change_text(loss)
    return cells_text(other.asked) if other is not None else ""


def _pool_reports(case: DecidedSnapshot, now: float) -> dict[tuple[PoolKey, str], PoolReport]:
    pools = build_summary(case.snapshot, case.decisions, now).pools
    return {((pool.compute_cluster, pool.pool), pool.resource): pool for pool in pools}


class OutcomeLookup:
    """Lookup of gangs in the decisions of one cycle."""

    def __init__(self, decisions: Decisions, now: float, names: Names) -> None:
        self._plans = decisions.plans
        self._admits: dict[str, list[Admit]] = {}
        for admit in decisions.admits:
            self._admits.setdefault(admit.gang, []).append(admit)
        self._now = now
        self._names = names
        self._pending_reports: Mapping[str, PendingReport] = {report.gang: report for report in decisions.holds}

    def outcome_of(self, gang: Gang, pods: Iterable[Pod]) -> Outcome:
        """Return the outcome for these waiting pods of a gang."""
        uids = {pod.uid for pod in pods}
        admits, plan = self._admits.get(gang.id, []), self._plans.get(gang.id)
        starts = [(admit.pool, admit.nodes, admit.borrowed) for admit in admits]
        if plan is not None:
            starts += [(each.pool, each.nodes, each.borrowed) for each in (plan, *plan.also)]
        places = [(pool, node, uid) for pool, nodes, _ in starts for uid, node in nodes.items() if uid in uids]
        counts = Counter((node_name(pool), node) for pool, node, _ in places)
        report = self._pending_reports.get(gang.id)
        first = node_name(places[0][0]) if places else ""
        return Outcome(
            gang=gang_name(gang.id, self._names),
            verdict=_gang_verdict(started=bool(admits), planned=plan is not None, report=report),
            pods=len(uids),
            starting=len({uid for _, _, uid in places}),
            running=sum(pod.state is PLACED for pod in gang.pods),
            placements=tuple(
                Placement(pool=pool, node=node, pods=count) for (pool, node), count in sorted(counts.items())
            ),
            borrowed=any(borrowed for _, _, borrowed in starts),
            code=report.code.value if report is not None else "",
            message=name_gangs(report, self._names) if report is not None else "",
            pool=node_name(report.pool)
            if report is not None and report.pool is not None
            else first or _first_pool(gang),
            place=report.place if report is not None else 0,
            earliest=report.earliest if report is not None else None,
            likely=report.likely if report is not None else None,
            expected=start_text(report, self._now),
            behind=report.behind if report is not None else "",
        )


def gang_name(gang: str, names: Names) -> GangName:
    """Return the name of a gang by its id."""
    namespace, kind, name = split_gang_id(gang, names)
    return GangName(id=gang, tenant=gang.partition("/")[0], namespace=namespace, way=kind, name=name)


def start_text(report: PendingReport | None, now: float) -> str:
    """Return the expected start of a waiting gang in words; empty where time alone does not help."""
    if report is None or not report.place:
        return ""
    return render_expected_start(report.earliest, report.likely, now=now)


def is_never_starting(report: PendingReport) -> bool:
    """Return whether a gang waits until something else changes."""
    return report.code in PERMANENT_REASONS or (report.code is PendingReason.QUOTA and not report.place)


def _gang_verdict(*, started: bool, planned: bool, report: PendingReport | None) -> Verdict:
    if started:
        return Verdict.STARTS
    if planned:
        return Verdict.STARTS_AFTER_EVICTION
    return Verdict.NEVER if report is not None and is_never_starting(report) else Verdict.WAITS


def _first_pool(gang: Gang) -> str:
    return node_name(gang.pools[0]) if gang.pools else ""
