"""Phases of the starts of pods, as the gateway observes them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from prometheus_client import REGISTRY
from prometheus_client.metrics import MetricWrapperBase

from tests.fakes.apiserver import FakeApiServer
from tests.fakes.clock import EPOCH, FakeClock
from tests.unit.sync.scopes import RecordedRequests, tenant_scope
from vkgateway.api.names import (
    ADMISSION_GATE,
    NAME_ANNOTATION,
    NAMESPACE_ANNOTATION,
    POOL_LABEL,
    TENANT_LABEL,
    UID_ANNOTATION,
    compute_namespace,
)
from vkgateway.api.times import render_time
from vkgateway.clusters.link import ComputeLink
from vkgateway.kinds.events.pulls import Pull
from vkgateway.kinds.events.views import decode_event
from vkgateway.kinds.pods import startup_metrics, startups
from vkgateway.kinds.pods.startup_metrics import SHOWN_IMAGES, STATISTICS, StartStatistics
from vkgateway.kinds.pods.startups import PodStartups
from vkgateway.kinds.pods.translation.start_phases import PHASES
from vkgateway.kube.client import Client
from vkgateway.kube.resources import EVENTS
from vkgateway.runtime.views.pods import decode_compute_pod, decode_tenant_pod

Document = dict[str, Any]
TENANT, KEY, UID = "alpha", ("default", "web"), "t-1"
NAMESPACE = compute_namespace(TENANT, "default")
POOL = "a100.local"


def stamp(seconds: float) -> str:
    return render_time(datetime.fromtimestamp(seconds, UTC))


class Start:
    """A pod of a tenant and its compute pod, of which the observer sees each state at the time of the clock."""

    def __init__(self, client: Client) -> None:
        self.clock = FakeClock(1000.0, origin=EPOCH)
        self.requests = RecordedRequests()
        self.link = ComputeLink("local", client)
        self.scope = tenant_scope(client, clock=self.clock, links={"local": self.link}, requests=self.requests)
        self.startups = PodStartups(self.scope)
        self.created = self.clock.time()
        self.status: Document = {"conditions": [], "containerStatuses": []}
        self.compute_uid = "c-1"

    def tenant(self, *, gates: tuple[str, ...] = (), node: str = "", phase: str = "Pending") -> None:
        document = {
            "metadata": {
                "name": "web",
                "namespace": "default",
                "uid": UID,
                "creationTimestamp": stamp(self.created),
            },
            "spec": {"schedulingGates": [{"name": gate} for gate in gates], "nodeName": node},
            "status": {"phase": phase},
        }
        old = self.scope.cache.pods.store.get(KEY)
        new = decode_tenant_pod(json.dumps(document).encode())
        self.scope.cache.pods.store[KEY] = new
        self.startups.tenant_pod_changed(old, new)

    def remove_tenant_pod(self) -> None:
        self.startups.tenant_pod_changed(self.scope.cache.pods.store.pop(KEY), None)

    def compute(self, *, node: str = "n1", phase: str = "Pending", **conditions: float) -> None:
        """Show the compute pod; `conditions` are types with the time since when they are True."""
        self.status["phase"] = phase
        for kind, since in conditions.items():
            self.status["conditions"].append({"type": kind, "status": "True", "lastTransitionTime": stamp(since)})
        document = {
            "metadata": {
                "name": "web",
                "namespace": NAMESPACE,
                "uid": self.compute_uid,
                "labels": {TENANT_LABEL: TENANT, POOL_LABEL: "a100"},
                "annotations": {NAMESPACE_ANNOTATION: KEY[0], NAME_ANNOTATION: KEY[1], UID_ANNOTATION: UID},
            },
            "spec": {"nodeName": node},
            "status": self.status,
        }
        view = decode_compute_pod(json.dumps(document).encode())
        old = self.link.pods.store.get(view.metadata.key)
        self.link.pods.store[view.metadata.key] = view
        self.link.pods.handle_change(old, view)
        self.startups.compute_pod_changed(KEY)

    def run_container(self, since: float, state: str = "running") -> None:
        self.status["containerStatuses"].append({"name": "main", "state": {state: {"startedAt": stamp(since)}}})

    def event(self, reason: str, message: str, *, name: str = "e", count: int = 1, age: float = 0.0) -> None:
        document = {
            "metadata": {"name": name, "namespace": NAMESPACE, "uid": name},
            "involvedObject": {"namespace": NAMESPACE, "name": "web", "uid": self.compute_uid},
            "reason": reason,
            "message": message,
            "count": count,
            "lastTimestamp": stamp(self.clock.time() - age),
        }
        self.link.events.store[NAMESPACE, name] = decode_event(json.dumps(document).encode())
        self.startups.event_changed("local", (NAMESPACE, name))

    def starting(self) -> list[tuple[str, str]]:
        return list(self.startups.starting())

    def finished(self) -> list[tuple[object, float]]:
        return [(request.key, delay) for request, delay in self.requests.added if request.kind == startups.START.name]


def metric(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"vkgateway_{name}", {"pool": POOL, **labels}) or 0.0


def phase_sum(phase: str) -> float:
    return metric("pod_start_phase_seconds_sum", phase=phase)


@pytest.fixture(autouse=True)
def _no_series() -> Iterator[None]:
    STATISTICS.update_metrics(())
    yield
    STATISTICS.update_metrics(())


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


@pytest.fixture
async def start(server: FakeApiServer) -> AsyncIterator[Start]:
    async with server.client() as client:
        yield Start(client)


async def test_each_phase_is_measured_once_the_pod_is_ready(server: FakeApiServer, start: Start) -> None:
    """The events arrive after the status, and the gateway sees each change 0.2 s after it."""
    start.clock.seconds += 0.2
    start.tenant(gates=(ADMISSION_GATE,))
    assert start.starting() == []
    start.clock.seconds += 5
    start.tenant()
    start.clock.seconds += 1
    start.compute(PodScheduled=start.clock.time() - 0.2)
    assert start.starting() == [(POOL, "sandbox")]
    start.clock.seconds += 2
    start.compute(PodReadyToStartContainers=start.clock.time() - 0.2)
    start.event("Pulling", 'Pulling image "x"', name="e1")
    assert start.starting() == [(POOL, "pull")]
    start.clock.seconds += 30
    start.run_container(start.clock.time() - 0.2)
    start.compute(phase="Running")
    assert start.starting() == [(POOL, "ready")]
    start.clock.seconds += 4
    start.compute(Ready=start.clock.time() - 0.2, phase="Running")
    assert start.finished() == [(UID, 3.0)]
    assert start.starting() == []
    start.event("Pulled", 'Successfully pulled image "x" in 20s (25s including waiting)', name="e2")
    await start.startups.finish_start(UID)

    measured = {phase: phase_sum(phase) for phase in ("admit", "bind", "sandbox", "pull", "start", "ready", "total")}
    assert measured == pytest.approx(
        {"admit": 5, "bind": 1, "sandbox": 2, "pull": 25, "start": 5, "ready": 4, "total": 42}
    )
    assert metric("image_pulls_total", result="pulled") == 1
    (event,) = server.store.all(EVENTS)
    assert (event["reason"], event["type"]) == ("SlowStart", "Normal")
    assert event["message"] == (
        "The pod became ready 42.0 s after its creation: admit 5.0 s, bind 1.0 s, sandbox 2.0 s, pull 25.0 s, "
        "start 5.0 s, ready 4.0 s."
    )


async def test_burst_of_slow_starts_has_few_events_and_all_measurements(
    server: FakeApiServer, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a burst of pods every start is slow: an event for each would make them slower."""

    async def start_slowly(number: int) -> None:
        start.created, start.compute_uid = start.clock.time(), f"c-{number}"
        start.status = {"conditions": [], "containerStatuses": []}
        start.tenant()
        start.clock.seconds += 11 + number
        start.run_container(start.clock.time())
        start.compute(PodScheduled=start.clock.time(), Ready=start.clock.time())
        await start.startups.finish_start(UID)
        start.remove_tenant_pod()

    def reports() -> int:
        return sum("/events" in request for request in server.requests)

    monkeypatch.setattr(startups, "REPORTS_SECONDS", 200.0)
    for number in range(11):
        await start_slowly(number)
    assert reports() == startups.REPORTS_MAX
    start.clock.seconds += 200
    await start_slowly(12)
    assert reports() == startups.REPORTS_MAX + 1
    assert metric("pod_start_phase_seconds_count", phase="total") == 12


