"""Pending reports: code, message and numbers for each waiting gang, its place in the queue and its expected start."""

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
from vkgateway.arbiter.cycle_state import CycleState, victim_gangs
from vkgateway.arbiter.decisions import PendingReason, PendingReport
from vkgateway.arbiter.guarantees.reserved_cells import CellReservation
from vkgateway.arbiter.phases.feasibility import count_placeable_empty, is_feasible
from vkgateway.arbiter.phases.idle_reserve import can_never_borrow, plan_leaves_reserve, would_use_reserve
from vkgateway.arbiter.phases.preemption_plans import allowed_nodes, place_keeping_reserve
from vkgateway.arbiter.phases.reprieves import find_unneeded_late_pods
from vkgateway.arbiter.pools.pool_state import PoolState
from vkgateway.arbiter.queueing.pending_gangs import PendingGang, report_maximum
from vkgateway.arbiter.queueing.tenant_usage import sum_requests
from vkgateway.arbiter.reasons.expected_starts import StartForecast
from vkgateway.arbiter.reasons.guarantee_losses import change_text
from vkgateway.arbiter.reasons.too_large import explain_too_large
from vkgateway.arbiter.snapshot import GUARANTEED, WAITING, Pod, PoolKey, PreemptionPlan, node_name
from vkgateway.model.requests import MilliResources, render_milli

V = TypeVar("V")

_MAX_FORECASTS = 16
"""Number of gangs per pool whose start is forecast; later starts are unknown."""


def explain_pending(state: CycleState, order: IntArray, *, forecast: bool) -> list[PendingReport]:
    """Return a report for each gang with waiting pods; `order`: the borrowing gangs, as returned by `start_borrowed`.

    `forecast`: also forecast the starts of the first gangs.
    """
    reports = list(state.invalid_reports)
    places: Counter[PoolKey] = Counter()
    for name in sorted(state.plans):
        key = state.plans[name].pool
        places[key] += 1
        reports.append(replace(_report_eviction(state, state.pending_gangs[name]), place=places[key]))
    reports += _report_queue(state, order, places, max_forecasts=_MAX_FORECASTS if forecast else 0)
    reports += _report_surplus(state)
    return reports


def _report_queue(
    state: CycleState, order: IntArray, before: Mapping[PoolKey, int], *, max_forecasts: int
) -> list[PendingReport]:
    """Return the reports of queued gangs.

    Equivalent gangs of a tenant wait for the same reason, so a few checks cover 100,000 gangs.
    """
    pending_table = state.pending_table
    waiting = order[state.undecided_mask()[order]]
    firsts, classes = _group_equals(pending_table.alike_numbers[waiting], pending_table.alike_count)
    fits = _FitCache()
    reasons = [_find_reason(state, pending_table.pending_gangs[index], fits) for index in waiting[firsts].tolist()]
    places = np.zeros(len(waiting), dtype=np.int64)
    times: dict[int, tuple[float | None, float | None]] = {}
    for key, pool_state in state.pool_states.items():
        in_pool = np.array([row is pool_state for _, row in reasons], dtype=bool)
        queued = np.flatnonzero(in_pool[classes])
        places[queued] = before.get(key, 0) + 1 + np.arange(len(queued))
        has_forecast = np.array([reason.code in _FORECAST_REASONS for reason, _ in reasons], dtype=bool)
        forecast = StartForecast(state, pool_state)
        for row in queued[has_forecast[classes[queued]]][:max_forecasts].tolist():
            times[row] = forecast.forecast_next(pending_table.pending_gangs[waiting.item(row)])
    names = pending_table.names
    answers = [(report.code, report.message, report.behind, report.numbers) for report, _ in reasons]
    reports = [
        PendingReport(gang=names[index], code=code, message=message, behind=behind, numbers=numbers, place=place)
        for index, (code, message, behind, numbers), place in zip(
            waiting.tolist(), map(answers.__getitem__, classes.tolist()), places.tolist(), strict=True
        )
    ]
    for row, (early, likely) in times.items():
        reports[row] = replace(reports[row], earliest=early, likely=likely)
    return reports


