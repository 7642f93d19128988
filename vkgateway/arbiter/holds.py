"""Why each gang waits, in a code, a sentence and numbers; its place in line and when it may start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
from msgspec.structs import replace

from vkgateway.arbiter.accounts import total_of
from vkgateway.arbiter.asks import Ask, at_maximum
from vkgateway.arbiter.decisions import Hold, HoldCode
from vkgateway.arbiter.facts import GUARANTEED, WAITING, Plan, Pod, PoolKey
from vkgateway.arbiter.feasible import feasible, largest_ever
from vkgateway.arbiter.fitting import IntArray
from vkgateway.arbiter.forecast import Reservation
from vkgateway.arbiter.late import late, takes
from vkgateway.arbiter.ledger import Ledger
from vkgateway.arbiter.losses import change_text
from vkgateway.arbiter.outlook import Outlook
from vkgateway.arbiter.placement import largest
from vkgateway.arbiter.plans import among, place_beside_reserve
from vkgateway.arbiter.poolsums import node_name
from vkgateway.arbiter.reserve import kept_for_guarantees, never_borrows, plan_leaves_reserve
from vkgateway.arbiter.reservedcells import ReservedCells
from vkgateway.arbiter.sparing import not_waited_for
from vkgateway.arbiter.standing import Standing
from vkgateway.arbiter.toolarge import too_large
from vkgateway.model.requests import Milli, render_milli

V = TypeVar("V")

_LOOKS = 16
"""For so many gangs of a pool it is foreseen when they start; for those behind them it is not known."""


def explain(ledger: Ledger, turn: IntArray, *, foresee: bool) -> list[Hold]:
    """A hold for each gang of which something waits; `turn`: those that borrow, as told by `start_borrowed`.

    `foresee`: tell also when the first ones start.
    """
    holds = list(ledger.unreadable)
    places: Counter[PoolKey] = Counter()
    for name in sorted(ledger.plans):
        key = ledger.plans[name].pool
        places[key] += 1
        holds.append(replace(_eviction(ledger, ledger.asks[name]), place=places[key]))
    holds += _in_line(ledger, turn, places, looks=_LOOKS if foresee else 0)
    holds += _rests(ledger)
    return holds


def _in_line(ledger: Ledger, turn: IntArray, before: Mapping[PoolKey, int], *, looks: int) -> list[Hold]:
    """Equals of a tenant wait for the same reason, so of a hundred thousand gangs only a few are looked at."""
    needy = ledger.needy
    left = turn[ledger.waiting()[turn]]
    firsts, classes = _classes(needy.alike[left], needy.numbers_alike)
    fits = _Fits()
    reasons = [_why(ledger, needy.asks[index], fits) for index in left[firsts].tolist()]
    places = np.zeros(len(left), dtype=np.int64)
    times: dict[int, tuple[float | None, float | None]] = {}
    for key, standing in ledger.standings.items():
        here = np.array([at is standing for _, at in reasons], dtype=bool)
        line = np.flatnonzero(here[classes])
        places[line] = before.get(key, 0) + 1 + np.arange(len(line))
        seen = np.array([reason.code in _FORESEEN for reason, _ in reasons], dtype=bool)
        forecast = Outlook(ledger, standing)
        for at in line[seen[classes[line]]][:looks].tolist():
            times[at] = forecast.next(needy.asks[left.item(at)])
    names = needy.names
    told = [(hold.code, hold.message, hold.behind, hold.numbers) for hold, _ in reasons]
    holds = [
        Hold(gang=names[index], code=code, message=message, behind=behind, numbers=numbers, place=place)
        for index, (code, message, behind, numbers), place in zip(
            left.tolist(), map(told.__getitem__, classes.tolist()), places.tolist(), strict=True
        )
    ]
    for at, (early, likely) in times.items():
        holds[at] = replace(holds[at], earliest=early, likely=likely)
    return holds


def _classes(numbers: IntArray, most: int) -> tuple[IntArray, IntArray]:
    """Where each number, below `most`, is first; and for all of them the place of that one in the order of these."""
    at = np.arange(len(numbers))
    first = np.full(most, -1, dtype=np.int64)
    first[numbers[::-1]] = at[::-1]
    firsts = np.sort(first[first >= 0])
    place = np.empty(most, dtype=np.int64)
    place[numbers[firsts]] = at[: len(firsts)]
    return firsts, place[numbers]


_FORESEEN = (HoldCode.ROOM, HoldCode.RESERVATION)


def _eviction(ledger: Ledger, ask: Ask) -> Hold:
    plan = ledger.plans[ask.gang.id]
    standing, nodes = ledger.standings[plan.pool], set(plan.nodes.values())
    own = not standing.within_limit(ask.tenant, ask.core)
    short = not plan_leaves_reserve(standing, ask.core, plan)
    slow = _not_waited_for(ledger, standing, ask, plan)
    gone = [
        pod
        for uid, pod in standing.leaving.items()
        if uid not in slow and (pod.node in nodes or short or (own and standing.leaving.tenant_of(uid) == ask.tenant))
    ]
    times = [end for pod in gone if (end := standing.ends.of(pod.uid)) is not None]
    last = max(times, default=None)
    return Hold(
        gang=ask.gang.id,
        code=HoldCode.EVICTION,
        message=f"starts on {count_text(len(nodes), 'node')} when {gone_text(len(gone))}",
        numbers={"nodes": float(len(nodes)), "leaving": float(len(gone))},
        earliest=min((ledger.now, *times)) if last is None else last,
        likely=last,
    )


def _not_waited_for(ledger: Ledger, standing: Standing, ask: Ask, plan: Plan) -> set[str]:
    """Uids of the pods that end late, and without whom the gang has its room."""
    leaving = standing.leaving.values()
    if next(late(leaving, 0.0, since=plan.made, now=ledger.now), None) is None:
        return set()
    seconds = takes(ledger.leaving_gangs(standing))
    mark = standing.room.mark()
    standing.give(leaving)
    slow = not_waited_for(standing, [(ask, plan)], leaving, seconds, since=plan.made, now=ledger.now)
    standing.room.undo(mark)
    return {pod.uid for pod in slow}


class _Fits:
    """What would fit into what is free, found once for those that ask for the same pods. The room stays as it is."""

    def __init__(self) -> None:
        self._now: dict[Hashable, bool] = {}
        self._most: dict[Hashable, int] = {}

    def now(self, standing: Standing, ask: Ask) -> bool:
        """Whether the gang's core would."""
        return _known(self._now, standing, ask, _fits_now)

    def most(self, standing: Standing, ask: Ask) -> int:
        """How many of the gang's core would."""
        return _known(self._most, standing, ask, most_now)


