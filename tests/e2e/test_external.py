"""External schedulers of a pool, each as a real process: a second kube-scheduler, and Koordinator's scheduler."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, Document, Platform, eventually
from tests.e2e.controllers import run_koordinator, run_kube_scheduler
from tests.e2e.foreign_pool import (
    GPU,
    GRACE,
    POOL,
    gang_job,
    gpus_by_node,
    mode_in_effect,
    read_pools,
    schedulers_condition,
    set_mode,
    write_pools,
)
from tests.e2e.pool_stories import budget_story
from tests.e2e.test_arbiter import LOW, consistently, count_pods, delete_workloads, find_condition, list_pods
from vkgateway_platform.binaries.errors import NoNetworkError, NoToolchainError

PLAIN = "plain-scheduler"
KOORDINATOR = "koord-scheduler"
GANG_NAME = "gang.scheduling.koordinator.sh/name"


@pytest.fixture(scope="module")
def tenants(platform: Platform) -> Iterator[tuple[Cluster, Cluster]]:
    """Yield a tenant that is guaranteed half of the pool, and one that borrows."""
    platform.vkgateway("tenant", "create", "xowner", "--pool", f"{POOL}:guarantee={GPU}=16")
    platform.vkgateway("tenant", "create", "xguest", "--pool", POOL)
    yield platform.tenant("xowner"), platform.tenant("xguest")
    for name in ("xowner", "xguest"):
        platform.vkgateway("tenant", "delete", name, "--yes")


@contextlib.contextmanager
def external_pool(platform: Platform, tenants: tuple[Cluster, Cluster], **scheduling: Any) -> Iterator[None]:
    """Switch the pool to an external scheduler until the block ends."""
    pools, former = read_pools(platform), mode_in_effect(platform)
    set_mode(platform, "external", **scheduling)
    eventually(lambda: mode_in_effect(platform) == "external", what="mode external in effect")
    try:
        yield
    finally:
        for tenant in tenants:
            delete_workloads(tenant)
        write_pools(platform, pools)
        eventually(lambda: mode_in_effect(platform) == former, what=f"mode {former} in effect")


@pytest.fixture(scope="module")
def plain(
    platform: Platform, tenants: tuple[Cluster, Cluster], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Cluster, Cluster]]:
    """Run a second kube-scheduler for the pool; guaranteed pods preempt those that borrow."""
    program = platform.vkgateway("binaries", "path", "kube-scheduler").strip()
    platform.compute.apply(*(priority_class(f"external-{band}", value) for band, value in BANDS.items()))
    folder = tmp_path_factory.mktemp("plain")
    with run_kube_scheduler(platform.compute, folder, program=program, name=PLAIN):
        scheduling = {
            "schedulerName": PLAIN,
            "priorityClassName": "external-{band}",
            "podLabels": {"queue": "root.{tenant}"},
            "podAnnotations": {"example.com/gang": "{gang} {minimum}/{size}"},
        }
        with external_pool(platform, tenants, **scheduling):
            yield tenants
    platform.compute.kubectl("delete", "priorityclass", *(f"external-{band}" for band in BANDS))


BANDS = {"guaranteed": 1000, "low": 10}


def priority_class(name: str, value: int) -> Document:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
        "preemptionPolicy": "PreemptLowerPriority",
    }


@pytest.fixture
def users(plain: tuple[Cluster, Cluster]) -> Iterator[tuple[Cluster, Cluster]]:
    """Yield both tenants in the pool of the second kube-scheduler."""
    yield plain
    for tenant in plain:
        delete_workloads(tenant)


def compute_pods(platform: Platform, tenant: str, job: str = "") -> list[Document]:
    """Return the compute pods of a tenant, or of one of its Jobs, that have not ended."""
    found = platform.compute.get("pods", "-n", f"{tenant}--default")["items"]
    return [
        pod
        for pod in found
        if pod["metadata"]["name"].startswith(job) and pod["status"].get("phase") not in ("Succeeded", "Failed")
    ]


def bound_pods(platform: Platform, tenant: str, job: str = "") -> int:
    """Return how many compute pods have a node and do not terminate."""
    return sum(
        bool(pod["spec"].get("nodeName")) and "deletionTimestamp" not in pod["metadata"]
        for pod in compute_pods(platform, tenant, job)
    )


def test_gang_starts_with_the_marks_of_the_pool(users: tuple[Cluster, Cluster], platform: Platform) -> None:
    owner, _ = users
    assert schedulers_condition(platform)["status"] == "True"
    owner.apply(gang_job("train", 2, 8))
    eventually(lambda: count_pods(owner, "Running", "train") == 2, what="the gang runs")
    gangs = set()
    for pod in compute_pods(platform, "xowner"):
        assert pod["spec"]["schedulerName"] == PLAIN
        assert pod["spec"]["priorityClassName"] == "external-guaranteed"
        assert pod["spec"]["terminationGracePeriodSeconds"] <= GRACE
        assert pod["metadata"]["labels"]["queue"] == "root.xowner"
        assert pod["metadata"]["annotations"]["vkgateway.io/borrowed"] == "false"
        gangs.add(pod["metadata"]["annotations"]["example.com/gang"])
    (gang,) = gangs
    assert gang.startswith("xowner-")
    assert gang.endswith(" 2/2")


def test_tenant_cannot_set_or_change_the_marks(users: tuple[Cluster, Cluster], platform: Platform) -> None:
    _, guest = users
    job = gang_job("train", 1, 8)
    job["spec"]["template"]["metadata"]["labels"] = {"queue": "root.xowner"}
    guest.apply(job)
    eventually(lambda: count_pods(guest, "Running", "train") == 1, what="the pod runs")

    def labels() -> dict[str, str]:
        (pod,) = compute_pods(platform, "xguest", "train")
        found: dict[str, str] = pod["metadata"]["labels"]
        return found

    assert labels()["queue"] == "root.xguest"
    (pod,) = list_pods(guest, "train")
    guest.kubectl("label", "pod", pod["metadata"]["name"], "--overwrite", "queue=root.other", "seen=yes")
    eventually(lambda: labels().get("seen") == "yes", what="other labels are forwarded")
    assert labels()["queue"] == "root.xguest"
    guest.kubectl("label", "pod", pod["metadata"]["name"], "queue-", "seen-")
    eventually(lambda: "seen" not in labels(), what="the removal is forwarded")
    assert labels()["queue"] == "root.xguest"


def test_pods_without_room_say_why(users: tuple[Cluster, Cluster], platform: Platform) -> None:
    owner, guest = users
    owner.apply(gang_job("train", 4, 8))
    eventually(lambda: count_pods(owner, "Running", "train") == 4, what="the pool is full")
    guest.apply(gang_job("waits", 1, 8))
    eventually(lambda: len(compute_pods(platform, "xguest")) == 1, what="the pod is passed on")

    def reason() -> str:
        (pod,) = list_pods(guest, "waits")
        return str(find_condition(pod, "vkgateway.io/PoolScheduled").get("message", ""))

    eventually(lambda: "Insufficient nvidia.com/gpu" in reason(), what="the tenant sees the scheduler's reason")
    (pod,) = list_pods(guest, "waits")
    for foreign in ("xowner", "train", "--", *gpus_by_node(platform)):
        assert foreign not in json.dumps(pod["status"])
    delete_workloads(owner)
    eventually(lambda: count_pods(guest, "Running", "waits") == 1, what="the pod starts")


def test_rest_of_a_preempted_gang_is_swept_and_starts_again(users: tuple[Cluster, Cluster], platform: Platform) -> None:
    owner, guest = users
    guest.apply(gang_job("low", 4, 8, **LOW))
    eventually(lambda: count_pods(guest, "Running", "low") == 4, what="the low gang borrows the whole pool")
    victims = {pod["metadata"]["name"] for pod in list_pods(guest, "low")}
    reasons: dict[str, str] = {}
    owner.apply(gang_job("train", 2, 8))

    def is_swept() -> bool:
        for pod in list_pods(guest, "low"):
            if (name := pod["metadata"]["name"]) in victims:
                reasons[name] = find_condition(pod, "DisruptionTarget").get("reason", "")
                assert "xowner" not in json.dumps(pod["status"])
        left = victims & {
            pod["metadata"]["name"]
            for pod in compute_pods(platform, "xguest", "low")
            if "deletionTimestamp" not in pod["metadata"]
        }
        return not left and bound_pods(platform, "xowner", "train") == 2

    eventually(is_swept, what="the broken gang is swept, and the guaranteed gang is bound")
    eventually(lambda: not victims & {pod["metadata"]["name"] for pod in compute_pods(platform, "xguest")})
    assert set(reasons.values()) <= {"PreemptionByScheduler", "DeletionByComputeCluster", "PreemptionByVkgateway", ""}
    assert not guest.get("job", "low")["status"].get("failed")
    delete_workloads(owner)
    # The Job controller creates new pods only after a while, the longer the more pods have ended.
    eventually(lambda: count_pods(guest, "Running", "low") == 4, seconds=180, what="the gang starts again")


def test_silent_deletion_by_the_scheduler_breaks_a_gang(users: tuple[Cluster, Cluster], platform: Platform) -> None:
    _, guest = users
    guest.apply(gang_job("low", 3, 8))
    eventually(lambda: count_pods(guest, "Running", "low") == 3, what="the gang runs")
    before = {pod["metadata"]["uid"] for pod in compute_pods(platform, "xguest")}
    name = compute_pods(platform, "xguest")[0]["metadata"]["name"]
    platform.compute.kubectl("delete", "pod", name, "-n", "xguest--default", "--wait=false")
    eventually(
        lambda: not before & {pod["metadata"]["uid"] for pod in compute_pods(platform, "xguest")},
        what="the rest is swept",
    )
    eventually(lambda: count_pods(guest, "Running", "low") == 3, seconds=180, what="the gang starts again")
    assert not guest.get("job", "low")["status"].get("failed")


def test_pod_that_its_tenant_deletes_breaks_nothing(users: tuple[Cluster, Cluster], platform: Platform) -> None:
    _, guest = users
    guest.apply(gang_job("stays", 3, 8))
    eventually(lambda: count_pods(guest, "Running", "stays") == 3, what="the gang runs")
    before = {pod["metadata"]["uid"] for pod in compute_pods(platform, "xguest")}
    guest.kubectl("delete", "pod", list_pods(guest, "stays")[0]["metadata"]["name"], "--wait=false")
    eventually(
        lambda: len(before & {pod["metadata"]["uid"] for pod in compute_pods(platform, "xguest")}) == 2,
        what="the pod is deleted",
    )
    eventually(lambda: count_pods(guest, "Running", "stays") == 3, what="its replacement runs")
    assert len(before & {pod["metadata"]["uid"] for pod in compute_pods(platform, "xguest")}) == 2


def test_used_up_budget_stops_borrowing(users: tuple[Cluster, Cluster], platform: Platform) -> None:
    budget_story(users[0], platform, tenant="xowner")


def test_gateway_restart_keeps_gangs(users: tuple[Cluster, Cluster], platform: Platform) -> None:
    _, guest = users
    guest.apply(gang_job("stays", 2, 8))
    eventually(lambda: count_pods(guest, "Running") == 2, what="the gang runs")
    before = {pod["metadata"]["uid"] for pod in compute_pods(platform, "xguest")}
    platform.kill_gateway()
    guest.apply(gang_job("later", 2, 8))
    eventually(lambda: count_pods(guest, "Running") == 4, what="the next gang runs after the restart")
    assert before <= {pod["metadata"]["uid"] for pod in compute_pods(platform, "xguest")}


@pytest.fixture(scope="module")
def koordinator(
    platform: Platform, tenants: tuple[Cluster, Cluster], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Cluster, Cluster]]:
    """Run Koordinator's scheduler for the pool; it starts gangs as a whole."""
    scheduling = {
        "schedulerName": KOORDINATOR,
        "podAnnotations": {GANG_NAME: "{gang}", "gang.scheduling.koordinator.sh/min-available": "{minimum}"},
    }
    with contextlib.ExitStack() as stack:
        try:
            folder = tmp_path_factory.mktemp("koordinator")
            stack.enter_context(run_koordinator(platform.compute, folder, name=KOORDINATOR))
        except (NoNetworkError, NoToolchainError) as error:
            pytest.skip(f"Koordinator cannot be built here: {error}")
        stack.enter_context(external_pool(platform, tenants, **scheduling))
        yield tenants


def test_koordinator_starts_gangs_as_a_whole(koordinator: tuple[Cluster, Cluster], platform: Platform) -> None:
    owner, guest = koordinator
    owner.apply(gang_job("train", 2, 8))
    eventually(lambda: count_pods(owner, "Running", "train") == 2, what="the first gang runs")
    guest.apply(gang_job("waits", 3, 8))
    eventually(lambda: len(compute_pods(platform, "xguest")) == 3, what="the second gang is passed on")
    consistently(lambda: bound_pods(platform, "xguest") == 0, seconds=5)
    for pod in list_pods(guest, "waits"):
        assert "xowner" not in json.dumps(pod["status"])
        assert "--" not in json.dumps(pod["status"])
    delete_workloads(owner)
    eventually(lambda: count_pods(guest, "Running", "waits") == 3, what="the second gang runs")
