"""What decisions mean for one gang that a question is about (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from vkgateway.arbiter.decisions import Admit, Decisions, PendingReason, PendingReport
from vkgateway.arbiter.reasons.gang_names import Names, name_gang_ahead, split_gang_id
from vkgateway.arbiter.snapshot import PLACED, Gang, Pod, node_name
from vkgateway.arbiter.whatif.answers import GangName, Outcome, Placement, Verdict
from vkgateway.translate.pending_message import render_expected_start


class OutcomeLookup:
    """Looks gangs up in the decisions of one cycle."""

    def __init__(self, decisions: Decisions, now: float, names: Names) -> None:
        self._plans = decisions.plans
        self._admits: dict[str, list[Admit]] = {}
        for admit in decisions.admits:
            self._admits.setdefault(admit.gang, []).append(admit)
        self._now = now
        self._names = names
        self._pending_reports: Mapping[str, PendingReport] = {hold.gang: hold for hold in decisions.holds}

    def outcome_of(self, gang: Gang, pods: Iterable[Pod]) -> Outcome:
        """Return what becomes of these pods of a gang, which wait."""
        uids = {pod.uid for pod in pods}
        admits, plan = self._admits.get(gang.id, []), self._plans.get(gang.id)
        starts = [(admit.pool, admit.nodes, admit.borrowed) for admit in admits]
        if plan is not None:
            starts += [(each.pool, each.nodes, each.borrowed) for each in (plan, *plan.also)]
        places = [(pool, node, uid) for pool, nodes, _ in starts for uid, node in nodes.items() if uid in uids]
        counts = Counter((node_name(pool), node) for pool, node, _ in places)
        hold = self._pending_reports.get(gang.id)
        first = node_name(places[0][0]) if places else ""
        return Outcome(
            gang=gang_name(gang.id, self._names),
            verdict=_gang_verdict(started=bool(admits), planned=plan is not None, hold=hold),
            pods=len(uids),
            starting=len({uid for _, _, uid in places}),
            running=sum(pod.state is PLACED for pod in gang.pods),
            placements=tuple(
                Placement(pool=pool, node=node, pods=count) for (pool, node), count in sorted(counts.items())
            ),
            borrowed=any(borrowed for _, _, borrowed in starts),
            code=hold.code.value if hold is not None else "",
            message=name_gang_ahead(hold.message, hold.behind, self._names) if hold is not None else "",
            pool=node_name(hold.pool) if hold is not None and hold.pool is not None else first or _first_pool(gang),
            place=hold.place if hold is not None else 0,
            earliest=hold.earliest if hold is not None else None,
            likely=hold.likely if hold is not None else None,
            expected=start_text(hold, self._now),
            behind=hold.behind if hold is not None else "",
        )


def gang_name(gang: str, names: Names) -> GangName:
    """Return what a gang is called, by its id."""
    namespace, way, name = split_gang_id(gang, names)
    return GangName(id=gang, tenant=gang.partition("/")[0], namespace=namespace, way=way, name=name)


def start_text(hold: PendingReport | None, now: float) -> str:
    """Return when a gang that waits may start; empty where that is no question of time."""
    if hold is None or not hold.place:
        return ""
    return render_expected_start(hold.earliest, hold.likely, now=now)


def is_never_starting(hold: PendingReport) -> bool:
    """Return whether a gang waits for ever unless something else changes."""
    return hold.code in (PendingReason.INFEASIBLE, PendingReason.INVALID) or (
        hold.code is PendingReason.QUOTA and not hold.place
    )


def _gang_verdict(*, started: bool, planned: bool, hold: PendingReport | None) -> Verdict:
    if started:
        return Verdict.STARTS
    if planned:
        return Verdict.STARTS_AFTER_EVICTION
    return Verdict.NEVER if hold is not None and is_never_starting(hold) else Verdict.WAITS


def _first_pool(gang: Gang) -> str:
    return node_name(gang.pools[0]) if gang.pools else ""
