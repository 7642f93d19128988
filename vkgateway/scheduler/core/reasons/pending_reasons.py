"""Pending reports: code, message and numbers for each waiting gang, its place in the queue and its expected start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
from msgspec.structs import replace

from vkgateway.scheduler.core.capacity.expected_ends import PodEnd
from vkgateway.scheduler.core.capacity.forecast import PoolForecast
from vkgateway.scheduler.core.capacity.node_fit import IntArray
from vkgateway.scheduler.core.capacity.node_resources import NodeResources
from vkgateway.scheduler.core.capacity.slow_terminations import find_late_pods, termination_seconds
from vkgateway.scheduler.core.cycle_state import CycleState, victim_gangs
from vkgateway.scheduler.core.decisions import PendingReason, PendingReport
from vkgateway.scheduler.core.phases.gang_placement import allowed_nodes
from vkgateway.scheduler.core.phases.idle_reserve import plan_leaves_reserve, reserve_for, would_use_reserve
from vkgateway.scheduler.core.phases.reprieves import find_unneeded_late_pods
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang, report_maximum
from vkgateway.scheduler.core.reasons.fit_cache import FitCache
from vkgateway.scheduler.core.reasons.message_texts import count_text, reserve_text, terminated_text
from vkgateway.scheduler.core.reasons.queue_reasons import find_reason, report_budget, report_quota
from vkgateway.scheduler.core.reasons.remedies import Remedies
from vkgateway.scheduler.core.snapshot import WAITING, Pod, PoolKey, PreemptionPlan

_MAX_FORECASTS = 16
"""Number of gangs per pool whose start is forecast; later starts are unknown."""


def explain_pending(state: CycleState, order: IntArray, *, forecast: bool) -> list[PendingReport]:
    """Return a report for each gang with waiting pods; `order`: the borrowing gangs, `CycleState.queue_order`.

    `forecast`: also forecast the starts of the first gangs, and search for what would let them start.
    """
    reports = list(state.invalid_reports)
    remedies = Remedies(search=forecast)
    places: Counter[PoolKey] = Counter()
    for name in sorted(state.plans):
        key = state.plans[name].pool
        places[key] += 1
        reports.append(replace(_report_eviction(state, state.pending_gangs[name]), place=places[key]))
    reports += _report_queue(state, order, places, remedies, max_forecasts=_MAX_FORECASTS if forecast else 0)
    reports += _report_surplus(state, remedies)
    return reports


def _report_queue(
    state: CycleState, order: IntArray, before: Mapping[PoolKey, int], remedies: Remedies, *, max_forecasts: int
) -> list[PendingReport]:
    """Return the reports of queued gangs.

    Equivalent gangs of a tenant wait for the same reason, so a few checks cover 100,000 gangs.
    """
    pending_table = state.pending_table
    waiting = order[state.undecided_mask()[order]]
    firsts, classes = _group_equals(pending_table.alike_numbers[waiting], pending_table.alike_count)
    fits = FitCache()
    reasons = [
        find_reason(state, pending_table.pending_gangs[index], fits, remedies) for index in waiting[firsts].tolist()
    ]
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
    answers = [(report.code, report.message, report.behind, report.ends, report.numbers) for report, _ in reasons]
    reports = [
        PendingReport(
            gang=names[index], code=code, message=message, behind=behind, ends=ends, numbers=numbers, place=place
        )
        for index, (code, message, behind, ends, numbers), place in zip(
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
    short_of_reserve = not plan_leaves_reserve(pool_state, pending_gang, plan)
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
    if next(find_late_pods(leaving, 0.0, since=plan.created, now=state.now), None) is None:
        return set()
    seconds = termination_seconds(victim_gangs(state, pool_state))
    with pool_state.trial():
        pool_state.remove_pods(leaving)
        slow = find_unneeded_late_pods(
            pool_state, [(pending_gang, plan)], leaving, seconds, since=plan.created, now=state.now
        )
    return {pod.uid for pod in slow}


def _report_surplus(state: CycleState, remedies: Remedies) -> Iterator[PendingReport]:
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
            yield report_quota(pending_gang, waiting[:1], pool_state, remedies)
            continue
        if pool_state is not None and not pool_state.tenant_usage.may_borrow(pending_gang.tenant, waiting[:1]):
            yield report_budget(state, pending_gang, waiting[:1], pool_state, remedies)
            continue
        total = len(pending_gang.gang.pods) - beyond_maximum
        reserved = pool_state is not None and would_use_reserve(pool_state, pending_gang, waiting[:1])
        reason = reserve_text(pool_state) if pool_state is not None and reserved else "no capacity is free for more"
        message = f"runs with {total - len(waiting)} of {total} pods; {reason}"
        numbers = {"running": float(total - len(waiting)), "waiting": float(len(waiting))}
        yield PendingReport(gang=pending_gang.gang.id, code=PendingReason.ROOM, message=message, numbers=numbers)


def _count_beyond_maximum(pending_gang: PendingGang) -> int:
    """Return the number of its waiting pods beyond its maximum."""
    waiting = sum(pod.state is WAITING for pod in pending_gang.gang.pods)
    return waiting - len(pending_gang.min_members) - len(pending_gang.surplus)


class StartForecast:
    """Forecast of starts in queue order, without future arrivals."""

    def __init__(self, state: CycleState, pool_state: PoolState) -> None:
        self._cycle_state = state
        self._pool_state = pool_state
        self._future_resources: NodeResources | None = None
        """Node resources after the starts of all gangs queried before."""
        self._added_ends: list[PodEnd] = []
        """Expected ends of these gangs."""
        self._last_start: tuple[PendingGang, float] | None = None
        """Last queried gang, which the node resources do not include yet."""
        self._times_alone: dict[int, float | None] = {}

    def forecast_next(self, pending_gang: PendingGang) -> tuple[float | None, float | None]:
        """Return the earliest start (as if alone in the queue) and the likely one (behind all queried before)."""
        alone = self._time_alone(pending_gang)
        if alone is None:
            return None, None
        if self._last_start is not None:
            self._apply_start(*self._last_start)
        time = (
            alone
            if self._future_resources is None
            else self._earliest_time(self._future_resources, pending_gang, alone)
        )
        self._last_start = (pending_gang, time) if time is not None else None
        return alone, time

    def _time_alone(self, pending_gang: PendingGang) -> float | None:
        if (
            pending_gang.equivalence_class not in self._times_alone
            or pending_gang.gang.whole_id in self._pool_state.victims.backfilled_gangs
        ):
            self._times_alone[pending_gang.equivalence_class] = self._earliest_time(
                self._pool_state.node_resources, pending_gang, None
            )
        return self._times_alone[pending_gang.equivalence_class]

    def _apply_start(self, pending_gang: PendingGang, time: float) -> None:
        nodes = self._place_at(pending_gang, time)
        if self._future_resources is None:
            self._future_resources = self._pool_state.node_resources.copy()
        run_time = self._pool_state.expected_ends.expected_run_time(pending_gang.gang)
        for pod in pending_gang.min_members:
            self._future_resources.add_pods(nodes[pod.uid], pod.shape)
            if run_time is not None:
                self._added_ends.append(PodEnd(time + run_time, nodes[pod.uid], pod.shape))

    def _place_at(self, pending_gang: PendingGang, time: float) -> Mapping[str, str]:
        resources = self._future_resources if self._future_resources is not None else self._pool_state.node_resources
        with self._without_backfill(resources, pending_gang):
            nodes = self._future_of(resources, pending_gang).place_at(
                pending_gang.min_members,
                time,
                required_level=pending_gang.gang.required_level,
                among=allowed_nodes(self._pool_state, pending_gang),
            )
        assert nodes is not None
        return nodes

    def _earliest_time(self, resources: NodeResources, pending_gang: PendingGang, after: float | None) -> float | None:
        with self._without_backfill(resources, pending_gang):
            return self._future_of(resources, pending_gang).earliest_start(
                pending_gang.min_members,
                required_level=pending_gang.gang.required_level,
                among=allowed_nodes(self._pool_state, pending_gang),
                after=after,
            )

    def _future_of(self, resources: NodeResources, pending_gang: PendingGang) -> PoolForecast:
        pool_state, extra_ends = self._pool_state, self._added_ends if resources is self._future_resources else ()
        idle_reserve = reserve_for(pool_state, pending_gang, pending_gang.min_members)
        if idle_reserve and pool_state.guarantee.has_guarantee_left(pending_gang.gang, pending_gang.min_members):
            idle_reserve = 0
        return PoolForecast(
            resources, pool_state.expected_ends, self._cycle_state.now, extra_ends, idle_reserve=idle_reserve
        )

    @contextmanager
    def _without_backfill(self, resources: NodeResources, pending_gang: PendingGang) -> Iterator[None]:
        """Remove the pods that backfill the gang's reservation, for the duration of the context."""
        with resources.trial():
            for pod in self._backfilled_pods(pending_gang):
                resources.remove_pods(pod.node, pod.shape)
            yield

    def _backfilled_pods(self, pending_gang: PendingGang) -> list[Pod]:
        """Return the pods that backfill the gang's reservation, except those with a known end."""
        pool_state = self._pool_state
        if pending_gang.gang.whole_id not in pool_state.victims.backfilled_gangs:
            return []
        backfilled = pool_state.victims.reclaimable_for(pending_gang.gang).all_pods()
        return [
            pod
            for pod in backfilled
            if pod.node in pool_state.node_resources.nodes and pool_state.expected_ends.end_of(pod.uid) is None
        ]
