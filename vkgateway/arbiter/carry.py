"""What is kept from cycle to cycle, so that a cycle costs what has changed: read gangs, and the standing of pools."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from vkgateway.arbiter.asks import Ask, read
from vkgateway.arbiter.decisions import Hold
from vkgateway.arbiter.facts import Gang, Pod, PodState, Policy, Pool, PoolKey, Quota, Snapshot
from vkgateway.arbiter.standing import Standing

_KINDS = 1 << 20


class Carry:
    """Handed to `decide` again and again. What did not change must be the very same object: that is how it is known.

    It changes no decision: without it, or with an empty one, they are the same. It serves one line of snapshots, and
    one call at a time.
    """

    def __init__(self) -> None:
        self._policy: Policy | None = None
        self._quotas: tuple[Quota, ...] = ()
        self._told: dict[str, Gang] = {}
        self._kinds: dict[Hashable, int] = {}
        self.gangs: dict[str, Gang] = {}
        """As of now: pods that were to go by now are ending."""
        self._moving: dict[str, None] = {}
        """Gangs of which pods were told to go: time alone changes them."""
        self.standings: dict[PoolKey, Standing] = {}
        self.unreadable: dict[str, Hold] = {}
        self.asks: dict[str, Ask] = {}
        """Gangs of which something waits."""

    def clear(self) -> None:
        """Forget everything."""
        self.__init__()  # type: ignore[misc]

    def follow(self, snapshot: Snapshot, now: float) -> None:
        """Take in what is new."""
        if self._policy != snapshot.policy:
            self.clear()
            self._policy = snapshot.policy
        new = self._follow_pools(snapshot)
        changes = self._changed(snapshot.gangs)
        if len(snapshot.gangs) != len(self._told) + sum(name not in self._told for name, _ in changes):
            changes += self._gone(snapshot.gangs)
        seen = {name for name, _ in changes}
        changes += [(name, self._told[name]) for name in self._moving if name not in seen]
        self._take_in(changes, now, new)

    def _follow_pools(self, snapshot: Snapshot) -> list[Standing]:
        """Returns the standings that know nothing yet."""
        pools: dict[PoolKey, Pool] = {pool.key: pool for pool in snapshot.pools if pool.governed}
        for key in [key for key in self.standings if key not in pools]:
            del self.standings[key]
        new = []
        for key, pool in pools.items():
            standing = self.standings.get(key)
            if standing is not None and standing.pool is not pool and not standing.renew(pool):
                standing = None
            if standing is None:
                standing = Standing(pool, snapshot.quotas, snapshot.policy)
                new.append(standing)
                self.standings.pop(key, None)
            self.standings[key] = standing
        if self._quotas is not snapshot.quotas:
            for standing in self.standings.values():
                standing.give_quotas(snapshot.quotas)
            self._quotas = snapshot.quotas
        # In the order in which they are told.
        self.standings = {key: self.standings[key] for key in pools}
        return new

    def _changed(self, gangs: Sequence[Gang]) -> list[tuple[str, Gang | None]]:
        known = self._told
        return [(gang.id, gang) for gang in gangs if known.get(gang.id) is not gang]

    def _gone(self, gangs: Sequence[Gang]) -> list[tuple[str, Gang | None]]:
        there = {gang.id for gang in gangs}
        return [(name, None) for name in self._told if name not in there]

    def _take_in(self, changes: Sequence[tuple[str, Gang | None]], now: float, new: Sequence[Standing]) -> None:
        by_pool: dict[PoolKey, list[tuple[Gang | None, Gang | None]]] = {key: [] for key in self.standings}
        for name, told in changes:
            old = self.gangs.get(name)
            gang = _as_of_now(told, now) if told is not None else None
            if gang is old or (gang is not None and told is self._told.get(name) and gang == old):
                continue
            for key in _pools_of(old, gang):
                if key in by_pool:
                    by_pool[key].append((old, gang))
            self._keep(name, told, gang)
        for standing in new:
            key = standing.pool.key
            by_pool[key] = [(None, gang) for gang in self.gangs.values() if _in(gang, key)]
        for key, standing in self.standings.items():
            standing.take_in(by_pool[key])

    def _keep(self, name: str, told: Gang | None, gang: Gang | None) -> None:
        self.asks.pop(name, None)
        self.unreadable.pop(name, None)
        if told is None or gang is None:
            for known in (self.gangs, self._told, self._moving):
                known.pop(name, None)
            return
        self.gangs[name], self._told[name] = gang, told
        if any(pod.state is PodState.NOTIFIED for pod in told.pods):
            self._moving[name] = None
        else:
            self._moving.pop(name, None)
        found = read(gang, self._kind)
        if isinstance(found, Ask):
            self.asks[name] = found
        elif found is not None:
            self.unreadable[name] = found

    def _kind(self, what: Hashable) -> int:
        """A number for whatever is equal."""
        if len(self._kinds) >= _KINDS:
            self.clear_kinds()
        return self._kinds.setdefault(what, len(self._kinds))

    def clear_kinds(self) -> None:
        """Number kinds anew."""
        self._kinds = {}
        for name, ask in self.asks.items():
            self.asks[name] = replace(ask, kind=self._kinds.setdefault(ask.what, len(self._kinds)))


def _in(gang: Gang, key: PoolKey) -> bool:
    return any(pod.pool == key for pod in gang.pods) or (gang.plan is not None and gang.plan.pool == key)


def _pools_of(*gangs: Gang | None) -> list[PoolKey]:
    keys = {pod.pool: None for gang in gangs if gang is not None for pod in gang.pods if pod.pool is not None}
    keys |= {gang.plan.pool: None for gang in gangs if gang is not None and gang.plan is not None}
    return list(keys)


def _as_of_now(gang: Gang, now: float) -> Gang:
    """Notified pods whose time has come are ending."""
    if all(pod.state is not PodState.NOTIFIED or pod.deadline > now for pod in gang.pods):
        return gang
    return replace(gang, pods=tuple(_pod_as_of_now(gang, pod, now) for pod in gang.pods))


def _pod_as_of_now(gang: Gang, pod: Pod, now: float) -> Pod:
    if pod.state is not PodState.NOTIFIED or pod.deadline > now:
        return pod
    return replace(pod, state=PodState.ENDING, deadline=now + gang.grace)