def _group_equals(numbers: IntArray, limit: int) -> tuple[IntArray, IntArray]:
    """Return the sorted indices of first occurrences, and for each number its position in that list.

    All numbers are below `limit`.
    """
    indices = np.arange(len(numbers))
    first = np.full(limit, -1, dtype=np.int64)
    first[numbers[::-1]] = indices[::-1]
    firsts = np.sort(first[first >= 0])
    place = np.empty(limit, dtype=np.int64)
    place[numbers[firsts]] = indices[: len(firsts)]
    return firsts, place[numbers]


_FORECAST_REASONS = (PendingReason.ROOM, PendingReason.RESERVATION)


def _report_eviction(state: CycleState, pending_gang: PendingGang) -> PendingReport:
    plan = state.plans[pending_gang.gang.id]
    pool_state, nodes = state.pool_states[plan.pool], set(plan.nodes.values())
    over_limit = not pool_state.tenant_usage.is_within_limit(pending_gang.tenant, pending_gang.min_members)
    short_of_reserve = not plan_leaves_reserve(pool_state, pending_gang.min_members, plan)
    slow = _unneeded_late_pods(state, pool_state, pending_gang, plan)
    awaited = [
        pod
        for uid, pod in pool_state.terminating_pods.items()
        if uid not in slow
        and (
            pod.node in nodes
            or short_of_reserve
            or (over_limit and pool_state.terminating_pods.tenant_of(uid) == pending_gang.tenant)
        )
    ]
    times = [end for pod in awaited if (end := pool_state.expected_ends.end_of(pod.uid)) is not None]
    last = max(times, default=None)
    return PendingReport(
        gang=pending_gang.gang.id,
        code=PendingReason.EVICTION,
        message=f"starts on {count_text(len(nodes), 'node')} when {terminated_text(len(awaited))}",
        numbers={"nodes": float(len(nodes)), "leaving": float(len(awaited))},
        earliest=min((state.now, *times)) if last is None else last,
        likely=last,
    )


def _unneeded_late_pods(
    state: CycleState, pool_state: PoolState, pending_gang: PendingGang, plan: PreemptionPlan
) -> set[str]:
    """Return the uids of pods that end late and without whose resources the gang fits."""
    leaving = pool_state.terminating_pods.values()
    if next(find_late_pods(leaving, 0.0, since=plan.made, now=state.now), None) is None:
        return set()
    seconds = termination_seconds(victim_gangs(state, pool_state))
    with pool_state.node_resources.trial():
        pool_state.remove_pods(leaving)
        slow = find_unneeded_late_pods(
            pool_state, [(pending_gang, plan)], leaving, seconds, since=plan.made, now=state.now
        )
    return {pod.uid for pod in slow}


class _FitCache:
    """Number of pods that fit now, cached for equal requests. The node resources stay unchanged."""

    def __init__(self) -> None:
        self._fits_cache: dict[Hashable, bool] = {}
        self._count_cache: dict[Hashable, int] = {}

    def fits_now(self, pool_state: PoolState, pending_gang: PendingGang) -> bool:
        """Return whether the gang's min members fit."""
        return _cached_answer(self._fits_cache, pool_state, pending_gang, _fits_now)

    def count_placeable(self, pool_state: PoolState, pending_gang: PendingGang) -> int:
        """Return how many of the gang's min members fit."""
        return _cached_answer(self._count_cache, pool_state, pending_gang, count_placeable_now)


def _cached_answer(
    found: dict[Hashable, V],
    pool_state: PoolState,
    pending_gang: PendingGang,
    find: Callable[[PoolState, PendingGang], V],
) -> V:
    """Return the answer, cached for all min members of the same number of equal pods: for these, counting decides."""
    shape = pending_gang.min_members[0].shape
    if pending_gang.placed_pods or any(pod.shape != shape for pod in pending_gang.min_members):
        return find(pool_state, pending_gang)
    key = (
        pool_state.pool.key,
        shape,
        len(pending_gang.min_members),
        pending_gang.gang.required_level,
        pending_gang.gang.preferred_level,
    )
    if key not in found:
        found[key] = find(pool_state, pending_gang)
    return found[key]


