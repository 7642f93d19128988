"""What people ask about: pools, tenants and gangs as they stand after a cycle, in numbers to be shown (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from vkgateway.arbiter.decisions import Decisions, Hold
from vkgateway.arbiter.facts import Gang, Plan, Pod, PodState, Pool, PoolKey, Quota, Snapshot
from vkgateway.arbiter.state import LEAVING, RUNNING, STARTING, WAITING, GangState, PoolState, State, TenantState
from vkgateway.model.names import virtual_node_name
from vkgateway.model.requests import Milli


def report(
    snapshot: Snapshot, decisions: Decisions, now: float, *, names: Mapping[str, tuple[str, str]] | None = None
) -> State:
    """What is so once the decisions about this snapshot are carried out; in time proportional to pods and nodes.

    `names` are namespaces and names of pods by uid: by them those are called that are in no gang.
    """
    after = _After(decisions)
    sums: dict[PoolKey, _Sums] = {pool.key: _Sums(pool) for pool in snapshot.pools}
    known = {gang.id for gang in snapshot.gangs}
    gangs = (
        *(_gang(gang, after, sums, names or {}) for gang in snapshot.gangs),
        *(_unjudged(hold, names or {}) for hold in decisions.holds if hold.gang not in known),
    )
    quotas: dict[PoolKey, dict[str, Quota]] = {}
    for quota in snapshot.quotas:
        quotas.setdefault(quota.pool, {})[quota.tenant] = quota
    return State(
        time=now,
        pools=tuple(state for found in sums.values() for state in _pools(found, quotas.get(found.pool.key, {}))),
        tenants=tuple(state for found in sums.values() for state in _tenants(found, quotas.get(found.pool.key, {}))),
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

    def deadline(self, pod: Pod) -> float | None:
        """When it goes; None: it stays."""
        if pod.uid in self.going:
            return self.going[pod.uid]
        leaves = pod.state in (PodState.NOTIFIED, PodState.ENDING) and pod.uid not in self.staying
        return pod.deadline if leaves else None


@dataclass(slots=True)
class _Part:
    """A tenant's part of a pool, in thousandths."""

    used: Milli = field(default_factory=dict)
    borrowed: Milli = field(default_factory=dict)
    waiting: Milli = field(default_factory=dict)
    gangs_waiting: int = 0
    gangs_running: int = 0


@dataclass(slots=True)
class _Sums:
    """What is counted of a pool while its pods are gone through."""

    pool: Pool
    parts: dict[str, _Part] = field(default_factory=dict)
    nodes: dict[str, Milli] = field(default_factory=dict)
    """What the gateway's pods hold on each node."""

    def part(self, tenant: str) -> _Part:
        found = self.parts.get(tenant)
        if found is None:
            found = self.parts[tenant] = _Part()
        return found

    def put(self, tenant: str, pod: Pod, node: str, *, borrowed: bool) -> None:
        part = self.part(tenant)
        self._add(part.borrowed if borrowed else part.used, pod)
        self._add(self.nodes.setdefault(node, {}), pod)

    def wait(self, tenant: str, pod: Pod) -> None:
        self._add(self.part(tenant).waiting, pod)

    def _add(self, total: Milli, pod: Pod) -> None:
        for name, amount in pod.shape.requests:
            if name in self.pool.governed:
                total[name] = total.get(name, 0) + amount


def _gang(gang: Gang, after: _After, sums: Mapping[PoolKey, _Sums], names: Mapping[str, tuple[str, str]]) -> GangState:
    places = [(pod, after.place(pod)) for pod in gang.pods]
    line = _line(gang, places, after, sums)
    for pod, place in places:
        key = place[0] if place is not None else line
        where = sums.get(key) if key is not None else None
        if where is None:
            continue
        if place is not None:
            where.put(gang.tenant, pod, place[1], borrowed=place[2])
        else:
            where.wait(gang.tenant, pod)
    state, since, deadline = _state(gang, places, after)
    found = sums.get(line) if line is not None else None
    if found is not None:
        part = found.part(gang.tenant)
        part.gangs_waiting += state == WAITING
        part.gangs_running += state != WAITING
    unit = found.pool.governed[0] if found is not None and found.pool.governed else ""
    namespace, way, name = _names(gang.id, names)
    hold = after.holds.get(gang.id)
    return GangState(
        id=gang.id,
        tenant=gang.tenant,
        namespace=namespace,
        name=name,
        way=way,
        band=gang.band.value,
        priority=gang.priority,
        pools=tuple(_node(key) for key in gang.pools),
        pool=_node(line) if line is not None else "",
        state=state,
        pods=len(gang.pods),
        placed=sum(place is not None for _, place in places),
        minimum=gang.minimum,
        units=_units(sum(pod.shape.amount(unit) for pod in gang.pods)),
        borrowed=any(place[2] for _, place in places if place is not None),
        since=since,
        deadline=deadline,
        code=hold.code.value if hold is not None else "",
        message=hold.message if hold is not None else "",
        place=hold.place if hold is not None else 0,
        earliest=hold.earliest if hold is not None else None,
        likely=hold.likely if hold is not None else None,
        behind=hold.behind if hold is not None else "",
    )


