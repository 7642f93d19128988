"""Summary of a run of training jobs."""

from __future__ import annotations

import pytest

from bench.jobs import GPUS_PER_JOB, GPUS_PER_POD, Job, JobTimes, blocked_seconds, idle_seconds, summarize_run


def job(created: float = 0.0, *, start: float, end: float) -> JobTimes:
    """Return a job that got all its nodes together."""
    return JobTimes(created=created, bound=(start,) * 6, whole=start, ended=end, reported=end + 0.5)


def test_a_job_has_two_parameter_servers_and_four_workers() -> None:
    pods = Job("train").pods
    assert len(pods) == len(set(pods)) == 6
    assert sum("-ps-" in pod for pod in pods) == 2


def test_run_in_which_all_jobs_complete() -> None:
    jobs = [job(1.0, start=1.0, end=6.0), job(2.0, start=6.0, end=11.0)]
    done = summarize_run(jobs, fit=1, until=12.0)
    assert (done.completed, done.makespan, done.held, done.idle) == (2, 10.5, 0.0, 0.0)


def test_incomplete_run_has_no_makespan() -> None:
    done = summarize_run([job(start=0.0, end=5.0), JobTimes(created=0.0)], fit=2, until=60.0)
    assert (done.completed, done.makespan) == (1, None)


def test_pods_of_a_waiting_job_block_gpus() -> None:
    late = JobTimes(created=0.0, bound=(1.0, 2.0, 4.0), whole=4.0, ended=9.0)
    assert blocked_seconds([late], until=20.0) == GPUS_PER_POD * (3.0 + 2.0)
    never = JobTimes(created=0.0, bound=(1.0, 2.0))
    assert blocked_seconds([never], until=20.0) == GPUS_PER_POD * (19.0 + 18.0)
    assert blocked_seconds([never], until=1.5) == GPUS_PER_POD * 0.5, "what happened later is none of the run"


@pytest.mark.parametrize(
    ("fit", "jobs", "seconds"),
    [
        (2, [job(start=0.0, end=5.0), job(start=0.0, end=5.0), job(start=5.0, end=10.0)], 0.0),
        (1, [job(start=1.0, end=6.0), job(start=6.0, end=11.0)], 1.0),
        (1, [job(start=0.0, end=5.0), job(start=7.0, end=12.0)], 2.0),
        (2, [job(start=0.0, end=5.0), job(start=5.0, end=10.0)], 5.0),
        (2, [JobTimes(created=0.0), JobTimes(created=0.0), JobTimes(created=0.0)], 2 * 20.0),
        (1, [job(3.0, start=3.0, end=9.0)], 0.0),
        (1, [JobTimes(created=0.0, bound=(0.0,) * 6, whole=10.0)], 10.0),
    ],
    ids=["no gap", "late start", "gap", "one at a time", "deadlock", "none there", "still at work"],
)
def test_capacity_for_a_waiting_job_is_idle(fit: int, jobs: list[JobTimes], seconds: float) -> None:
    assert idle_seconds(jobs, fit=fit, until=20.0) == GPUS_PER_JOB * seconds