def _known(found: dict[Hashable, V], standing: Standing, ask: Ask, find: Callable[[Standing, Ask], V]) -> V:
    """The same for all cores of as many equal pods, for which it is a matter of counting."""
    shape = ask.core[0].shape
    if ask.there or any(pod.shape != shape for pod in ask.core):
        return find(standing, ask)
    key = standing.pool.key, shape, len(ask.core), ask.gang.required_level, ask.gang.preferred_level
    if key not in found:
        found[key] = find(standing, ask)
    return found[key]


def _why(ledger: Ledger, ask: Ask, fits: _Fits) -> tuple[Hold, Standing | None]:
    """The hold, and the pool in whose line it stands."""
    pools = list(ledger.pools(ask))
    if not pools:
        return _no_pool(ledger, ask), None
    large_enough = [standing for standing in pools if feasible(standing, ask)]
    could = [standing for standing in large_enough if not never_borrows(standing, ask)]
    if not could:
        hold = _reserve_too_large(ask, large_enough[0]) if large_enough else _infeasible(ask, pools)
        return _reduced(hold, ask, pools), None
    free = [standing for standing in could if not standing.beyond_limit(ask.tenant, ask.core)]
    if not free:
        # Who asks for more than the whole limit stands in nobody's line.
        some_day = [standing for standing in could if not _above_whole_limit(standing, ask.tenant, total_of(ask.core))]
        return _quota(ask, ask.core, (some_day or could)[0]), next(iter(some_day), None)
    return _why_not_now(ledger, ask, free, fits)


def _why_not_now(ledger: Ledger, ask: Ask, free: Sequence[Standing], fits: _Fits) -> tuple[Hold, Standing]:
    """The same for a gang that its limit and the nodes of these pools allow."""
    for standing in free:
        ahead = standing.limit_kept.get(ask.tenant, ask.gang.id)
        if ahead not in ask.gang.kin and fits.now(standing, ask):
            return _behind_limit(ask, standing, ledger.gangs[ahead].whole), standing
    for standing in free if ask.gang.band is GUARANTEED else ():
        cells = standing.reserved_before(ask.gang)
        if cells is not None and standing.allows_beside(ask.gang, ask.core):
            return _reduced(_behind_cells(ask, standing, cells), ask, free), standing
    for standing in free:
        kept = standing.reservation
        if kept is not None and kept.gang not in ask.gang.kin and fits.now(standing, ask):
            return _reduced(_reserved(ledger, ask, kept), ask, free), standing
    kept_in = (each for each in free if each.reservation is not None and each.reservation.gang == ask.gang.id)
    return _reduced(_room(ask, free, fits), ask, free), next(kept_in, free[0])