_Places = list[tuple[Pod, tuple[PoolKey, str, bool] | None]]


def _line(gang: Gang, places: _Places, after: _After, sums: Mapping[PoolKey, _Sums]) -> PoolKey | None:
    """The pool that it is counted in: where it runs, where it is to start, or the best liked of those there are."""
    running = next((place[0] for _, place in places if place is not None), None)
    if running is not None:
        return running
    plan = after.plans.get(gang.id)
    if plan is not None:
        return plan.pool
    return next((key for key in gang.pools if key in sums), None)


def _state(gang: Gang, places: _Places, after: _After) -> tuple[str, float, float | None]:
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


def _pools(sums: _Sums, quotas: Mapping[str, Quota]) -> Iterator[PoolState]:
    pool, parts = sums.pool, sums.parts.values()
    usable = [node for node in pool.nodes if node.usable]
    for name in pool.governed:
        sizes = [node.allocatable.get(name, 0) for node in usable]
        others = sum(node.used.get(name, 0) for node in usable)
        frees = [
            max(0, size - node.used.get(name, 0) - sums.nodes.get(node.name, {}).get(name, 0))
            for node, size in zip(usable, sizes, strict=True)
        ]
        free, whole = sum(frees), [size for size, left in zip(sizes, frees, strict=True) if size and left == size]
        guaranteed = sum(max(0, quota.guarantee.get(name, 0)) for quota in quotas.values())
        borrowed = sum(part.borrowed.get(name, 0) for part in parts)
        yield PoolState(
            pool=pool.key[1],
            compute_cluster=pool.key[0],
            node=_node(pool.key),
            resource=name,
            nodes=len(pool.nodes),
            usable_nodes=len(usable),
            allocatable=_units(sum(sizes)),
            others=_units(others),
            guaranteed=_units(guaranteed),
            used=_units(sum(part.used.get(name, 0) for part in parts)),
            borrowed=_units(borrowed),
            lent=_units(_lent(borrowed, _unused(name, sums, quotas), sum(sizes) - others - guaranteed)),
            free=_units(free),
            waiting=_units(sum(part.waiting.get(name, 0) for part in parts)),
            largest=_units(max(frees, default=0)),
            whole_nodes=len(whole),
            fragmentation=round((free - sum(whole)) / free, 4) if free else 0.0,
            gangs_waiting=sum(part.gangs_waiting for part in parts),
            gangs_running=sum(part.gangs_running for part in parts),
        )


def _unused(name: str, sums: _Sums, quotas: Mapping[str, Quota]) -> int:
    """What is guaranteed and not used by those who have it."""
    nothing = _Part()
    return sum(
        max(0, quota.guarantee.get(name, 0) - sums.parts.get(tenant, nothing).used.get(name, 0))
        for tenant, quota in quotas.items()
    )


def _lent(borrowed: int, unused: int, unpromised: int) -> int:
    """What is borrowed beyond all that is promised to nobody must lie on guarantees that are not used."""
    return min(unused, max(0, borrowed - max(0, unpromised)))


def _tenants(sums: _Sums, quotas: Mapping[str, Quota]) -> Iterator[TenantState]:
    for tenant in sorted(quotas.keys() | sums.parts.keys()):
        quota, part = quotas.get(tenant), sums.parts.get(tenant, _Part())
        for name in sums.pool.governed:
            limit = quota.limit.get(name) if quota is not None else None
            yield TenantState(
                tenant=tenant,
                pool=sums.pool.key[1],
                compute_cluster=sums.pool.key[0],
                resource=name,
                guarantee=_units(quota.guarantee.get(name, 0) if quota is not None else 0),
                limit=_units(limit) if limit is not None else None,
                weight=quota.weight if quota is not None else 0.0,
                used=_units(part.used.get(name, 0)),
                borrowed=_units(part.borrowed.get(name, 0)),
                waiting=_units(part.waiting.get(name, 0)),
                gangs_waiting=part.gangs_waiting,
                gangs_running=part.gangs_running,
            )


def _unjudged(hold: Hold, names: Mapping[str, tuple[str, str]]) -> GangState:
    """A gang that is not told of to the arbiter yet: its pods are not all there, or say what makes no sense."""
    namespace, way, name = _names(hold.gang, names)
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
        borrowed=False,
        since=None,
        code=hold.code.value,
        message=hold.message,
    )


def _names(gang: str, names: Mapping[str, tuple[str, str]]) -> tuple[str, str, str]:
    """Namespace, way and name out of `TENANT/namespace/way/name`; an id that is not made so is the name."""
    parts = gang.split("/", 3)[1:]
    if len(parts) != 3:
        return "", "", gang
    namespace, way, name = parts
    if way != _LONE:
        return namespace, way, name
    return namespace, "", names.get(name, ("", name))[1]


_LONE = "pod"
"""Stands for the way in the ids of pods that are in no gang; the name is the uid."""


def _node(key: PoolKey) -> str:
    return virtual_node_name(key[1], key[0])


def _units(amount: int) -> float:
    """Thousandths in units; whole ones as whole numbers."""
    return amount // 1000 if amount % 1000 == 0 else amount / 1000
