"""Cache of scheduling state between cycles, so that a cycle costs what has changed."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

from vkgateway.scheduler.core.capacity.run_limits import LimitedRuns
from vkgateway.scheduler.core.decisions import PendingReport
from vkgateway.scheduler.core.gang_parts import has_pod_pools, split_gang
from vkgateway.scheduler.core.journal import Journal
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.pools.pool_updates import PoolUpdates
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang, read_pending_gang
from vkgateway.scheduler.core.queueing.pending_table import PendingTable
from vkgateway.scheduler.core.snapshot import (
    ENDING,
    NOTIFIED,
    Gang,
    Pod,
    Policy,
    Pool,
    PoolKey,
    Quota,
    Snapshot,
)
from vkgateway.scheduler.core.snapshot_diff import diff_gangs

_MAX_CLASSES = 1 << 20


class Cache:
    """Scheduling state that is passed to each `decide`. Unchanged parts of a snapshot must be the same objects as
    before: the cache compares identities. The cache changes no decision: those with an empty cache are the same. It
    serves one series of snapshots, one call at a time.
    """

    def __init__(self) -> None:
        self._policy: Policy | None = None
        self._quotas: tuple[Quota, ...] = ()
        self._last_gangs: tuple[Gang, ...] = ()
        """Gangs of the last snapshot."""
        self.snapshot_gangs: dict[str, Gang] = {}
        """Gangs as they are in the snapshot, or as `apply_changed_gangs` set them."""
        self._equivalence_classes: dict[Hashable, int] = {}
        self.gangs: dict[str, Gang] = {}
        """Gangs as of now: notified pods whose deadline has passed, or whose run limit is reached, are ending."""
        self._notified_gangs: dict[str, None] = {}
        """Gangs with notified pods, which change as time passes."""
        self.planned_gangs: dict[str, None] = {}
        """Gangs with a plan."""
        self.losing_gangs: dict[str, Gang] = {}
        """Gangs that lost members which no pod replaces yet."""
        self._overridden_gangs: dict[str, Gang] = {}
        """Gangs that were changed since the last snapshot, as they were in it."""
        self.journal = Journal()
        """Changes of a round."""
        self.pool_states: dict[PoolKey, PoolState] = {}
        self._updates: dict[PoolKey, PoolUpdates] = {}
        self.invalid_reports: dict[str, PendingReport] = {}
        self.pending_gangs: dict[str, PendingGang] = {}
        """Gangs with pending pods."""
        self.surplus_gangs: dict[str, None] = {}
        """Those with pending surplus pods."""
        self.pending_table = PendingTable()
        """Those with pending min members."""
        self._table_changes: dict[str, PendingGang | None] = {}
        """Changes of the pending table that are not applied yet."""
        self.parts: dict[str, tuple[str, ...]] = {}
        """Names of the parts of each gang in several pools."""
        self.invalid_part_reports: dict[str, PendingReport] = {}
        """By gang in several pools, why its pending pods cannot be scheduled yet."""
        self.limited_runs = LimitedRuns()
        """Gangs, not parts, that are evicted at run limits."""

    def clear(self) -> None:
        """Drop all state."""
        self.__init__()  # type: ignore[misc]

    def apply_snapshot(self, snapshot: Snapshot, now: float) -> None:
        """Apply the changes since the last snapshot."""
        if self._policy != snapshot.policy:
            self.clear()
            self._policy = snapshot.policy
        new = self._update_pools(snapshot)
        if snapshot.policy.half_life:
            self._update_past_shares(snapshot, now)
        changes = self._changed_gangs(snapshot)
        seen = {name for name, _ in changes}
        changes += [(name, reported) for name, reported in self._overridden_gangs.items() if name not in seen]
        seen |= self._overridden_gangs.keys()
        self._overridden_gangs = {}
        changes += [(name, self.snapshot_gangs[name]) for name in self._notified_gangs if name not in seen]
        self._apply_changes(changes, now, new)

    def apply_changed_gangs(self, changed: Mapping[str, Gang], now: float) -> None:
        """Apply gangs as decisions change them. The next snapshot is still compared with the last one."""
        for name in changed:
            self._overridden_gangs.setdefault(name, self.snapshot_gangs[name])
        self._apply_changes(list(changed.items()), now, [])

    def begin_round(self, now: float) -> None:
        """Begin a round of the cycle in all pools. Until `end_round`, the journal records what it decides."""
        self.journal.forget()
        for pool_state in self.pool_states.values():
            pool_state.begin_round(now)

    def end_round(self) -> None:
        """Undo in all pools what was decided in the round."""
        self.journal.undo()

    def _update_pools(self, snapshot: Snapshot) -> list[PoolState]:
        """Return the pool states that contain no gangs yet."""
        pools: dict[PoolKey, Pool] = {pool.key: pool for pool in snapshot.pools}
        for key in [key for key in self.pool_states if key not in pools]:
            del self.pool_states[key], self._updates[key]
        new = []
        for key, pool in pools.items():
            pool_state = self.pool_states.get(key)
            if pool_state is not None and pool_state.pool is not pool and not self._updates[key].update_nodes(pool):
                pool_state = None
            if pool_state is None:
                pool_state = PoolState(pool, snapshot.quotas, snapshot.policy, self.journal)
                new.append(pool_state)
                self.pool_states.pop(key, None)
                self._updates[key] = PoolUpdates(pool_state)
            self.pool_states[key] = pool_state
        if self._quotas is not snapshot.quotas:
            for updates in self._updates.values():
                updates.set_quotas(snapshot.quotas)
            self._quotas = snapshot.quotas
        # In the snapshot's order.
        self.pool_states = {key: self.pool_states[key] for key in pools}
        return new

    def _update_past_shares(self, snapshot: Snapshot, now: float) -> None:
        """Decay the past shares until now: they change with time alone, and no other state depends on them."""
        averages: dict[PoolKey, dict[str, float]] = {}
        for each in snapshot.past_shares:
            average = each.average_at(now, snapshot.policy.half_life)
            averages.setdefault(each.pool, {})[each.tenant] = average
        for key, pool_state in self.pool_states.items():
            pool_state.tenant_usage.set_past_shares(averages.get(key, {}))

    def _changed_gangs(self, snapshot: Snapshot) -> list[tuple[str, Gang | None]]:
        """Return new and changed gangs by name, and None for deleted ones."""
        before, self._last_gangs = self._last_gangs, snapshot.gangs
        added, deleted = diff_gangs(before, snapshot.gangs)
        self.limited_runs.update(snapshot.pools, snapshot.gangs, added, deleted)
        changes: dict[str, Gang | None] = {gang.id: gang for gang in added}
        changed = [*changes.items(), *((gang.id, None) for gang in deleted if gang.id not in changes)]
        if not self.parts and not any(map(has_pod_pools, added)):
            return changed
        return [each for name, gang in changed for each in self._split_changes(name, gang)]

    def _split_changes(self, name: str, gang: Gang | None) -> list[tuple[str, Gang | None]]:
        """Return the changes of the gangs that are scheduled in place of one."""
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
        deleted = [each for each in (before or (name,)) if each not in names and each in self.snapshot_gangs]
        return [*((each, None) for each in deleted), *((each.id, each) for each in now)]

    def _apply_changes(self, changes: Sequence[tuple[str, Gang | None]], now: float, new: Sequence[PoolState]) -> None:
        by_pool: dict[PoolKey, list[tuple[Gang | None, Gang | None]]] = {key: [] for key in self.pool_states}
        for name, reported in changes:
            old = self.gangs.get(name)
            is_notified = reported is not None and _has_notified(reported.pods)
            gang = _apply_deadlines(reported, now) if is_notified and reported is not None else reported
            if reported is self.snapshot_gangs.get(name) and (gang is old or gang == old):
                continue
            for key in _pool_keys(old, gang):
                if key in by_pool:
                    by_pool[key].append((old, gang))
            self._store_gang(name, reported, gang, is_notified=is_notified)
        for pool_state in new:
            key = pool_state.pool.key
            by_pool[key] = [(None, gang) for gang in self.gangs.values() if _is_in_pool(gang, key)]
        for key in self.pool_states:
            self._updates[key].apply_changes(by_pool[key])
        if self._table_changes:
            self.pending_table.apply_changes(self._table_changes)
            self._table_changes = {}

    def _store_gang(self, name: str, reported: Gang | None, gang: Gang | None, *, is_notified: bool) -> None:
        if self.pending_gangs.pop(name, None) is not None:
            self._table_changes[name] = None
            self.surplus_gangs.pop(name, None)
        self.invalid_reports.pop(name, None)
        if reported is None or gang is None:
            for known in (
                self.gangs,
                self.snapshot_gangs,
                self._notified_gangs,
                self.planned_gangs,
                self.losing_gangs,
            ):
                known.pop(name, None)
            return
        self.gangs[name], self.snapshot_gangs[name] = gang, reported
        if is_notified:
            self._notified_gangs[name] = None
        else:
            self._notified_gangs.pop(name, None)
        if reported.plan is not None:
            self.planned_gangs[name] = None
        else:
            self.planned_gangs.pop(name, None)
        if gang.lost:
            self.losing_gangs[name] = gang
        else:
            self.losing_gangs.pop(name, None)
        found = read_pending_gang(gang, self._equivalence_class)
        if isinstance(found, PendingGang):
            self.pending_gangs[name] = found
            self._table_changes[name] = found if found.min_members else None
            if found.surplus:
                self.surplus_gangs[name] = None
        elif found is not None:
            self.invalid_reports[name] = found

    def _equivalence_class(self, key: Hashable) -> int:
        """Return a number, the same for equal keys."""
        if len(self._equivalence_classes) >= _MAX_CLASSES:
            self.reset_equivalence_classes()
        return self._equivalence_classes.setdefault(key, len(self._equivalence_classes))

    def reset_equivalence_classes(self) -> None:
        """Number the equivalence classes again."""
        self._equivalence_classes = {}
        for pool_state in self.pool_states.values():
            pool_state.facts.feasibility.clear()
        for name, pending in self.pending_gangs.items():
            self.pending_gangs[name] = replace(
                pending,
                equivalence_class=self._equivalence_classes.setdefault(
                    pending.equivalence_key, len(self._equivalence_classes)
                ),
            )
        self._table_changes = {
            name: pending if pending.min_members else None for name, pending in self.pending_gangs.items()
        } | {name: None for name in self.pending_table.names if name not in self.pending_gangs}


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
    """Return the gang with notified pods ending that are not reprieved any more."""
    for pod in gang.pods:
        if _is_past_reprieve(pod, now):
            return replace(gang, pods=tuple(_apply_deadline(gang, pod, now) for pod in gang.pods))
    return gang


def _is_past_reprieve(pod: Pod, now: float) -> bool:
    return pod.state is NOTIFIED and (pod.limit_reached or pod.deadline < now)


def _apply_deadline(gang: Gang, pod: Pod, now: float) -> Pod:
    if not _is_past_reprieve(pod, now):
        return pod
    return replace(pod, state=ENDING, deadline=max(now, pod.deadline) + gang.grace)
