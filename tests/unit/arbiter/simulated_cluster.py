"""Small cluster with its own clock that carries out decisions and checks what must always hold.

Unchanged objects keep their identity, as in the gateway, so the arbiter's cache is tested, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from vkgateway.scheduler.core.cache import Cache
from vkgateway.scheduler.core.capacity.node_matching import has_untolerated_taint, matches_terms
from vkgateway.scheduler.core.capacity.node_resources import NodeResources
from vkgateway.scheduler.core.cycle import decide
from vkgateway.scheduler.core.decisions import Decisions, PendingReport
from vkgateway.scheduler.core.guarantees.pool_guarantees import PoolGuarantees
from vkgateway.scheduler.core.outcome import evicted_fields
from vkgateway.scheduler.core.pools.victims import may_preempt
from vkgateway.scheduler.core.preemption.notice import notice_seconds
from vkgateway.scheduler.core.share_history import ShareHistory
from vkgateway.scheduler.core.snapshot import (
    Band,
    Gang,
    Node,
    Pod,
    PodState,
    Policy,
    Pool,
    PoolKey,
    Quota,
    Shape,
    Snapshot,
)

GPU = "nvidia.com/gpu"
KEY = ("compute", "pool")
OTHER = ("compute", "other")


def make_node(name: str, size: int = 8, *, usable: bool = True, rack: str = "r0") -> Node:
    return Node(name=name, allocatable={GPU: size * 1000, "cpu": 64_000}, labels={"rack": rack}, usable=usable)


def make_quota(
    tenant: str,
    guarantee: int = 0,
    *,
    limit: int | None = None,
    weight: float = 1.0,
    cells: tuple[int, ...] = (),
    pool: PoolKey = KEY,
) -> Quota:
    return Quota(
        tenant=tenant,
        pool=pool,
        guarantee={GPU: guarantee * 1000} if guarantee else {},
        limit={GPU: limit * 1000} if limit is not None else {},
        weight=weight,
        cells=cells,
    )


def gpu_shape(count: int, cpu: int = 0) -> Shape:
    return Shape.from_requests({GPU: count * 1000, "cpu": cpu * 1000})


def make_gang(
    name: str, tenant: str, shapes: Sequence[int | Shape] | Mapping[str, tuple[int, int]], **fields: object
) -> Gang:
    """Return a waiting gang, given the GPUs of each pod, or by role the number of pods and their GPUs.

    All pods are its minimum.
    """
    if isinstance(shapes, Mapping):
        flat = [(role, gpu_shape(size)) for role, (count, size) in shapes.items() for _ in range(count)]
    else:
        flat = [("", gpu_shape(each) if isinstance(each, int) else each) for each in shapes]
    pods = tuple(
        Pod(uid=f"{name}-{rank}", shape=shape, rank=rank, role=role) for rank, (role, shape) in enumerate(flat)
    )
    given: dict[str, object] = {"minimum": len(pods), "pools": (KEY,), "notice": 10.0, "grace": 5.0, **fields}
    return Gang(id=name, tenant=tenant, pods=pods, **given)  # type: ignore[arg-type]


class Cluster:
    """One or two pools, and the state of the gangs in them."""

    def __init__(
        self,
        nodes: Iterable[Node],
        quotas: Iterable[Quota],
        gangs: Iterable[Gang] = (),
        *,
        now: float = 1000.0,
        policy: Policy | None = None,
        recreate: bool = True,
        more: Iterable[Node] = (),
        reserve: int = 0,
    ) -> None:
        """Create a cluster; `more`: nodes of a second pool, with other names; `reserve`: units of each pool."""
        self.pool = Pool(key=KEY, nodes=tuple(nodes), governed=(GPU,), levels=("rack",), reserve=reserve * 1000)
        self.other = replace(self.pool, key=OTHER, nodes=tuple(more))
        self.quotas = tuple(quotas)
        self.gangs = {each.id: each for each in gangs}
        self.now = now
        self.policy = policy or Policy()
        self.cache: Cache | None = Cache()
        self.share_history = ShareHistory(self.policy.half_life)
        self.run_times: dict[str, float] = {}
        """Run times of gangs in seconds."""
        self.start_times: dict[str, float] = {}
        """Time at which the minimum of each gang first ran."""
        self._recreate = recreate
        self._replacement_count = 0
        self._creation_times: dict[str, float] = {}
        """Creation times of replacement pods, by uid."""

    @property
    def pools(self) -> tuple[Pool, ...]:
        return (self.pool, self.other) if self.other.nodes else (self.pool,)

    def snapshot(self) -> Snapshot:
        gangs = tuple(sorted(self.gangs.values(), key=lambda each: each.id))
        snapshot = Snapshot(pools=self.pools, quotas=self.quotas, gangs=gangs, policy=self.policy)
        return replace(snapshot, past_shares=self.share_history.observe(snapshot, self.now))

    def keep_low(self) -> None:
        """Let low work yield to guarantees alone."""
        self.pool, self.other = replace(self.pool, low_yields=False), replace(self.other, low_yields=False)

    def add(self, *gangs: Gang) -> None:
        self.gangs.update((each.id, replace(each, created=each.created or self.now)) for each in gangs)

    def cycle(self) -> Decisions:
        """Decide, check and carry out."""
        decisions = decide(self.snapshot(), self.now, self.cache)
        self._check_decisions(decisions)
        self._carry_out(decisions)
        self.snapshot()  # what starts now counts from now on
        self._check_state()
        return decisions

    def run_for(self, seconds: float = 60, step: float = 1) -> None:
        """Advance the time with a cycle in each step."""
        end = self.now + seconds
        while self.now < end:
            self.cycle()
            self.advance(step)
        self.cycle()

    def advance(self, seconds: float) -> None:
        """Advance the time: notified pods terminate at their deadlines, and gangs end after their run times."""
        self.now += seconds
        for each in list(self.gangs.values()):
            placed = [pod.since for pod in each.pods if pod.state is PodState.PLACED]
            if placed and each.id in self.run_times and min(placed) + self.run_times[each.id] <= self.now:
                del self.gangs[each.id]
                continue
            pods = tuple(after for pod in each.pods if (after := self._pod_after(each, pod)) is not None)
            if not pods:
                del self.gangs[each.id]
            elif pods != each.pods:
                # As in the gateway, a gang is as old as its oldest pod.
                created = min(self._creation_times.get(pod.uid, each.created) for pod in pods)
                self.gangs[each.id] = replace(each, pods=pods, created=created)

    def _pod_after(self, owner: Gang, pod: Pod) -> Pod | None:
        if pod.state is PodState.NOTIFIED and pod.deadline <= self.now:
            return replace(pod, state=PodState.ENDING, deadline=max(pod.deadline + owner.grace, self.now))
        if pod.state is PodState.ENDING and pod.deadline <= self.now:
            self._replacement_count += 1
            name = f"{pod.uid}+{self._replacement_count}"
            self._creation_times[name] = self.now
            fresh = Pod(uid=name, shape=pod.shape, rank=pod.rank, role=pod.role, pools=pod.pools)
            return fresh if self._recreate else None
        return pod

    # Queries

    def placed_nodes(self, name: str) -> dict[str, str]:
        return {pod.uid: pod.node for pod in self.gangs[name].pods if pod.state is PodState.PLACED}

    def running_gangs(self) -> set[str]:
        return {name for name in self.gangs if self.placed_nodes(name)}

    def borrowed_marks(self, name: str) -> set[bool]:
        return {pod.borrowed for pod in self.gangs[name].pods if pod.state is PodState.PLACED}

    def outranks(self, gang: Gang, other: Gang) -> bool:
        """Return whether a gang may preempt another gang of its tenant."""
        by_priority = all(each.preempts for each in self.quotas if each.tenant == gang.tenant)
        return may_preempt(gang, other, by_priority=by_priority)

    def count_guarantees(self, pool: Pool | None = None) -> PoolGuarantees:
        pool = pool or self.pool
        placed = [
            (each.tenant, pod.node, pod.shape.amount_of(GPU))
            for each in self.gangs.values()
            for pod in each.pods
            if pod.node and pod.pool == pool.key and not pod.borrowed
        ]
        return PoolGuarantees(pool, self.quotas, placed)

    # Carrying out decisions

    def _carry_out(self, decisions: Decisions) -> None:
        for admit in decisions.admits:
            self._update_pods(
                admit.gang,
                admit.nodes,
                state=PodState.PLACED,
                pool=admit.pool,
                borrowed=admit.borrowed,
                behind=admit.behind,
                since=self.now,
            )
            for uid, on in admit.nodes.items():
                self._update_pods(admit.gang, [uid], node=on)
            self.start_times.setdefault(admit.gang, self.now)
        for evict in decisions.evicts:
            self._update_pods(evict.gang, evict.pods, **evicted_fields(evict))
        for reprieve in decisions.reprieves:
            self._update_pods(reprieve.gang, reprieve.pods, state=PodState.PLACED, deadline=0.0, evicted_for="")
        for promote in decisions.promotes:
            self._update_pods(promote.gang, promote.pods, borrowed=False)
        for name, each in self.gangs.items():
            if each.plan != decisions.plans.get(name):
                self.gangs[name] = replace(each, plan=decisions.plans.get(name))

    def _update_pods(self, name: str, uids: Iterable[str], **fields: object) -> None:
        chosen, each = set(uids), self.gangs[name]
        assert chosen <= {pod.uid for pod in each.pods}
        pods = tuple(replace(pod, **fields) if pod.uid in chosen else pod for pod in each.pods)  # type: ignore[arg-type]
        self.gangs[name] = replace(each, pods=pods)

    # Checks

    def _check_decisions(self, decisions: Decisions) -> None:
        pods = {pod.uid: (each, pod) for each in self.gangs.values() for pod in each.pods}
        for admit in decisions.admits:
            assert all(pods[uid][1].state is PodState.WAITING for uid in admit.nodes)
            starts = [pods[uid][1] for uid in admit.nodes]
            assert not admit.borrowed or self.may_borrow(admit.gang, admit.pool, starts), "beyond a used-up budget"
        for name, plan in decisions.plans.items():
            for one in (plan, *plan.also):
                planned = [pods[uid][1] for uid in one.nodes]
                assert not one.borrowed or self.may_borrow(name, one.pool, planned), "plan beyond a used-up budget"
        self.check_limits(decisions)
        for evict in decisions.evicts:
            if evict.reached_limit:
                continue
            # Victims run outside of cells, unless a node loss took cells away.
            assert all(pods[uid][1].state in (PodState.PLACED, PodState.NOTIFIED) for uid in evict.pods)
            victims = [pods[uid][1] for uid in evict.pods]
            notice = notice_seconds(self.gangs[evict.gang], victims, self.now)
            for pod in victims:
                deadline = pod.deadline if pod.state is PodState.NOTIFIED else self.now + notice
                assert evict.deadline >= deadline, f"{pod.uid} has less notice than it was promised"
            whole = all(each.usable for pool in self.pools for each in pool.nodes)
            outranked = self.outranks(self.gangs[evict.makes_room_for], self.gangs[evict.gang])
            evictable = outranked or self._may_be_evicted([pods[uid][1] for uid in evict.pods])
            assert not whole or evictable, "evicted inside its cells"
            assert evict.makes_room_for in decisions.plans
        for reprieve in decisions.reprieves:
            assert all(pods[uid][1].state is PodState.NOTIFIED for uid in reprieve.pods)
            assert not any(pods[uid][1].limit_reached for uid in reprieve.pods), "reprieved at its run limit"
        for promote in decisions.promotes:
            assert all(pods[uid][1].state in (PodState.PLACED, PodState.NOTIFIED) for uid in promote.pods)
            assert all(pods[uid][1].borrowed for uid in promote.pods)

    def enforce_limits(self, **defaults: float) -> None:
        """Let all pools enforce run limits; `defaults`: the default limit of each band in seconds."""
        limits = {Band(band): seconds for band, seconds in defaults.items()}
        self.pool, self.other = (
            replace(pool, enforces_limits=True, default_limits=limits) for pool in (self.pool, self.other)
        )

    def enforced_limit(self, gang: Gang) -> float | None:
        """Return the shortest limit that a pool of the gang's running pods enforces."""
        there = {pod.pool for pod in _running(gang)}
        pools = [pool for pool in self.pools if pool.key in there and pool.enforces_limits]
        limits = [gang.run_limit or pool.default_limits.get(gang.band) for pool in pools]
        return min((limit for limit in limits if limit is not None), default=None)

    def check_limits(self, decisions: Decisions) -> None:
        """Check that exactly the gangs are evicted whole whose limit comes within their notice."""
        evicted: dict[str, set[str]] = {}
        for evict in decisions.evicts:
            if evict.reached_limit:
                assert (evict.whole, evict.makes_room_for) == (True, "")
                evicted.setdefault(evict.gang, set()).update(evict.pods)
                assert evict.deadline >= self.now
        for name, gang in self.gangs.items():
            running, limit = _running(gang), self.enforced_limit(gang)
            start = min((pod.since for pod in running), default=self.now)
            is_due = limit is not None and start < self.now >= start + limit - min(limit, gang.notice)
            is_brief = gang.brief_run > 0 and gang.brief_notice < gang.notice
            assert is_due == (name in evicted) or is_brief, f"{name} at {self.now - start} of {limit}"
            if name in evicted:
                assert evicted[name] == {pod.uid for pod in running}, f"{name} is not evicted whole"

    def check_run_times(self, late: float) -> None:
        """Check that no pod runs longer than its gang's enforced limit, notice and grace, and some seconds of delay."""
        for gang in self.gangs.values():
            limit = self.enforced_limit(gang)
            for pod in _running(gang):
                assert limit is None or self.now - pod.since <= limit + late, f"{pod.uid} runs beyond {limit}"
            for pod in gang.pods:
                if pod.limit_reached:
                    assert self.now <= pod.deadline + gang.grace + late, f"{pod.uid} stays after its run limit"

    def may_borrow(self, gang: str, pool: PoolKey, pods: Sequence[Pod]) -> bool:
        """Return whether the budgets of the gang's tenant let these pods borrow in a pool."""
        tenant = self.gangs[gang].tenant
        return all(each.may_borrow(pods) for each in self.quotas if (each.tenant, each.pool) == (tenant, pool))

    def _may_be_evicted(self, pods: Sequence[Pod]) -> bool:
        """Return whether these pods may be evicted: a borrowing gang in several pools is evicted whole."""
        borrows = any(pod.borrowed for pod in pods)
        return all(pod.borrowed or (bool(pod.pools) and borrows) for pod in pods)

    def _check_state(self) -> None:
        free = {each.name: dict(each.allocatable) for pool in self.pools for each in pool.nodes}
        keys = {each.name: pool.key for pool in self.pools for each in pool.nodes}
        used: dict[tuple[str, PoolKey], dict[str, int]] = {}
        for each in self.gangs.values():
            for pod in each.pods:
                for resource, amount in pod.shape.requests if pod.node else ():
                    free[pod.node][resource] -= amount
                    mine = used.setdefault((each.tenant, keys[pod.node]), {})
                    mine[resource] = mine.get(resource, 0) + amount
            placed = [pod for pod in each.pods if pod.state is PodState.PLACED]
            assert all(pod.pool == keys[pod.node] for pod in placed), "in another pool than its node"
            assert all(pod.pool in (pod.pools or each.pools) for pod in placed), f"{each.id} is in a pool not its own"
            for pod_pools in {pod.pools: None for pod in each.pods}:
                mates = [pod for pod in placed if pod.pools == pod_pools]
                assert each.elastic or len({pod.pool for pod in mates}) <= 1, f"{each.id} is in two pools"
                if each.required_level:
                    cluster = {(pod.pool, self._domain_of(pod.node, each.required_level)) for pod in mates}
                    assert len(cluster) <= len({pod.pool for pod in mates}), f"{each.id} is in several domains"
            number = len(placed)
            assert each.maximum is None or number <= max(each.maximum, each.minimum), f"{each.id} has grown too far"
            assert each.short or not 0 < number < min(each.minimum, len(each.pods)), f"{each.id} is half started"
        assert all(amount >= 0 for amounts in free.values() for amount in amounts.values()), "over a node"
        for each_quota in self.quotas:
            for resource, most in each_quota.limit.items():
                mine = used.get((each_quota.tenant, each_quota.pool), {})
                assert mine.get(resource, 0) <= most, "over a limit"

    def _domain_of(self, name: str, level: str) -> str:
        return next(each.labels[level] for pool in self.pools for each in pool.nodes if each.name == name)


