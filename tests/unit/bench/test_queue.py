"""Kueue's scale test: its load, the times of workloads, the runs in each system, and the outcome."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench import apicores, queue
from bench.kueue import queue_objects
from bench.kueuejobs import job_manifest
from bench.kueueworkloads import WorkloadRun, workload_manifest
from bench.outcome import Outcome
from bench.queue import ADMISSION, KUEUE, LIMITED, PODS, VKGATEWAY, QueueFigures
from bench.queueload import LARGEST, QueueSummary, Work, WorkLog, make_load
from bench.queuepods import PodsRun
from bench.queuetenants import pool_spec, priority_class
from bench.timeline import Key, Timeline
from vkgateway.api.errors import UnavailableError
from vkgateway.kube.client import Client

WORK = Work(name="small-0", queue="cohort-0-queue-0", kind="small", units=1, priority=50, at=0.0, run=0.0)
KEY = (WORK.queue, WORK.name)


# The load


def test_the_whole_load_is_that_of_kueue() -> None:
    load = make_load(LARGEST)
    assert len(load.works) == 15_000
    assert (len(load.cohorts), len(set(load.cohorts.values()))) == (30, 5)
    assert load.ideal == pytest.approx(66.0)
    kinds = {(work.kind, work.units, work.priority, work.run) for work in load.works}
    assert kinds == {("large", 20, 200, 1.0), ("medium", 5, 100, 0.5), ("small", 1, 50, 0.2)}
    assert max(work.at for work in load.works) == pytest.approx(58.8)


@pytest.mark.parametrize(("workloads", "cohorts", "number"), [(1500, 5, 1500), (300, 1, 300), (0, 1, 18)])
def test_small_load_has_all_classes(workloads: int, cohorts: int, number: int) -> None:
    load = make_load(workloads, cohorts=cohorts)
    assert len(load.works) == number
    assert {work.kind for work in load.works} == {"small", "medium", "large"}
    assert len({(work.queue, work.name) for work in load.works}) == number
    assert [work.at for work in load.works] == sorted(work.at for work in load.works)


def test_series_are_the_workloads_of_a_queue_and_class() -> None:
    load = make_load(LARGEST, cohorts=1)
    assert len(load.series) == 6 * 3
    for series in load.series:
        assert len({(work.queue, work.kind) for work in series}) == 1
        assert [work.at for work in series] == sorted(work.at for work in series)
    assert sum(map(len, load.series)) == len(load.works)


# Times of workloads


def test_wait_lasts_until_the_last_admission() -> None:
    log = WorkLog([WORK])
    log.mark_created(WORK)
    began = log.summarize()
    assert (began.makespan, began.ended) == (None, 0)
    created = log.started
    log.mark_admitted(WORK, created + 1.0)
    log.mark_evicted(WORK)
    log.mark_admitted(WORK, created + 3.0)
    log.mark_ended(WORK, created + 4.0)
    log.mark_ended(WORK, created + 9.0)
    done = log.summarize()
    assert (done.ended, done.evictions) == (1, 1)
    assert done.makespan == pytest.approx(4.0)
    assert done.waits["small"] == pytest.approx(3.0)


async def test_run_without_admissions_is_aborted() -> None:
    log = WorkLog([WORK])
    log.mark_created(WORK)
    with pytest.raises(UnavailableError, match="1 workloads wait"):
        await log.wait_ended(limit=9.0, stall=0.0)
    await log.wait_ended(limit=0.0, stall=9.0)  # the limit ends the wait, and the summary has no makespan


# Pods


class Pods(PodsRun):
    """Run of one workload, whose controller creates another pod after an eviction."""

    def __init__(self, log: WorkLog, group: asyncio.TaskGroup) -> None:
        super().__init__(log=log, group=group)
        self.timeline = Timeline(self.handle_end)
        self.evicted: list[Key] = []
        self.finished: list[Key] = []

    def work_of(self, key: Key) -> Work:
        return WORK

    def pod_evicted(self, key: Key) -> None:
        self.evicted.append(key)

    async def finish_pod(self, key: Key) -> None:
        self.finished.append(key)
        self.timeline.mark("ended", key)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_pod_is_finished_after_its_run() -> None:
    log = WorkLog([WORK])
    log.mark_created(WORK)
    async with asyncio.TaskGroup() as group:
        run = Pods(log, group)
        run.pod_admitted(KEY)
        run.start_pod(KEY)
        await asyncio.sleep(0.01)
        await settle()
        run.timeline.mark("gone", KEY)
        await settle()
    assert (run.finished, run.evicted, log.left) == ([KEY], [], 0)


async def test_failed_pod_was_evicted() -> None:
    log = WorkLog([WORK])
    log.mark_created(WORK)
    async with asyncio.TaskGroup() as group:
        run = Pods(log, group)
        run.start_pod(KEY)
        run.timeline.mark("ended", KEY)
        run.timeline.mark("failed", KEY)
        await settle()
        run.start_pod(KEY)  # seen late
        await asyncio.sleep(0.01)
    assert (run.finished, run.evicted, log.left) == ([], [KEY], 1)
    assert log.summarize().evictions == 1


# Workloads of Kueue


class Server(Client):
    """Recorder of patches."""

    def __init__(self) -> None:
        self.patches: list[tuple[str, Any]] = []

    async def patch(self, _resource: object, _name: str, body: Any, **options: Any) -> bytes:  # type: ignore[override]
        self.patches.append((options.get("kind", "merge"), body))
        return b"{}"


def event(*conditions: str) -> bytes:
    """Return a watch event of the workload with these conditions."""
    found = [{"type": kind, "status": "True", "reason": "x", "message": ""} for kind in conditions]
    metadata = {"name": WORK.name, "namespace": WORK.queue, "resourceVersion": "7"}
    return msgspec.json.encode({"type": "MODIFIED", "object": {"metadata": metadata, "status": {"conditions": found}}})


async def test_admitted_workload_finishes_after_its_run() -> None:
    log, server = WorkLog([WORK]), Server()
    log.mark_created(WORK)
    async with asyncio.TaskGroup() as group:
        run = WorkloadRun(server, [WORK], log=log, group=group)
        assert run.handle_event(event("QuotaReserved", "Admitted"), 1.0) == "7"
        await asyncio.sleep(0.01)
        run.handle_event(event("QuotaReserved", "Admitted", "Finished"), 2.0)
    ((kind, ((operation,))),) = ((kind, body) for kind, body in server.patches)
    assert (kind, operation["op"], operation["value"]["type"]) == ("json", "add", "Finished")
    assert log.left == 0


async def test_evicted_workload_releases_its_quota_and_does_not_finish() -> None:
    log, server = WorkLog([WORK]), Server()
    log.mark_created(WORK)
    async with asyncio.TaskGroup() as group:
        run = WorkloadRun(server, [WORK], log=log, group=group)
        run.handle_event(event("QuotaReserved", "Admitted"), 1.0)
        run.handle_event(event("QuotaReserved", "Admitted", "Evicted"), 1.1)
        run.handle_event(event("Evicted"), 1.2)
        await asyncio.sleep(0.01)
    ((kind, patch),) = server.patches
    assert (kind, patch["metadata"], patch["status"]["admission"]) == ("merge", {"resourceVersion": "7"}, None)
    states = {each["type"]: each["status"] for each in patch["status"]["conditions"]}
    assert states == {"QuotaReserved": "False", "Admitted": "False", "Evicted": "True"}
    assert (log.left, log.summarize().evictions) == (1, 1)


# Objects


def test_queue_has_the_quota_of_kueues_test() -> None:
    _, cluster_queue, local_queue = queue_objects({"cohort-0-queue-0": "cohort-0"})
    spec = cluster_queue["spec"]
    (group,) = spec["resourceGroups"]
    assert group["flavors"][0]["resources"] == [
        {"name": "nvidia.com/gpu", "nominalQuota": "20", "borrowingLimit": "100"}
    ]
    assert spec["preemption"] == {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"}
    assert (spec["cohortName"], local_queue["metadata"]["namespace"]) == ("cohort-0", "cohort-0-queue-0")


def test_workload_and_job_request_the_same() -> None:
    workload, job = workload_manifest(WORK), job_manifest(WORK, cohort="cohort-0", run="r")
    (pod_set,) = workload["spec"]["podSets"]
    assert (pod_set["count"], workload["spec"]["priority"]) == (1, 50)
    assert pod_set["template"]["spec"]["containers"][0]["resources"]["requests"] == {"nvidia.com/gpu": "1"}
    assert job["spec"]["suspend"]
    pod = job["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": "1"}}, "Kueue counts no cpu"
    assert pod["priorityClassName"] == priority_class("small", 50)["metadata"]["name"]


def test_pools_evict_without_notice() -> None:
    assert pool_spec("cohort-0")["noticeSeconds"] == 0


def test_api_server_is_restarted_with_its_command_line(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cmdline").write_bytes(b"/bin/kube-apiserver\0--a=b\0")
    (tmp_path / "7/environ").write_bytes(b"PATH=/bin\0GOMAXPROCS=1\0")
    spec = apicores.read_spec(7, root=tmp_path)
    assert spec.argv == ("/bin/kube-apiserver", "--a=b")
    assert spec.env == {"PATH": "/bin", "GOMAXPROCS": "1"}


# The outcome


def figures(what: str, system: str, makespan: float | None, *, workloads: int = 15_000) -> QueueFigures:
    waits = {"large": 1.0, "medium": 2.0, "small": 3.0}
    summary = QueueSummary(ended=workloads, makespan=makespan, waits=waits, evictions=4)
    cpu = {"gateway": 5.0, "kueue": 0.0, "tenants' apiserver": 20.0, "compute apiserver": 10.0, "etcd": 1.0}
    return QueueFigures(workloads=workloads, what=what, system=system, summary=summary, cpu=cpu)


def outcome(*runs: QueueFigures) -> Outcome:
    return queue.build_outcome(runs, notes=[])


def test_runs_of_the_same_form_are_compared() -> None:
    found = outcome(
        figures(ADMISSION, VKGATEWAY, 90.0),
        figures(PODS, VKGATEWAY, 30.0, workloads=1500),
        figures(ADMISSION, KUEUE, 180.0),
        figures(ADMISSION, LIMITED, 100.0, workloads=1500),
        figures(PODS, KUEUE, 20.0, workloads=1500),
    )
    assert [row[5] for row in found.rows] == [0.5, 1.5, 1.0, None, 1.0]
    assert found.rows[0][6:] == [1.0, 2.0, 3.0, 4, 5.0, 30.0, 36.0]
    assert all(len(row) == len(found.columns) for row in found.rows)
    assert [(target.seen, target.is_met) for target in found.targets] == [(15_000, True), (90.0, True), (0.5, True)]


def test_incomplete_run_misses_its_target() -> None:
    ours = figures(ADMISSION, VKGATEWAY, None)
    ours = replace(ours, summary=replace(ours.summary, ended=14_999))
    found = outcome(ours, figures(ADMISSION, KUEUE, 180.0))
    assert found.rows[0][4] is None
    assert [(target.seen, target.is_met) for target in found.targets] == [(14_999, False)]


def test_without_kueue_there_is_no_ratio() -> None:
    found = outcome(figures(ADMISSION, VKGATEWAY, 120.0))
    assert found.rows[0][5] is None
    assert [target.is_met for target in found.targets] == [True, False]
