"""Why each gang waits, in a code, a sentence and numbers; its place in line and when it may start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
from msgspec.structs import replace

from vkgateway.arbiter.capacity.forecast import Reservation
from vkgateway.arbiter.capacity.node_fit import IntArray
from vkgateway.arbiter.capacity.placement import count_placeable
from vkgateway.arbiter.capacity.slow_terminations import find_late_pods, termination_seconds
from vkgateway.arbiter.cycle_state import CycleState
from vkgateway.arbiter.decisions import PendingReason, PendingReport
from vkgateway.arbiter.guarantees.reserved_cells import CellReservation
from vkgateway.arbiter.phases.feasibility import count_placeable_empty, is_feasible
from vkgateway.arbiter.phases.idle_reserve import can_never_borrow, plan_leaves_reserve, would_use_reserve
from vkgateway.arbiter.phases.preemption_plans import allowed_nodes, place_keeping_reserve
from vkgateway.arbiter.phases.reprieves import find_unneeded_late_pods
from vkgateway.arbiter.pool_state import PoolState
from vkgateway.arbiter.queueing.pending_gangs import PendingGang, report_maximum
from vkgateway.arbiter.queueing.tenant_usage import sum_requests
from vkgateway.arbiter.reasons.expected_starts import StartForecast
from vkgateway.arbiter.reasons.guarantee_losses import change_text
from vkgateway.arbiter.reasons.too_large import explain_too_large
from vkgateway.arbiter.snapshot import GUARANTEED, WAITING, Pod, PoolKey, PreemptionPlan, node_name
from vkgateway.model.requests import MilliResources, render_milli

V = TypeVar("V")

_MAX_FORECASTS = 16
"""For so many gangs of a pool it is foreseen when they start; for those behind them it is not known."""


def explain_pending(ledger: CycleState, turn: IntArray, *, foresee: bool) -> list[PendingReport]:
    """A hold for each gang of which something waits; `turn`: those that borrow, as told by `start_borrowed`.

    `foresee`: tell also when the first ones start.
    """
    holds = list(ledger.invalid_reports)
    places: Counter[PoolKey] = Counter()
    for name in sorted(ledger.plans):
        key = ledger.plans[name].pool
        places[key] += 1
        holds.append(replace(_report_eviction(ledger, ledger.pending_gangs[name]), place=places[key]))
    holds += _report_queue(ledger, turn, places, looks=_MAX_FORECASTS if foresee else 0)
    holds += _report_surplus(ledger)
    return holds


def _report_queue(
    ledger: CycleState, turn: IntArray, before: Mapping[PoolKey, int], *, looks: int
) -> list[PendingReport]:
    """Equals of a tenant wait for the same reason, so of a hundred thousand gangs only a few are looked at."""
    needy = ledger.pending_table
    left = turn[ledger.undecided_mask()[turn]]
    firsts, classes = _group_equals(needy.alike_numbers[left], needy.alike_count)
    fits = _FitCache()
    reasons = [_find_reason(ledger, needy.pending_gangs[index], fits) for index in left[firsts].tolist()]
    places = np.zeros(len(left), dtype=np.int64)
    times: dict[int, tuple[float | None, float | None]] = {}
    for key, standing in ledger.pool_states.items():
        here = np.array([at is standing for _, at in reasons], dtype=bool)
        line = np.flatnonzero(here[classes])
        places[line] = before.get(key, 0) + 1 + np.arange(len(line))
        seen = np.array([reason.code in _FORECAST_REASONS for reason, _ in reasons], dtype=bool)
        forecast = StartForecast(ledger, standing)
        for at in line[seen[classes[line]]][:looks].tolist():
            times[at] = forecast.forecast_next(needy.pending_gangs[left.item(at)])
    names = needy.names
    told = [(hold.code, hold.message, hold.behind, hold.numbers) for hold, _ in reasons]
    holds = [
        PendingReport(gang=names[index], code=code, message=message, behind=behind, numbers=numbers, place=place)
        for index, (code, message, behind, numbers), place in zip(
            left.tolist(), map(told.__getitem__, classes.tolist()), places.tolist(), strict=True
        )
    ]
    for at, (early, likely) in times.items():
        holds[at] = replace(holds[at], earliest=early, likely=likely)
    return holds


def _group_equals(numbers: IntArray, most: int) -> tuple[IntArray, IntArray]:
    """Where each number, below `count_placeable`, is first; and for all of them the place of that one in the order of
    these.
    """
    at = np.arange(len(numbers))
    first = np.full(most, -1, dtype=np.int64)
    first[numbers[::-1]] = at[::-1]
    firsts = np.sort(first[first >= 0])
    place = np.empty(most, dtype=np.int64)
    place[numbers[firsts]] = at[: len(firsts)]
    return firsts, place[numbers]


_FORECAST_REASONS = (PendingReason.ROOM, PendingReason.RESERVATION)


def _report_eviction(ledger: CycleState, ask: PendingGang) -> PendingReport:
    plan = ledger.plans[ask.gang.id]
    standing, nodes = ledger.pool_states[plan.pool], set(plan.nodes.values())
    own = not standing.is_within_limit(ask.tenant, ask.min_members)
    short = not plan_leaves_reserve(standing, ask.min_members, plan)
    slow = _unneeded_late_pods(ledger, standing, ask, plan)
    gone = [
        pod
        for uid, pod in standing.terminating_pods.items()
        if uid not in slow
        and (pod.node in nodes or short or (own and standing.terminating_pods.tenant_of(uid) == ask.tenant))
    ]
    times = [end for pod in gone if (end := standing.expected_ends.end_of(pod.uid)) is not None]
    last = max(times, default=None)
    return PendingReport(
        gang=ask.gang.id,
        code=PendingReason.EVICTION,
        message=f"starts on {count_text(len(nodes), 'node')} when {terminated_text(len(gone))}",
        numbers={"nodes": float(len(nodes)), "leaving": float(len(gone))},
        earliest=min((ledger.now, *times)) if last is None else last,
        likely=last,
    )


def _unneeded_late_pods(ledger: CycleState, standing: PoolState, ask: PendingGang, plan: PreemptionPlan) -> set[str]:
    """Uids of the pods that end late, and without whom the gang has its room."""
    leaving = standing.terminating_pods.values()
    if next(find_late_pods(leaving, 0.0, since=plan.made, now=ledger.now), None) is None:
        return set()
    seconds = termination_seconds(ledger.victim_gangs(standing))
    mark = standing.node_resources.mark()
    standing.remove_pods(leaving)
    slow = find_unneeded_late_pods(standing, [(ask, plan)], leaving, seconds, since=plan.made, now=ledger.now)
    standing.node_resources.undo(mark)
    return {pod.uid for pod in slow}


class _FitCache:
    """What would fit into what is free, found once for those that ask for the same pods. The room stays as it is."""

    def __init__(self) -> None:
        self._fits_cache: dict[Hashable, bool] = {}
        self._count_cache: dict[Hashable, int] = {}

    def fits_now(self, standing: PoolState, ask: PendingGang) -> bool:
        """Whether the gang's core would."""
        return _cached_answer(self._fits_cache, standing, ask, _fits_now)

    def count_placeable(self, standing: PoolState, ask: PendingGang) -> int:
        """How many of the gang's core would."""
        return _cached_answer(self._count_cache, standing, ask, count_placeable_now)


