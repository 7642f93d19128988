"""Why a gang in several pools waits: one hold that says of each pool what the gang needs there and what fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from vkgateway.arbiter.cycle_state import CycleState
from vkgateway.arbiter.decisions import PendingReason, PendingReport
from vkgateway.arbiter.phases.idle_reserve import would_use_reserve
from vkgateway.arbiter.queueing.pending_gangs import PendingGang
from vkgateway.arbiter.reasons.pending_reasons import (
    count_placeable_now,
    count_text,
    pods_text,
    pools_text,
    reserve_text,
    terminated_text,
)

_DECISIVE_REASONS = (PendingReason.INFEASIBLE, PendingReason.QUOTA)
"""Codes that say why the gang waits, whatever its other parts wait for."""


def merge_part_reports(ledger: CycleState, holds: Iterable[PendingReport]) -> list[PendingReport]:
    """Return the holds with one for each gang in place of those of its parts."""
    if not ledger.part_ids:
        return list(holds)
    wholes = {part: whole for whole, names in ledger.part_ids.items() for part in names if part != whole}
    by_gang: dict[str, list[PendingReport]] = {}
    others: list[PendingReport] = []
    for hold in holds:
        whole = wholes.get(hold.gang)
        if whole is None:
            others.append(hold)
        else:
            by_gang.setdefault(whole, []).append(hold)
    known: dict[tuple[str, int], _PartFit] = {}
    for found in by_gang.values():
        found.sort(key=lambda hold: _part_number(ledger, hold))
    return [*others, *(_merge_reports(ledger, whole, found, known) for whole, found in by_gang.items())]


def _part_number(ledger: CycleState, hold: PendingReport) -> int:
    part = ledger.gangs[hold.gang].part_info
    return part.number if part is not None else 0


def _merge_reports(
    ledger: CycleState, whole: str, found: Sequence[PendingReport], known: dict[tuple[str, int], _PartFit]
) -> PendingReport:
    asks = {hold.gang: ask for hold in found if (ask := ledger.pending_gangs.get(hold.gang)) is not None}
    needy = [
        hold for hold in found if hold.gang in asks and asks[hold.gang].min_members and hold.gang not in ledger.started
    ]
    planned = [hold for hold in needy if hold.code is PendingReason.EVICTION]
    if planned:
        return _planned_report(ledger, whole, planned)
    if needy:
        for ask in (asks[hold.gang] for hold in needy):
            if (ask.tenant, ask.equivalence_class) not in known:
                known[ask.tenant, ask.equivalence_class] = _PartFit.from_pending_gang(ledger, ask)
        return _waiting_report(
            whole,
            needy,
            {name: known[ask.tenant, ask.equivalence_class] for name, ask in asks.items() if ask.min_members},
        )
    return _surplus_report(ledger, whole, found)


def _planned_report(ledger: CycleState, whole: str, found: Sequence[PendingReport]) -> PendingReport:
    """Return the hold of a gang whose parts all have plans."""
    pools = {hold.gang: ledger.plans[hold.gang].pool for hold in found}
    nodes = " and ".join(
        f"{count_text(int(hold.numbers['nodes']), 'node')} in {pools_text([pools[hold.gang]])}"
        for hold in sorted(found, key=lambda hold: pools[hold.gang])
    )
    awaited = [hold for hold in found if hold.numbers["leaving"]] or found
    leaving = int(sum(hold.numbers["leaving"] for hold in found))
    last = max(awaited, key=lambda hold: hold.numbers["leaving"])
    return replace(
        last,
        gang=whole,
        message=f"starts on {nodes} when {terminated_text(leaving)}",
        numbers={"nodes": sum(hold.numbers["nodes"] for hold in found), "leaving": float(leaving)},
        pool=pools[last.gang],
        earliest=_latest_time([hold.earliest for hold in awaited]),
        likely=_latest_time([hold.likely for hold in awaited]),
    )


def _waiting_report(whole: str, found: Sequence[PendingReport], parts: Mapping[str, _PartFit]) -> PendingReport:
    """Return the hold of a gang of which some part has neither room nor a plan."""
    first = next((hold for code in _DECISIVE_REASONS for hold in found if hold.code is code), None)
    short = [hold for hold in found if not parts[hold.gang].is_fitting]
    behind = next((hold for hold in found if hold.code is PendingReason.RESERVATION), None)
    chosen = first or next(iter(short), None) or behind or found[0]
    where = parts[chosen.gang]
    if chosen.code is PendingReason.ROOM:
        in_order = sorted(parts.values(), key=lambda part: part.pools)
        message = f"needs {' and '.join(part.describe for part in in_order)}"
        if all(part.is_fitting for part in parts.values()):
            message += ", but not all of them fit together"
    else:
        message = f"in {pools_text(where.pools)}: {chosen.message}"
    waits = short or [chosen]
    return replace(
        chosen,
        gang=whole,
        message=message,
        numbers={
            "needed": float(sum(part.needed_pods for part in parts.values())),
            "fit": float(sum(part.fitting_pods for part in parts.values())),
        }
        if chosen.code is PendingReason.ROOM
        else chosen.numbers,
        pool=where.pools[0] if where.pools else None,
        earliest=_latest_time([hold.earliest for hold in waits]),
        likely=_latest_time([hold.likely for hold in waits]),
    )


class _PartFit:
    """What a part of a gang needs, and how much of it fits now."""

    def __init__(self, ask: PendingGang, fit: int, reserve: str = "") -> None:
        """`reserve` says which pool's reserve it would use if all of it fits; empty: none."""
        self.pools = ask.allowed_pools
        self.needed_pods = len(ask.min_members)
        self.fitting_pods = fit
        self._reserve_text = f", but {reserve}" if reserve and fit == self.needed_pods else ""
        self._pods_text = pods_text(ask.min_members)

    @classmethod
    def from_pending_gang(cls, ledger: CycleState, ask: PendingGang) -> _PartFit:
        """Find out in all pools that the part may use."""
        found = [(count_placeable_now(standing, ask), standing) for standing in ledger.usable_pools(ask)]
        fit = max((number for number, _ in found), default=0)
        there = [standing for number, standing in found if number == fit]
        is_kept = all(would_use_reserve(standing, ask.min_members) for standing in there)
        return cls(ask, fit, reserve_text(there[0]) if there and is_kept else "")

    @property
    def is_fitting(self) -> bool:
        """Whether all of it does, and leaves the pool's reserve."""
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


def _surplus_report(ledger: CycleState, whole: str, found: Sequence[PendingReport]) -> PendingReport:
    """Return the hold of a gang that runs, of which pods beyond the minimum wait."""
    if len(found) == 1:
        return replace(found[0], gang=whole)
    told = "; ".join(f"in {pools_text(ledger.gangs[hold.gang].pools)}: {hold.message}" for hold in found)
    return replace(found[0], gang=whole, message=told)


def _latest_time(times: Sequence[float | None]) -> float | None:
    """Return the last of these times; None where one is not known."""
    known = [time for time in times if time is not None]
    return max(known) if known and len(known) == len(times) else None
