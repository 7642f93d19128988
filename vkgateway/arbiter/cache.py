"""What is kept from cycle to cycle, so that a cycle costs what has changed: read gangs, and the standing of pools."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

from vkgateway.arbiter.decisions import PendingReport
from vkgateway.arbiter.gang_parts import has_pod_pools, split_gang
from vkgateway.arbiter.pool_state import PoolState
from vkgateway.arbiter.queueing.pending_columns import PendingTable
from vkgateway.arbiter.queueing.pending_gangs import PendingGang, read_pending_gang
from vkgateway.arbiter.snapshot import ENDING, NOTIFIED, Gang, Pod, Policy, Pool, PoolKey, Quota, Snapshot
from vkgateway.arbiter.snapshot_diff import diff_gangs

_MAX_CLASSES = 1 << 20


class Cache:
    """Handed to `decide` again and again. What did not change must be the very same object: that is how it is known.

    It changes no decision: without it, or with an empty one, they are the same. It serves one line of snapshots, and
    one call at a time.
    """

    def __init__(self) -> None:
        self._policy: Policy | None = None
        self._quotas: tuple[Quota, ...] = ()
        self._last_gangs: tuple[Gang, ...] = ()
        """Those of the last snapshot."""
        self._snapshot_gangs: dict[str, Gang] = {}
        self._equivalence_classes: dict[Hashable, int] = {}
        self.gangs: dict[str, Gang] = {}
        """As of now: pods that were to go by now are ending."""
        self._notified_gangs: dict[str, None] = {}
        """Gangs of which pods were told to go: time alone changes them."""
        self.planned_gangs: dict[str, None] = {}
        """Gangs that are told with a plan."""
        self._overridden_gangs: dict[str, Gang] = {}
        """Of those that were changed since the last snapshot, what it told."""
        self.pool_states: dict[PoolKey, PoolState] = {}
        self.invalid_reports: dict[str, PendingReport] = {}
        self.pending_gangs: dict[str, PendingGang] = {}
        """Gangs of which something waits."""
        self.surplus_gangs: dict[str, None] = {}
        """Those of them of which pods beyond the minimum wait."""
        self.pending_table = PendingTable()
        """Those of them that ask for a core."""
        self._table_changes: dict[str, PendingGang | None] = {}
        """What has changed about them."""
        self.parts: dict[str, tuple[str, ...]] = {}
        """The parts of each gang that is handled in parts."""
        self.invalid_part_reports: dict[str, PendingReport] = {}
        """Of these gangs, why nothing can be done yet for those that wait."""

    def clear(self) -> None:
        """Forget everything."""
        self.__init__()  # type: ignore[misc]

    def apply_snapshot(self, snapshot: Snapshot, now: float) -> None:
        """Take in what is new."""
        if self._policy != snapshot.policy:
            self.clear()
            self._policy = snapshot.policy
        new = self._update_pools(snapshot)
        changes = self._changed_gangs(snapshot.gangs)
        seen = {name for name, _ in changes}
        changes += [(name, told) for name, told in self._overridden_gangs.items() if name not in seen]
        seen |= self._overridden_gangs.keys()
        self._overridden_gangs = {}
        changes += [(name, self._snapshot_gangs[name]) for name in self._notified_gangs if name not in seen]
        self._apply_changes(changes, now, new)

    def apply_changed_gangs(self, changed: Mapping[str, Gang], now: float) -> None:
        """Take in what gangs become by decisions, by id. The next snapshot is followed as if that had not been."""
        for name in changed:
            self._overridden_gangs.setdefault(name, self._snapshot_gangs[name])
        self._apply_changes(list(changed.items()), now, [])

    @property
    def snapshot_gangs(self) -> Mapping[str, Gang]:
        """Gangs as they were told."""
        return self._snapshot_gangs

    def _update_pools(self, snapshot: Snapshot) -> list[PoolState]:
        """Returns the standings that know nothing yet."""
        pools: dict[PoolKey, Pool] = {pool.key: pool for pool in snapshot.pools}
        for key in [key for key in self.pool_states if key not in pools]:
            del self.pool_states[key]
        new = []
        for key, pool in pools.items():
            standing = self.pool_states.get(key)
            if standing is not None and standing.pool is not pool and not standing.update_nodes(pool):
                standing = None
            if standing is None:
                standing = PoolState(pool, snapshot.quotas, snapshot.policy)
                new.append(standing)
                self.pool_states.pop(key, None)
            self.pool_states[key] = standing
        if self._quotas is not snapshot.quotas:
            for standing in self.pool_states.values():
                standing.set_quotas(snapshot.quotas)
            self._quotas = snapshot.quotas
        # In the order in which they are told.
        self.pool_states = {key: self.pool_states[key] for key in pools}
        return new

    def _changed_gangs(self, gangs: tuple[Gang, ...]) -> list[tuple[str, Gang | None]]:
        """Gangs that are new or others than before, and the names of those that have gone."""
        before, self._last_gangs = self._last_gangs, gangs
        came, gone = diff_gangs(before, gangs)
        changes: dict[str, Gang | None] = {gang.id: gang for gang in came}
        changed = [*changes.items(), *((gang.id, None) for gang in gone if gang.id not in changes)]
        if not self.parts and not any(map(has_pod_pools, came)):
            return changed
        return [each for name, gang in changed for each in self._split_changes(name, gang)]

    def _split_changes(self, name: str, gang: Gang | None) -> list[tuple[str, Gang | None]]:
        """Return the changes of the gangs that are handled in place of one."""
        before = self.parts.pop(name, None)
        self.invalid_part_reports.pop(name, None)
        now: tuple[Gang, ...] = () if gang is None else (gang,)
        if gang is not None and has_pod_pools(gang):
            found = split_gang(gang)
            now = found.gangs
            self.parts[name] = tuple(each.id for each in now)
            if found.report is not None:
                self.invalid_part_reports[name] = found.report
        names = {each.id for each in now}
        gone = [each for each in (before or (name,)) if each not in names and each in self._snapshot_gangs]
        return [*((each, None) for each in gone), *((each.id, each) for each in now)]

    def _apply_changes(self, changes: Sequence[tuple[str, Gang | None]], now: float, new: Sequence[PoolState]) -> None:
        by_pool: dict[PoolKey, list[tuple[Gang | None, Gang | None]]] = {key: [] for key in self.pool_states}
        for name, told in changes:
            old = self.gangs.get(name)
            moves = told is not None and _has_notified(told.pods)
            gang = _apply_deadlines(told, now) if moves and told is not None else told
            if told is self._snapshot_gangs.get(name) and (gang is old or gang == old):
                continue
            for key in _pool_keys(old, gang):
                if key in by_pool:
                    by_pool[key].append((old, gang))
            self._store_gang(name, told, gang, moves=moves)
        for standing in new:
            key = standing.pool.key
            by_pool[key] = [(None, gang) for gang in self.gangs.values() if _is_in_pool(gang, key)]
        for key, standing in self.pool_states.items():
            standing.apply_changes(by_pool[key])
        if self._table_changes:
            self.pending_table.apply_changes(self._table_changes)
            self._table_changes = {}

    def _store_gang(self, name: str, told: Gang | None, gang: Gang | None, *, moves: bool) -> None:
        if self.pending_gangs.pop(name, None) is not None:
            self._table_changes[name] = None
            self.surplus_gangs.pop(name, None)
        self.invalid_reports.pop(name, None)
        if told is None or gang is None:
            for known in (self.gangs, self._snapshot_gangs, self._notified_gangs, self.planned_gangs):
                known.pop(name, None)
            return
        self.gangs[name], self._snapshot_gangs[name] = gang, told
        if moves:
            self._notified_gangs[name] = None
        else:
            self._notified_gangs.pop(name, None)
        if told.plan is not None:
            self.planned_gangs[name] = None
        else:
            self.planned_gangs.pop(name, None)
        found = read_pending_gang(gang, self._equivalence_class)
        if isinstance(found, PendingGang):
            self.pending_gangs[name] = found
            self._table_changes[name] = found if found.min_members else None
            if found.surplus:
                self.surplus_gangs[name] = None
        elif found is not None:
            self.invalid_reports[name] = found

    def _equivalence_class(self, what: Hashable) -> int:
        """A number for whatever is equal."""
        if len(self._equivalence_classes) >= _MAX_CLASSES:
            self.reset_equivalence_classes()
        return self._equivalence_classes.setdefault(what, len(self._equivalence_classes))

    def reset_equivalence_classes(self) -> None:
        """Number kinds anew."""
        self._equivalence_classes = {}
        for standing in self.pool_states.values():
            standing.feasibility_cache.clear()
        for name, ask in self.pending_gangs.items():
            self.pending_gangs[name] = replace(
                ask,
                equivalence_class=self._equivalence_classes.setdefault(
                    ask.equivalence_key, len(self._equivalence_classes)
                ),
            )
        self._table_changes = {name: ask if ask.min_members else None for name, ask in self.pending_gangs.items()} | {
            name: None for name in self.pending_table.names if name not in self.pending_gangs
        }


def _is_in_pool(gang: Gang, key: PoolKey) -> bool:
    return any(pod.pool == key for pod in gang.pods) or (gang.plan is not None and gang.plan.pool == key)


def _pool_keys(*gangs: Gang | None) -> Iterable[PoolKey]:
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


def _has_notified(pods: Sequence[Pod]) -> bool:
    for pod in pods:  # noqa: SIM110 - called for each gang that has changed, and a loop is far quicker than `any`
        if pod.state is NOTIFIED:
            return True
    return False


def _apply_deadlines(gang: Gang, now: float) -> Gang:
    """Notified pods whose time has come are ending."""
    for pod in gang.pods:
        if pod.state is NOTIFIED and pod.deadline < now:
            return replace(gang, pods=tuple(_apply_deadline(gang, pod, now) for pod in gang.pods))
    return gang


def _apply_deadline(gang: Gang, pod: Pod, now: float) -> Pod:
    if pod.state is not NOTIFIED or pod.deadline >= now:
        return pod
    return replace(pod, state=ENDING, deadline=now + gang.grace)