def _cached_answer(
    found: dict[Hashable, V], standing: PoolState, ask: PendingGang, find: Callable[[PoolState, PendingGang], V]
) -> V:
    """The same for all cores of as many equal pods, for which it is a matter of counting."""
    shape = ask.min_members[0].shape
    if ask.placed_pods or any(pod.shape != shape for pod in ask.min_members):
        return find(standing, ask)
    key = standing.pool.key, shape, len(ask.min_members), ask.gang.required_level, ask.gang.preferred_level
    if key not in found:
        found[key] = find(standing, ask)
    return found[key]


def _find_reason(ledger: CycleState, ask: PendingGang, fits: _FitCache) -> tuple[PendingReport, PoolState | None]:
    """The hold, and the pool in whose line it stands."""
    pools = list(ledger.usable_pools(ask))
    if not pools:
        return _report_no_pool(ledger, ask), None
    large_enough = [standing for standing in pools if is_feasible(standing, ask)]
    could = [standing for standing in large_enough if not can_never_borrow(standing, ask)]
    if not could:
        hold = _report_reserve(ask, large_enough[0]) if large_enough else _report_infeasible(ask, pools)
        return _mention_reduction(hold, ask, pools), None
    free = [standing for standing in could if not standing.exceeded_limits(ask.tenant, ask.min_members)]
    if not free:
        # Who asks for more than the whole limit stands in nobody's line.
        some_day = [
            standing
            for standing in could
            if not _exceeds_whole_limit(standing, ask.tenant, sum_requests(ask.min_members))
        ]
        return _report_quota(ask, ask.min_members, (some_day or could)[0]), next(iter(some_day), None)
    return _find_reason_now(ledger, ask, free, fits)


