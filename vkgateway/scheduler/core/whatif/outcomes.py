"""Outcomes of decisions for the gangs in question (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from vkgateway.scheduler.core.decisions import PERMANENT_REASONS, Admit, Decisions, PendingReason, PendingReport
from vkgateway.scheduler.core.reasons.gang_names import Names, name_gangs, split_gang_id
from vkgateway.scheduler.core.snapshot import PLACED, Gang, Pod, node_name
from vkgateway.scheduler.core.whatif.answers import GangName, Outcome, Placement, Verdict
from vkgateway.scheduler.pending_message import render_expected_start


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
