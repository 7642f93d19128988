"""What people ask about: pools, tenants and gangs as they stand after a cycle, in numbers to be shown (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vkgateway.arbiter.decisions import Decisions, GuaranteeLoss, PendingReport
from vkgateway.arbiter.reasons.gang_names import Names, name_gang_ahead, split_gang_id
from vkgateway.arbiter.reasons.pool_sums import PoolSums, in_units, pool_reports, tenant_reports
from vkgateway.arbiter.reasons.report_types import LEAVING, RUNNING, STARTING, WAITING, ArbiterReport, GangReport
from vkgateway.arbiter.snapshot import Gang, Pod, PodState, PoolKey, PreemptionPlan, Quota, Snapshot, node_name


def build_report(snapshot: Snapshot, decisions: Decisions, now: float, *, names: Names | None = None) -> ArbiterReport:
    """What is so once the decisions about this snapshot are carried out; in time proportional to pods and nodes.

    By `names` those pods are called that are in no gang.
    """
    after, sums = _PodOutcomes(decisions), {pool.key: PoolSums(pool) for pool in snapshot.pools}
    gangs = [_gang_report(gang, _count_gang(gang, after, sums), after, names or {}) for gang in snapshot.gangs]
    known = {gang.id for gang in snapshot.gangs}
    gangs += [_undecided_report(hold, names or {}) for hold in decisions.holds if hold.gang not in known]
    return _assemble_report(snapshot, decisions, sums, now, gangs=tuple(gangs))


def build_summary(snapshot: Snapshot, decisions: Decisions, now: float) -> ArbiterReport:
    """The same without the gangs, in half the time."""
    after, sums = _PodOutcomes(decisions), {pool.key: PoolSums(pool) for pool in snapshot.pools}
    for gang in snapshot.gangs:
        _count_gang(gang, after, sums)
    return _assemble_report(snapshot, decisions, sums, now)


def _assemble_report(
    snapshot: Snapshot,
    decisions: Decisions,
    sums: Mapping[PoolKey, PoolSums],
    now: float,
    *,
    gangs: tuple[GangReport, ...] = (),
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
    )


class _PodOutcomes:
    """What the decisions change about pods."""

    def __init__(self, decisions: Decisions) -> None:
        self.placed = {
            uid: (admit.pool, node, admit.borrowed) for admit in decisions.admits for uid, node in admit.nodes.items()
        }
        self.evict_deadlines = {uid: evict.deadline for evict in decisions.evicts for uid in evict.pods}
        self.reprieved = {uid for reprieve in decisions.reprieves for uid in reprieve.pods}
        self.promoted = {uid for promote in decisions.promotes for uid in promote.pods}
        self.pending_reports: Mapping[str, PendingReport] = {hold.gang: hold for hold in decisions.holds}
        self.plans: Mapping[str, PreemptionPlan] = decisions.plans

    def placement_of(self, pod: Pod) -> tuple[PoolKey, str, bool] | None:
        """Pool, node and whether it borrows; None: it waits."""
        if pod.state is PodState.WAITING:
            return self.placed.get(pod.uid)
        return (pod.pool, pod.node, pod.borrowed and pod.uid not in self.promoted) if pod.pool is not None else None

    def plans_of(self, gang: Gang) -> Sequence[PreemptionPlan]:
        """What is planned for the gang, one plan for each of its pools."""
        plan = self.plans.get(gang.id)
        return (plan, *plan.also) if plan is not None else ()

    def deadline_of(self, pod: Pod) -> float | None:
        """When it goes; None: it stays."""
        if pod.uid in self.evict_deadlines:
            return self.evict_deadlines[pod.uid]
        leaves = pod.state in (PodState.NOTIFIED, PodState.ENDING) and pod.uid not in self.reprieved
        return pod.deadline if leaves else None


@dataclass(slots=True)
class _GangFigures:
    """How a gang stands, for the gang itself and for the sums."""

    pool: PoolKey | None
    """The pool that it is counted in."""
    state: str
    since: float
    deadline: float | None
    placed: int
    borrowed: bool
    units: int
    """Of each pool's first resource, in thousandths: what its pods ask for there."""
    waiting: int
    """Of that, what those of its pods ask for that wait."""
    all_pools: Sequence[PoolKey] = ()
    """The pools of a gang in several."""