def _reduced(hold: Hold, ask: Ask, pools: Iterable[Standing]) -> Hold:
    """The hold of a gang that might start inside its tenant's guarantee if no nodes were missing says so."""
    if ask.gang.band is not GUARANTEED:
        return hold
    for standing in pools:
        for loss in standing.cells.losses():
            if loss.tenant == ask.tenant:
                where = pools_text([standing.pool.key])
                return replace(
                    hold, message=f"{hold.message}; missing nodes cut its guarantee in {where}: {change_text(loss)}"
                )
    return hold


def _no_pool(ledger: Ledger, ask: Ask) -> Hold:
    known = [key for key in ask.pools if key in ledger.standings]
    if known:
        return Hold(
            gang=ask.gang.id,
            code=HoldCode.QUOTA,
            message=f"{ask.tenant} has no quota in {pools_text(known)}",
        )
    return Hold(gang=ask.gang.id, code=HoldCode.INFEASIBLE, message=f"there is no pool {pools_text(ask.pools)}")


def most_now(standing: Standing, ask: Ask) -> int:
    """Return how many of the gang's core would fit into what is free."""
    level = ask.gang.required_level
    return largest(standing.room, ask.core, required_level=level, among=among(standing, ask))


def _together(ask: Ask) -> str:
    near = f" within one {ask.gang.required_level}" if ask.gang.required_level else ""
    return f"{pods_text(ask.core)}{near}"


def _infeasible(ask: Ask, pools: Sequence[Standing]) -> Hold:
    most = max(largest_ever(standing, ask) for standing in pools)
    fit = f"only {most} of {len(ask.core)}" if most else "none"
    return Hold(
        gang=ask.gang.id,
        code=HoldCode.INFEASIBLE,
        message=f"needs {_together(ask)}; even if all else were gone, {fit} would fit{too_large(ask, pools)}",
        numbers={"needed": float(len(ask.core)), "largest": float(most)},
    )


def _reserve_too_large(ask: Ask, standing: Standing) -> Hold:
    return Hold(
        gang=ask.gang.id,
        code=HoldCode.INFEASIBLE,
        message=f"needs {_together(ask)}; {reserve_text(standing)}, too much for a gang of this size to borrow",
        numbers={"needed": float(len(ask.core)), "largest": 0.0, "reserve": standing.reserve / 1000},
    )


def reserve_text(standing: Standing) -> str:
    """Return `a100.local keeps nvidia.com/gpu 4 idle for guarantees`."""
    where = pools_text([standing.pool.key])
    return f"{where} keeps {render_milli({standing.pool.unit: standing.reserve})} idle for guarantees"


def _quota(ask: Ask, pods: Sequence[Pod], standing: Standing) -> Hold:
    names = standing.beyond_limit(ask.tenant, pods)
    used, limit, wanted = standing.used.get(ask.tenant, {}), standing.quotas[ask.tenant].limit, total_of(pods)
    parts = (render_milli({name: amounts.get(name, 0) for name in names}) for amounts in (wanted, used, limit))
    needs, in_use, at_most = parts
    where = pools_text([standing.pool.key])
    never = _above_whole_limit(standing, ask.tenant, wanted)
    return Hold(
        gang=ask.gang.id,
        code=HoldCode.QUOTA,
        message=f"needs {needs}, more than the whole limit in {where}: {at_most}"
        if never
        else f"needs {needs}; in use in {where}: {in_use}; limit: {at_most}",
        numbers={
            f"{what} {name}": amounts.get(name, 0) / 1000
            for name in names
            for what, amounts in (("needed", wanted), ("used", used), ("limit", limit))
        },
    )


def _above_whole_limit(standing: Standing, tenant: str, wanted: Milli) -> bool:
    limit = standing.quotas[tenant].limit
    return any(amount > limit.get(name, amount) for name, amount in wanted.items())


def _behind_limit(ask: Ask, standing: Standing, ahead: str) -> Hold:
    whom = ahead.removeprefix(f"{ask.tenant}/")
    where = pools_text([standing.pool.key])
    return Hold(
        gang=ask.gang.id,
        code=HoldCode.RESERVATION,
        message=f"there is room, but the limit in {where} is kept for {whom}, which is ahead and has waited for long",
        behind=ahead,
    )


def _behind_cells(ask: Ask, standing: Standing, cells: ReservedCells) -> Hold:
    whom = cells.gang.whole.removeprefix(f"{ask.tenant}/")
    where = pools_text([standing.pool.key])
    return Hold(
        gang=ask.gang.id,
        code=HoldCode.RESERVATION,
        message=f"what is left of the guarantee in {where} is reserved for {whom}, which is ahead and has "
        "waited for long",
        behind=cells.gang.whole,
    )