async def test_wait_for_the_arbiter_is_no_slow_start(server: FakeApiServer, start: Start) -> None:
    start.tenant(gates=(ADMISSION_GATE,))
    start.clock.seconds += 7200
    start.tenant()
    start.run_container(start.clock.time())
    start.compute(PodScheduled=start.clock.time(), Ready=start.clock.time())
    await start.startups.finish_start(UID)
    assert phase_sum("admit") == pytest.approx(7200, abs=1)
    assert server.store.all(EVENTS) == []


async def test_short_job_is_measured_without_readiness(start: Start) -> None:
    start.tenant(node="a100.local")
    start.run_container(start.clock.time(), "terminated")
    start.compute(PodScheduled=start.clock.time(), phase="Succeeded")
    start.tenant(node="a100.local", phase="Succeeded")
    await start.startups.finish_start(UID)
    assert metric("pod_start_phase_seconds_count", phase="start") == 1
    assert metric("pod_start_phase_seconds_count", phase="ready") == 0


async def test_pod_that_never_ran_is_not_measured(start: Start) -> None:
    start.tenant(node="a100.local")
    start.compute(PodScheduled=start.clock.time(), phase="Failed")
    await start.startups.finish_start(UID)
    assert metric("pod_start_phase_seconds_count", phase="total") == 0
    await start.startups.finish_start(UID)


