"""Pending reports of gangs in several pools, with what the gang needs and what fits in each pool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from vkgateway.scheduler.core.cycle_state import CycleState
from vkgateway.scheduler.core.decisions import PendingReason, PendingReport
from vkgateway.scheduler.core.phases.idle_reserve import would_use_reserve
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.reasons.fit_cache import count_placeable_now
from vkgateway.scheduler.core.reasons.message_texts import (
    count_text,
    pods_text,
    pools_text,
    reserve_text,
    terminated_text,
)

_DECISIVE_REASONS = (PendingReason.INFEASIBLE, PendingReason.QUOTA, PendingReason.BUDGET)
"""Codes that take precedence over those of the gang's other parts."""


def merge_part_reports(state: CycleState, reports: Iterable[PendingReport]) -> list[PendingReport]:
    """Return the reports with one report for each gang in place of those of its parts."""
    if not state.part_ids:
        return list(reports)
    wholes = {part: whole for whole, names in state.part_ids.items() for part in names if part != whole}
    by_gang: dict[str, list[PendingReport]] = {}
    others: list[PendingReport] = []
    for report in reports:
        whole = wholes.get(report.gang)
        if whole is None:
            others.append(report)
        else:
            by_gang.setdefault(whole, []).append(report)
    fits: dict[tuple[str, int], _PartFit] = {}
    for found in by_gang.values():
        found.sort(key=lambda report: _part_number(state, report))
    return [*others, *(_merge_reports(state, whole, found, fits) for whole, found in by_gang.items())]


def _part_number(state: CycleState, report: PendingReport) -> int:
    part = state.gangs[report.gang].part_info
    return part.number if part is not None else 0


def _merge_reports(
    state: CycleState, whole: str, found: Sequence[PendingReport], fits: dict[tuple[str, int], _PartFit]
) -> PendingReport:
    pending_gangs = {
        report.gang: pending_gang
        for report in found
        if (pending_gang := state.pending_gangs.get(report.gang)) is not None
    }
    needing = [
        report
        for report in found
        if report.gang in pending_gangs and pending_gangs[report.gang].min_members and report.gang not in state.started
    ]
    planned = [report for report in needing if report.code is PendingReason.EVICTION]
    if planned:
        return _planned_report(state, whole, planned)
    if needing:
        for pending_gang in (pending_gangs[report.gang] for report in needing):
            if (pending_gang.tenant, pending_gang.equivalence_class) not in fits:
                fits[pending_gang.tenant, pending_gang.equivalence_class] = _PartFit.from_pending_gang(
                    state, pending_gang
                )
        return _waiting_report(
            whole,
            needing,
            {
                name: fits[pending_gang.tenant, pending_gang.equivalence_class]
                for name, pending_gang in pending_gangs.items()
                if pending_gang.min_members
            },
        )
    return _surplus_report(state, whole, found)


def _planned_report(state: CycleState, whole: str, found: Sequence[PendingReport]) -> PendingReport:
    """Return the report of a gang whose parts all have plans."""
    pools = {report.gang: state.plans[report.gang].pool for report in found}
    nodes = " and ".join(
        f"{count_text(int(report.numbers['nodes']), 'node')} in {pools_text([pools[report.gang]])}"
        for report in sorted(found, key=lambda report: pools[report.gang])
    )
    awaited = [report for report in found if report.numbers["leaving"]] or found
    leaving = int(sum(report.numbers["leaving"] for report in found))
    last = max(awaited, key=lambda report: report.numbers["leaving"])
    return replace(
        last,
        gang=whole,
        message=f"starts on {nodes} when {terminated_text(leaving)}",
        numbers={"nodes": sum(report.numbers["nodes"] for report in found), "leaving": float(leaving)},
        pool=pools[last.gang],
        earliest=_latest_time([report.earliest for report in awaited]),
        likely=_latest_time([report.likely for report in awaited]),
    )


