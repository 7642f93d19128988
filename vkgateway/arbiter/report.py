"""What people ask about: pools, tenants and gangs as they stand after a cycle, in numbers to be shown (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vkgateway.arbiter.decisions import Decisions, Hold, Loss
from vkgateway.arbiter.facts import Gang, Plan, Pod, PodState, PoolKey, Quota, Snapshot
from vkgateway.arbiter.naming import Names, ahead_named, names_of
from vkgateway.arbiter.poolsums import Sums, node_name, pool_states, tenant_states, units
from vkgateway.arbiter.state import LEAVING, RUNNING, STARTING, WAITING, GangState, State


def report(snapshot: Snapshot, decisions: Decisions, now: float, *, names: Names | None = None) -> State:
    """What is so once the decisions about this snapshot are carried out; in time proportional to pods and nodes.

    By `names` those pods are called that are in no gang.
    """
    after, sums = _After(decisions), {pool.key: Sums(pool) for pool in snapshot.pools}
    gangs = [_gang(gang, _count(gang, after, sums), after, names or {}) for gang in snapshot.gangs]
    known = {gang.id for gang in snapshot.gangs}
    gangs += [_unjudged(hold, names or {}) for hold in decisions.holds if hold.gang not in known]
    return _state(snapshot, decisions, sums, now, gangs=tuple(gangs))


def summary(snapshot: Snapshot, decisions: Decisions, now: float) -> State:
    """The same without the gangs, in half the time."""
    after, sums = _After(decisions), {pool.key: Sums(pool) for pool in snapshot.pools}
    for gang in snapshot.gangs:
        _count(gang, after, sums)
    return _state(snapshot, decisions, sums, now)


def _state(
    snapshot: Snapshot,
    decisions: Decisions,
    sums: Mapping[PoolKey, Sums],
    now: float,
    *,
    gangs: tuple[GangState, ...] = (),
) -> State:
    quotas: dict[PoolKey, dict[str, Quota]] = {}
    losses: dict[PoolKey, dict[str, Loss]] = {}
    for loss in decisions.losses:
        losses.setdefault(loss.pool, {})[loss.tenant] = loss
    for quota in snapshot.quotas:
        quotas.setdefault(quota.pool, {})[quota.tenant] = quota
    return State(
        time=now,
        pools=tuple(
            state
            for key, found in sums.items()
            for state in pool_states(found, quotas.get(key, {}), losses.get(key, {}))
        ),
        tenants=tuple(
            state
            for key, found in sums.items()
            for state in tenant_states(found, quotas.get(key, {}), losses.get(key, {}))
        ),
        gangs=gangs,
    )


class _After:
    """What the decisions change about pods."""

    def __init__(self, decisions: Decisions) -> None:
        self.placed = {
            uid: (admit.pool, node, admit.borrowed) for admit in decisions.admits for uid, node in admit.nodes.items()
        }
        self.going = {uid: evict.deadline for evict in decisions.evicts for uid in evict.pods}
        self.staying = {uid for reprieve in decisions.reprieves for uid in reprieve.pods}
        self.inside = {uid for promote in decisions.promotes for uid in promote.pods}
        self.holds: Mapping[str, Hold] = {hold.gang: hold for hold in decisions.holds}
        self.plans: Mapping[str, Plan] = decisions.plans

    def place(self, pod: Pod) -> tuple[PoolKey, str, bool] | None:
        """Pool, node and whether it borrows; None: it waits."""
        if pod.state is PodState.WAITING:
            return self.placed.get(pod.uid)
        return (pod.pool, pod.node, pod.borrowed and pod.uid not in self.inside) if pod.pool is not None else None

    def plans_of(self, gang: Gang) -> Sequence[Plan]:
        """What is planned for the gang, one plan for each of its pools."""
        plan = self.plans.get(gang.id)
        return (plan, *plan.also) if plan is not None else ()

    def deadline(self, pod: Pod) -> float | None:
        """When it goes; None: it stays."""
        if pod.uid in self.going:
            return self.going[pod.uid]
        leaves = pod.state in (PodState.NOTIFIED, PodState.ENDING) and pod.uid not in self.staying
        return pod.deadline if leaves else None


@dataclass(slots=True)
class _Standing:
    """How a gang stands, for the gang itself and for the sums."""

    line: PoolKey | None
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
    spread: Sequence[PoolKey] = ()
    """The pools of a gang in several."""


def _count(gang: Gang, after: _After, sums: Mapping[PoolKey, Sums]) -> _Standing:
    """Add a gang's pods to the sums."""
    places = [(pod, after.place(pod)) for pod in gang.pods]
    line, borrowed, placed = _line(gang, places, after, sums), False, 0
    plans = after.plans_of(gang)
    lines = [_line_of(pod, place, line, plans, sums) if pod.pools else line for pod, place in places]
    for (pod, place), key in zip(places, lines, strict=True):
        if place is None:
            if key is not None and key in sums:
                sums[key].wait(gang.tenant, pod)
            continue
        placed += 1
        borrowed = borrowed or place[2]
        where = sums.get(place[0])
        if where is not None:
            where.put(gang.tenant, pod, place[1], borrowed=place[2])
    state, since, deadline = _where_it_stands(gang, places, after)
    for key in dict.fromkeys([line, *lines]):
        if key is not None and key in sums:
            part = sums[key].part(gang.tenant)
            part.gangs_waiting += state == WAITING
            part.gangs_running += state != WAITING
    asked = [pod.shape.amount(_unit(key, sums)) for pod, key in zip(gang.pods, lines, strict=True)]
    waiting = sum(amount for amount, (_, place) in zip(asked, places, strict=True) if place is None)
    spread = [key for key in dict.fromkeys(lines) if key is not None]
    several = spread if len(spread) > 1 else ()
    return _Standing(line, state, since, deadline, placed, borrowed, sum(asked), waiting, several)


