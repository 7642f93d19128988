"""Metrics of a finished simulation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from vkgateway.scheduler.core.snapshot import Band
from vkgateway_platform.simulate.budgets import monthly_uses, used_up_key
from vkgateway_platform.simulate.result import (
    Anomaly,
    BudgetMonth,
    LateGang,
    SimulationResult,
    TenantUsage,
    WaitStatistics,
)
from vkgateway_platform.simulate.scenario import Job, Scenario
from vkgateway_platform.simulate.state import Run, SimulationState
from vkgateway_platform.simulate.usage import MILLI_PER_UNIT

SIZE_CLASSES = ((1, "1"), (8, "2-8"), (16, "9-16"), (32, "17-32"), (64, "33-64"), (math.inf, "65+"))
"""Size classes: the most GPUs of each, and its name."""

FinishedRuns = Sequence[tuple[Job, Run]]


def make_result(
    name: str, scenario: Scenario, state: SimulationState, *, private: Mapping[str, float] | None = None
) -> SimulationResult:
    """Return the result of a simulation.

    `private` holds by gang how long it waited in its tenant's private cluster, if it started there. `scenario` is the
    one before the scheduler arranged it, so that shares refer to the whole cluster.
    """
    finished = [(job, state.runs[job.id]) for job in scenario.jobs if job.id in state.runs]
    gpus = cluster_gpus(scenario)
    total = gpus * scenario.measured_seconds or 1.0
    late = list(_late_gangs(finished, scenario, state.now))
    seconds = sorted(state.seconds)
    return SimulationResult(
        scheduler=name,
        gangs=len(finished),
        ended=sum(run.ended is not None for _, run in finished),
        never_started=sum(run.started is None for _, run in finished),
        makespan=max((run.ended for _, run in finished if run.ended is not None), default=0.0),
        allocation=state.sums.allocated / total,
        borrowed=state.sums.borrowed / total,
        terminating=state.sums.terminating / total,
        fragmentation=state.sums.fragmented / total,
        waits=list(_waits_by_class(finished, scenario)),
        longest_wait=max((_longest_wait(job, run, state.now) for job, run in finished), default=0.0),
        queued=_mean([_queued_time(run, state.now) for _, run in finished]) or 0.0,
        entitled=sum(run.entitled for _, run in finished),
        entitled_p99=percentile(sorted(_entitled_waits(finished)), 0.99),
        late=late,
        late_p99=percentile(sorted(one.late for one in late), 0.99),
        evictions=sum(run.evictions for _, run in finished),
        evicted_gangs=sum(run.evictions > 0 for _, run in finished),
        lost_gpu_hours=sum(run.lost for _, run in finished) / 3600,
        anomalies=list(_find_anomalies(finished, scenario, private)) if private is not None else None,
        fairness=_jain_index(scenario, state.sums.tenants),
        cycles=state.cycles,
        cycle_p50=percentile(seconds, 0.5),
        cycle_p99=percentile(seconds, 0.99),
        cycle_max=percentile(seconds, 1.0),
        tenants=list(_tenant_usage(finished, scenario, state.sums.tenants)),
        budgets=list(_budget_months(scenario, state)),
        samples=state.samples,
        first_waits={
            band.value: sorted(
                wait for job, run in finished if job.band is band and (wait := wait_time(job, run)) is not None
            )
            for band in Band
        },
    )


def private_waits(scenario: Scenario, state: SimulationState) -> dict[str, float]:
    """Return by gang how long it waited in its tenant's private cluster, for those that started there."""
    runs = ((job, state.runs[job.id]) for job in scenario.jobs if job.id in state.runs)
    return {job.id: wait for job, run in runs if (wait := wait_time(job, run)) is not None}


def wait_time(job: Job, run: Run) -> float | None:
    """Return the seconds from submission to the first start; None: it did not start."""
    return run.started - job.submitted if run.started is not None else None


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Return the smallest value that `share` (0 to 1) of all values do not exceed, or None if there are none."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def job_size(job: Job, scenario: Scenario) -> float:
    """Return the units (GPUs) that all pods of a job request."""
    unit = scenario.pool_units[job.pools[0]]
    return sum(shape.amount_of(unit) for shape in job.shapes) / MILLI_PER_UNIT


def cluster_gpus(scenario: Scenario) -> float:
    """Return the units (GPUs) of all nodes."""
    nodes = ((node, pool.loss_resource) for pool in scenario.pools for node in pool.nodes)
    return sum(node.allocatable.get(unit, 0) for node, unit in nodes) / MILLI_PER_UNIT


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _queued_time(run: Run, now: float) -> float:
    return run.queued + (now - run.queued_since if run.queued_since is not None else 0.0)