def _find_reason_now(
    ledger: CycleState, ask: PendingGang, free: Sequence[PoolState], fits: _FitCache
) -> tuple[PendingReport, PoolState]:
    """The same for a gang that its limit and the nodes of these pools allow."""
    for standing in free:
        ahead = standing.limit_reservations.get(ask.tenant, ask.gang.id)
        if ahead not in ask.gang.part_ids and fits.fits_now(standing, ask):
            return _report_reserved_limit(ask, standing, ledger.gangs[ahead].whole_id), standing
    for standing in free if ask.gang.band is GUARANTEED else ():
        cells = standing.cells_reserved_ahead(ask.gang)
        if cells is not None and standing.has_guarantee_left(ask.gang, ask.min_members):
            return _mention_reduction(_report_reserved_cells(ask, standing, cells), ask, free), standing
    for standing in free:
        kept = standing.reservation
        if kept is not None and kept.gang not in ask.gang.part_ids and fits.fits_now(standing, ask):
            return _mention_reduction(_report_reservation(ledger, ask, kept), ask, free), standing
    kept_in = (each for each in free if each.reservation is not None and each.reservation.gang == ask.gang.id)
    return _mention_reduction(_report_no_room(ask, free, fits), ask, free), next(kept_in, free[0])


def _mention_reduction(hold: PendingReport, ask: PendingGang, pools: Iterable[PoolState]) -> PendingReport:
    """The hold of a gang that might start inside its tenant's guarantee if no nodes were missing says so."""
    if ask.gang.band is not GUARANTEED:
        return hold
    for standing in pools:
        for loss in standing.cells.guarantee_losses():
            if loss.tenant == ask.tenant:
                where = pools_text([standing.pool.key])
                return replace(
                    hold, message=f"{hold.message}; missing nodes cut its guarantee in {where}: {change_text(loss)}"
                )
    return hold


def _report_no_pool(ledger: CycleState, ask: PendingGang) -> PendingReport:
    known = [key for key in ask.allowed_pools if key in ledger.pool_states]
    if known:
        return PendingReport(
            gang=ask.gang.id,
            code=PendingReason.QUOTA,
            message=f"{ask.tenant} has no quota in {pools_text(known)}",
        )
    return PendingReport(
        gang=ask.gang.id, code=PendingReason.INFEASIBLE, message=f"there is no pool {pools_text(ask.allowed_pools)}"
    )


def count_placeable_now(standing: PoolState, ask: PendingGang) -> int:
    """Return how many of the gang's core would fit into what is free."""
    level = ask.gang.required_level
    return count_placeable(
        standing.node_resources, ask.min_members, required_level=level, among=allowed_nodes(standing, ask)
    )


