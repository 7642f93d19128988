"""Jobs from the gateway's decision log: submissions and run times."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from vkgateway.scheduler.core.past_share import PastShare
from vkgateway.scheduler.core.snapshot import NOTIFIED, PLACED, Gang, Pool, PoolKey, Quota, Snapshot
from vkgateway.scheduler.core.snapshot_diff import diff_gangs
from vkgateway_platform.simulate.scenario import Job
from vkgateway_platform.simulate.traces.errors import TraceError


@dataclass(slots=True)
class _GangHistory:
    """Gang from its first to its last cycle."""

    gang: Gang
    """Gang in the cycle with its largest number of pods."""
    number: int
    """Number of earlier gangs with its name."""
    since: float | None = None
    """When its last run began. None: it never ran, or was evicted and did not run again."""
    ended: float | None = None


@dataclass(slots=True)
class RecordedTrace:
    """Contents of a log. Times of jobs are in seconds since the first cycle."""

    pools: tuple[Pool, ...]
    """Every pool of the log, in the cycle with its largest number of nodes."""
    quotas: tuple[Quota, ...]
    """Quotas of every tenant of the log, in the first cycle that has them."""
    jobs: tuple[Job, ...]
    duration: float
    begin: float
    """Time of the first cycle, in seconds since the epoch."""
    unknown: int
    """Number of gangs that are left out: they never ran, and no run time of similar gangs is known."""
    notice: float
    """The longest notice of its gangs, in seconds."""
    grace: float
    half_life: float = 0.0
    """Half-life of past shares in the first cycle, in seconds; 0: they do not count."""
    past_shares: tuple[PastShare, ...] = ()
    """Past shares in the first cycle, with times since then."""


@dataclass(slots=True)
class _ReadState:
    first: float = 0.0
    last: float = 0.0
    snapshot: Snapshot | None = None
    half_life: float = 0.0
    past_shares: tuple[PastShare, ...] = ()
    histories: list[_GangHistory] = field(default_factory=list)
    current: dict[str, _GangHistory] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    pools: dict[PoolKey, Pool] = field(default_factory=dict)
    quotas: dict[tuple[str, PoolKey], Quota] = field(default_factory=dict)


def read_decisions(cycles: Iterable[tuple[float, Snapshot]], ends: Mapping[str, float] | None = None) -> RecordedTrace:
    """Return the jobs submitted in these cycles, each a time (seconds since the epoch) and its snapshot.

    `ends` are the ends of gangs in the usage log, which are more exact: the decision log records an end only with the
    next decision. A gang without an end runs for its expected time, or the median of its kind. If it ran longer before
    the end of the log, that time counts.

    Raises:
        TraceError: there are no cycles.
    """
    reading = _ReadState()
    for time, snapshot in cycles:
        if reading.snapshot is None:
            reading.first = time
            reading.half_life = snapshot.policy.half_life
            reading.past_shares = tuple(replace(each, at=each.at - time) for each in snapshot.past_shares)
        _add_cycle(reading, time, snapshot)
    if reading.snapshot is None:
        raise TraceError("the decision log holds no cycle with its snapshot")
    medians = _median_runs(reading, ends or {})
    jobs = [job for life in reading.histories if (job := _make_job(life, reading, ends or {}, medians)) is not None]
    return RecordedTrace(
        pools=tuple(reading.pools.values()),
        quotas=tuple(reading.quotas.values()),
        jobs=tuple(jobs),
        duration=reading.last - reading.first,
        begin=reading.first,
        unknown=len(reading.histories) - len(jobs),
        notice=max((life.gang.notice for life in reading.histories), default=0.0),
        grace=max((life.gang.grace for life in reading.histories), default=0.0),
        half_life=reading.half_life,
        past_shares=reading.past_shares,
    )


def _add_cycle(reading: _ReadState, time: float, snapshot: Snapshot) -> None:
    for pool in snapshot.pools:
        if pool.key not in reading.pools or len(pool.nodes) > len(reading.pools[pool.key].nodes):
            reading.pools[pool.key] = pool
    for quota in snapshot.quotas:
        reading.quotas.setdefault((quota.tenant, quota.pool), quota)
    before = reading.snapshot.gangs if reading.snapshot is not None else ()
    came, gone = diff_gangs(before, snapshot.gangs)
    there = {gang.id for gang in came}
    for gang in gone:
        if gang.id not in there:
            reading.current.pop(gang.id).ended = time
    for gang in came:
        life = reading.current.get(gang.id)
        if life is None:
            number = reading.names.get(gang.id, 0)
            reading.names[gang.id] = number + 1
            life = reading.current[gang.id] = _GangHistory(gang, number)
            reading.histories.append(life)
        if len(gang.pods) > len(life.gang.pods):
            life.gang = gang
        placed = [pod.since for pod in gang.pods if pod.state in (PLACED, NOTIFIED)]
        life.since = min(placed) if placed else None
    reading.snapshot, reading.last = snapshot, time


def _gang_kind(gang: Gang) -> str:
    return f"{gang.tenant}/{gang.band}/{len(gang.pods)}"


def _median_runs(reading: _ReadState, ends: Mapping[str, float]) -> dict[str, float]:
    """Return the median run of each kind, and of all gangs under the empty name."""
    runs: dict[str, list[float]] = {}
    for life in reading.histories:
        run = _known_run(life, ends)
        if run is not None:
            runs.setdefault(_gang_kind(life.gang), []).append(run)
            runs.setdefault("", []).append(run)
    return {kind: statistics.median(each) for kind, each in runs.items()}


def _known_run(life: _GangHistory, ends: Mapping[str, float]) -> float | None:
    if life.since is None:
        return None
    end, exact = life.ended, ends.get(life.gang.id)
    if exact is not None and exact > life.since and (end is None or exact <= end):
        end = exact
    return end - life.since if end is not None and end > life.since else None


def _make_job(
    life: _GangHistory, reading: _ReadState, ends: Mapping[str, float], medians: Mapping[str, float]
) -> Job | None:
    gang = life.gang
    run = _known_run(life, ends)
    if run is None:
        run = gang.expected_run or medians.get(_gang_kind(gang)) or medians.get("") or 0.0
        if life.since is not None:
            run = max(run, reading.last - life.since)
    if not run:
        return None
    before = reading.first - life.since if life.since is not None and life.since < reading.first else 0.0
    if run <= before:
        return None
    return Job(
        id=gang.id if not life.number else f"{gang.id}#{life.number + 1}",
        tenant=gang.tenant,
        shapes=tuple(pod.shape for pod in sorted(gang.pods, key=lambda pod: pod.rank)),
        submitted=max(0.0, gang.created - reading.first),
        run=run - before,
        pools=gang.pools,
        band=gang.band,
        priority=gang.priority,
        minimum=min(gang.minimum, len(gang.pods)),
        elastic=gang.elastic,
        run_limit=gang.run_limit,
        kind=_gang_kind(gang),
    )


def last_ends(usages: Iterable[tuple[str, float]]) -> Iterator[tuple[str, float]]:
    """Yield gangs and the last ends of their pods, from a usage log's gangs and ends."""
    last: dict[str, float] = {}
    for gang, end in usages:
        last[gang] = max(end, last.get(gang, 0.0))
    yield from last.items()