def _waiting_report(whole: str, found: Sequence[PendingReport], parts: Mapping[str, _PartFit]) -> PendingReport:
    """Return the report of a gang with a part that has neither capacity nor a plan."""
    first = next((report for code in _DECISIVE_REASONS for report in found if report.code is code), None)
    short = [report for report in found if not parts[report.gang].is_fitting]
    behind = next((report for report in found if report.code is PendingReason.RESERVATION), None)
    chosen = first or next(iter(short), None) or behind or found[0]
    chosen_part = parts[chosen.gang]
    if chosen.code is PendingReason.ROOM:
        in_order = sorted(parts.values(), key=lambda part: part.pools)
        message = f"needs {' and '.join(part.describe for part in in_order)}"
        if all(part.is_fitting for part in parts.values()):
            message += ", but not all of them fit together"
    else:
        message = f"in {pools_text(chosen_part.pools)}: {chosen.message}"
    unfit = short or [chosen]
    return replace(
        chosen,
        gang=whole,
        message=message,
        ends=chosen.ends if chosen.code is not PendingReason.ROOM else "",
        numbers={
            "needed": float(sum(part.needed_pods for part in parts.values())),
            "fit": float(sum(part.fitting_pods for part in parts.values())),
        }
        if chosen.code is PendingReason.ROOM
        else chosen.numbers,
        pool=chosen_part.pools[0] if chosen_part.pools else None,
        earliest=_latest_time([report.earliest for report in unfit]),
        likely=_latest_time([report.likely for report in unfit]),
    )


class _PartFit:
    """Needs of a part of a gang, and how much of it fits now."""

    def __init__(self, pending_gang: PendingGang, fit: int, reserve: str = "") -> None:
        """Create it; `reserve` names the pool whose reserve the part would use if all of it fits, or is empty."""
        self.pools = pending_gang.allowed_pools
        self.needed_pods = len(pending_gang.min_members)
        self.fitting_pods = fit
        self._reserve_text = f", but {reserve}" if reserve and fit == self.needed_pods else ""
        self._pods_text = pods_text(pending_gang.min_members)

    @classmethod
    def from_pending_gang(cls, state: CycleState, pending_gang: PendingGang) -> _PartFit:
        """Count the pods that fit in all pools that the part may use."""
        found = [
            (count_placeable_now(pool_state, pending_gang), pool_state)
            for pool_state in state.usable_pools(pending_gang)
        ]
        fit = max((number for number, _ in found), default=0)
        best_pools = [pool_state for number, pool_state in found if number == fit]
        pods = pending_gang.min_members
        uses_reserve = all(would_use_reserve(pool_state, pending_gang, pods) for pool_state in best_pools)
        return cls(pending_gang, fit, reserve_text(best_pools[0]) if best_pools and uses_reserve else "")

    @property
    def is_fitting(self) -> bool:
        """Whether the whole part fits and keeps the pool's reserve."""
        return self.fitting_pods >= self.needed_pods and not self._reserve_text

    @property
    def describe(self) -> str:
        """`4 pods of nvidia.com/gpu 8 in a100.local (2 fit)`."""
        all_fit = self.fitting_pods >= self.needed_pods
        if self.needed_pods == 1:
            fits = "fits" if all_fit else "does not fit"
        else:
            fits = "all fit" if all_fit else f"{self.fitting_pods or 'none'} fit"
        return f"{self._pods_text} in {pools_text(self.pools)} ({fits}{self._reserve_text})"


def _surplus_report(state: CycleState, whole: str, found: Sequence[PendingReport]) -> PendingReport:
    """Return the report of a running gang whose surplus pods wait."""
    if len(found) == 1:
        return replace(found[0], gang=whole)
    message = "; ".join(f"in {pools_text(state.gangs[report.gang].pools)}: {report.message}" for report in found)
    return replace(found[0], gang=whole, message=message)


def _latest_time(times: Sequence[float | None]) -> float | None:
    """Return the latest of these times; None if one is unknown."""
    known = [time for time in times if time is not None]
    return max(known) if known and len(known) == len(times) else None