def _fits_now(standing: Standing, ask: Ask) -> bool:
    mark = standing.room.mark()
    found = place_beside_reserve(standing, ask, ask.core)
    standing.room.undo(mark)
    return found is not None


def _reserved(ledger: Ledger, ask: Ask, kept: Reservation) -> Hold:
    when = f"starts in about {_span(kept.start - ledger.now)}" if kept.start is not None else "has waited for long"
    ahead = ledger.gangs[kept.gang]
    whom = ahead.whole.removeprefix(f"{ahead.tenant}/") if ahead.tenant == ask.tenant else "another tenant's gang"
    return Hold(
        gang=ask.gang.id,
        code=HoldCode.RESERVATION,
        message=f"there is room, but it is kept for {whom}, which is ahead and {when}",
        behind=ahead.whole,
    )


def _room(ask: Ask, pools: Iterable[Standing], fits: _Fits) -> Hold:
    pools = list(pools)
    fit = max(fits.most(standing, ask) for standing in pools)
    message, numbers = f"needs {_together(ask)}; {fit} of {len(ask.core)} would fit now", {}
    kept = next((each for each in pools if fits.most(each, ask) == fit and kept_for_guarantees(each, ask.core)), None)
    if kept is not None and fit == len(ask.core):
        message += f", but {reserve_text(kept)}"
        numbers = {"reserve": kept.reserve / 1000, "idle": kept.room.idle / 1000}
    return Hold(
        gang=ask.gang.id,
        code=HoldCode.ROOM,
        message=message,
        numbers={"needed": float(len(ask.core)), "fit": float(fit), **numbers},
    )


def _rests(ledger: Ledger) -> Iterator[Hold]:
    """Pods beyond the minimum of gangs that run."""
    for name in sorted(ledger.beyond):
        ask = ledger.asks[name]
        started = ledger.started.get(ask.gang.id)
        if ask.core and started is None:
            continue
        left = [pod for pod in ask.rest if started is None or pod.uid not in started.nodes]
        over = _beyond_maximum(ask)
        if not left:
            if over:
                yield at_maximum(ask.gang, over)
            continue
        standing = started.standing if started is not None else next(ledger.pools(ask), None)
        if standing is not None and standing.beyond_limit(ask.tenant, left[:1]):
            yield _quota(ask, left[:1], standing)
            continue
        total = len(ask.gang.pods) - over
        reserved = standing is not None and kept_for_guarantees(standing, left[:1])
        why = reserve_text(standing) if standing is not None and reserved else "there is no room for more now"
        message = f"runs with {total - len(left)} of {total} pods; {why}"
        numbers = {"running": float(total - len(left)), "waiting": float(len(left))}
        yield Hold(gang=ask.gang.id, code=HoldCode.ROOM, message=message, numbers=numbers)


def _beyond_maximum(ask: Ask) -> int:
    """How many of its waiting pods it may not grow to."""
    waiting = sum(pod.state is WAITING for pod in ask.gang.pods)
    return waiting - len(ask.core) - len(ask.rest)


def pods_text(pods: Sequence[Pod]) -> str:
    """`2 pods of cpu 1, 4 pods of nvidia.com/gpu 1`."""
    shapes = Counter(tuple(each for each in pod.shape.requests if each[0] != "pods") for pod in pods)
    return ", ".join(
        f"{count_text(number, 'pod')} of {render_milli(dict(requests))}" for requests, number in shapes.items()
    )


def pools_text(keys: Iterable[PoolKey]) -> str:
    """Pools by their virtual nodes, which is how tenants know them."""
    return ", ".join(node_name(key) for key in keys)


def count_text(number: int, what: str) -> str:
    """Return `1 pod`, `2 pods`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def gone_text(pods: int) -> str:
    """Return `2 pods have gone`."""
    return f"{count_text(pods, 'pod')} {'has' if pods == 1 else 'have'} gone"


def _span(seconds: float) -> str:
    """Coarse, so that a sentence stays the same for a while: `1 min`, `20 min`, `3 h`, `2 days`; rounded up."""
    for unit, length, steps in _SPANS:
        count = -(-max(0.0, seconds) // length)
        step = next((step for step in steps if count <= step), None)
        if step is not None:
            return count_text(step, unit) if unit == "day" else f"{step} {unit}"
    return "more than a month"


_SPANS = (
    ("min", 60, (1, 2, 5, 10, 15, 20, 30, 45)),
    ("h", 3600, (1, 2, 3, 4, 6, 8, 12, 18)),
    ("day", 86_400, (1, 2, 3, 5, 7, 10, 14, 21, 31)),
)
"""The steps in which times ahead are told."""