def _running(gang: Gang) -> list[Pod]:
    staying = (PodState.PLACED, PodState.NOTIFIED)
    return [pod for pod in gang.pods if pod.state in staying and not pod.limit_reached]


def capacity_on(resources: NodeResources, name: str, shape: Shape) -> int:
    """Return how many pods of the shape fit on a node."""
    return int(resources.views[shape].capacity[resources.nodes.positions[name]])


def node_fits(shape: Shape, node: Node) -> bool:
    """Return whether the node's state, labels and taints let the shape run there."""
    return (
        node.usable
        and matches_terms(shape.terms, node.labels)
        and not has_untolerated_taint(shape.tolerations, node.taints)
    )


def make_nodes(count: int, size: int = 8) -> list[Node]:
    """Return nodes n0, n1, ... of this size."""
    return [make_node(f"n{index}", size) for index in range(count)]


def make_cluster(count: int, *quotas: Quota, size: int = 8, **options: object) -> Cluster:
    """Return a cluster of one pool with this number of nodes."""
    return Cluster(make_nodes(count, size), quotas, **options)  # type: ignore[arg-type]


def reports_by_gang(decisions: Decisions) -> dict[str, PendingReport]:
    return {report.gang: report for report in decisions.holds}


def with_pod_pools(one: Gang, *pools: tuple[PoolKey, ...]) -> Gang:
    """Return the gang with pods that name these pools, in the order of their ranks."""
    pods = tuple(replace(pod, pools=keys) for pod, keys in zip(one.pods, pools, strict=True))
    return replace(one, pods=pods, pools=tuple(dict.fromkeys(key for keys in pools for key in keys)))


LOW = Band.LOW
