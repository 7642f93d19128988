"""Reports of pools, tenants and gangs after a cycle, as numbers for display (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vkgateway.scheduler.core.decisions import Decisions, GuaranteeLoss, PendingReport
from vkgateway.scheduler.core.reasons.advice import advice_for
from vkgateway.scheduler.core.reasons.gang_names import Names, controller_of, name_gangs, split_gang_id
from vkgateway.scheduler.core.reasons.node_report import PodOutcomes
from vkgateway.scheduler.core.reasons.pool_sums import PoolSums, in_units, pool_reports, tenant_reports
from vkgateway.scheduler.core.reasons.report_types import (
    LEAVING,
    RUNNING,
    STARTING,
    WAITING,
    ArbiterReport,
    GangReport,
    ShareReport,
)
from vkgateway.scheduler.core.snapshot import (
    Gang,
    Pod,
    PodState,
    PoolKey,
    PreemptionPlan,
    Quota,
    Snapshot,
    node_name,
)


def build_report(
    snapshot: Snapshot,
    decisions: Decisions,
    now: float,
    *,
    names: Names | None = None,
    shares: tuple[ShareReport, ...] = (),
) -> ArbiterReport:
    """Return the state after the decisions on this snapshot are carried out, in time proportional to pods and nodes.

    `names` are the names of pods without a gang, `shares` those of the tenants.
    """
    outcomes, sums = PodOutcomes(decisions), {pool.key: PoolSums(pool) for pool in snapshot.pools}
    there = [gang for gang in snapshot.gangs if gang.pods]  # The others wait for their controllers.
    gangs = [_gang_report(gang, _count_gang(gang, outcomes, sums), outcomes, names or {}) for gang in there]
    known = {gang.id for gang in there}
    gangs += [_undecided_report(report, names or {}) for report in decisions.holds if report.gang not in known]
    return _assemble_report(snapshot, decisions, sums, now, gangs=tuple(gangs), shares=shares)


def build_summary(
    snapshot: Snapshot, decisions: Decisions, now: float, *, shares: tuple[ShareReport, ...] = ()
) -> ArbiterReport:
    """Return the report without gangs, in half the time."""
    outcomes, sums = PodOutcomes(decisions), {pool.key: PoolSums(pool) for pool in snapshot.pools}
    for gang in (each for each in snapshot.gangs if each.pods):
        _count_gang(gang, outcomes, sums)
    return _assemble_report(snapshot, decisions, sums, now, shares=shares)


def _assemble_report(
    snapshot: Snapshot,
    decisions: Decisions,
    sums: Mapping[PoolKey, PoolSums],
    now: float,
    *,
    gangs: tuple[GangReport, ...] = (),
    shares: tuple[ShareReport, ...] = (),
) -> ArbiterReport:
    quotas: dict[PoolKey, dict[str, Quota]] = {}
    losses: dict[PoolKey, dict[str, GuaranteeLoss]] = {}
    for loss in decisions.losses:
        losses.setdefault(loss.pool, {})[loss.tenant] = loss
    for quota in snapshot.quotas:
        quotas.setdefault(quota.pool, {})[quota.tenant] = quota
    return ArbiterReport(
        time=now,
        pools=tuple(
            state
            for key, found in sums.items()
            for state in pool_reports(found, quotas.get(key, {}), losses.get(key, {}))
        ),
        tenants=tuple(
            state
            for key, found in sums.items()
            for state in tenant_reports(found, quotas.get(key, {}), losses.get(key, {}))
        ),
        gangs=gangs,
        half_life=snapshot.policy.half_life,
        shares=shares,
    )


@dataclass(slots=True)
class _GangFigures:
    """State of a gang, for the gang itself and for the sums."""

    pool: PoolKey | None
    """Pool in which the gang counts."""
    state: str
    since: float
    deadline: float | None
    placed: int
    borrowed: bool
    units: int
    """Thousandths of each pool's first resource that its pods request there."""
    waiting: int
    """Part of `units` that its waiting pods request."""
    all_pools: Sequence[PoolKey] = ()
    """Pools of a gang in several pools."""


def _count_gang(gang: Gang, outcomes: PodOutcomes, sums: Mapping[PoolKey, PoolSums]) -> _GangFigures:
    """Add a gang's pods to the sums."""
    places = [(pod, outcomes.placement_of(pod)) for pod in gang.pods]
    gang_pool, borrowed, placed = _pool_of_gang(gang, places, outcomes, sums), False, 0
    plans = outcomes.plans_of(gang)
    pod_pools = [_pool_of_pod(pod, place, gang_pool, plans, sums) if pod.pools else gang_pool for pod, place in places]
    for (pod, place), key in zip(places, pod_pools, strict=True):
        if place is None:
            if key is not None and key in sums:
                sums[key].count_waiting(gang.tenant, pod)
            continue
        placed += 1
        borrowed = borrowed or place[2]
        pool_sums = sums.get(place[0])
        if pool_sums is not None:
            pool_sums.count_placed(gang.tenant, pod, place[1], borrowed=place[2])
    state, since, deadline = _lifecycle_state(gang, places, outcomes)
    for key in dict.fromkeys([gang_pool, *pod_pools]):
        if key is not None and key in sums:
            tenant_sums = sums[key].usage_of(gang.tenant)
            tenant_sums.gangs_waiting += state == WAITING
            tenant_sums.gangs_running += state != WAITING
            tenant_sums.gangs_below_minimum += state == RUNNING and placed < min(gang.minimum, len(places))
    requested = [pod.shape.amount_of(_unit_of(key, sums)) for pod, key in zip(gang.pods, pod_pools, strict=True)]
    waiting = sum(amount for amount, (_, place) in zip(requested, places, strict=True) if place is None)
    distinct_pools = [key for key in dict.fromkeys(pod_pools) if key is not None]
    all_pools = distinct_pools if len(distinct_pools) > 1 else ()
    return _GangFigures(gang_pool, state, since, deadline, placed, borrowed, sum(requested), waiting, all_pools)


