"""Reader of Philly (Microsoft, 2017): `cluster_job_log`, a JSON array of jobs with their attempts.

https://github.com/msr-fiddle/philly-traces. A virtual cluster (`vc`) is a tenant, and a job's last attempt has
its GPUs on each machine. The trace knows no bands: a share of the jobs, chosen by their ids, is low work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from vkgateway.scheduler.core.snapshot import GUARANTEED, LOW, Shape
from vkgateway_platform.simulate.scenario import GPU, Job
from vkgateway_platform.simulate.traces.errors import TraceError
from vkgateway_platform.simulate.traces.hashing import share_by_name


class _Detail(msgspec.Struct):
    gpus: list[str] = []


class _Attempt(msgspec.Struct):
    start_time: str | None = None
    end_time: str | None = None
    detail: list[_Detail] = []


class _Job(msgspec.Struct):
    vc: str
    jobid: str
    submitted_time: str
    attempts: list[_Attempt] = []


def read_jobs(text: bytes, *, low: float) -> tuple[Job, ...]:
    """Return the jobs that ran to an end; their times are relative to the first submission.

    Raises:
        TraceError: it is not such a log.
    """
    try:
        records = msgspec.json.decode(text, type=list[_Job])
    except msgspec.DecodeError as error:
        raise TraceError(f"this is not a cluster_job_log: {error}") from error
    times = [_parse_time(record.submitted_time, record.jobid) for record in records]
    first = min(times, default=0.0)
    found = (_make_job(record, time - first, low) for record, time in zip(records, times, strict=True))
    return tuple(job for job in found if job is not None)


def _make_job(record: _Job, submitted: float, low: float) -> Job | None:
    attempts = list(_finished_attempts(record))
    sizes = [len(detail.gpus) for detail in attempts[-1][1].detail if detail.gpus] if attempts else []
    if not sizes:
        return None
    band = LOW if share_by_name(record.jobid) < low else GUARANTEED
    return Job(
        id=record.jobid,
        tenant=record.vc,
        shapes=_pod_shapes(sizes),
        submitted=submitted,
        run=sum(seconds for seconds, _ in attempts),
        band=band,
        kind=f"{record.vc}/{band}/{sum(sizes)}",
    )


def _pod_shapes(sizes: Sequence[int]) -> tuple[Shape, ...]:
    return tuple(Shape.from_requests({GPU: size * 1000}) for size in sorted(sizes, reverse=True))


def _finished_attempts(record: _Job) -> Iterator[tuple[float, _Attempt]]:
    """Yield the attempts that have both times, with their seconds."""
    for attempt in record.attempts:
        if _is_given(attempt.start_time) and _is_given(attempt.end_time):
            seconds = _parse_time(attempt.end_time, record.jobid) - _parse_time(attempt.start_time, record.jobid)
            if seconds > 0:
                yield seconds, attempt


def _is_given(time: str | None) -> bool:
    return time is not None and time != "None"


def _parse_time(text: str | None, job: str) -> float:
    try:
        return datetime.strptime(text or "", "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    except ValueError as error:
        raise TraceError(f"job {job}: time {text!r} is not like 2017-10-07 01:12:09") from error
