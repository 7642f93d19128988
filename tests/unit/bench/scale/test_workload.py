"""Trace of a run, and its Jobs."""

from __future__ import annotations

import pytest

from bench.scale.manifests import job_manifest, job_name
from bench.scale.settings import Scale
from bench.scale.workload import job_gpus, make_workload, tenant_names
from vkgateway.scheduler.core.snapshot import LOW


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_trace_requests_about_the_load_in_its_time(seed: int) -> None:
    scale = Scale(seed=seed)
    jobs, warm_up = make_workload(scale)
    played = [job for job in jobs if job.submitted >= warm_up]
    work = sum(job_gpus(job) * job.run for job in played)
    assert work / (scale.gpus * scale.duration) == pytest.approx(scale.load, rel=0.15)
    assert max(job.submitted for job in jobs) <= warm_up + scale.duration
    assert {job.tenant for job in jobs} == set(tenant_names(25))


def test_gangs_that_ran_before_are_submitted_in_the_warm_up_evenly_by_pods() -> None:
    scale = Scale(nodes=100, tenants=4, minutes=2)
    jobs, warm_up = make_workload(scale)
    before = [job for job in jobs if job.submitted < warm_up]
    pods = 0
    for job in before:
        assert job.submitted == pytest.approx(pods / scale.ramp)
        assert job.submitted + job.run >= warm_up
        pods += len(job.shapes)
    assert warm_up == pytest.approx(pods / scale.ramp)
    assert pods > 50  # of 100 nodes


def test_the_same_seed_gives_the_same_trace_and_another_one_another() -> None:
    assert make_workload(Scale(nodes=50)) == make_workload(Scale(nodes=50))
    assert make_workload(Scale(nodes=50)) != make_workload(Scale(nodes=50, seed=2))


def test_times_of_the_platform_follow_from_the_speed() -> None:
    fast, real = Scale(speed=20), Scale(speed=1)
    assert (fast.notice, fast.age_cap, fast.grace) == (1.5, 180, 1)
    assert (real.notice, real.age_cap, real.grace) == (30, 3600, 20)
    assert Scale().guarantee == 240
    assert max(Scale(nodes=50).sizes) == 16


def test_a_job_is_one_gang_whose_evictions_are_no_failures() -> None:
    jobs, _ = make_workload(Scale(nodes=200, tenants=2, minutes=2))
    job = next(job for job in jobs if job.band is LOW and len(job.shapes) > 1)
    body = job_manifest(job, grace=3)
    spec, pod = body["spec"], body["spec"]["template"]["spec"]
    assert body["metadata"]["name"] == job_name(job) == job.id.split("/")[2]
    assert spec["parallelism"] == spec["completions"] == len(job.shapes)
    assert spec["podFailurePolicy"]["rules"][0]["action"] == "Ignore"
    annotations = spec["template"]["metadata"]["annotations"]
    assert annotations == {"vkgateway.io/gang": "job", "kwok.vkgateway.io/run-seconds": f"{job.run:g}"}
    assert pod["priorityClassName"] == "vkgateway-low"
    assert pod["terminationGracePeriodSeconds"] == 3
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert "name" not in spec["template"]["metadata"]