def _find_reason(
    state: CycleState, pending_gang: PendingGang, fits: _FitCache
) -> tuple[PendingReport, PoolState | None]:
    """Return the report, and the pool in whose queue the gang waits."""
    pools = list(state.usable_pools(pending_gang))
    if not pools:
        return _report_no_pool(state, pending_gang), None
    large_enough = [pool_state for pool_state in pools if is_feasible(pool_state, pending_gang)]
    possible = [pool_state for pool_state in large_enough if not can_never_borrow(pool_state, pending_gang)]
    if not possible:
        report = (
            _report_reserve(pending_gang, large_enough[0]) if large_enough else _report_infeasible(pending_gang, pools)
        )
        return _mention_reduction(report, pending_gang, pools), None
    free = [
        pool_state
        for pool_state in possible
        if not pool_state.tenant_usage.exceeded_limits(pending_gang.tenant, pending_gang.min_members)
    ]
    if not free:
        # A gang that exceeds the whole limit is in no queue.
        within_limit = [
            pool_state
            for pool_state in possible
            if not _exceeds_whole_limit(pool_state, pending_gang.tenant, sum_requests(pending_gang.min_members))
        ]
        return _report_quota(pending_gang, pending_gang.min_members, (within_limit or possible)[0]), next(
            iter(within_limit), None
        )
    return _find_reason_now(state, pending_gang, free, fits)


def _find_reason_now(
    state: CycleState, pending_gang: PendingGang, free: Sequence[PoolState], fits: _FitCache
) -> tuple[PendingReport, PoolState]:
    """Return the report of a gang that its limit and the nodes of these pools allow."""
    for pool_state in free:
        ahead = pool_state.reservations.limits.get(pending_gang.tenant, pending_gang.gang.id)
        if ahead not in pending_gang.gang.part_ids and fits.fits_now(pool_state, pending_gang):
            return _report_reserved_limit(pending_gang, pool_state, state.gangs[ahead].whole_id), pool_state
    for pool_state in free if pending_gang.gang.band is GUARANTEED else ():
        cells = pool_state.guarantee.cells_reserved_ahead(pending_gang.gang)
        if cells is not None and pool_state.guarantee.has_guarantee_left(pending_gang.gang, pending_gang.min_members):
            return _mention_reduction(
                _report_reserved_cells(pending_gang, pool_state, cells), pending_gang, free
            ), pool_state
    for pool_state in free:
        reservation = pool_state.reservations.nodes
        if (
            reservation is not None
            and reservation.gang not in pending_gang.gang.part_ids
            and fits.fits_now(pool_state, pending_gang)
        ):
            return _mention_reduction(
                _report_reservation(state, pending_gang, reservation), pending_gang, free
            ), pool_state
    reserving = (
        each
        for each in free
        if each.reservations.nodes is not None and each.reservations.nodes.gang == pending_gang.gang.id
    )
    return _mention_reduction(_report_no_room(pending_gang, free, fits), pending_gang, free), next(reserving, free[0])


def _mention_reduction(report: PendingReport, pending_gang: PendingGang, pools: Iterable[PoolState]) -> PendingReport:
    """Add the reduction to the report of a gang that could start in its tenant's guarantee without missing nodes."""
    if pending_gang.gang.band is not GUARANTEED:
        return report
    for pool_state in pools:
        for loss in pool_state.cells.guarantee_losses():
            if loss.tenant == pending_gang.tenant:
                where = pools_text([pool_state.pool.key])
                return replace(
                    report,
                    message=f"{report.message}; missing nodes reduce its guarantee in {where}: {change_text(loss)}",
                )
    return report


def _report_no_pool(state: CycleState, pending_gang: PendingGang) -> PendingReport:
    known = [key for key in pending_gang.allowed_pools if key in state.pool_states]
    if known:
        return PendingReport(
            gang=pending_gang.gang.id,
            code=PendingReason.QUOTA,
            message=f"{pending_gang.tenant} has no quota in {pools_text(known)}",
        )
    return PendingReport(
        gang=pending_gang.gang.id,
        code=PendingReason.INFEASIBLE,
        message=f"there is no pool {pools_text(pending_gang.allowed_pools)}",
    )


def count_placeable_now(pool_state: PoolState, pending_gang: PendingGang) -> int:
    """Return how many of the gang's min members fit into free capacity."""
    level = pending_gang.gang.required_level
    return count_placeable(
        pool_state.node_resources,
        pending_gang.min_members,
        required_level=level,
        among=allowed_nodes(pool_state, pending_gang),
    )


def _request_text(pending_gang: PendingGang) -> str:
    level_text = f" within one {pending_gang.gang.required_level}" if pending_gang.gang.required_level else ""
    return f"{pods_text(pending_gang.min_members)}{level_text}"