async def test_pod_from_before_the_gateway_is_not_measured(start: Start) -> None:
    start.created -= 60
    start.tenant(node="a100.local")
    start.run_container(start.clock.time())
    start.compute(Ready=start.clock.time())
    assert start.finished() == []


async def test_request_that_was_dropped_is_repeated(start: Start) -> None:
    start.tenant()
    start.startups.enqueue_complete()
    assert start.finished() == []
    start.run_container(start.clock.time())
    start.compute(Ready=start.clock.time())
    start.startups.enqueue_complete()
    assert start.finished() == [(UID, 3.0)] * 2


async def test_deleted_pod_is_forgotten(start: Start) -> None:
    start.tenant()
    start.compute(PodScheduled=start.clock.time())
    start.remove_tenant_pod()
    assert start.starting() == []


async def test_start_on_another_node_counts_from_the_admission(start: Start) -> None:
    start.tenant()
    start.compute(PodScheduled=start.clock.time())
    start.clock.seconds += 60
    start.compute_uid, start.status = "c-2", {"conditions": [], "containerStatuses": []}
    start.run_container(start.clock.time())
    start.compute(PodScheduled=start.clock.time(), Ready=start.clock.time())
    await start.startups.finish_start(UID)
    assert phase_sum("bind") == pytest.approx(60, abs=1)


async def test_failed_pulls_are_counted_by_cause_and_repetition(start: Start) -> None:
    start.tenant()
    start.compute(PodScheduled=start.clock.time())
    failure = 'Failed to pull image "x": not found'
    start.event("Failed", failure, count=1)
    start.event("Failed", failure, count=1)
    start.event("Failed", failure, count=4)
    start.event("Failed", failure, name="of another start of the gateway", count=7)
    start.event("Failed", failure, name="history", age=600)
    start.event("Failed", "Error: ErrImagePull", name="of the container")
    assert metric("image_pulls_total", result="not_found") == 5


