"""Gangs of one pool in a snapshot by state, for schedulers that handle one pool at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from vkgateway.scheduler.core.snapshot import (
    ENDING,
    GUARANTEED,
    NOTIFIED,
    PLACED,
    WAITING,
    Gang,
    Pool,
    PoolKey,
    Quota,
    Snapshot,
)

Rank = tuple[bool, int]
"""Whether a gang is of the guaranteed band, and its priority: higher ranks are scheduled first."""


@dataclass(slots=True)
class PoolGangs:
    """A pool, the quotas in it, and its gangs."""

    pool: Pool
    quotas: dict[str, Quota]
    pending: list[Gang] = field(default_factory=list)
    """Gangs without placed pods, in the order of their rank and age."""
    running: list[Gang] = field(default_factory=list)
    """Gangs that may be evicted: no pod is notified or terminating."""
    terminating: list[Gang] = field(default_factory=list)
    """Gangs that were notified, or terminate."""


def gangs_by_pool(snapshot: Snapshot) -> Iterator[PoolGangs]:
    """Yield each pool. A gang with several pools belongs to the one of its pods, or to its most preferred one."""
    found: dict[PoolKey, PoolGangs] = {
        pool.key: PoolGangs(pool, {quota.tenant: quota for quota in snapshot.quotas if quota.pool == pool.key})
        for pool in snapshot.pools
    }
    for gang in snapshot.gangs:
        key = next((pod.pool for pod in gang.pods if pod.pool is not None), gang.pools[0])
        mine = found.get(key)
        if mine is None:
            continue
        states = {pod.state for pod in gang.pods}
        if states == {WAITING}:
            mine.pending.append(gang)
        elif NOTIFIED in states or ENDING in states:
            mine.terminating.append(gang)
        elif PLACED in states:
            mine.running.append(gang)
    for mine in found.values():
        mine.pending.sort(key=lambda gang: (_descending_rank(gang_rank(gang)), gang.created, gang.id))
        yield mine


def gang_rank(gang: Gang) -> Rank:
    """Return a gang's rank."""
    return gang.band is GUARANTEED, gang.priority


def _descending_rank(rank: Rank) -> tuple[bool, int]:
    return not rank[0], -rank[1]


def requested_amount(gang: Gang, unit: str) -> int:
    """Return the thousandths of a unit that all of a gang's pods request."""
    return sum(pod.shape.amount_of(unit) for pod in gang.pods)


def usage_by_tenant(gangs: Iterable[Gang], unit: str) -> dict[str, int]:
    """Return what placed gangs request, by tenant."""
    found: dict[str, int] = {}
    for gang in gangs:
        found[gang.tenant] = found.get(gang.tenant, 0) + requested_amount(gang, unit)
    return found


def start_time(gang: Gang) -> float:
    """Return when a running gang started."""
    return min((pod.since for pod in gang.pods if pod.state is PLACED), default=0.0)
