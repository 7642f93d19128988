"""One pool in a cycle: what is free, whose cells hold what, who may be evicted, and whose room is coming."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.cells import Cells
from vkgateway.arbiter.evictable import Evictable
from vkgateway.arbiter.facts import Band, Gang, Pod, PodState, Policy, Pool, Quota
from vkgateway.arbiter.forecast import Ends, Reservation
from vkgateway.arbiter.inside import hold_where_placed
from vkgateway.arbiter.leaving import Leaving
from vkgateway.arbiter.lots import core_of
from vkgateway.arbiter.room import Room
from vkgateway.model.requests import Milli

_LEAST_WEIGHT = 1e-6


class Standing:
    """A pool with its gangs, as it is now and as it becomes by what is decided in this cycle.

    What was planned for a gang is taken from the room although others still stand there: their nodes are then below
    zero, and nobody else gets what comes free.
    """

    def __init__(
        self, pool: Pool, quotas: Iterable[Quota], gangs: Sequence[Gang], *, policy: Policy, now: float
    ) -> None:
        self.pool = pool
        self.room = Room(pool)
        self.ends = Ends(pool, gangs, policy, now)
        self.reservation: Reservation | None = None
        self.quotas = {quota.tenant: quota for quota in quotas if quota.pool == pool.key}
        self.gangs = {gang.id: gang for gang in gangs if any(self._has(pod) for pod in gang.pods)}
        self.leaving = Leaving()
        self.used: dict[str, Milli] = {}
        """What each tenant's pods hold, and what is planned for them."""
        self.inside: set[str] = set()
        """Uids of the placed pods that are inside their tenant's cells."""
        self.promoted: set[str] = set()
        """Gangs of which running pods may have been moved into cells in this cycle."""
        self._inside_used: dict[str, Milli] = {}
        placed = [(gang, pod) for gang in self.gangs.values() for pod in gang.pods if self._has(pod)]
        for gang, pod in placed:
            self.count(gang.tenant, pod)
            if not pod.borrowed:
                self.inside.add(pod.uid)
                self._count_inside(gang.tenant, pod, 1)
            if pod.state is PodState.ENDING:
                self.leaving.add(gang.tenant, [pod])
        self.room.take_all((pod.node, pod.shape) for _, pod in placed if pod.node in self.room)
        units = [(gang.tenant, pod.node, pod.shape.amount(pool.unit)) for gang, pod in placed if not pod.borrowed]
        self.cells = Cells(pool, self.quotas.values(), units)
        self._demote()

    def _has(self, pod: Pod) -> bool:
        return pod.state is not PodState.WAITING and pod.pool == self.pool.key and bool(pod.node)

    def count(self, tenant: str, pod: Pod, times: int = 1) -> None:
        """Count what a tenant's pod holds."""
        used = self.used.setdefault(tenant, {})
        for name, amount in pod.shape.requests:
            used[name] = used.get(name, 0) + amount * times

    def _count_inside(self, tenant: str, pod: Pod, times: int) -> None:
        used = self._inside_used.setdefault(tenant, {})
        for name, amount in pod.shape.requests:
            used[name] = used.get(name, 0) + amount * times

    # Inside and outside

    def _demote(self) -> None:
        """Where cells do not hold all that they did (nodes have gone), whole gangs borrow from now on."""
        for tenant in sorted({gang.tenant for gang in self.gangs.values()}):
            while over := self.cells.excess(tenant):
                node = next(iter(over))
                there = [
                    gang
                    for gang in self.gangs.values()
                    if gang.tenant == tenant
                    and any(pod.node == node and pod.uid in self.inside and self._units(pod) for pod in gang.pods)
                ]
                gang = min(there, key=lambda gang: (gang.priority, -gang.created, gang.id))
                for pod in gang.pods:
                    if pod.uid in self.inside:
                        self._move_out(gang, pod)

    def _units(self, pod: Pod) -> int:
        return pod.shape.amount(self.pool.unit)

    def _move_out(self, gang: Gang, pod: Pod) -> None:
        self.inside.discard(pod.uid)
        self._count_inside(gang.tenant, pod, -1)
        self.cells.release(gang.tenant, pod.node, self._units(pod))

    def promote(self) -> None:
        """What runs of the guaranteed band and borrows is inside from now on, where unused cells hold it as it stands.

        First the core of a gang, all of it or none; then its other pods one by one.
        """
        order = sorted(self.gangs.values(), key=lambda gang: (-gang.priority, gang.created, gang.id))
        for gang in order:
            placed = [pod for pod in gang.pods if self._has(pod) and pod.state is PodState.PLACED]
            if gang.band is not Band.GUARANTEED or all(pod.uid in self.inside for pod in placed):
                continue
            self.promoted.add(gang.id)
            core = core_of(gang, placed)
            chosen = {pod.uid for pod in core}
            missing = [pod for pod in core if pod.uid not in self.inside]
            if missing and not self.move_in(gang.tenant, [(pod, pod.node) for pod in missing]):
                continue
            for pod in sorted(placed, key=lambda pod: (pod.rank, pod.uid)):
                if pod.uid not in chosen and pod.uid not in self.inside:
                    self.move_in(gang.tenant, [(pod, pod.node)])

    def move_in(self, tenant: str, placed: Sequence[tuple[Pod, str]]) -> bool:
        """Count placed pods as inside, if cells hold all of them where they are."""
        pods = [pod for pod, _ in placed]
        if not self.allows_inside(tenant, pods):
            return False
        if not hold_where_placed(self.cells, tenant, self.pool.unit, placed):
            return False
        self.mark_inside(tenant, pods)
        return True

    def mark_inside(self, tenant: str, pods: Iterable[Pod]) -> None:
        """Count pods as inside whose cells are held already."""
        for pod in pods:
            self.inside.add(pod.uid)
            self._count_inside(tenant, pod, 1)

    def allows_inside(self, tenant: str, pods: Sequence[Pod]) -> bool:
        """Whether the guarantee, by its sums alone, has so much left; a necessary condition."""
        quota = self.quotas.get(tenant)
        if quota is None or not pods:
            return False
        named = [name for name in self.pool.governed if name in quota.guarantee and name != self.pool.unit]
        if not all(self._units(pod) or any(pod.shape.amount(name) for name in named) for pod in pods):
            return False
        used = self._inside_used.get(tenant, {})
        for name in named:
            if used.get(name, 0) + sum(pod.shape.amount(name) for pod in pods) > quota.guarantee[name]:
                return False
        return sum(self._units(pod) for pod in pods) <= self.left_inside(tenant)

    def left_inside(self, tenant: str) -> int:
        """Thousandths of the unit that the tenant's cells still hold, bound or not."""
        unused = sum(size * number for size, number in self.cells.unused(tenant).items()) * 1000
        return unused + sum(self.cells.spare(tenant, node) for node in self.cells.bound(tenant))

    # Shares and limits

    @cached_property
    def total(self) -> Milli:
        """What the pool's usable nodes have of each governed resource."""
        return {
            name: sum(node.allocatable.get(name, 0) for node in self.pool.nodes if node.usable)
            for name in self.pool.governed
        }

    def share(self, tenant: str) -> float:
        """The tenant's dominant share of the pool beyond its guarantee, divided by its weight."""
        quota, used = self.quotas.get(tenant), self.used.get(tenant, {})
        guarantee: Mapping[str, int] = quota.guarantee if quota is not None else {}
        weight = quota.weight if quota is not None and quota.weight > _LEAST_WEIGHT else _LEAST_WEIGHT
        shares = (
            max(0, used.get(name, 0) - guarantee.get(name, 0)) / max(1, self.total[name]) for name in self.pool.governed
        )
        return max(shares, default=0.0) / weight

    def over(self) -> dict[str, float]:
        """The shares of all tenants that have something here."""
        return {tenant: self.share(tenant) for tenant in sorted(self.used)}

    def beyond_limit(self, tenant: str, pods: Iterable[Pod]) -> list[str]:
        """Resources of which the tenant would use more than its limit with these pods."""
        return list(self.missing_of_limit(tenant, pods))

    def missing_of_limit(self, tenant: str, pods: Iterable[Pod], gone: Sequence[Milli] = ()) -> Milli:
        """By how much the tenant would be beyond its limit with these pods, if what is named had gone."""
        quota = self.quotas.get(tenant)
        if quota is None or not quota.limit:
            return {}
        asked, used = total_of(pods), self.used.get(tenant, {})
        missing = {
            name: used.get(name, 0) + asked[name] - sum(each.get(name, 0) for each in gone) - limit
            for name, limit in sorted(quota.limit.items())
            if asked.get(name, 0) > 0
        }
        return {name: amount for name, amount in missing.items() if amount > 0}

    def within_limit(self, tenant: str, pods: Iterable[Pod], gone: Sequence[Milli] = ()) -> bool:
        """Whether the tenant, with these pods that are counted already, keeps its limit if what is named had gone."""
        quota = self.quotas.get(tenant)
        if quota is None or not quota.limit:
            return True
        used, asked = self.used.get(tenant, {}), {name for pod in pods for name, _ in pod.shape.requests}
        return all(
            used.get(name, 0) - sum(each.get(name, 0) for each in gone) <= limit
            for name, limit in quota.limit.items()
            if name in asked
        )

    @cached_property
    def empty(self) -> Room:
        """The pool as if nobody's pods were in it but those that the arbiter does not place."""
        return Room(self.pool)

    # Who may be evicted

    @cached_property
    def evictable(self) -> Evictable:
        """What runs outside of cells. To be asked for when all that runs has been promoted."""
        found = Evictable(self.pool.key, self.pool.unit)
        for gang in self.gangs.values():
            found.put(self.as_it_counts(gang))
        return found

    @cached_property
    def surplus(self) -> Evictable:
        """Of that only what elastic gangs have beyond their minimum."""
        found = Evictable(self.pool.key, self.pool.unit)
        for gang in self.gangs.values():
            if gang.elastic:
                found.put(self._core_fixed(self.as_it_counts(gang)))
        return found

    @cached_property
    def behind(self) -> dict[str, list[str]]:
        """By gang the gangs that run in a place that was reserved for it."""
        found: dict[str, list[str]] = {}
        for gang in self.gangs.values():
            for ahead in sorted({pod.behind for pod in gang.pods if pod.behind and pod.state is PodState.PLACED}):
                found.setdefault(ahead, []).append(gang.id)
        return found

    def callable_for(self, gang: str) -> Evictable:
        """What a gang that borrows may call in: surplus, and what runs in the place that was reserved for it."""
        behind = self.behind.get(gang)
        if not behind:
            return self.surplus
        found = Evictable(self.pool.key, self.pool.unit)
        for each in self.gangs.values():
            if each.id in behind:
                found.put(self.as_it_counts(each))
            elif each.elastic:
                found.put(self._core_fixed(self.as_it_counts(each)))
        return found

    def told_to_go(self, gang_id: str, uids: Iterable[str]) -> list[Pod]:
        """These pods leave; returns them."""
        going, gang = set(uids), self.gangs[gang_id]
        pods = [replace(pod, state=PodState.NOTIFIED) if pod.uid in going else pod for pod in gang.pods]
        self.gangs[gang_id] = gang = replace(gang, pods=tuple(pods))
        self.evictable.put(self.as_it_counts(gang))
        if gang.elastic:
            self.surplus.put(self._core_fixed(self.as_it_counts(gang)))
        leaving = [pod for pod in pods if pod.uid in going]
        self.leaving.add(gang.tenant, leaving)
        return leaving

    def as_it_counts(self, gang: Gang) -> Gang:
        """The gang with its pods marked as borrowed or not by what holds now."""
        pods = tuple(
            pod if pod.borrowed is (pod.uid not in self.inside) else replace(pod, borrowed=pod.uid not in self.inside)
            for pod in gang.pods
        )
        return replace(gang, pods=pods)

    def _core_fixed(self, gang: Gang) -> Gang:
        placed = [pod for pod in gang.pods if self._has(pod) and pod.state is PodState.PLACED]
        core = {pod.uid for pod in core_of(gang, placed)}
        return replace(gang, pods=tuple(replace(pod, borrowed=False) if pod.uid in core else pod for pod in gang.pods))

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
        for pod in pods:
            free = self.room.free(nodes[pod.uid])
            if any(amount and free.get(name, -1) < 0 for name, amount in pod.shape.requests):
                return False
        return True

    def usable_by(self, ask: Ask) -> bool:
        """Whether the gang's tenant may use this pool at all."""
        return ask.tenant in self.quotas


def total_of(pods: Iterable[Pod]) -> Milli:
    """What the pods ask for together."""
    total: Milli = {}
    for pod in pods:
        for name, amount in pod.shape.requests:
            total[name] = total.get(name, 0) + amount
    return total