def _request_text(ask: PendingGang) -> str:
    near = f" within one {ask.gang.required_level}" if ask.gang.required_level else ""
    return f"{pods_text(ask.min_members)}{near}"


def _report_infeasible(ask: PendingGang, pools: Sequence[PoolState]) -> PendingReport:
    most = max(count_placeable_empty(standing, ask) for standing in pools)
    fit = f"only {most} of {len(ask.min_members)}" if most else "none"
    return PendingReport(
        gang=ask.gang.id,
        code=PendingReason.INFEASIBLE,
        message=(
            f"needs {_request_text(ask)}; even if all else were gone, {fit} would fit{explain_too_large(ask, pools)}"
        ),
        numbers={"needed": float(len(ask.min_members)), "largest": float(most)},
    )


def _report_reserve(ask: PendingGang, standing: PoolState) -> PendingReport:
    return PendingReport(
        gang=ask.gang.id,
        code=PendingReason.INFEASIBLE,
        message=f"needs {_request_text(ask)}; {reserve_text(standing)}, too much for a gang of this size to borrow",
        numbers={"needed": float(len(ask.min_members)), "largest": 0.0, "reserve": standing.reserve / 1000},
    )


def reserve_text(standing: PoolState) -> str:
    """Return `a100.local keeps nvidia.com/gpu 4 idle for guarantees`."""
    where = pools_text([standing.pool.key])
    return f"{where} keeps {render_milli({standing.pool.unit_resource: standing.reserve})} idle for guarantees"


def _report_quota(ask: PendingGang, pods: Sequence[Pod], standing: PoolState) -> PendingReport:
    names = standing.exceeded_limits(ask.tenant, pods)
    used, limit, wanted = standing.usage.get(ask.tenant, {}), standing.quotas[ask.tenant].limit, sum_requests(pods)
    parts = (render_milli({name: amounts.get(name, 0) for name in names}) for amounts in (wanted, used, limit))
    needs, in_use, at_most = parts
    where = pools_text([standing.pool.key])
    never = _exceeds_whole_limit(standing, ask.tenant, wanted)
    return PendingReport(
        gang=ask.gang.id,
        code=PendingReason.QUOTA,
        message=f"needs {needs}, more than the whole limit in {where}: {at_most}"
        if never
        else f"needs {needs}; in use in {where}: {in_use}; limit: {at_most}",
        numbers={
            f"{what} {name}": amounts.get(name, 0) / 1000
            for name in names
            for what, amounts in (("needed", wanted), ("used", used), ("limit", limit))
        },
    )


def _exceeds_whole_limit(standing: PoolState, tenant: str, wanted: MilliResources) -> bool:
    limit = standing.quotas[tenant].limit
    return any(amount > limit.get(name, amount) for name, amount in wanted.items())


def _report_reserved_limit(ask: PendingGang, standing: PoolState, ahead: str) -> PendingReport:
    whom = ahead.removeprefix(f"{ask.tenant}/")
    where = pools_text([standing.pool.key])
    return PendingReport(
        gang=ask.gang.id,
        code=PendingReason.RESERVATION,
        message=f"there is room, but the limit in {where} is kept for {whom}, which is ahead and has waited for long",
        behind=ahead,
    )


def _report_reserved_cells(ask: PendingGang, standing: PoolState, cells: CellReservation) -> PendingReport:
    whom = cells.gang.whole_id.removeprefix(f"{ask.tenant}/")
    where = pools_text([standing.pool.key])
    return PendingReport(
        gang=ask.gang.id,
        code=PendingReason.RESERVATION,
        message=f"what is left of the guarantee in {where} is reserved for {whom}, which is ahead and has "
        "waited for long",
        behind=cells.gang.whole_id,
    )


def _fits_now(standing: PoolState, ask: PendingGang) -> bool:
    mark = standing.node_resources.mark()
    found = place_keeping_reserve(standing, ask, ask.min_members)
    standing.node_resources.undo(mark)
    return found is not None


