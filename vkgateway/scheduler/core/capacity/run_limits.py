"""Run limits: when the run of a gang began, how long it may last, and when its eviction is announced.

A pool that enforces run limits evicts a gang whose run reaches its limit. The limit is the declared one, or else the
pool's default for the gang's band. Elsewhere, a declared limit only foretells the end.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from vkgateway.scheduler.core.decisions import Evict
from vkgateway.scheduler.core.snapshot import NOTIFIED, PLACED, Band, Gang, Pod, Policy, Pool, PoolKey

_SORT_ABOVE = 64
"""Number of changes beyond which the order of the runs is sorted as a whole."""


def running_pods(gang: Gang) -> Iterator[Pod]:
    """Yield the pods of a gang's present run, under notice or not. Pods evicted at a limit belong to an ended run."""
    for pod in gang.pods:
        if pod.state is PLACED or (pod.state is NOTIFIED and not pod.limit_reached):
            yield pod


def run_start(gang: Gang) -> float | None:
    """Return when the gang's present run began: the earliest placement of its pods; None: it does not run."""
    elsewhere = gang.part_info.pods_elsewhere if gang.part_info is not None else ()
    start = min((pod.since for pod in running_pods(gang)), default=None)
    other = min((pod.since for pod in elsewhere), default=None)
    return other if start is None else start if other is None else min(start, other)


def known_limit(gang: Gang, pool: Pool) -> float | None:
    """Return the seconds after which a gang's run in this pool ends, as declared or enforced; None: no limit."""
    if gang.run_limit is not None:
        return gang.run_limit
    return pool.default_limits.get(gang.band) if pool.enforces_limits else None


def expected_end(gang: Gang, pool: Pool, policy: Policy, *, since: float, start: float) -> float | None:
    """Return when a pod that was placed at `since` ends; None: unknown. The run of its gang began at `start`.

    A declared limit is the owner's word. Without one, the end is observed of similar gangs, with a margin, and enforced
    at the pool's default at the latest.
    """
    limit = known_limit(gang, pool)
    ends = [] if limit is None else [start + limit]
    if gang.run_limit is None and gang.expected_run is not None:
        ends.append(since + gang.expected_run * policy.run_margin)
    return min(ends, default=None)


class LimitedRun(NamedTuple):
    """Run of a gang that ends at an enforced limit; times are seconds since the epoch."""

    gang: Gang
    start: float
    limit: float
    """Seconds."""

    @property
    def end(self) -> float:
        """Time of the deletion."""
        return self.start + self.limit

    @property
    def notice(self) -> float:
        """Seconds between notice and deletion; a limit shorter than the notice is announced right after the start."""
        gang, limit = self.gang, self.limit
        full = max(0.0, limit - gang.notice) >= gang.brief_run
        return min(limit, gang.notice if full else min(gang.notice, gang.brief_notice))

    @property
    def notice_time(self) -> float:
        return self.end - self.notice


def limited_run(gang: Gang, pools: Iterable[Pool], start: float) -> LimitedRun | None:
    """Return the run of a gang in these pools since `start`; None: no limit is enforced in any of them.

    In several pools, the shortest limit counts: the gang does not run without one of its parts.
    """
    limits = [limit for pool in pools if pool.enforces_limits and (limit := known_limit(gang, pool)) is not None]
    if not limits or min(limits) <= 0:
        return None
    return LimitedRun(gang, start, min(limits))


def limit_evicts(run: LimitedRun, pools: Mapping[PoolKey, Pool], now: float) -> Iterator[Evict]:
    """Yield the evictions of a whole gang at its limit, one for each deadline.

    A late notice is not shortened. Pods whose earlier notice ends sooner keep its deadline.
    """
    deadline = max(run.end, now + run.notice)
    by_deadline: dict[float, list[Pod]] = {}
    for pod in running_pods(run.gang):
        due = min(deadline, pod.deadline) if pod.state is NOTIFIED else deadline
        by_deadline.setdefault(due, []).append(pod)
    for due, pods in sorted(by_deadline.items()):
        yield Evict(
            gang=run.gang.id,
            pods=tuple(pod.uid for pod in pods),
            whole=True,
            makes_room_for="",
            deadline=due,
            lost=sum(_lost_work(run.gang, pod, pools, now) for pod in pods),
            reached_limit=run.limit,
        )


def _lost_work(gang: Gang, pod: Pod, pools: Mapping[PoolKey, Pool], now: float) -> float:
    """Return the unit-seconds since the start or the last checkpoint of a pod."""
    pool = pools.get(pod.pool) if pod.pool is not None else None
    amount = pod.shape.amount_of(pool.loss_resource) if pool is not None else 0
    return max(0.0, now - max(pod.since, gang.checkpoint)) * amount / 1000


class LimitedRuns:
    """Runs that end at enforced limits, in the order of their notices. It follows the gangs of the snapshots."""

    def __init__(self) -> None:
        self._pools: dict[PoolKey, Pool] = {}
        """Pools that enforce limits."""
        self._rules: dict[PoolKey, Mapping[Band, float]] = {}
        """Their default limits."""
        self._runs: dict[str, LimitedRun] = {}
        self._order: list[tuple[float, str]] = []
        """Time of the notice and name of each run, ascending."""

    def update(
        self, pools: Iterable[Pool], gangs: Iterable[Gang], added: Iterable[Gang], deleted: Iterable[Gang]
    ) -> None:
        """Follow a new snapshot: all its gangs, the new or changed ones, and the deleted or replaced ones."""
        self._pools = {pool.key: pool for pool in pools if pool.enforces_limits}
        rules = {key: pool.default_limits for key, pool in self._pools.items()}
        if rules != self._rules:
            self._rules, self._runs, self._order = rules, {}, []
            added, deleted = gangs, ()
        if not rules:
            return
        added = list(added)
        old = [run for gang in (*deleted, *added) if (run := self._runs.pop(gang.id, None)) is not None]
        new = [run for gang in added if (run := self._run_of(gang)) is not None]
        self._runs.update((run.gang.id, run) for run in new)
        if len(old) + len(new) > _SORT_ABOVE:
            self._order = sorted(map(_order_key, self._runs.values()))
            return
        for run in old:
            del self._order[bisect_left(self._order, _order_key(run))]
        for run in new:
            insort(self._order, _order_key(run))

    def due(self, now: float) -> list[LimitedRun]:
        """Return the runs whose notice is due, by name. A run that began at this moment gets its notice next."""
        count = bisect_right(self._order, now, key=lambda entry: entry[0])
        runs = (self._runs[name] for name in sorted(name for _, name in islice(self._order, count)))
        return [run for run in runs if run.start < now]

    def next_notice(self, now: float) -> float | None:
        """Return the time of the first notice that is not due yet; None: there is none."""
        for at in range(bisect_left(self._order, now, key=lambda entry: entry[0]), len(self._order)):
            time, name = self._order[at]
            if time > now or self._runs[name].start >= now:
                return time
        return None

    def _run_of(self, gang: Gang) -> LimitedRun | None:
        keys = {pod.pool for pod in running_pods(gang)}
        pools = [self._pools[key] for key in keys if key in self._pools]
        start = run_start(gang) if pools else None
        return limited_run(gang, pools, start) if start is not None else None


def _order_key(run: LimitedRun) -> tuple[float, str]:
    return run.notice_time, run.gang.id