def _unit_of(key: PoolKey | None, sums: Mapping[PoolKey, PoolSums]) -> str:
    """Return the unit of a pool; empty: it has no devices or does not exist."""
    return sums[key].pool.unit_resource if key is not None and key in sums else ""


def _pool_of_pod(
    pod: Pod,
    place: tuple[PoolKey, str, bool] | None,
    gang_pool: PoolKey | None,
    plans: Sequence[PreemptionPlan],
    sums: Mapping[PoolKey, PoolSums],
) -> PoolKey | None:
    """Return the pool in which a pod counts that names its pools."""
    if place is not None:
        return place[0]
    planned = next((each.pool for each in plans if pod.uid in each.nodes), None)
    return planned or (gang_pool if gang_pool in pod.pools else next((key for key in pod.pools if key in sums), None))


def _gang_report(gang: Gang, figures: _GangFigures, outcomes: PodOutcomes, names: Names) -> GangReport:
    namespace, kind, name = split_gang_id(gang.id, names)
    report = outcomes.pending_reports.get(gang.id)
    return GangReport(
        id=gang.id,
        tenant=gang.tenant,
        namespace=namespace,
        name=name,
        way=kind,
        controller=controller_of(gang.id, names),
        band=gang.band.value,
        priority=gang.priority,
        pools=tuple(node_name(key) for key in gang.pools),
        pool=node_name(figures.pool) if figures.pool is not None else "",
        spread=tuple(map(node_name, figures.all_pools)),
        state=figures.state,
        pods=len(gang.pods),
        placed=figures.placed,
        minimum=gang.minimum,
        units=in_units(figures.units),
        waiting_units=in_units(figures.waiting),
        borrowed=figures.borrowed,
        since=figures.since,
        deadline=figures.deadline,
        code=report.code.value if report is not None else "",
        message=name_gangs(report, names) if report is not None else "",
        place=report.place if report is not None else 0,
        earliest=report.earliest if report is not None else None,
        likely=report.likely if report is not None else None,
        behind=report.behind if report is not None else "",
        ends=report.ends if report is not None else "",
        help=advice_for(report.code, gang.band) if report is not None else "",
    )


_PodPlacements = list[tuple[Pod, tuple[PoolKey, str, bool] | None]]


def _pool_of_gang(
    gang: Gang, places: _PodPlacements, outcomes: PodOutcomes, sums: Mapping[PoolKey, PoolSums]
) -> PoolKey | None:
    """Return the pool in which a gang counts: where it runs, where it will start, or its preferred existing pool."""
    running = next((place[0] for _, place in places if place is not None), None)
    if running is not None:
        return running
    plan, report = outcomes.plans.get(gang.id), outcomes.pending_reports.get(gang.id)
    if report is not None and report.pool is not None:
        return report.pool
    if plan is not None:
        return plan.pool
    return next((key for key in gang.pools if key in sums), None)


def _lifecycle_state(gang: Gang, places: _PodPlacements, outcomes: PodOutcomes) -> tuple[str, float, float | None]:
    """Return its state, the time since when, and its deadline."""
    placed = [pod for pod, place in places if place is not None]
    if not placed:
        return WAITING, gang.created, None
    staying = [pod for pod in placed if outcomes.deadline_of(pod) is None]
    if not staying:
        deadlines = [deadline for pod in placed if (deadline := outcomes.deadline_of(pod)) is not None]
        return LEAVING, min(pod.since for pod in placed), max(deadlines)
    running_since = [pod.since for pod in staying if pod.state is not PodState.WAITING]
    return (RUNNING, min(running_since), None) if running_since else (STARTING, gang.created, None)


def _undecided_report(report: PendingReport, names: Names) -> GangReport:
    """Return the report of a gang that the arbiter does not know yet: pods are missing or contradictory."""
    namespace, kind, name = split_gang_id(report.gang, names)
    return GangReport(
        id=report.gang,
        tenant=report.gang.partition("/")[0],
        namespace=namespace,
        name=name,
        way=kind,
        controller=controller_of(report.gang, names),
        band="",
        priority=0,
        pools=(),
        pool="",
        state=WAITING,
        pods=0,
        placed=0,
        minimum=0,
        units=0,
        waiting_units=0,
        borrowed=False,
        since=None,
        code=report.code.value,
        message=report.message,
        help=advice_for(report.code),
    )