def _count_gang(gang: Gang, after: _PodOutcomes, sums: Mapping[PoolKey, PoolSums]) -> _GangFigures:
    """Add a gang's pods to the sums."""
    places = [(pod, after.placement_of(pod)) for pod in gang.pods]
    line, borrowed, placed = _pool_of_gang(gang, places, after, sums), False, 0
    plans = after.plans_of(gang)
    lines = [_pool_of_pod(pod, place, line, plans, sums) if pod.pools else line for pod, place in places]
    for (pod, place), key in zip(places, lines, strict=True):
        if place is None:
            if key is not None and key in sums:
                sums[key].count_waiting(gang.tenant, pod)
            continue
        placed += 1
        borrowed = borrowed or place[2]
        where = sums.get(place[0])
        if where is not None:
            where.count_placed(gang.tenant, pod, place[1], borrowed=place[2])
    state, since, deadline = _lifecycle_state(gang, places, after)
    for key in dict.fromkeys([line, *lines]):
        if key is not None and key in sums:
            part = sums[key].usage_of(gang.tenant)
            part.gangs_waiting += state == WAITING
            part.gangs_running += state != WAITING
    asked = [pod.shape.amount_of(_unit_of(key, sums)) for pod, key in zip(gang.pods, lines, strict=True)]
    waiting = sum(amount for amount, (_, place) in zip(asked, places, strict=True) if place is None)
    spread = [key for key in dict.fromkeys(lines) if key is not None]
    several = spread if len(spread) > 1 else ()
    return _GangFigures(line, state, since, deadline, placed, borrowed, sum(asked), waiting, several)


def _unit_of(key: PoolKey | None, sums: Mapping[PoolKey, PoolSums]) -> str:
    """Return the resource of a pool that cells are cut from; empty: it has no devices, or is not there."""
    return sums[key].pool.unit_resource if key is not None and key in sums else ""


def _pool_of_pod(
    pod: Pod,
    place: tuple[PoolKey, str, bool] | None,
    line: PoolKey | None,
    plans: Sequence[PreemptionPlan],
    sums: Mapping[PoolKey, PoolSums],
) -> PoolKey | None:
    """Return the pool that a pod is counted in which names pools itself."""
    if place is not None:
        return place[0]
    planned = next((each.pool for each in plans if pod.uid in each.nodes), None)
    return planned or (line if line in pod.pools else next((key for key in pod.pools if key in sums), None))


def _gang_report(gang: Gang, stands: _GangFigures, after: _PodOutcomes, names: Names) -> GangReport:
    namespace, way, name = split_gang_id(gang.id, names)
    hold = after.pending_reports.get(gang.id)
    return GangReport(
        id=gang.id,
        tenant=gang.tenant,
        namespace=namespace,
        name=name,
        way=way,
        band=gang.band.value,
        priority=gang.priority,
        pools=tuple(node_name(key) for key in gang.pools),
        pool=node_name(stands.pool) if stands.pool is not None else "",
        spread=tuple(map(node_name, stands.all_pools)),
        state=stands.state,
        pods=len(gang.pods),
        placed=stands.placed,
        minimum=gang.minimum,
        units=in_units(stands.units),
        waiting_units=in_units(stands.waiting),
        borrowed=stands.borrowed,
        since=stands.since,
        deadline=stands.deadline,
        code=hold.code.value if hold is not None else "",
        message=name_gang_ahead(hold.message, hold.behind, names) if hold is not None else "",
        place=hold.place if hold is not None else 0,
        earliest=hold.earliest if hold is not None else None,
        likely=hold.likely if hold is not None else None,
        behind=hold.behind if hold is not None else "",
    )


_PodPlacements = list[tuple[Pod, tuple[PoolKey, str, bool] | None]]


def _pool_of_gang(
    gang: Gang, places: _PodPlacements, after: _PodOutcomes, sums: Mapping[PoolKey, PoolSums]
) -> PoolKey | None:
    """The pool that it is counted in: where it runs, where it is to start, or the best liked of those there are."""
    running = next((place[0] for _, place in places if place is not None), None)
    if running is not None:
        return running
    plan, hold = after.plans.get(gang.id), after.pending_reports.get(gang.id)
    if hold is not None and hold.pool is not None:
        return hold.pool
    if plan is not None:
        return plan.pool
    return next((key for key in gang.pools if key in sums), None)


def _lifecycle_state(gang: Gang, places: _PodPlacements, after: _PodOutcomes) -> tuple[str, float, float | None]:
    """Its state, since when, and its deadline."""
    placed = [pod for pod, place in places if place is not None]
    if not placed:
        return WAITING, gang.created, None
    stays = [pod for pod in placed if after.deadline_of(pod) is None]
    if not stays:
        deadlines = [deadline for pod in placed if (deadline := after.deadline_of(pod)) is not None]
        return LEAVING, min(pod.since for pod in placed), max(deadlines)
    old = [pod.since for pod in stays if pod.state is not PodState.WAITING]
    return (RUNNING, min(old), None) if old else (STARTING, gang.created, None)


def _undecided_report(hold: PendingReport, names: Names) -> GangReport:
    """A gang that is not told of to the arbiter yet: its pods are not all there, or say what makes no sense."""
    namespace, way, name = split_gang_id(hold.gang, names)
    return GangReport(
        id=hold.gang,
        tenant=hold.gang.partition("/")[0],
        namespace=namespace,
        name=name,
        way=way,
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
        code=hold.code.value,
        message=hold.message,
    )
