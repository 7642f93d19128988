"""Split of a snapshot into the part of the arbiter and the parts of other schedulers.

The arbiter's part contains no pool of another scheduler, and no gang or pod that waits or runs in such a pool.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from vkgateway.scheduler.core.decisions import Decisions
from vkgateway.scheduler.core.snapshot import Gang, Pod, PoolKey, Snapshot


@dataclass(frozen=True, slots=True)
class SplitSnapshot:
    """Parts of a snapshot. A gang belongs to one part."""

    native: Snapshot
    foreign: Snapshot
    """Pools of other schedulers, with their quotas and gangs. Each gang names one pool."""


def split_snapshot(snapshot: Snapshot, foreign: Collection[PoolKey]) -> SplitSnapshot:
    """Return the parts of a snapshot; `foreign` are the pools of other schedulers.

    A gang that runs in a pool of another scheduler, or prefers one, belongs to that scheduler, and asks only there. All
    other gangs belong to the arbiter, and use only its pools.
    """
    native_gangs: list[Gang] = []
    foreign_gangs: list[Gang] = []
    for gang in snapshot.gangs:
        home = foreign_home(gang, foreign)
        if home is not None:
            foreign_gangs.append(_in_one_pool(gang, home))
        else:
            native_gangs.append(_without_pools(gang, foreign))
    return SplitSnapshot(
        native=replace(
            snapshot,
            pools=tuple(pool for pool in snapshot.pools if pool.key not in foreign),
            quotas=tuple(quota for quota in snapshot.quotas if quota.pool not in foreign),
            gangs=tuple(native_gangs),
        ),
        foreign=replace(
            snapshot,
            pools=tuple(pool for pool in snapshot.pools if pool.key in foreign),
            quotas=tuple(quota for quota in snapshot.quotas if quota.pool in foreign),
            gangs=tuple(foreign_gangs),
        ),
    )


def native_decisions(decisions: Decisions, snapshot: Snapshot, foreign: Collection[PoolKey]) -> Decisions:
    """Return the decisions on gangs of the arbiter, of a cycle over all pools."""
    others = {gang.id for gang in snapshot.gangs if foreign_home(gang, foreign) is not None}
    return replace(
        decisions,
        admits=tuple(each for each in decisions.admits if each.gang not in others),
        evicts=tuple(each for each in decisions.evicts if each.gang not in others),
        holds=tuple(each for each in decisions.holds if each.gang not in others),
    )


def foreign_home(gang: Gang, foreign: Collection[PoolKey]) -> PoolKey | None:
    """Return the pool of another scheduler to which a gang belongs; None: the arbiter schedules the gang."""
    running = dict.fromkeys(pod.pool for pod in gang.pods if pod.pool is not None)
    if running:
        return None if any(pool not in foreign for pool in running) else next(iter(running))
    preferred = (*gang.pools[:1], *(pod.pools[0] for pod in gang.pods if pod.pools))
    return next((pool for pool in preferred if pool in foreign), None)


def _in_one_pool(gang: Gang, pool: PoolKey) -> Gang:
    """Return a gang as it asks in its only pool; pods that cannot run there are left out."""
    pods = tuple(pod for pod in gang.pods if (pod.pool == pool if pod.pool is not None else _may_use(pod, pool)))
    return replace(gang, pods=tuple(replace(pod, pools=()) for pod in pods), pools=(pool,), plan=None)


def _may_use(pod: Pod, pool: PoolKey) -> bool:
    return not pod.pools or pool in pod.pools


def _without_pools(gang: Gang, foreign: Collection[PoolKey]) -> Gang:
    """Return a gang of the arbiter without the pools of other schedulers; the same object if it names none."""
    if not _names_any(gang.pools, foreign) and not any(
        pod.pool in foreign or _names_any(pod.pools, foreign) for pod in gang.pods
    ):
        return gang
    pods = tuple(
        replace(pod, pools=_others(pod.pools, foreign)) if pod.pools else pod
        for pod in gang.pods
        if pod.pool not in foreign and (not pod.pools or _others(pod.pools, foreign))
    )
    return replace(gang, pods=pods, pools=_others(gang.pools, foreign))


def _names_any(pools: Iterable[PoolKey], foreign: Collection[PoolKey]) -> bool:
    return any(pool in foreign for pool in pools)


def _others(pools: Iterable[PoolKey], foreign: Collection[PoolKey]) -> tuple[PoolKey, ...]:
    return tuple(pool for pool in pools if pool not in foreign)