def _report_infeasible(pending_gang: PendingGang, pools: Sequence[PoolState]) -> PendingReport:
    largest = max(count_placeable_empty(pool_state, pending_gang) for pool_state in pools)
    fit = f"only {largest} of {len(pending_gang.min_members)}" if largest else "none"
    return PendingReport(
        gang=pending_gang.gang.id,
        code=PendingReason.INFEASIBLE,
        message=(
            f"needs {_request_text(pending_gang)}; even on empty nodes, {fit} would fit"
            f"{explain_too_large(pending_gang, pools)}"
        ),
        numbers={"needed": float(len(pending_gang.min_members)), "largest": float(largest)},
    )


def _report_reserve(pending_gang: PendingGang, pool_state: PoolState) -> PendingReport:
    return PendingReport(
        gang=pending_gang.gang.id,
        code=PendingReason.INFEASIBLE,
        message=f"needs {_request_text(pending_gang)}; {reserve_text(pool_state)}, "
        "too much for a gang of this size to borrow",
        numbers={
            "needed": float(len(pending_gang.min_members)),
            "largest": 0.0,
            "reserve": pool_state.facts.idle_reserve / 1000,
        },
    )


def reserve_text(pool_state: PoolState) -> str:
    """Return `a100.local keeps nvidia.com/gpu 4 idle for guarantees`."""
    idle = {pool_state.pool.unit_resource: pool_state.facts.idle_reserve}
    return f"{pools_text([pool_state.pool.key])} keeps {render_milli(idle)} idle for guarantees"


