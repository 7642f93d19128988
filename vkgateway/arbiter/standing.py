"""One pool in a cycle: what is free, whose cells hold what, who may be evicted, and whose room is coming.

It is kept from cycle to cycle: between cycles it says what is, and `take_in` follows what changes; in a cycle, from
`begin` to `rewind`, it becomes what is decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from vkgateway.arbiter.accounts import Accounts
from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.calling import Calling
from vkgateway.arbiter.cells import Cells
from vkgateway.arbiter.decisions import Evict
from vkgateway.arbiter.ends import Ends
from vkgateway.arbiter.evictable import Evictable
from vkgateway.arbiter.facts import (
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
from vkgateway.arbiter.fitting import BoolArray, FloatArray, IntArray
from vkgateway.arbiter.forecast import Reservation
from vkgateway.arbiter.inside import hold_where_placed
from vkgateway.arbiter.late import overdue, takes
from vkgateway.arbiter.latecomers import Latecomers
from vkgateway.arbiter.leaving import Leaving
from vkgateway.arbiter.line import comes_after
from vkgateway.arbiter.ranks import Ranks, may_preempt
from vkgateway.arbiter.reservedcells import ReservedCells
from vkgateway.arbiter.room import Mark as RoomMark
from vkgateway.arbiter.room import Room
from vkgateway.arbiter.within import Mark as WithinMark
from vkgateway.arbiter.within import Within
from vkgateway.arbiter.yard import Saved
from vkgateway.model.requests import Milli


class _Before(NamedTuple):
    """What a cycle began with."""

    room: tuple[RoomMark, Saved]
    ends: int
    within: WithinMark
    used: dict[str, Milli]
    shared: dict[str, Milli]
    leaving: Leaving


class Checkpoint(NamedTuple):
    """A pool at one moment of a cycle."""

    room: RoomMark
    ends: int
    within: WithinMark
    moved: dict[str, None]
    used: dict[str, Milli]
    shared: dict[str, Milli]
    leaving: Leaving
    gangs: dict[str, Gang]
    """Those that have changed since the cycle began, as they were at that moment."""
    cells_kept: dict[str, ReservedCells]


class Standing(Accounts):
    """A pool with its gangs, as it is now and as it becomes by what is decided in this cycle.

    What was planned for a gang is taken from the room although others still stand there: their nodes are then below
    zero, and nobody else gets what comes free.
    """

    def __init__(self, pool: Pool, quotas: Iterable[Quota], policy: Policy) -> None:
        super().__init__(pool, quotas)
        self.room = Room(pool)
        self.ends = Ends(self.room, policy)
        self.gangs: dict[str, Gang] = {}
        """Those that have something here."""
        self.told: dict[str, Gang] = {}
        """Gangs of which pods here were told to go before this cycle."""
        self.leaving = Leaving()
        self.reservation: Reservation | None = None
        self.limit_kept: dict[str, str] = {}
        """By tenant its gang that has waited for long, and that what is left of its limit is kept for."""
        self.cells_kept: dict[str, ReservedCells] = {}
        """By tenant the cells that are reserved for its gang that has waited for long."""
        self.ever: dict[tuple[str, int], int] = {}
        """What holds for gangs of a kind, of which nothing is there, if the pool were empty; see `feasible`."""
        self.within = Within(pool)
        self.calling = Calling(pool)
        self._counted = _counted(pool)
        """By node the pods that are in what was published of its NUMA zones."""
        self.sheltered: dict[str, set[str]] = {}
        """By tenant its gangs of which something here was inside cells when the cycle began."""
        self.bound_anew = 0
        """For so many gangs all cells were bound anew since the cycle began."""
        self.ranks = Ranks()
        self._now = 0.0
        self._tallied: dict[tuple[str, int], tuple[Shape, int]] = {}
        """Pods that have come (less than zero: gone) by tenant and shape, while changes are followed."""
        self._waking: set[str] = set()
        """Gangs of the guaranteed band with pods that borrow."""
        self._before: _Before | None = None
        self._changed_gangs: dict[str, Gang] = {}
        self._unbound: BoolArray | None = None
        self._without_rest: BoolArray | None = None
        self._late: tuple[Latecomers, Leaving] | None = None
        self._takes: float | None = None

    # Between cycles

    def take_in(self, changes: Iterable[tuple[Gang | None, Gang | None]]) -> None:
        """Follow gangs that have changed: as they were (None: they are new) and as they are (None: they have gone)."""
        gone: list[tuple[str, Shape]] = []
        come: list[tuple[str, Shape]] = []
        self._tallied.clear()
        for old, new in changes:
            before = self._pods(old) if old is not None else ()
            after = self._pods(new) if new is not None else ()
            going, coming = before, after
            if before and after and old is not None and new is not None and _alike(old, new):
                going, coming = _others(before, after), _others(after, before)
            if old is not None:
                for pod in going:
                    self._remove(old, pod, gone)
            if new is not None:
                for pod in coming:
                    self._add(new, pod, come)
            self._note(old, new, after)
        for (tenant, _), (shape, times) in self._tallied.items():
            self.count_shape(tenant, shape, times)
        self.room.give_all(gone)
        self.room.take_all(come)
        self.room.settle()
        self.ends.settle()

    def renew(self, pool: Pool) -> bool:
        """The pool's nodes have changed, but it is the same pool; False: too much has, it must be built anew."""
        old = self.pool
        same = (old.governed, old.levels) == (pool.governed, pool.levels)
        room = Room(pool) if same else self.room
        if not same or room.names != self.room.names:
            return False
        self.pool, self.room = pool, room
        self.ends.renew(room)
        self.within.renew(pool)
        placed = ((pod.node, pod.shape) for gang in self.gangs.values() for pod in self._pods(gang))
        room.take_all(each for each in placed if each[0] in room)
        self._counted = _counted(pool)
        for pod in (pod for gang in self.gangs.values() if self._counted for pod in self._pods(gang)):
            self._count_in(pod, 1)
        room.settle()
        for name in ("total", "empty", "reserve"):
            self.__dict__.pop(name, None)
        self.ever.clear()
        return True

    def give_quotas(self, quotas: Iterable[Quota]) -> None:
        """What each tenant may use, if that has changed."""
        found = {quota.tenant: quota for quota in quotas if quota.pool == self.pool.key}
        if found != self.quotas:
            self.quotas = found
            self.within.recount()

    def _pods(self, gang: Gang) -> tuple[Pod, ...]:
        key = self.pool.key
        # As `has` tells: it is asked for each gang that has changed.
        return tuple([pod for pod in gang.pods if pod.state is not WAITING and pod.pool == key and pod.node])

    def has(self, pod: Pod) -> bool:
        """Whether a pod is placed here."""
        return pod.state is not WAITING and pod.pool == self.pool.key and bool(pod.node)

    def _add(self, gang: Gang, pod: Pod, come: list[tuple[str, Shape]]) -> None:
        self._tally(gang.tenant, pod, 1)
        self.ends.put(gang, pod)
        if pod.node in self.room:
            come.append((pod.node, pod.shape))
            self._count_in(pod, 1)
        if not pod.borrowed:
            self.within.add(gang.tenant, pod)
        if pod.state is ENDING:
            self.leaving.add(gang.tenant, [pod])

    def _remove(self, gang: Gang, pod: Pod, gone: list[tuple[str, Shape]]) -> None:
        self._tally(gang.tenant, pod, -1)
        self.ends.drop(pod.uid)
        if pod.node in self.room:
            gone.append((pod.node, pod.shape))
            self._count_in(pod, -1)
        if not pod.borrowed:
            self.within.remove(gang.tenant, pod)
        self.leaving.drop(pod.uid)

    def _tally(self, tenant: str, pod: Pod, times: int) -> None:
        """Note what is counted once all changes are known."""
        # As long as the pod is here the id of its shape is its own.
        key, shape = (tenant, id(pod.shape)), pod.shape
        known = self._tallied.get(key)
        self._tallied[key] = shape, times if known is None else known[1] + times

    def _count_in(self, pod: Pod, count: int) -> None:
        if self._counted and pod.uid in self._counted.get(pod.node, ()):
            self.room.count_in(pod.node, pod.shape, count)

    def _note(self, old: Gang | None, new: Gang | None, after: Sequence[Pod]) -> None:
        if old is not None:
            if (known := self.gangs.pop(old.id, None)) is not None:
                self.ranks.drop(known)
            self.told.pop(old.id, None)
            self._waking.discard(old.id)
            if (inside := self.sheltered.get(old.tenant)) is not None:
                inside.discard(old.id)
        if new is not None:
            self.calling.changed(new.id)
            self.within.plan(new)
        elif old is not None:
            self.calling.gone(old.id)
            self.within.unplan(old.id)
        if new is not None and after:
            self.gangs[new.id] = new
            self.ranks.add(new)
            guaranteed = new.band is GUARANTEED
            # In one plain loop: it is gone through for each gang that has changed.
            for pod in after:
                if pod.state is NOTIFIED:
                    self.told[new.id] = new
                if not pod.borrowed:
                    self.sheltered.setdefault(new.tenant, set()).add(new.id)
                elif guaranteed and pod.state is PLACED:
                    self._waking.add(new.id)

    def begin(self, now: float) -> None:
        """A cycle begins: everything from now on is undone by `rewind`."""
        self._now = now
        for name in self.within.settle(self.quotas.values(), self.gangs):
            self.calling.changed(name)
        self.reservation = None
        self.limit_kept.clear()
        self.cells_kept.clear()
        self.bound_anew = 0
        self._unbound = self._without_rest = self._late = self._takes = None
        self._changed_gangs = {}
        self._shares.clear()
        used = {tenant: dict(amounts) for tenant, amounts in self.used.items()}
        shared = {tenant: dict(amounts) for tenant, amounts in self.shared.items()}
        self._before = _Before(
            self.room.save(), self.ends.mark(), self.within.mark(), used, shared, self.leaving.copy()
        )
        for pod in self.leaving.values():
            if overdue(pod, now):
                self.ends.drop(pod.uid)

    def rewind(self) -> None:
        """Back to what is."""
        before, self._before = self._before, None
        if before is None:
            raise AssertionError("rewound without a beginning")
        self.room.restore(before.room)
        self.ends.undo(before.ends)
        for name in self.within.undo(before.within):
            self.calling.changed(name)
        self.used, self.shared, self.leaving = before.used, before.shared, before.leaving
        self._shares.clear()
        self.gangs.update(self._changed_gangs)
        for name in self._changed_gangs:
            self.calling.changed(name)

    def checkpoint(self) -> Checkpoint:
        """Return what the pool is now, to go back to it in the same cycle."""
        return Checkpoint(
            self.room.mark(),
            self.ends.mark(),
            self.within.mark(),
            dict(self.within.moved),
            {tenant: dict(amounts) for tenant, amounts in self.used.items()},
            {tenant: dict(amounts) for tenant, amounts in self.shared.items()},
            self.leaving.copy(),
            {name: self.gangs[name] for name in self._changed_gangs},
            dict(self.cells_kept),
        )

    def go_back(self, to: Checkpoint) -> None:
        """Undo what was decided since then."""
        self.room.undo(to.room)
        self.ends.undo(to.ends)
        for name in self.within.go_back(to.within, to.moved):
            self.calling.changed(name)
        self.used, self.shared, self.leaving = to.used, to.shared, to.leaving
        self.cells_kept = to.cells_kept
        self._shares.clear()
        for name in list(self._changed_gangs):
            known = to.gangs.get(name)
            if known is None:
                known = self._changed_gangs.pop(name)
            if self.gangs[name] is not known:
                self.gangs[name] = known
                self.calling.changed(name)

    # Inside and outside

    @property
    def cells(self) -> Cells:
        """Whose cells hold what."""
        return self.within.cells

    @property
    def unbound(self) -> BoolArray:
        """The nodes, by position, that nobody's cells were bound to when it was asked for first in this cycle."""
        if self._unbound is None:
            self._unbound = ~self.room.mask(self.cells.bound_nodes())
        return self._unbound

    @property
    def without_rest(self) -> BoolArray:
        """The nodes, by position, on which no cell in use has units left, as of when it was asked for first."""
        if self._without_rest is None:
            cells = self.cells
            rest = [
                name
                for tenant in self.quotas
                for name in cells.bound(tenant)
                if name in self.room and cells.spare(tenant, name) > 0
            ]
            self._without_rest = ~self.room.mask(rest)
        return self._without_rest

    def is_inside(self, uid: str) -> bool:
        """Whether a placed pod is inside its tenant's cells."""
        return uid in self.within.pods

    def borrowing(self) -> list[Gang]:
        """Gangs of the guaranteed band of which something runs and borrows, by their names."""
        gangs = (self.gangs[name] for name in sorted(self._waking | self.within.demoted()))
        return [gang for gang in gangs if gang.band is GUARANTEED]

    def move_in(self, gang: Gang, placed: Sequence[tuple[Pod, str]]) -> bool:
        """Count placed pods of a gang as inside, if cells hold all of them where they are."""
        pods = [pod for pod, _ in placed]
        if not self.allows_inside(gang, pods):
            return False
        if not hold_where_placed(self.cells, gang.tenant, self.pool.unit, placed):
            return False
        self.mark_inside(gang.tenant, pods, gang=gang.id)
        return True

    def mark_inside(self, tenant: str, pods: Iterable[Pod], *, gang: str) -> None:
        """Count pods as inside whose cells are held already."""
        for pod in pods:
            self.within.move_in(tenant, pod, gang=gang)
        if gang in self.gangs:
            self.calling.changed(gang)

    def demote(self, tenant: str, pods: Iterable[Pod]) -> None:
        """Count those of a tenant's placed pods as borrowing that are inside: they make room for its higher work."""
        for pod in pods:
            if self.is_inside(pod.uid):
                self.within.demote(tenant, pod)

    def may_preempt(self, gang: Gang, other: Gang) -> bool:
        """Whether a gang that waits may have another one of its tenant evicted here, be it inside its cells."""
        return may_preempt(gang, other, by_priority=self.preempts(gang.tenant))

    def preempts(self, tenant: str) -> bool:
        """Whether a tenant's higher priorities preempt its lower ones here."""
        quota = self.quotas.get(tenant)
        return quota is not None and quota.preempts

    def superior_to(self, gang: Gang) -> frozenset[str]:
        """The gangs of its tenant that may preempt it: they are not evicted for it, or that would go on for ever."""
        if not self.ranks.has_higher(gang):
            return frozenset()
        names = self.ranks.of(gang.tenant)
        return frozenset(name for name in names if self.may_preempt(self.gangs[name], gang))

    def allows_inside(self, gang: Gang, pods: Sequence[Pod]) -> bool:
        """Whether the guarantee, by its sums alone, has so much left for it; a necessary condition.

        Not while cells are reserved for a gang ahead: `allows_beside` tells whether there may be others.
        """
        return self.reserved_before(gang) is None and self.allows_beside(gang, pods)

    def reserved_before(self, gang: Gang) -> ReservedCells | None:
        """Return the cells that must be left to a gang ahead; None for a gang that ends before that one can start."""
        kept = self.cells_kept.get(gang.tenant)
        if kept is None or not comes_after(gang, kept.gang):
            return None
        run = self.ends.run(gang)
        return None if kept.start is not None and run is not None and self._now + run <= kept.start else kept

    def allows_beside(self, gang: Gang, pods: Sequence[Pod]) -> bool:
        """Whether the guarantee has so much left by its sums, be it beside cells that are reserved."""
        quota = self.quotas.get(gang.tenant)
        return quota is not None and self.within.allows(quota, gang, pods)

    # Who may be evicted

    @cached_property
    def reserve(self) -> int:
        """Thousandths of the unit that borrowing leaves idle."""
        return self.pool.left_idle

    @cached_property
    def empty(self) -> Room:
        """The pool as if its nodes were empty and all of them could be used: what does not fit there never will."""
        nodes = (replace(node, used={}, usable=True) for node in self.pool.nodes)
        return Room(replace(self.pool, nodes=tuple(nodes)))

    @property
    def evictable(self) -> Evictable:
        """What runs outside of cells."""
        return self.calling.evictable(self.gangs, self.within.pods)

    @property
    def going_takes(self) -> float:
        """Seconds in which whoever can be evicted has gone, as of when it was asked for first in this cycle."""
        if self._takes is None:
            self._takes = takes(self.gangs[name] for name in self.evictable.gangs())
        return self._takes

    @property
    def surplus(self) -> Evictable:
        """Of that only what elastic gangs have beyond their minimum."""
        return self.calling.surplus(self.gangs, self.within.pods)

    @property
    def behind(self) -> Mapping[str, Mapping[str, None]]:
        """By gang the gangs that run in a place that was reserved for it."""
        return self.calling.behind(self.gangs)

    def callable_for(self, gang: str) -> Evictable:
        """What a gang that borrows may call in: surplus, and what runs in the place that was reserved for it."""
        return self.calling.of(gang, self.gangs, self.within.pods)

    def told_to_go(self, evict: Evict) -> list[Pod]:
        """These pods leave; returns them."""
        gang_id, going = evict.gang, set(evict.pods)
        gang = self.gangs[gang_id]
        self._changed_gangs.setdefault(gang_id, gang)
        told = {"state": NOTIFIED, "deadline": evict.deadline, "evicted_for": evict.makes_room_for}
        pods = [replace(pod, **told) if pod.uid in going else pod for pod in gang.pods]  # type: ignore[arg-type]
        self.gangs[gang_id] = gang = replace(gang, pods=tuple(pods))
        self.calling.changed(gang_id)
        leaving = [pod for pod in pods if pod.uid in going]
        self.leaving.add(gang.tenant, leaving)
        return leaving

    def told_nothing(self, evict: Evict) -> None:
        """These pods, which were to be told to go in this cycle and leave no more, stay as they were."""
        before = {pod.uid: pod for pod in self._changed_gangs[evict.gang].pods if pod.uid in evict.pods}
        gang = self.gangs[evict.gang]
        self.gangs[evict.gang] = gang = replace(gang, pods=tuple(before.get(pod.uid, pod) for pod in gang.pods))
        self.calling.changed(evict.gang)
        for pod in before.values():
            self.ends.put(gang, pod)

    def held_after_one(self, gang: Gang) -> dict[str, IntArray]:
        """What `held_after` tells, for one gang."""
        created, low, priority = np.array([gang.created]), np.array([gang.band is LOW]), np.array([gang.priority])
        return self.held_after(gang.tenant, created, low, priority)

    def held_after(self, tenant: str, created: FloatArray, low: BoolArray, priority: FloatArray) -> dict[str, IntArray]:
        """By device, cpu and memory what does not count against a tenant's gangs that have waited for long.

        It is held by what leaves, and by those that came after the gang, are no better and borrow. All as it was when
        this was asked for first in the cycle.
        """
        if self._late is None:
            self._late = Latecomers(self.evictable, self.pool), self.leaving.copy()
        late, leaving = self._late
        leaves = leaving.of(tenant)
        found = late.after(tenant, created, low, priority)
        return {resource: held + leaves.get(resource, 0) for resource, held in found.items()}

    # Room for plans

    def take(self, pods: Iterable[Pod], nodes: Mapping[str, str]) -> None:
        """Count pods as placed on their nodes."""
        for pod in pods:
            self.room.take(nodes[pod.uid], pod.shape)

    def give(self, pods: Iterable[Pod]) -> None:
        """Count pods as gone."""
        for pod in pods:
            if pod.node in self.room:
                self.room.give(pod.node, pod.shape)

    def take_back(self, pods: Iterable[Pod]) -> None:
        """Count pods as staying that were counted as gone."""
        for pod in pods:
            if pod.node in self.room:
                self.room.take(pod.node, pod.shape)

    def holds(self, pods: Iterable[Pod], nodes: Mapping[str, str]) -> bool:
        """Whether nothing that these pods ask for is below zero on their nodes, which they were taken from already."""
        pods = list(pods)
        for pod in pods:
            free = self.room.free(nodes[pod.uid])
            if any(amount and free.get(name, -1) < 0 for name, amount in pod.shape.requests):
                return False
        return not self.room.zoned or self.room.zones_hold([(nodes[pod.uid], pod.shape) for pod in pods])

    def usable_by(self, ask: Ask) -> bool:
        """Whether the gang's tenant may use this pool at all."""
        return ask.tenant in self.quotas


def _counted(pool: Pool) -> dict[str, frozenset[str]]:
    """But for those that have gone: if one still counts as placed here, it is taken to have come since."""
    told = {node.name: node.topology for node in pool.nodes if node.topology is not None}
    return {name: topology.counted - topology.gone.keys() for name, topology in told.items()}


def _others(pods: tuple[Pod, ...], known: Sequence[Pod]) -> tuple[Pod, ...]:
    """The pods without those that are known: the very same objects."""
    if not known:
        return pods
    same = {id(pod) for pod in known}
    return tuple(pod for pod in pods if id(pod) not in same)


def _alike(old: Gang, new: Gang) -> bool:
    """Whether what counts of each of their pods depends on the pod alone."""
    return (
        old.tenant == new.tenant
        and old.grace == new.grace
        and old.run_limit == new.run_limit
        and old.expected_run == new.expected_run
    )
