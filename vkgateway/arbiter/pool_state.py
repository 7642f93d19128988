"""One pool in a cycle: what is free, whose cells hold what, who may be evicted, and whose room is coming.

It is kept from cycle to cycle: between cycles it says what is, and `apply_changes` follows what changes; in a cycle,
from
`begin_cycle` to `end_cycle`, it becomes what is decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from vkgateway.arbiter.capacity.expected_ends import ExpectedEnds
from vkgateway.arbiter.capacity.forecast import Reservation
from vkgateway.arbiter.capacity.free_vectors import SavedCapacity
from vkgateway.arbiter.capacity.node_fit import BoolArray, FloatArray, IntArray
from vkgateway.arbiter.capacity.node_resources import Mark as RoomMark
from vkgateway.arbiter.capacity.node_resources import NodeResources
from vkgateway.arbiter.capacity.slow_terminations import is_overdue, termination_seconds
from vkgateway.arbiter.capacity.terminating_pods import TerminatingPods
from vkgateway.arbiter.decisions import Evict
from vkgateway.arbiter.guarantees.cell_placement import allocate_placed
from vkgateway.arbiter.guarantees.cells import PoolCells
from vkgateway.arbiter.guarantees.reserved_cells import CellReservation
from vkgateway.arbiter.guarantees.usage import GuaranteeUsage
from vkgateway.arbiter.guarantees.usage import Mark as WithinMark
from vkgateway.arbiter.preemption.candidate_index import ReclaimCandidates
from vkgateway.arbiter.preemption.candidates import PreemptionCandidates
from vkgateway.arbiter.preemption.ranks import RankIndex, may_preempt
from vkgateway.arbiter.queueing.order import is_ranked_after
from vkgateway.arbiter.queueing.pending_gangs import PendingGang
from vkgateway.arbiter.queueing.tenant_usage import UsageByTenant
from vkgateway.arbiter.queueing.younger_usage import UsageByAge
from vkgateway.arbiter.snapshot import (
    ENDING,
    GUARANTEED,
    LOW,
    NOTIFIED,
    PLACED,
    WAITING,
    Gang,
    Pod,
    Policy,
    Pool,
    Quota,
    Shape,
)
from vkgateway.model.requests import MilliResources


class _CycleStart(NamedTuple):
    """What a cycle began with."""

    node_resources: tuple[RoomMark, SavedCapacity]
    expected_ends: int
    guarantee_usage: WithinMark
    usage: dict[str, MilliResources]
    share_usage: dict[str, MilliResources]
    terminating_pods: TerminatingPods


class PoolCheckpoint(NamedTuple):
    """A pool at one moment of a cycle."""

    node_resources: RoomMark
    expected_ends: int
    guarantee_usage: WithinMark
    entered_gangs: dict[str, None]
    usage: dict[str, MilliResources]
    share_usage: dict[str, MilliResources]
    terminating_pods: TerminatingPods
    gangs: dict[str, Gang]
    """Those that have changed since the cycle began, as they were at that moment."""
    cell_reservations: dict[str, CellReservation]


class PoolState(UsageByTenant):
    """A pool with its gangs, as it is now and as it becomes by what is decided in this cycle.

    What was planned for a gang is taken from the room although others still stand there: their nodes are then below
    zero, and nobody else gets what comes free.
    """

    def __init__(self, pool: Pool, quotas: Iterable[Quota], policy: Policy) -> None:
        super().__init__(pool, quotas)
        self.node_resources = NodeResources(pool)
        self.expected_ends = ExpectedEnds(self.node_resources, policy)
        self.gangs: dict[str, Gang] = {}
        """Those that have something here."""
        self.notified_gangs: dict[str, Gang] = {}
        """Gangs of which pods here were told to go before this cycle."""
        self.terminating_pods = TerminatingPods()
        self.reservation: Reservation | None = None
        self.limit_reservations: dict[str, str] = {}
        """By tenant its gang that has waited for long, and that what is left of its limit is kept for."""
        self.cell_reservations: dict[str, CellReservation] = {}
        """By tenant the cells that are reserved for its gang that has waited for long."""
        self.feasibility_cache: dict[tuple[str, int], int] = {}
        """What holds for gangs of a kind, of which nothing is there, if the pool were empty; see `feasible`."""
        self.guarantee_usage = GuaranteeUsage(pool)
        self.reclaim_candidates = ReclaimCandidates(pool)
        self._published_pods = _published_uids(pool)
        """By node the pods that are in what was published of its NUMA zones."""
        self.guaranteed_gangs: dict[str, set[str]] = {}
        """By tenant its gangs of which something here was inside cells when the cycle began."""
        self.rebind_count = 0
        """For so many gangs all cells were bound anew since the cycle began."""
        self.rank_index = RankIndex()
        self._now = 0.0
        self._noted_usage: dict[tuple[str, int], tuple[Shape, int]] = {}
        """Pods that have come (less than zero: gone) by tenant and shape, while changes are followed."""
        self._borrowing_gangs: set[str] = set()
        """Gangs of the guaranteed band with pods that borrow."""
        self._cycle_start: _CycleStart | None = None
        self._changed_gangs: dict[str, Gang] = {}
        self._unbound_nodes: BoolArray | None = None
        self._nodes_without_spare: BoolArray | None = None
        self._usage_by_age: tuple[UsageByAge, TerminatingPods] | None = None
        self._longest_termination: float | None = None

    # Between cycles

    def apply_changes(self, changes: Iterable[tuple[Gang | None, Gang | None]]) -> None:
        """Follow gangs that have changed: as they were (None: they are new) and as they are (None: they have gone)."""
        gone: list[tuple[str, Shape]] = []
        come: list[tuple[str, Shape]] = []
        self._noted_usage.clear()
        for old, new in changes:
            before = self._placed_pods(old) if old is not None else ()
            after = self._placed_pods(new) if new is not None else ()
            going, coming = before, after
            if before and after and old is not None and new is not None and _has_same_accounting(old, new):
                going, coming = _without_known(before, after), _without_known(after, before)
            if old is not None:
                for pod in going:
                    self._remove_pod(old, pod, gone)
            if new is not None:
                for pod in coming:
                    self._add_pod(new, pod, come)
            self._update_indexes(old, new, after)
        for (tenant, _), (shape, times) in self._noted_usage.items():
            self.add_shape_usage(tenant, shape, times)
        self.node_resources.remove_many(gone)
        self.node_resources.add_many(come)
        self.node_resources.forget_marks()
        self.expected_ends.forget_marks()

    def update_nodes(self, pool: Pool) -> bool:
        """The pool's nodes have changed, but it is the same pool; False: too much has, it must be built anew."""
        old = self.pool
        same = (old.governed, old.levels) == (pool.governed, pool.levels)
        room = NodeResources(pool) if same else self.node_resources
        if not same or room.names != self.node_resources.names:
            return False
        self.pool, self.node_resources = pool, room
        self.expected_ends.update_nodes(room)
        self.guarantee_usage.replace_pool(pool)
        placed = ((pod.node, pod.shape) for gang in self.gangs.values() for pod in self._placed_pods(gang))
        room.add_many(each for each in placed if each[0] in room)
        self._published_pods = _published_uids(pool)
        for pod in (pod for gang in self.gangs.values() if self._published_pods for pod in self._placed_pods(gang)):
            self._count_published(pod, 1)
        room.forget_marks()
        for name in ("pool_capacity", "empty", "reserve"):
            self.__dict__.pop(name, None)
        self.feasibility_cache.clear()
        return True

    def set_quotas(self, quotas: Iterable[Quota]) -> None:
        """What each tenant may use, if that has changed."""
        found = {quota.tenant: quota for quota in quotas if quota.pool == self.pool.key}
        if found != self.quotas:
            self.quotas = found
            self.guarantee_usage.reset_cells()

    def _placed_pods(self, gang: Gang) -> tuple[Pod, ...]:
        key = self.pool.key
        # As `has_pod` tells: it is asked for each gang that has changed.
        return tuple([pod for pod in gang.pods if pod.state is not WAITING and pod.pool == key and pod.node])

    def has_pod(self, pod: Pod) -> bool:
        """Whether a pod is placed here."""
        return pod.state is not WAITING and pod.pool == self.pool.key and bool(pod.node)

    def _add_pod(self, gang: Gang, pod: Pod, come: list[tuple[str, Shape]]) -> None:
        self._note_usage(gang.tenant, pod, 1)
        self.expected_ends.update_pod(gang, pod)
        if pod.node in self.node_resources:
            come.append((pod.node, pod.shape))
            self._count_published(pod, 1)
        if not pod.borrowed:
            self.guarantee_usage.add_pod(gang.tenant, pod)
        if pod.state is ENDING:
            self.terminating_pods.add_pods(gang.tenant, [pod])

    def _remove_pod(self, gang: Gang, pod: Pod, gone: list[tuple[str, Shape]]) -> None:
        self._note_usage(gang.tenant, pod, -1)
        self.expected_ends.remove_pod(pod.uid)
        if pod.node in self.node_resources:
            gone.append((pod.node, pod.shape))
            self._count_published(pod, -1)
        if not pod.borrowed:
            self.guarantee_usage.remove_pod(gang.tenant, pod)
        self.terminating_pods.remove_pod(pod.uid)

    def _note_usage(self, tenant: str, pod: Pod, times: int) -> None:
        """Note what is counted once all changes are known."""
        # As long as the pod is here the id of its shape is its own.
        key, shape = (tenant, id(pod.shape)), pod.shape
        known = self._noted_usage.get(key)
        self._noted_usage[key] = shape, times if known is None else known[1] + times

    def _count_published(self, pod: Pod, count: int) -> None:
        if self._published_pods and pod.uid in self._published_pods.get(pod.node, ()):
            self.node_resources.count_published(pod.node, pod.shape, count)

    def _update_indexes(self, old: Gang | None, new: Gang | None, after: Sequence[Pod]) -> None:
        if old is not None:
            if (known := self.gangs.pop(old.id, None)) is not None:
                self.rank_index.remove_gang(known)
            self.notified_gangs.pop(old.id, None)
            self._borrowing_gangs.discard(old.id)
            if (inside := self.guaranteed_gangs.get(old.tenant)) is not None:
                inside.discard(old.id)
        if new is not None:
            self.reclaim_candidates.mark_changed(new.id)
            self.guarantee_usage.set_plan(new)
        elif old is not None:
            self.reclaim_candidates.mark_removed(old.id)
            self.guarantee_usage.remove_plan(old.id)
        if new is not None and after:
            self.gangs[new.id] = new
            self.rank_index.add_gang(new)
            guaranteed = new.band is GUARANTEED
            # In one plain loop: it is gone through for each gang that has changed.
            for pod in after:
                if pod.state is NOTIFIED:
                    self.notified_gangs[new.id] = new
                if not pod.borrowed:
                    self.guaranteed_gangs.setdefault(new.tenant, set()).add(new.id)
                elif guaranteed and pod.state is PLACED:
                    self._borrowing_gangs.add(new.id)

    def begin_cycle(self, now: float) -> None:
        """A cycle begins: everything from now on is undone by `end_cycle`."""
        self._now = now
        for name in self.guarantee_usage.recount_cells(self.quotas.values(), self.gangs):
            self.reclaim_candidates.mark_changed(name)
        self.reservation = None
        self.limit_reservations.clear()
        self.cell_reservations.clear()
        self.rebind_count = 0
        self._unbound_nodes = self._nodes_without_spare = self._usage_by_age = self._longest_termination = None
        self._changed_gangs = {}
        self._share_cache.clear()
        used = {tenant: dict(amounts) for tenant, amounts in self.usage.items()}
        shared = {tenant: dict(amounts) for tenant, amounts in self.share_usage.items()}
        self._cycle_start = _CycleStart(
            self.node_resources.save(),
            self.expected_ends.mark(),
            self.guarantee_usage.mark(),
            used,
            shared,
            self.terminating_pods.copy(),
        )
        for pod in self.terminating_pods.values():
            if is_overdue(pod, now):
                self.expected_ends.remove_pod(pod.uid)

    def end_cycle(self) -> None:
        """Back to what is."""
        before, self._cycle_start = self._cycle_start, None
        if before is None:
            raise AssertionError("rewound without a beginning")
        self.node_resources.restore(before.node_resources)
        self.expected_ends.undo(before.expected_ends)
        for name in self.guarantee_usage.undo(before.guarantee_usage):
            self.reclaim_candidates.mark_changed(name)
        self.usage, self.share_usage, self.terminating_pods = before.usage, before.share_usage, before.terminating_pods
        self._share_cache.clear()
        self.gangs.update(self._changed_gangs)
        for name in self._changed_gangs:
            self.reclaim_candidates.mark_changed(name)

    def take_checkpoint(self) -> PoolCheckpoint:
        """Return what the pool is now, to go back to it in the same cycle."""
        return PoolCheckpoint(
            self.node_resources.mark(),
            self.expected_ends.mark(),
            self.guarantee_usage.mark(),
            dict(self.guarantee_usage.entered_gangs),
            {tenant: dict(amounts) for tenant, amounts in self.usage.items()},
            {tenant: dict(amounts) for tenant, amounts in self.share_usage.items()},
            self.terminating_pods.copy(),
            {name: self.gangs[name] for name in self._changed_gangs},
            dict(self.cell_reservations),
        )

    def restore_checkpoint(self, to: PoolCheckpoint) -> None:
        """Undo what was decided since then."""
        self.node_resources.undo(to.node_resources)
        self.expected_ends.undo(to.expected_ends)
        for name in self.guarantee_usage.restore_mark(to.guarantee_usage, to.entered_gangs):
            self.reclaim_candidates.mark_changed(name)
        self.usage, self.share_usage, self.terminating_pods = to.usage, to.share_usage, to.terminating_pods
        self.cell_reservations = to.cell_reservations
        self._share_cache.clear()
        for name in list(self._changed_gangs):
            known = to.gangs.get(name)
            if known is None:
                known = self._changed_gangs.pop(name)
            if self.gangs[name] is not known:
                self.gangs[name] = known
                self.reclaim_candidates.mark_changed(name)

    # Inside and outside

    @property
    def cells(self) -> PoolCells:
        """Whose cells hold what."""
        return self.guarantee_usage.cells

    @property
    def unbound_nodes(self) -> BoolArray:
        """The nodes, by position, that nobody's cells were bound to when it was asked for first in this cycle."""
        if self._unbound_nodes is None:
            self._unbound_nodes = ~self.node_resources.node_mask(self.cells.bound_nodes())
        return self._unbound_nodes

    @property
    def nodes_without_spare(self) -> BoolArray:
        """The nodes, by position, on which no cell in use has units left, as of when it was asked for first."""
        if self._nodes_without_spare is None:
            cells = self.cells
            rest = [
                name
                for tenant in self.quotas
                for name in cells.bound_cells(tenant)
                if name in self.node_resources and cells.spare_amount(tenant, name) > 0
            ]
            self._nodes_without_spare = ~self.node_resources.node_mask(rest)
        return self._nodes_without_spare

    def is_guaranteed(self, uid: str) -> bool:
        """Whether a placed pod is inside its tenant's cells."""
        return uid in self.guarantee_usage.pods

    def borrowing_gangs(self) -> list[Gang]:
        """Gangs of the guaranteed band of which something runs and borrows, by their names."""
        gangs = (self.gangs[name] for name in sorted(self._borrowing_gangs | self.guarantee_usage.demoted_gangs()))
        return [gang for gang in gangs if gang.band is GUARANTEED]

    def entered_gangs(self) -> list[Gang]:
        """Return the running gangs of which pods entered cells in this cycle, by name."""
        return [self.gangs[name] for name in sorted(self.guarantee_usage.entered_gangs) if name in self.gangs]

    def promote_pods(self, gang: Gang, placed: Sequence[tuple[Pod, str]]) -> bool:
        """Count placed pods of a gang as inside, if cells hold all of them where they are."""
        pods = [pod for pod, _ in placed]
        if not self.may_use_guarantee(gang, pods):
            return False
        if not allocate_placed(self.cells, gang.tenant, self.pool.unit_resource, placed):
            return False
        self.mark_guaranteed(gang.tenant, pods, gang=gang.id)
        return True

    def mark_guaranteed(self, tenant: str, pods: Iterable[Pod], *, gang: str) -> None:
        """Count pods as inside whose cells are held already."""
        for pod in pods:
            self.guarantee_usage.enter_pod(tenant, pod, gang=gang)
        if gang in self.gangs:
            self.reclaim_candidates.mark_changed(gang)

    def demote_pods(self, tenant: str, pods: Iterable[Pod]) -> None:
        """Count those of a tenant's placed pods as borrowing that are inside: they make room for its higher work."""
        for pod in pods:
            if self.is_guaranteed(pod.uid):
                self.guarantee_usage.demote_pod(tenant, pod)

    def may_preempt(self, gang: Gang, other: Gang) -> bool:
        """Whether a gang that waits may have another one of its tenant evicted here, be it inside its cells."""
        return may_preempt(gang, other, by_priority=self.allows_preemption(gang.tenant))

    def allows_preemption(self, tenant: str) -> bool:
        """Whether a tenant's higher priorities preempt its lower ones here."""
        quota = self.quotas.get(tenant)
        return quota is not None and quota.preempts

    def preemptors_of(self, gang: Gang) -> frozenset[str]:
        """The gangs of its tenant that may preempt it: they are not evicted for it, or that would go on for ever."""
        if not self.rank_index.has_higher(gang):
            return frozenset()
        names = self.rank_index.gang_ids(gang.tenant)
        return frozenset(name for name in names if self.may_preempt(self.gangs[name], gang))

    def may_use_guarantee(self, gang: Gang, pods: Sequence[Pod]) -> bool:
        """Whether the guarantee, by its sums alone, has so much left for it; a necessary condition.

        Not while cells are reserved for a gang ahead: `has_guarantee_left` tells whether there may be others.
        """
        return self.cells_reserved_ahead(gang) is None and self.has_guarantee_left(gang, pods)

    def cells_reserved_ahead(self, gang: Gang) -> CellReservation | None:
        """Return the cells that must be left to a gang ahead; None for a gang that ends before that one can start."""
        kept = self.cell_reservations.get(gang.tenant)
        if kept is None or not is_ranked_after(gang, kept.gang):
            return None
        run = self.expected_ends.expected_run_time(gang)
        return None if kept.start is not None and run is not None and self._now + run <= kept.start else kept

    def has_guarantee_left(self, gang: Gang, pods: Sequence[Pod]) -> bool:
        """Whether the guarantee has so much left by its sums, be it beside cells that are reserved."""
        quota = self.quotas.get(gang.tenant)
        return quota is not None and self.guarantee_usage.may_hold(quota, gang, pods)

    # Who may be evicted

    @cached_property
    def reserve(self) -> int:
        """Thousandths of the unit that borrowing leaves idle."""
        return self.pool.idle_reserve

    @cached_property
    def empty(self) -> NodeResources:
        """The pool as if its nodes were empty and all of them could be used: what does not fit there never will."""
        nodes = (replace(node, used={}, usable=True) for node in self.pool.nodes)
        return NodeResources(replace(self.pool, nodes=tuple(nodes)))

    @property
    def preemption_candidates(self) -> PreemptionCandidates:
        """What runs outside of cells."""
        return self.reclaim_candidates.preemption_candidates(self.gangs, self.guarantee_usage.pods)

    @property
    def longest_termination(self) -> float:
        """Seconds in which whoever can be evicted has gone, as of when it was asked for first in this cycle."""
        if self._longest_termination is None:
            self._longest_termination = termination_seconds(
                self.gangs[name] for name in self.preemption_candidates.gang_ids()
            )
        return self._longest_termination

    @property
    def surplus_candidates(self) -> PreemptionCandidates:
        """Of that only what elastic gangs have beyond their minimum."""
        return self.reclaim_candidates.surplus_candidates(self.gangs, self.guarantee_usage.pods)

    @property
    def backfilled_gangs(self) -> Mapping[str, Mapping[str, None]]:
        """By gang the gangs that run in a place that was reserved for it."""
        return self.reclaim_candidates.backfilled_gangs(self.gangs)

    def reclaimable_for(self, gang: str) -> PreemptionCandidates:
        """What a gang that borrows may call in: surplus, and what runs in the place that was reserved for it."""
        return self.reclaim_candidates.reclaimable_for(gang, self.gangs, self.guarantee_usage.pods)

    def mark_victims(self, evict: Evict) -> list[Pod]:
        """These pods leave; returns them."""
        gang_id, going = evict.gang, set(evict.pods)
        gang = self.gangs[gang_id]
        self._changed_gangs.setdefault(gang_id, gang)
        told = {"state": NOTIFIED, "deadline": evict.deadline, "evicted_for": evict.makes_room_for}
        pods = [replace(pod, **told) if pod.uid in going else pod for pod in gang.pods]  # type: ignore[arg-type]
        self.gangs[gang_id] = gang = replace(gang, pods=tuple(pods))
        self.reclaim_candidates.mark_changed(gang_id)
        leaving = [pod for pod in pods if pod.uid in going]
        self.terminating_pods.add_pods(gang.tenant, leaving)
        return leaving

    def revert_victims(self, evict: Evict) -> None:
        """These pods, which were to be told to go in this cycle and leave no more, stay as they were."""
        before = {pod.uid: pod for pod in self._changed_gangs[evict.gang].pods if pod.uid in evict.pods}
        gang = self.gangs[evict.gang]
        self.gangs[evict.gang] = gang = replace(gang, pods=tuple(before.get(pod.uid, pod) for pod in gang.pods))
        self.reclaim_candidates.mark_changed(evict.gang)
        for pod in before.values():
            self.expected_ends.update_pod(gang, pod)

    def discounted_usage_of(self, gang: Gang) -> dict[str, IntArray]:
        """What `discounted_usage` tells, for one gang."""
        created, low, priority = np.array([gang.created]), np.array([gang.band is LOW]), np.array([gang.priority])
        return self.discounted_usage(gang.tenant, created, low, priority)

    def discounted_usage(
        self, tenant: str, created: FloatArray, low: BoolArray, priority: FloatArray
    ) -> dict[str, IntArray]:
        """By device, cpu and memory what does not count against a tenant's gangs that have waited for long.

        It is held by what leaves, and by those that came after the gang, are no better and borrow. All as it was when
        this was asked for first in the cycle.
        """
        if self._usage_by_age is None:
            self._usage_by_age = UsageByAge(self.preemption_candidates, self.pool), self.terminating_pods.copy()
        late, leaving = self._usage_by_age
        leaves = leaving.usage_of(tenant)
        found = late.usage_after(tenant, created, low, priority)
        return {resource: held + leaves.get(resource, 0) for resource, held in found.items()}

    # Room for plans

    def add_pods(self, pods: Iterable[Pod], nodes: Mapping[str, str]) -> None:
        """Count pods as placed on their nodes."""
        for pod in pods:
            self.node_resources.add_pods(nodes[pod.uid], pod.shape)

    def remove_pods(self, pods: Iterable[Pod]) -> None:
        """Count pods as gone."""
        for pod in pods:
            if pod.node in self.node_resources:
                self.node_resources.remove_pods(pod.node, pod.shape)

    def restore_pods(self, pods: Iterable[Pod]) -> None:
        """Count pods as staying that were counted as gone."""
        for pod in pods:
            if pod.node in self.node_resources:
                self.node_resources.add_pods(pod.node, pod.shape)

    def fits_on_nodes(self, pods: Iterable[Pod], nodes: Mapping[str, str]) -> bool:
        """Whether nothing that these pods ask for is below zero on their nodes, which they were taken from already."""
        pods = list(pods)
        for pod in pods:
            free = self.node_resources.free_on_node(nodes[pod.uid])
            if any(amount and free.get(name, -1) < 0 for name, amount in pod.shape.requests):
                return False
        return not self.node_resources.has_zones or self.node_resources.fits_zones(
            [(nodes[pod.uid], pod.shape) for pod in pods]
        )

    def is_usable_by(self, ask: PendingGang) -> bool:
        """Whether the gang's tenant may use this pool at all."""
        return ask.tenant in self.quotas


def _published_uids(pool: Pool) -> dict[str, frozenset[str]]:
    """But for those that have gone: if one still counts as placed here, it is taken to have come since."""
    told = {node.name: node.topology for node in pool.nodes if node.topology is not None}
    return {name: topology.counted - topology.gone.keys() for name, topology in told.items()}


def _without_known(pods: tuple[Pod, ...], known: Sequence[Pod]) -> tuple[Pod, ...]:
    """The pods without those that are known: the very same objects."""
    if not known:
        return pods
    same = {id(pod) for pod in known}
    return tuple(pod for pod in pods if id(pod) not in same)


def _has_same_accounting(old: Gang, new: Gang) -> bool:
    """Whether what counts of each of their pods depends on the pod alone."""
    return (
        old.tenant == new.tenant
        and old.grace == new.grace
        and old.run_limit == new.run_limit
        and old.expected_run == new.expected_run
    )
