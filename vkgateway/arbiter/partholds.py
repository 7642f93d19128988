"""Why a gang in several pools waits: one hold that says of each pool what the gang needs there and what fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.decisions import Hold, HoldCode
from vkgateway.arbiter.holds import count_text, gone_text, most_now, pods_text, pools_text, reserve_text
from vkgateway.arbiter.ledger import Ledger
from vkgateway.arbiter.reserve import kept_for_guarantees

_FIRST = (HoldCode.INFEASIBLE, HoldCode.QUOTA)
"""Codes that say why the gang waits, whatever its other parts wait for."""


def holds_of_whole_gangs(ledger: Ledger, holds: Iterable[Hold]) -> list[Hold]:
    """Return the holds with one for each gang in place of those of its parts."""
    if not ledger.parts:
        return list(holds)
    wholes = {part: whole for whole, names in ledger.parts.items() for part in names if part != whole}
    by_gang: dict[str, list[Hold]] = {}
    others: list[Hold] = []
    for hold in holds:
        whole = wholes.get(hold.gang)
        if whole is None:
            others.append(hold)
        else:
            by_gang.setdefault(whole, []).append(hold)
    known: dict[tuple[str, int], _Part] = {}
    for found in by_gang.values():
        found.sort(key=lambda hold: _number(ledger, hold))
    return [*others, *(_of_gang(ledger, whole, found, known) for whole, found in by_gang.items())]


def _number(ledger: Ledger, hold: Hold) -> int:
    part = ledger.gangs[hold.gang].part
    return part.number if part is not None else 0


def _of_gang(ledger: Ledger, whole: str, found: Sequence[Hold], known: dict[tuple[str, int], _Part]) -> Hold:
    asks = {hold.gang: ask for hold in found if (ask := ledger.asks.get(hold.gang)) is not None}
    needy = [hold for hold in found if hold.gang in asks and asks[hold.gang].core and hold.gang not in ledger.started]
    planned = [hold for hold in needy if hold.code is HoldCode.EVICTION]
    if planned:
        return _planned(ledger, whole, planned)
    if needy:
        for ask in (asks[hold.gang] for hold in needy):
            if (ask.tenant, ask.kind) not in known:
                known[ask.tenant, ask.kind] = _Part.of(ledger, ask)
        return _waiting(whole, needy, {name: known[ask.tenant, ask.kind] for name, ask in asks.items() if ask.core})
    return _rest(ledger, whole, found)


def _planned(ledger: Ledger, whole: str, found: Sequence[Hold]) -> Hold:
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
        message=f"starts on {nodes} when {gone_text(leaving)}",
        numbers={"nodes": sum(hold.numbers["nodes"] for hold in found), "leaving": float(leaving)},
        pool=pools[last.gang],
        earliest=_latest([hold.earliest for hold in awaited]),
        likely=_latest([hold.likely for hold in awaited]),
    )


def _waiting(whole: str, found: Sequence[Hold], parts: Mapping[str, _Part]) -> Hold:
    """Return the hold of a gang of which some part has neither room nor a plan."""
    first = next((hold for code in _FIRST for hold in found if hold.code is code), None)
    short = [hold for hold in found if not parts[hold.gang].fits]
    behind = next((hold for hold in found if hold.code is HoldCode.RESERVATION), None)
    chosen = first or next(iter(short), None) or behind or found[0]
    where = parts[chosen.gang]
    if chosen.code is HoldCode.ROOM:
        in_order = sorted(parts.values(), key=lambda part: part.pools)
        message = f"needs {' and '.join(part.text for part in in_order)}"
        if all(part.fits for part in parts.values()):
            message += ", but not all of them fit together"
    else:
        message = f"in {pools_text(where.pools)}: {chosen.message}"
    waits = short or [chosen]
    return replace(
        chosen,
        gang=whole,
        message=message,
        numbers={
            "needed": float(sum(part.needed for part in parts.values())),
            "fit": float(sum(part.fit for part in parts.values())),
        }
        if chosen.code is HoldCode.ROOM
        else chosen.numbers,
        pool=where.pools[0] if where.pools else None,
        earliest=_latest([hold.earliest for hold in waits]),
        likely=_latest([hold.likely for hold in waits]),
    )


class _Part:
    """What a part of a gang needs, and how much of it fits now."""

    def __init__(self, ask: Ask, fit: int, reserve: str = "") -> None:
        """`reserve` says which pool's reserve it would use if all of it fits; empty: none."""
        self.pools = ask.pools
        self.needed = len(ask.core)
        self.fit = fit
        self._reserve = f", but {reserve}" if reserve and fit == self.needed else ""
        self._pods = pods_text(ask.core)

    @classmethod
    def of(cls, ledger: Ledger, ask: Ask) -> _Part:
        """Find out in all pools that the part may use."""
        found = [(most_now(standing, ask), standing) for standing in ledger.pools(ask)]
        fit = max((number for number, _ in found), default=0)
        there = [standing for number, standing in found if number == fit]
        is_kept = all(kept_for_guarantees(standing, ask.core) for standing in there)
        return cls(ask, fit, reserve_text(there[0]) if there and is_kept else "")

    @property
    def fits(self) -> bool:
        """Whether all of it does, and leaves the pool's reserve."""
        return self.fit >= self.needed and not self._reserve

    @property
    def text(self) -> str:
        """`4 pods of nvidia.com/gpu 8 in a100.local (2 fit)`."""
        all_fit = self.fit >= self.needed
        if self.needed == 1:
            fits = "fits" if all_fit else "does not fit"
        else:
            fits = "all fit" if all_fit else f"{self.fit or 'none'} fit"
        return f"{self._pods} in {pools_text(self.pools)} ({fits}{self._reserve})"


def _rest(ledger: Ledger, whole: str, found: Sequence[Hold]) -> Hold:
    """Return the hold of a gang that runs, of which pods beyond the minimum wait."""
    if len(found) == 1:
        return replace(found[0], gang=whole)
    told = "; ".join(f"in {pools_text(ledger.gangs[hold.gang].pools)}: {hold.message}" for hold in found)
    return replace(found[0], gang=whole, message=told)


def _latest(times: Sequence[float | None]) -> float | None:
    """Return the last of these times; None where one is not known."""
    known = [time for time in times if time is not None]
    return max(known) if known and len(known) == len(times) else None