def _unit(key: PoolKey | None, sums: Mapping[PoolKey, Sums]) -> str:
    """Return the resource of a pool that cells are cut from; empty: it has no devices, or is not there."""
    return sums[key].pool.unit if key is not None and key in sums else ""


def _line_of(
    pod: Pod,
    place: tuple[PoolKey, str, bool] | None,
    line: PoolKey | None,
    plans: Sequence[Plan],
    sums: Mapping[PoolKey, Sums],
) -> PoolKey | None:
    """Return the pool that a pod is counted in which names pools itself."""
    if place is not None:
        return place[0]
    planned = next((each.pool for each in plans if pod.uid in each.nodes), None)
    return planned or (line if line in pod.pools else next((key for key in pod.pools if key in sums), None))


def _gang(gang: Gang, stands: _Standing, after: _After, names: Names) -> GangState:
    namespace, way, name = names_of(gang.id, names)
    hold = after.holds.get(gang.id)
    return GangState(
        id=gang.id,
        tenant=gang.tenant,
        namespace=namespace,
        name=name,
        way=way,
        band=gang.band.value,
        priority=gang.priority,
        pools=tuple(node_name(key) for key in gang.pools),
        pool=node_name(stands.line) if stands.line is not None else "",
        spread=tuple(map(node_name, stands.spread)),
        state=stands.state,
        pods=len(gang.pods),
        placed=stands.placed,
        minimum=gang.minimum,
        units=units(stands.units),
        waiting_units=units(stands.waiting),
        borrowed=stands.borrowed,
        since=stands.since,
        deadline=stands.deadline,
        code=hold.code.value if hold is not None else "",
        message=ahead_named(hold.message, hold.behind, names) if hold is not None else "",
        place=hold.place if hold is not None else 0,
        earliest=hold.earliest if hold is not None else None,
        likely=hold.likely if hold is not None else None,
        behind=hold.behind if hold is not None else "",
    )


_Places = list[tuple[Pod, tuple[PoolKey, str, bool] | None]]


def _line(gang: Gang, places: _Places, after: _After, sums: Mapping[PoolKey, Sums]) -> PoolKey | None:
    """The pool that it is counted in: where it runs, where it is to start, or the best liked of those there are."""
    running = next((place[0] for _, place in places if place is not None), None)
    if running is not None:
        return running
    plan, hold = after.plans.get(gang.id), after.holds.get(gang.id)
    if hold is not None and hold.pool is not None:
        return hold.pool
    if plan is not None:
        return plan.pool
    return next((key for key in gang.pools if key in sums), None)


def _where_it_stands(gang: Gang, places: _Places, after: _After) -> tuple[str, float, float | None]:
    """Its state, since when, and its deadline."""
    placed = [pod for pod, place in places if place is not None]
    if not placed:
        return WAITING, gang.created, None
    stays = [pod for pod in placed if after.deadline(pod) is None]
    if not stays:
        deadlines = [deadline for pod in placed if (deadline := after.deadline(pod)) is not None]
        return LEAVING, min(pod.since for pod in placed), max(deadlines)
    old = [pod.since for pod in stays if pod.state is not PodState.WAITING]
    return (RUNNING, min(old), None) if old else (STARTING, gang.created, None)


def _unjudged(hold: Hold, names: Names) -> GangState:
    """A gang that is not told of to the arbiter yet: its pods are not all there, or say what makes no sense."""
    namespace, way, name = names_of(hold.gang, names)
    return GangState(
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