async def test_event_of_another_pod_with_the_name_is_ignored(start: Start) -> None:
    start.tenant()
    start.compute(PodScheduled=start.clock.time())
    start.compute_uid = "c-2"
    start.event("Pulled", 'Container image "x" already present on machine')
    assert metric("image_pulls_total", result="present") == 0


@pytest.mark.parametrize(
    "status",
    [
        {"conditions": "none"},
        {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "yesterday"}]},
        {"containerStatuses": [{"state": {"running": {"startedAt": 7}}}]},
    ],
)
async def test_status_that_no_kubelet_writes_is_ignored(start: Start, status: Document) -> None:
    start.tenant()
    start.status |= status
    start.compute()
    assert start.finished() == []


def test_series_end_with_their_pool_and_images_are_bounded() -> None:
    statistics = StartStatistics()
    for number in range(700):
        statistics.add_pull(POOL, Pull(f"image-{number}", "pulled", float(number), float(number)))
    statistics.add_pull(POOL, Pull("x" * 1000, "denied"))
    statistics.add_start(POOL, {"admit": 1.0, "bind": 2.0})
    statistics.update_metrics({POOL})
    images = [
        sample.labels["image"]
        for family in REGISTRY.collect()
        if family.name == "vkgateway_top_image_pull_seconds"
        for sample in family.samples
    ]
    assert len(images) == SHOWN_IMAGES
    assert "image-699" in images
    assert max(map(len, (image.image for image in statistics.report().images))) <= 256
    assert metric("pod_start_phase_seconds_count", phase="total") == 1

    statistics.update_metrics(())
    assert metric("pod_start_phase_seconds_count", phase="total") == 0
    assert metric("image_pulls_total", result="pulled") == 0
    statistics.update_metrics({POOL})
    assert REGISTRY.get_sample_value("vkgateway_image_pulls_total", {"pool": POOL, "result": "failed"}) == 0


def test_the_series_of_a_pool_do_not_grow_with_its_pods() -> None:
    """The numbers of docs/reference/metrics.md: 10 for pulls, 133 for phases, 2 for each of 20 images."""
    statistics = StartStatistics()
    statistics.update_metrics(["a100.local"])
    assert count_series() == 10
    for number in range(50):
        statistics.add_start("a100.local", dict.fromkeys(PHASES, 1.0))
        statistics.add_pull("a100.local", Pull(f"image:{number}", "pulled", 1.0))
    statistics.update_metrics(["a100.local"])
    assert count_series() == 10 + 133 + 40
    statistics.update_metrics([])
    assert count_series("a100.local") == 0
    StartStatistics().update_metrics([])


def count_series(pool: str = "") -> int:
    """Return the number of series about starts, of all or of one pool."""
    return sum(
        not pool or sample.labels.get("pool") == pool
        for collector in vars(startup_metrics).values()
        if isinstance(collector, MetricWrapperBase)
        for found in collector.collect()
        for sample in found.samples
    )


def test_report_has_the_durations_of_recent_starts_and_failed_images() -> None:
    statistics = StartStatistics()
    for seconds in (1.0, 2.0, 9.0):
        statistics.add_start(POOL, {"admit": seconds})
    statistics.add_pull(POOL, Pull("missing", "not_found"))
    statistics.add_pull(POOL, Pull("large", "pulled", 60.0, 70.0))

    class Tenant:
        def starting(self) -> list[tuple[str, Any]]:
            return [(POOL, "pull"), (POOL, "pull")]

    statistics.sources.add(Tenant().starting)
    report = statistics.report()
    (pool,) = report.pools
    assert (pool.pool, pool.starts, pool.starting) == (POOL, 3, {"pull": 2})
    assert [(each.phase, each.median, each.slowest) for each in pool.phases] == [("admit", 2.0, 9.0)]
    assert [(each.image, each.pulls, each.seconds, each.failures) for each in report.images] == [
        ("large", 1, 60.0, 0),
        ("missing", 0, 0.0, 1),
    ]
