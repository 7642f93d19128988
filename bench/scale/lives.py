"""Lifecycle of each gang as seen in its tenant: arrival, start, end, and number of evictions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from bench.platform import GPUS_PER_NODE
from bench.stats import percentile
from bench.timeline import Key, Timeline
from vkgateway_platform.simulate.scenario import Job

_PARTS: Final = 2
"""Suffixes that the Job controller appends to a Job's name: the index and five random characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """Lifecycle of one gang. Times are in seconds since the start of the run. None: it has not happened."""

    gang: str
    arrived: float | None
    """When the last of its first pods existed. No scheduler can start the gang earlier."""
    started: float | None = None
    """When it was admitted first."""
    running: float | None = None
    """When the last pod that its first run needs started to run."""
    ended: float | None = None
    evictions: int = 0


@dataclass(slots=True)
class _Pod:
    """Marks of one pod."""

    seen: float
    admitted: float | None
    ready: float | None
    failed: float | None
    ended: float | None


def job_lives(jobs: Iterable[Job], timeline: Timeline, *, origin: float) -> dict[str, Life]:
    """Return the lifecycle of each job with pods, from the marks of all pods. `origin` is the start of the run."""
    pods = _pods_by_gang(timeline, origin)
    return {job.id: _gang_life(job, pods[job.id]) for job in jobs if job.id in pods}


def pod_gang(key: Key) -> tuple[str, int]:
    """Return the gang of a pod of an Indexed Job, and its index."""
    tenant, name = key
    job, index, _ = name.rsplit("-", _PARTS)
    return f"{tenant}/default/{job}", int(index)


def gpu_seconds(timeline: Timeline, *, start: float, end: float) -> float:
    """Return the GPU-seconds of running pods between two times of the timeline. Every pod uses a node's GPUs."""
    ends = {key: time for mark in ("gone", "ended") for key, time in timeline.times_of(mark).items()}
    spans = ((max(start, ready), min(end, ends.get(key, end))) for key, ready in timeline.times_of("ready").items())
    return GPUS_PER_NODE * sum(max(0.0, until - since) for since, until in spans)


def arrival_delays(jobs: Iterable[Job], lives: Mapping[str, Life]) -> dict[str, float]:
    """Return the seconds between a job's submission in the trace and the existence of its pods."""
    arrived = {job.id: (lives[job.id].arrived, job.submitted) for job in jobs if job.id in lives}
    return {name: time - submitted for name, (time, submitted) in arrived.items() if time is not None}


def run_drifts(jobs: Iterable[Job], lives: Mapping[str, Life]) -> dict[str, float]:
    """Return the seconds that each job held its nodes beyond its run time, for jobs that ran once to their end."""
    found = {}
    for job in jobs:
        life = lives.get(job.id)
        if life is not None and life.started is not None and life.ended is not None and not life.evictions:
            found[job.id] = life.ended - life.started - job.run
    return found


def median_startup(lives: Mapping[str, Life]) -> float:
    """Return the median of the seconds from the admission of a gang until its last pod runs, 0 if none runs."""
    known = [(life.started, life.running) for life in lives.values()]
    found = [running - started for started, running in known if started is not None and running is not None]
    return percentile(found, 0.5) if found else 0.0


def _pods_by_gang(timeline: Timeline, origin: float) -> dict[str, dict[int, list[_Pod]]]:
    """Return the pods by gang and index, in the order of their creation."""
    found: dict[str, dict[int, list[_Pod]]] = {}
    marks = {name: timeline.times_of(name) for name in ("admitted", "ready", "failed", "ended")}
    for key, seen in sorted(timeline.times_of("seen").items(), key=lambda item: item[1]):
        gang, index = pod_gang(key)
        times = {name: _relative_time(origin, at.get(key)) for name, at in marks.items()}
        found.setdefault(gang, {}).setdefault(index, []).append(_Pod(seen=seen - origin, **times))
    return found


def _relative_time(origin: float, time: float | None) -> float | None:
    return None if time is None else time - origin


def _gang_life(job: Job, pods: Mapping[int, list[_Pod]]) -> Life:
    indexes = range(len(job.shapes))
    firsts = [pods[index][0].seen for index in indexes if index in pods]
    return Life(
        gang=job.id,
        arrived=max(firsts) if len(firsts) == len(indexes) else None,
        started=min((pod.admitted for each in pods.values() for pod in each if pod.admitted is not None), default=None),
        running=_last_time([_first_ready(pods.get(index, ())) for index in indexes]),
        ended=_last_time([_succeeded(pods.get(index, ())) for index in indexes]),
        evictions=max((sum(pod.failed is not None for pod in each) for each in pods.values()), default=0),
    )


def _first_ready(pods: Iterable[_Pod]) -> float | None:
    return next((pod.ready for pod in pods if pod.ready is not None), None)


def _succeeded(pods: Iterable[_Pod]) -> float | None:
    return next((pod.ended for pod in pods if pod.ended is not None and pod.failed is None), None)


def _last_time(times: list[float | None]) -> float | None:
    """Return the last of the times, or None unless all are known."""
    known = [time for time in times if time is not None]
    return max(known) if known and len(known) == len(times) else None
