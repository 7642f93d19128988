"""What is kept from cycle to cycle, so that a cycle costs what has changed: read gangs, and the standing of pools."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

from vkgateway.arbiter.asks import Ask, read
from vkgateway.arbiter.decisions import Hold
from vkgateway.arbiter.differences import differences
from vkgateway.arbiter.facts import ENDING, NOTIFIED, Gang, Pod, Policy, Pool, PoolKey, Quota, Snapshot
from vkgateway.arbiter.parts import names_pools, split
from vkgateway.arbiter.standing import Standing
from vkgateway.arbiter.waiting import Waiting

_KINDS = 1 << 20


class Carry:
    """Handed to `decide` again and again. What did not change must be the very same object: that is how it is known.

    It changes no decision: without it, or with an empty one, they are the same. It serves one line of snapshots, and
    one call at a time.
    """

    def __init__(self) -> None:
        self._policy: Policy | None = None
        self._quotas: tuple[Quota, ...] = ()
        self._gangs: tuple[Gang, ...] = ()
        """Those of the last snapshot."""
        self._told: dict[str, Gang] = {}
        self._kinds: dict[Hashable, int] = {}
        self.gangs: dict[str, Gang] = {}
        """As of now: pods that were to go by now are ending."""
        self._moving: dict[str, None] = {}
        """Gangs of which pods were told to go: time alone changes them."""
        self.planned: dict[str, None] = {}
        """Gangs that are told with a plan."""
        self._ahead: dict[str, Gang] = {}
        """Of those that were changed since the last snapshot, what it told."""
        self.standings: dict[PoolKey, Standing] = {}
        self.unreadable: dict[str, Hold] = {}
        self.asks: dict[str, Ask] = {}
        """Gangs of which something waits."""
        self.beyond: dict[str, None] = {}
        """Those of them of which pods beyond the minimum wait."""
        self.waiting = Waiting()
        """Those of them that ask for a core."""
        self._waits: dict[str, Ask | None] = {}
        """What has changed about them."""
        self.parts: dict[str, tuple[str, ...]] = {}
        """The parts of each gang that is handled in parts."""
        self.unready: dict[str, Hold] = {}
        """Of these gangs, why nothing can be done yet for those that wait."""

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
        seen = {name for name, _ in changes}
        changes += [(name, told) for name, told in self._ahead.items() if name not in seen]
        seen |= self._ahead.keys()
        self._ahead = {}
        changes += [(name, self._told[name]) for name in self._moving if name not in seen]
        self._take_in(changes, now, new)

    def go_on(self, changed: Mapping[str, Gang], now: float) -> None:
        """Take in what gangs become by decisions, by id. The next snapshot is followed as if that had not been."""
        for name in changed:
            self._ahead.setdefault(name, self._told[name])
        self._take_in(list(changed.items()), now, [])

    @property
    def told(self) -> Mapping[str, Gang]:
        """Gangs as they were told."""
        return self._told

    def _follow_pools(self, snapshot: Snapshot) -> list[Standing]:
        """Returns the standings that know nothing yet."""
        pools: dict[PoolKey, Pool] = {pool.key: pool for pool in snapshot.pools}
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

    def _changed(self, gangs: tuple[Gang, ...]) -> list[tuple[str, Gang | None]]:
        """Gangs that are new or others than before, and the names of those that have gone."""
        before, self._gangs = self._gangs, gangs
        came, gone = differences(before, gangs)
        changes: dict[str, Gang | None] = {gang.id: gang for gang in came}
        changed = [*changes.items(), *((gang.id, None) for gang in gone if gang.id not in changes)]
        if not self.parts and not any(map(names_pools, came)):
            return changed
        return [each for name, gang in changed for each in self._in_parts(name, gang)]

    def _in_parts(self, name: str, gang: Gang | None) -> list[tuple[str, Gang | None]]:
        """Return the changes of the gangs that are handled in place of one."""
        before = self.parts.pop(name, None)
        self.unready.pop(name, None)
        now: tuple[Gang, ...] = () if gang is None else (gang,)
        if gang is not None and names_pools(gang):
            found = split(gang)
            now = found.gangs
            self.parts[name] = tuple(each.id for each in now)
            if found.hold is not None:
                self.unready[name] = found.hold
        names = {each.id for each in now}
        gone = [each for each in (before or (name,)) if each not in names and each in self._told]
        return [*((each, None) for each in gone), *((each.id, each) for each in now)]

    def _take_in(self, changes: Sequence[tuple[str, Gang | None]], now: float, new: Sequence[Standing]) -> None:
        by_pool: dict[PoolKey, list[tuple[Gang | None, Gang | None]]] = {key: [] for key in self.standings}
        for name, told in changes:
            old = self.gangs.get(name)
            moves = told is not None and _any_notified(told.pods)
            gang = _as_of_now(told, now) if moves and told is not None else told
            if told is self._told.get(name) and (gang is old or gang == old):
                continue
            for key in _pools_of(old, gang):
                if key in by_pool:
                    by_pool[key].append((old, gang))
            self._keep(name, told, gang, moves=moves)
        for standing in new:
            key = standing.pool.key
            by_pool[key] = [(None, gang) for gang in self.gangs.values() if _in(gang, key)]
        for key, standing in self.standings.items():
            standing.take_in(by_pool[key])
        if self._waits:
            self.waiting.change(self._waits)
            self._waits = {}

    def _keep(self, name: str, told: Gang | None, gang: Gang | None, *, moves: bool) -> None:
        if self.asks.pop(name, None) is not None:
            self._waits[name] = None
            self.beyond.pop(name, None)
        self.unreadable.pop(name, None)
        if told is None or gang is None:
            for known in (self.gangs, self._told, self._moving, self.planned):
                known.pop(name, None)
            return
        self.gangs[name], self._told[name] = gang, told
        if moves:
            self._moving[name] = None
        else:
            self._moving.pop(name, None)
        if told.plan is not None:
            self.planned[name] = None
        else:
            self.planned.pop(name, None)
        found = read(gang, self._kind)
        if isinstance(found, Ask):
            self.asks[name] = found
            self._waits[name] = found if found.core else None
            if found.rest:
                self.beyond[name] = None
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
        for standing in self.standings.values():
            standing.ever.clear()
        for name, ask in self.asks.items():
            self.asks[name] = replace(ask, kind=self._kinds.setdefault(ask.what, len(self._kinds)))
        self._waits = {name: ask if ask.core else None for name, ask in self.asks.items()} | {
            name: None for name in self.waiting.names if name not in self.asks
        }


def _in(gang: Gang, key: PoolKey) -> bool:
    return any(pod.pool == key for pod in gang.pods) or (gang.plan is not None and gang.plan.pool == key)


def _pools_of(*gangs: Gang | None) -> Iterable[PoolKey]:
    keys: dict[PoolKey, None] = {}
    for gang in gangs:
        if gang is None:
            continue
        for pod in gang.pods:
            if pod.pool is not None:
                keys[pod.pool] = None
        if gang.plan is not None:
            keys[gang.plan.pool] = None
    return keys


def _any_notified(pods: Sequence[Pod]) -> bool:
    for pod in pods:  # noqa: SIM110 - called for each gang that has changed, and a loop is far quicker than `any`
        if pod.state is NOTIFIED:
            return True
    return False


def _as_of_now(gang: Gang, now: float) -> Gang:
    """Notified pods whose time has come are ending."""
    for pod in gang.pods:
        if pod.state is NOTIFIED and pod.deadline < now:
            return replace(gang, pods=tuple(_pod_as_of_now(gang, pod, now) for pod in gang.pods))
    return gang


def _pod_as_of_now(gang: Gang, pod: Pod, now: float) -> Pod:
    if pod.state is not NOTIFIED or pod.deadline >= now:
        return pod
    return replace(pod, state=ENDING, deadline=now + gang.grace)