def _report_quota(pending_gang: PendingGang, pods: Sequence[Pod], pool_state: PoolState) -> PendingReport:
    names = pool_state.tenant_usage.exceeded_limits(pending_gang.tenant, pods)
    used, limit, wanted = (
        pool_state.tenant_usage.usage.get(pending_gang.tenant, {}),
        pool_state.tenant_usage.quotas[pending_gang.tenant].limit,
        sum_requests(pods),
    )
    parts = (render_milli({name: amounts.get(name, 0) for name in names}) for amounts in (wanted, used, limit))
    needs, in_use, at_most = parts
    where = pools_text([pool_state.pool.key])
    never = _exceeds_whole_limit(pool_state, pending_gang.tenant, wanted)
    return PendingReport(
        gang=pending_gang.gang.id,
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


def _exceeds_whole_limit(pool_state: PoolState, tenant: str, wanted: MilliResources) -> bool:
    limit = pool_state.tenant_usage.quotas[tenant].limit
    return any(amount > limit.get(name, amount) for name, amount in wanted.items())


def _report_reserved_limit(pending_gang: PendingGang, pool_state: PoolState, ahead: str) -> PendingReport:
    gang_ahead = ahead.removeprefix(f"{pending_gang.tenant}/")
    where = pools_text([pool_state.pool.key])
    return PendingReport(
        gang=pending_gang.gang.id,
        code=PendingReason.RESERVATION,
        message=f"capacity is free, but the limit in {where} is reserved for {gang_ahead}, which is ahead and has "
        "waited for long",
        behind=ahead,
    )


def _report_reserved_cells(pending_gang: PendingGang, pool_state: PoolState, cells: CellReservation) -> PendingReport:
    gang_ahead = cells.gang.whole_id.removeprefix(f"{pending_gang.tenant}/")
    where = pools_text([pool_state.pool.key])
    return PendingReport(
        gang=pending_gang.gang.id,
        code=PendingReason.RESERVATION,
        message=f"the rest of the guarantee in {where} is reserved for {gang_ahead}, which is ahead and has "
        "waited for long",
        behind=cells.gang.whole_id,
    )


def _fits_now(pool_state: PoolState, pending_gang: PendingGang) -> bool:
    with pool_state.node_resources.trial():
        found = place_keeping_reserve(pool_state, pending_gang, pending_gang.min_members)
    return found is not None


def _report_reservation(state: CycleState, pending_gang: PendingGang, reservation: Reservation) -> PendingReport:
    when = (
        f"starts in about {_duration_text(reservation.start - state.now)}"
        if reservation.start is not None
        else "has waited for long"
    )
    ahead = state.gangs[reservation.gang]
    gang_ahead = (
        ahead.whole_id.removeprefix(f"{ahead.tenant}/")
        if ahead.tenant == pending_gang.tenant
        else "another tenant's gang"
    )
    return PendingReport(
        gang=pending_gang.gang.id,
        code=PendingReason.RESERVATION,
        message=f"capacity is free, but reserved for {gang_ahead}, which is ahead and {when}",
        behind=ahead.whole_id,
    )


def _report_no_room(pending_gang: PendingGang, pools: Iterable[PoolState], fits: _FitCache) -> PendingReport:
    pools = list(pools)
    fit = max(fits.count_placeable(pool_state, pending_gang) for pool_state in pools)
    message, numbers = (
        f"needs {_request_text(pending_gang)}; {fit} of {len(pending_gang.min_members)} would fit now",
        {},
    )
    reserving = next(
        (
            each
            for each in pools
            if fits.count_placeable(each, pending_gang) == fit and would_use_reserve(each, pending_gang.min_members)
        ),
        None,
    )
    if reserving is not None and fit == len(pending_gang.min_members):
        message += f", but {reserve_text(reserving)}"
        numbers = {
            "reserve": reserving.facts.idle_reserve / 1000,
            "idle": reserving.node_resources.free.idle_units / 1000,
        }
    return PendingReport(
        gang=pending_gang.gang.id,
        code=PendingReason.ROOM,
        message=message,
        numbers={"needed": float(len(pending_gang.min_members)), "fit": float(fit), **numbers},
    )


def _report_surplus(state: CycleState) -> Iterator[PendingReport]:
    """Yield reports of the waiting surplus pods of running gangs."""
    for name in sorted(state.surplus_gangs):
        pending_gang = state.pending_gangs[name]
        started = state.started.get(pending_gang.gang.id)
        if pending_gang.min_members and started is None:
            continue
        waiting = [pod for pod in pending_gang.surplus if started is None or pod.uid not in started.nodes]
        beyond_maximum = _count_beyond_maximum(pending_gang)
        if not waiting:
            if beyond_maximum:
                yield report_maximum(pending_gang.gang, beyond_maximum)
            continue
        pool_state = started.pool_state if started is not None else next(state.usable_pools(pending_gang), None)
        if pool_state is not None and pool_state.tenant_usage.exceeded_limits(pending_gang.tenant, waiting[:1]):
            yield _report_quota(pending_gang, waiting[:1], pool_state)
            continue
        total = len(pending_gang.gang.pods) - beyond_maximum
        reserved = pool_state is not None and would_use_reserve(pool_state, waiting[:1])
        reason = reserve_text(pool_state) if pool_state is not None and reserved else "no capacity is free for more"
        message = f"runs with {total - len(waiting)} of {total} pods; {reason}"
        numbers = {"running": float(total - len(waiting)), "waiting": float(len(waiting))}
        yield PendingReport(gang=pending_gang.gang.id, code=PendingReason.ROOM, message=message, numbers=numbers)


def _count_beyond_maximum(pending_gang: PendingGang) -> int:
    """Return the number of its waiting pods beyond its maximum."""
    waiting = sum(pod.state is WAITING for pod in pending_gang.gang.pods)
    return waiting - len(pending_gang.min_members) - len(pending_gang.surplus)


def pods_text(pods: Sequence[Pod]) -> str:
    """Return `2 pods of cpu 1, 4 pods of nvidia.com/gpu 1`."""
    shapes = Counter(tuple(each for each in pod.shape.requests if each[0] != "pods") for pod in pods)
    return ", ".join(
        f"{count_text(number, 'pod')} of {render_milli(dict(requests))}" for requests, number in shapes.items()
    )


def pools_text(keys: Iterable[PoolKey]) -> str:
    """Return pools by their virtual nodes, the names that tenants know."""
    return ", ".join(node_name(key) for key in keys)


def count_text(number: int, what: str) -> str:
    """Return `1 pod`, `2 pods`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def terminated_text(pods: int) -> str:
    """Return `2 pods have terminated`."""
    return f"{count_text(pods, 'pod')} {'has' if pods == 1 else 'have'} terminated"


def _duration_text(seconds: float) -> str:
    """Return a coarse duration, rounded up, that stays the same for a while: `1 min`, `20 min`, `3 h`, `2 days`."""
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
"""Steps of durations in messages."""