def _longest_wait(job: Job, run: Run, now: float) -> float:
    wait = wait_time(job, run)
    first = now - job.submitted if wait is None else wait
    return max(first, run.longest_queued, now - run.queued_since if run.queued_since is not None else 0.0)


def _waits_by_class(finished: FinishedRuns, scenario: Scenario) -> Iterator[WaitStatistics]:
    classes = {job.id: size_class(job_size(job, scenario)) for job, _ in finished}
    for band in Band:
        mine = [(job, run) for job, run in finished if job.band is band]
        if mine:
            yield _summarize_waits(band, "", mine)
        for _, name in SIZE_CLASSES:
            chosen = [(job, run) for job, run in mine if classes[job.id] == name]
            if chosen:
                yield _summarize_waits(band, name, chosen)


def size_class(size: float) -> str:
    """Return the name of the size class of a gang with this number of GPUs."""
    return next(name for most, name in SIZE_CLASSES if size <= most)


def _summarize_waits(band: Band, size: str, chosen: FinishedRuns) -> WaitStatistics:
    waits = sorted(wait for job, run in chosen if (wait := wait_time(job, run)) is not None)
    return WaitStatistics(
        band=band.value,
        size=size,
        gangs=len(chosen),
        never_started=len(chosen) - len(waits),
        mean=_mean(waits),
        p50=percentile(waits, 0.5),
        p95=percentile(waits, 0.95),
        p99=percentile(waits, 0.99),
        max=percentile(waits, 1.0),
    )


def _entitled_waits(finished: FinishedRuns) -> Iterator[float]:
    for job, run in finished:
        wait = wait_time(job, run)
        if run.entitled and wait is not None:
            yield wait


def _late_gangs(finished: FinishedRuns, scenario: Scenario, now: float) -> Iterator[LateGang]:
    tenants = {job.id: job.tenant for job, _ in finished}
    for job, run in finished:
        wait = wait_time(job, run)
        late = (now - job.submitted if wait is None else wait) - scenario.settings.start_bound
        if run.entitled and late > 0:
            yield LateGang(
                gang=job.id,
                tenant=job.tenant,
                gpus=job_size(job, scenario),
                submitted=job.submitted,
                started=run.started,
                late=late,
                reason=run.reason,
                behind=run.behind,
                behind_own=tenants.get(run.behind) == job.tenant,
            )


def _find_anomalies(finished: FinishedRuns, scenario: Scenario, private: Mapping[str, float]) -> Iterator[Anomaly]:
    for job, run in finished:
        wait, alone = wait_time(job, run), private.get(job.id)
        if job.band is not Band.GUARANTEED or wait is None or alone is None:
            continue
        if wait > alone + scenario.settings.start_bound:
            yield Anomaly(gang=job.id, tenant=job.tenant, gpus=job_size(job, scenario), wait=wait, private=alone)


def _jain_index(scenario: Scenario, tenants: Mapping[str, float]) -> float:
    weights = {quota.tenant: quota.weight for quota in scenario.quotas}
    shares = [tenants.get(tenant, 0.0) / weight for tenant, weight in weights.items() if weight > 0]
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def _tenant_usage(finished: FinishedRuns, scenario: Scenario, used: Mapping[str, float]) -> Iterator[TenantUsage]:
    units = scenario.pool_units
    quotas: dict[str, list[float]] = {}
    for quota in scenario.quotas:
        known = quotas.setdefault(quota.tenant, [0.0, quota.weight])
        known[0] += sum(quota.cells) or quota.guarantee.get(units.get(quota.pool, ""), 0) / MILLI_PER_UNIT
    for tenant, (guarantee, weight) in sorted(quotas.items()):
        mine = [(job, run) for job, run in finished if job.tenant == tenant]
        yield TenantUsage(
            tenant=tenant,
            guarantee=guarantee,
            weight=weight,
            gpus=used.get(tenant, 0.0) / (scenario.measured_seconds or 1.0),
            guaranteed_wait=_mean(list(_band_waits(mine, Band.GUARANTEED))),
            low_wait=_mean(list(_band_waits(mine, Band.LOW))),
            evictions=sum(run.evictions for _, run in mine),
        )


def _budget_months(scenario: Scenario, state: SimulationState) -> Iterator[BudgetMonth]:
    for use in monthly_uses(scenario, state.usage):
        yield BudgetMonth(
            month=use.month,
            tenant=use.tenant,
            resource=use.resource,
            pool=use.pool,
            budget=use.budget,
            used=use.used,
            used_up=state.used_up.get(used_up_key(use)),
        )


def _band_waits(finished: Iterable[tuple[Job, Run]], band: Band) -> Iterator[float]:
    for job, run in finished:
        wait = wait_time(job, run)
        if job.band is band and wait is not None:
            yield wait