def _report_reservation(ledger: CycleState, ask: PendingGang, kept: Reservation) -> PendingReport:
    when = (
        f"starts in about {_duration_text(kept.start - ledger.now)}"
        if kept.start is not None
        else "has waited for long"
    )
    ahead = ledger.gangs[kept.gang]
    whom = ahead.whole_id.removeprefix(f"{ahead.tenant}/") if ahead.tenant == ask.tenant else "another tenant's gang"
    return PendingReport(
        gang=ask.gang.id,
        code=PendingReason.RESERVATION,
        message=f"there is room, but it is kept for {whom}, which is ahead and {when}",
        behind=ahead.whole_id,
    )


def _report_no_room(ask: PendingGang, pools: Iterable[PoolState], fits: _FitCache) -> PendingReport:
    pools = list(pools)
    fit = max(fits.count_placeable(standing, ask) for standing in pools)
    message, numbers = f"needs {_request_text(ask)}; {fit} of {len(ask.min_members)} would fit now", {}
    kept = next(
        (each for each in pools if fits.count_placeable(each, ask) == fit and would_use_reserve(each, ask.min_members)),
        None,
    )
    if kept is not None and fit == len(ask.min_members):
        message += f", but {reserve_text(kept)}"
        numbers = {"reserve": kept.reserve / 1000, "idle": kept.node_resources.idle_units / 1000}
    return PendingReport(
        gang=ask.gang.id,
        code=PendingReason.ROOM,
        message=message,
        numbers={"needed": float(len(ask.min_members)), "fit": float(fit), **numbers},
    )


def _report_surplus(ledger: CycleState) -> Iterator[PendingReport]:
    """Pods beyond the minimum of gangs that run."""
    for name in sorted(ledger.surplus_gangs):
        ask = ledger.pending_gangs[name]
        started = ledger.started.get(ask.gang.id)
        if ask.min_members and started is None:
            continue
        left = [pod for pod in ask.surplus if started is None or pod.uid not in started.nodes]
        over = _count_beyond_maximum(ask)
        if not left:
            if over:
                yield report_maximum(ask.gang, over)
            continue
        standing = started.pool_state if started is not None else next(ledger.usable_pools(ask), None)
        if standing is not None and standing.exceeded_limits(ask.tenant, left[:1]):
            yield _report_quota(ask, left[:1], standing)
            continue
        total = len(ask.gang.pods) - over
        reserved = standing is not None and would_use_reserve(standing, left[:1])
        why = reserve_text(standing) if standing is not None and reserved else "there is no room for more now"
        message = f"runs with {total - len(left)} of {total} pods; {why}"
        numbers = {"running": float(total - len(left)), "waiting": float(len(left))}
        yield PendingReport(gang=ask.gang.id, code=PendingReason.ROOM, message=message, numbers=numbers)


def _count_beyond_maximum(ask: PendingGang) -> int:
    """How many of its waiting pods it may not grow to."""
    waiting = sum(pod.state is WAITING for pod in ask.gang.pods)
    return waiting - len(ask.min_members) - len(ask.surplus)


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


def terminated_text(pods: int) -> str:
    """Return `2 pods have gone`."""
    return f"{count_text(pods, 'pod')} {'has' if pods == 1 else 'have'} gone"


def _duration_text(seconds: float) -> str:
    """Coarse, so that a sentence stays the same for a while: `1 min`, `20 min`, `3 h`, `2 days`; rounded up."""
    for unit, length, steps in _DURATION_STEPS:
        count = -(-max(0.0, seconds) // length)
        step = next((step for step in steps if count <= step), None)
        if step is not None:
            return count_text(step, unit) if unit == "day" else f"{step} {unit}"
    return "more than a month"


_DURATION_STEPS = (
    ("min", 60, (1, 2, 5, 10, 15, 20, 30, 45)),
    ("h", 3600, (1, 2, 3, 4, 6, 8, 12, 18)),
    ("day", 86_400, (1, 2, 3, 5, 7, 10, 14, 21, 31)),
)
"""The steps in which times ahead are told."""
