"""Arbiter decisions as seen with kubectl: two tenants in one pool of 32 GPUs."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.cluster import REAL, Cluster, Document, Platform, eventually, pod_manifest
from tests.e2e.watching import watching
from tests.support.machine import slowness
from vkgateway.api.names import ADMISSION_GATE, EVICTION_DEADLINE_ANNOTATION
from vkgateway.kinds.pods.translation.conditions import ADMITTED_CONDITION, PREEMPTED

GANG = "vkgateway.io/gang"
RUN_SECONDS = "kwok.vkgateway.io/run-seconds"
LOW: dict[str, Any] = {"priorityClassName": "vkgateway-low"}
NOTICE_SECONDS = math.ceil(15 * slowness())
"""Of pools whose victims a test looks at: that of the platform is shorter."""


@pytest.fixture(scope="module")
def tenants(platform: Platform) -> Iterator[tuple[Cluster, Cluster]]:
    """Yield a tenant that is guaranteed half of the pool, and one that borrows."""
    real = ("--pool", "real") if platform.real else ()
    platform.vkgateway("tenant", "create", "owner", "--pool", "a100:guarantee=nvidia.com/gpu=16", *real)
    platform.vkgateway("tenant", "create", "guest", "--pool", "a100", *real)
    yield platform.tenant("owner"), platform.tenant("guest")
    for name in ("owner", "guest"):
        platform.vkgateway("tenant", "delete", name, "--yes")


@pytest.fixture
def owner(tenants: tuple[Cluster, Cluster]) -> Iterator[Cluster]:
    """Yield the tenant with the guarantee."""
    yield tenants[0]
    delete_workloads(tenants[0])


@pytest.fixture
def guest(tenants: tuple[Cluster, Cluster]) -> Iterator[Cluster]:
    """Yield the tenant without a guarantee."""
    yield tenants[1]
    delete_workloads(tenants[1])


def delete_workloads(cluster: Cluster) -> None:
    cluster.kubectl("delete", "jobs,pods", "--all", "--grace-period=1", "--wait=false")
    eventually(lambda: not list_pods(cluster), what="all pods gone")


def gpu_pod(name: str, amount: int, *, marks: dict[str, str] | None = None, **spec: Any) -> Document:
    """Return a pod that requests GPUs."""
    pod = pod_manifest(name, container={"resources": {"limits": {"nvidia.com/gpu": str(amount)}}}, **spec)
    pod["metadata"]["annotations"] = marks or {}
    return pod


def gpu_job(name: str, amount: int, *, parallelism: int, marks: dict[str, str] | None = None, **spec: Any) -> Document:
    """Return a Job whose pods request GPUs each and are replaced when they fail."""
    template = gpu_pod(name, amount, marks=marks, restartPolicy="Never", **spec)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "parallelism": parallelism,
            "completions": parallelism,
            "backoffLimit": 1000,
            "podFailurePolicy": {
                "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
            },
            "template": {"metadata": {"annotations": marks or {}}, "spec": template["spec"]},
        },
    }


def list_pods(cluster: Cluster, start: str = "") -> list[Document]:
    found = cluster.get("pods")["items"]
    return [pod for pod in found if pod["metadata"]["name"].startswith(start)]


def count_pods(cluster: Cluster, phase: str, start: str = "") -> int:
    return sum(pod["status"]["phase"] == phase for pod in list_pods(cluster, start))


def failed_pods(cluster: Cluster, count: int) -> list[Document]:
    """Wait until this number of pods has failed, and return them.

    The status of a victim may be written after that of the pods that took its place.
    """

    def find() -> list[Document]:
        found = [pod for pod in list_pods(cluster) if pod["status"]["phase"] == "Failed"]
        return found if len(found) >= count else []

    found = eventually(find, what=f"{count} failed pods")
    assert len(found) == count
    return found


def is_gated(document: Document) -> bool:
    return any(gate["name"] == ADMISSION_GATE for gate in document["spec"].get("schedulingGates", ()))


def find_condition(document: Document, kind: str) -> Document:
    found = (entry for entry in document["status"].get("conditions", ()) if entry["type"] == kind)
    return next(found, {})


def pending_reason(cluster: Cluster, name: str) -> str:
    """Return the reason for which a pod waits."""
    return str(find_condition(cluster.get("pod", name), ADMITTED_CONDITION).get("reason", ""))


def wait_for_reason(cluster: Cluster, name: str, reason: str) -> None:
    eventually(lambda: pending_reason(cluster, name) == reason, what=f"{name} waits: {reason}")


def wait_for_message(cluster: Cluster, name: str, *parts: str) -> str:
    """Wait until the message about a pod that waits has these parts, and return it.

    A report from before the last change of the pool lasts half a minute.
    """

    def message() -> str:
        found = str(find_condition(cluster.get("pod", name), ADMITTED_CONDITION).get("message", ""))
        return found if all(part in found for part in parts) else ""

    return eventually(message, what=f"{name} waits: {', '.join(parts)}")


def consistently(condition: Callable[[], bool], *, seconds: float = 3.0) -> None:
    """Check that a condition holds for some seconds."""
    until = time.monotonic() + seconds
    with watching() as watches:
        while time.monotonic() < until:
            assert condition()
            watches.pause(0.3)


def training_objects(name: str) -> list[Document]:
    """Return a job of 2 parameter servers and 4 workers, which form a gang."""
    marks = {GANG: name, "vkgateway.io/gang-min": "6"}
    roles = ["ps-0", "ps-1", "worker-0", "worker-1", "worker-2", "worker-3"]
    return [gpu_pod(f"{name}-{role}", 2, marks=marks, restartPolicy="Never") for role in roles]


@pytest.fixture
def roles(platform: Platform) -> Iterator[Cluster]:
    """Yield a tenant with two pools of hollow nodes, of which the smaller one is full."""
    platform.vkgateway("tenant", "create", "roles", "--pool", "a100", "--pool", "v100")
    cluster = platform.tenant("roles")
    cluster.apply(*(gpu_pod(f"full-{number}", 8, **in_pool("v100")) for number in range(2)))
    eventually(lambda: count_pods(cluster, "Running", "full-") == 2, what="no room left in v100")
    yield cluster
    platform.vkgateway("tenant", "delete", "roles", "--yes")


def in_pool(name: str) -> dict[str, Any]:
    return {"nodeSelector": {"vkgateway.io/pool": name}}


def test_roles_in_several_pools_start_together(roles: Cluster, platform: Platform) -> None:
    marks = {GANG: "mixed", "vkgateway.io/gang-size": "3"}
    trainers = [gpu_pod(f"mixed-trainer-{number}", 1, marks=marks, **in_pool("a100")) for number in range(2)]
    roles.apply(*trainers, gpu_pod("mixed-evaluator", 8, marks=marks, **in_pool("v100")))

    wait_for_reason(roles, "mixed-evaluator", "WaitingForRoom")
    wait_for_reason(roles, "mixed-trainer-0", "WaitingForRoom")
    rooms = ("in a100.local (all fit)", "in v100.local (does not fit); place 1 in v100.local")
    wait_for_message(roles, "mixed-trainer-0", "2 pods of nvidia.com/gpu 1", *rooms)
    [queued] = json.loads(platform.vkgateway("queue", "--tenant", "roles", "-o", "json"))
    assert (queued["name"], queued["pool"], queued["pods"]) == ("mixed", "v100.local", 3)

    roles.kubectl("delete", "pod", "full-0", "--grace-period=1")
    eventually(lambda: count_pods(roles, "Running", "mixed-") == 3, what="all three run")
    nodes = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in list_pods(roles, "mixed-")}
    assert {node.partition(".")[0] for node in nodes.values()} == {"a100", "v100"}
    assert nodes["mixed-evaluator"] == "v100.local"


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_gangs_start_together_or_not_at_all_and_all_complete(guest: Cluster, jobs: int) -> None:
    """The pool has capacity for two gangs and part of a third."""
    names = [f"train{number}" for number in range(jobs)]
    guest.apply(*(document for name in names for document in training_objects(name)))
    started = min(jobs, 2)

    def completed_pods() -> list[Document]:
        found = list_pods(guest)
        return found if sum(pod["status"]["phase"] == "Running" for pod in found) == 6 * started else []

    found = eventually(completed_pods, what="as many gangs as there is room for")
    by_gang = {
        name: {is_gated(pod) for pod in found if pod["metadata"]["name"].startswith(f"{name}-")} for name in names
    }
    assert sorted(map(sorted, by_gang.values())) == [[False]] * started + [[True]] * (jobs - started)
    end_container(guest, "--all", 0)
    eventually(lambda: count_pods(guest, "Succeeded") == 6 * jobs, what="all of them done")


def test_borrowing_gangs_are_evicted_with_notice_when_a_guarantee_is_reclaimed(owner: Cluster, guest: Cluster) -> None:
    low = [gpu_job(f"low{n}", 4, parallelism=2, marks={GANG: "job"}, **LOW) for n in range(4)]
    for job in low:  # replaced only if the eviction does not count
        del job["spec"]["podFailurePolicy"]
        job["spec"]["backoffLimit"] = 0
    guest.apply(*low)
    eventually(lambda: count_pods(guest, "Running") == 8, what="the pool is full of low work")

    owner.apply(gpu_job("train", 8, parallelism=2, marks={GANG: "job"}))
    noticed = eventually(lambda: [pod for pod in list_pods(guest) if is_notified(pod)], what="a notice")
    disrupted = find_condition(noticed[0], "DisruptionTarget")
    assert (disrupted["status"], disrupted["reason"]) == ("True", PREEMPTED)
    assert "owner" not in disrupted["message"]
    eventually(lambda: count_pods(owner, "Running") == 2, what="the guaranteed gang runs")

    failed = failed_pods(guest, 4)
    assert {pod["status"]["reason"] for pod in failed} == {PREEMPTED}
    jobs = {pod["metadata"]["labels"]["job-name"] for pod in failed}
    assert len(jobs) == 2, "two gangs of two make room, and none goes by halves"
    eventually(lambda: sum(map(is_gated, list_pods(guest))) == 4, what="their jobs' new pods wait")


def is_notified(document: Document) -> bool:
    return EVICTION_DEADLINE_ANNOTATION in document["metadata"].get("annotations", {})


@pytest.mark.usefixtures("long_notice")
def test_deadline_is_equal_in_both_clusters_and_one_victim_suffices(
    owner: Cluster, guest: Cluster, platform: Platform
) -> None:
    guest.apply(*(gpu_pod(f"low{n}", 8, **LOW) for n in range(4)))
    eventually(lambda: count_pods(guest, "Running") == 4, what="the pool is full of low work")
    owner.apply(gpu_pod("one", 8))

    def equal_deadlines() -> dict[str, str]:
        above, below = deadlines(guest, "default"), deadlines(platform.compute, "guest--default")
        return above if above == below else {}

    victims = eventually(equal_deadlines, what="a deadline in both clusters")
    owner.wait_pod("one")
    assert [pod["metadata"]["name"] for pod in failed_pods(guest, 1)] == list(victims), "one is enough"
    assert count_pods(guest, "Running") == 3


def deadlines(cluster: Cluster, namespace: str) -> dict[str, str]:
    """Return the deadlines of pods by name."""
    pods = cluster.get("pods", "-n", namespace)["items"]
    return {
        pod["metadata"]["name"]: pod["metadata"]["annotations"][EVICTION_DEADLINE_ANNOTATION]
        for pod in pods
        if is_notified(pod)
    }


@pytest.fixture
def real_guarantee(real: None, platform: Platform) -> Iterator[None]:
    """Guarantee the owner one of the two GPUs of the real node."""
    patch = [{"op": "add", "path": "/spec/pools/1/guarantee", "value": {"nvidia.com/gpu": "1"}}]
    platform.compute.kubectl("patch", "tenant", "owner", "--type=json", "-p", json.dumps(patch))
    yield
    back = [{"op": "remove", "path": "/spec/pools/1/guarantee"}]
    platform.compute.kubectl("patch", "tenant", "owner", "--type=json", "-p", json.dumps(back))


@contextlib.contextmanager
def having_notice(platform: Platform, pool: str, seconds: int) -> Iterator[None]:
    """Give victims in a pool a notice of these seconds within the block."""
    names = [each["name"] for each in platform.compute.get("computecluster", "local")["spec"]["pools"]]
    path = f"/spec/pools/{names.index(pool)}/noticeSeconds"
    patch_cluster(platform, {"op": "add", "path": path, "value": seconds})
    try:
        yield
    finally:
        patch_cluster(platform, {"op": "remove", "path": path})


def patch_cluster(platform: Platform, change: Document) -> None:
    """Change the spec of the compute cluster, and wait until the gateway has accepted that."""
    platform.compute.kubectl("patch", "computecluster", "local", "--type=json", "-p", json.dumps([change]))
    wait_accepted(platform)


def wait_accepted(platform: Platform) -> None:
    """Wait until the gateway has accepted the spec of the compute cluster."""
    generation = platform.compute.get("computecluster", "local")["metadata"]["generation"]
    eventually(
        lambda: platform.compute.get("computecluster", "local")["status"]["observedGeneration"] >= generation,
        what="the spec accepted",
    )


@pytest.fixture
def real_notice(real_guarantee: None, platform: Platform) -> Iterator[None]:
    """Give victims on the real node a notice in which their kubelet writes it into a file."""
    with having_notice(platform, "real", NOTICE_SECONDS):
        yield


@pytest.mark.usefixtures("real_notice")
def test_container_reads_its_deadline_from_a_file(owner: Cluster, guest: Cluster) -> None:
    """The container logs its deadline, because it may end before a program that runs later in it has started."""
    field = {"fieldPath": f"metadata.annotations['{EVICTION_DEADLINE_ANNOTATION}']"}
    podinfo = {"name": "podinfo", "downwardAPI": {"items": [{"path": "eviction-deadline", "fieldRef": field}]}}
    file = "/etc/podinfo/eviction-deadline"
    command = f"echo at first: $(cat {file}); until [ -s {file} ]; do sleep 0.1; done; cat {file}; echo; sleep 3600"
    low = gpu_pod("low", 2, command=command, volumes=[podinfo], **REAL, **LOW)
    low["spec"]["containers"][0]["volumeMounts"] = [{"name": "podinfo", "mountPath": "/etc/podinfo"}]
    guest.apply(low)
    guest.wait_pod("low")
    with subprocess.Popen(
        (*guest.kubectl_command, "logs", "--follow", "low"), stdout=subprocess.PIPE, text=True
    ) as log:
        assert log.stdout is not None
        assert log.stdout.readline() == "at first:\n"
        owner.apply(gpu_pod("high", 1, **REAL))
        deadline = log.stdout.readline().strip()
        log.terminate()
    owner.wait_pod("high")
    (victim,) = failed_pods(guest, 1)
    assert victim["status"]["reason"] == PREEMPTED
    assert victim["metadata"]["annotations"][EVICTION_DEADLINE_ANNOTATION] == deadline


@pytest.fixture
def long_notice(platform: Platform) -> Iterator[int]:
    """Give victims a notice of these seconds, in which a test acts."""
    with having_notice(platform, "a100", NOTICE_SECONDS):
        yield NOTICE_SECONDS


def test_unneeded_victim_is_reprieved(long_notice: int, owner: Cluster, guest: Cluster) -> None:
    guest.apply(*(gpu_pod(f"low{n}", 8, **LOW) for n in range(4)))
    eventually(lambda: count_pods(guest, "Running") == 4, what="the pool is full of low work")
    owner.apply(gpu_pod("one", 8))
    eventually(lambda: any(map(is_notified, list_pods(guest))), what="a notice")
    owner.kubectl("delete", "pod", "one", "--grace-period=1")
    eventually(lambda: not any(map(is_notified, list_pods(guest))), what="the notice is withdrawn")
    consistently(lambda: count_pods(guest, "Running") == 4, seconds=long_notice + 1)


def test_elastic_gang_shrinks_before_evictions_and_grows_again(owner: Cluster, guest: Cluster) -> None:
    elastic = {GANG: "job", "vkgateway.io/gang-min": "2", "vkgateway.io/gang-elastic-max": "6"}
    guest.apply(gpu_job("rigid", 4, parallelism=2, marks={GANG: "job"}, **LOW))
    guest.apply(gpu_job("elastic", 4, parallelism=6, marks=elastic, **LOW))
    eventually(lambda: count_pods(guest, "Running") == 8, what="the pool is full of low work")

    owner.apply(gpu_pod("one", 8))
    owner.wait_pod("one")
    assert count_pods(guest, "Running", "rigid") == 2
    eventually(lambda: count_pods(guest, "Running", "elastic") == 4, what="two of its surplus have gone")

    owner.kubectl("delete", "pod", "one", "--grace-period=1")
    eventually(lambda: count_pods(guest, "Running", "elastic") == 6, what="it grows again")


def end_container(cluster: Cluster, name: str, code: int) -> None:
    """End the containers of a pod, or of all pods (`--all`), with an exit code."""
    cluster.kubectl("annotate", "pod", name, f"kwok.vkgateway.io/exit-code={code}", f"{RUN_SECONDS}=1")


def test_finally_failed_index_is_not_awaited(guest: Cluster) -> None:
    shards = gpu_job("shards", 8, parallelism=2, marks={GANG: "job"})
    fail_index = {"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [3]}}
    del shards["spec"]["backoffLimit"]
    shards["spec"] |= {
        "completionMode": "Indexed",
        "backoffLimitPerIndex": 5,
        "maxFailedIndexes": 2,
        "podFailurePolicy": {"rules": [fail_index]},
    }
    guest.apply(shards)
    eventually(lambda: count_pods(guest, "Running") == 2, what="both indexes run")
    zero, one = (each["metadata"]["name"] for each in sorted(list_pods(guest), key=lambda pod: pod["metadata"]["name"]))
    end_container(guest, one, 3)
    eventually(lambda: guest.get("job", "shards")["status"].get("failedIndexes") == "1", what="index 1 failed for good")
    end_container(guest, zero, 1)
    again = eventually(lambda: [pod for pod in list_pods(guest, "shards-0-") if pod["metadata"]["name"] != zero])
    guest.wait_pod(again[0]["metadata"]["name"])


def test_next_run_with_the_same_gang_name_starts_as_a_gang(guest: Cluster) -> None:
    def run(number: int, **marks: str) -> Document:
        return gpu_job(
            f"nightly-{number}", 8, parallelism=2, marks={GANG: "nightly", "vkgateway.io/gang-size": "2"} | marks
        )

    guest.apply(run(1, **{RUN_SECONDS: "1"}))
    eventually(lambda: guest.get("job", "nightly-1")["status"].get("succeeded") == 2, what="the first run is done")
    guest.apply(*(gpu_pod(f"filler-{n}", 8) for n in range(3)))
    eventually(lambda: count_pods(guest, "Running", "filler-") == 3, what="room for one pod is left")
    guest.apply(run(2))
    waiting = eventually(lambda: list_pods(guest, "nightly-2-"), what="the next run")
    wait_for_reason(guest, waiting[0]["metadata"]["name"], "WaitingForRoom")
    consistently(lambda: count_pods(guest, "Running", "nightly-") == 0)
    guest.kubectl("delete", "pod", "filler-0", "--grace-period=1")
    eventually(lambda: count_pods(guest, "Running", "nightly-2-") == 2, what="the next run starts")


@pytest.fixture
def production(owner: Cluster) -> Iterator[None]:
    """Create two PriorityClasses of the tenant, one of which does not preempt."""
    classes = [
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 10**6}
        for name in ("production", "patient")
    ]
    classes[1]["preemptionPolicy"] = "Never"
    owner.apply(*classes)
    yield
    owner.kubectl("delete", "priorityclass", "production", "patient")


@pytest.mark.usefixtures("production")
def test_higher_priority_preempts_lower_work_of_its_tenant(owner: Cluster) -> None:
    owner.apply(*(gpu_pod(f"old{n}", 8, **in_pool("a100")) for n in range(4)))
    eventually(lambda: count_pods(owner, "Running") == 4, what="the tenant uses all that there is")
    owner.apply(gpu_pod("patient", 1, priorityClassName="patient", **in_pool("a100")))
    wait_for_reason(owner, "patient", "WaitingForRoom")
    owner.apply(gpu_pod("urgent", 1, priorityClassName="production", **in_pool("a100")))
    owner.wait_pod("urgent")
    (failed,) = failed_pods(owner, 1)
    assert failed["status"]["reason"] == PREEMPTED
    message = find_condition(failed, "DisruptionTarget")["message"]
    assert "default/urgent, which has a higher priority (1000000 over 0)" in message
    assert not any(reason == "Preempted" for name in range(4) for reason, _ in owner.events(f"old{name}"))


def test_large_gang_is_not_starved_by_small_ones(guest: Cluster) -> None:
    limited = {"vkgateway.io/gang-run-limit": "10m"}
    guest.apply(*(gpu_pod(f"first{n}", 8, marks=limited, restartPolicy="Never") for n in range(2)))
    eventually(lambda: count_pods(guest, "Running") == 2, what="half of the pool is in use")
    guest.apply(*(gpu_pod(f"big-{n}", 8, marks={GANG: "big", "vkgateway.io/gang-min": "4"}) for n in range(4)))
    wait_for_reason(guest, "big-0", "WaitingForRoom")
    guest.apply(gpu_pod("long", 8))
    wait_for_reason(guest, "long", "BehindReservation")
    guest.apply(
        gpu_pod("short", 8, marks={"vkgateway.io/gang-run-limit": "2s", RUN_SECONDS: "1"}, restartPolicy="Never")
    )
    eventually(lambda: guest.pod_phase("short") == "Succeeded", what="what ends in time runs before")
    for n in range(2):
        end_container(guest, f"first{n}", 0)
    eventually(lambda: count_pods(guest, "Running", "big-") == 4, what="the large gang")
    assert is_gated(guest.get("pod", "long"))


def borrowed_annotation(platform: Platform, name: str) -> str:
    """Return the borrowed annotation of a compute pod of the owner."""
    below = platform.compute.get("pod", name, "-n", "owner--default")
    return str(below["metadata"]["annotations"]["vkgateway.io/borrowed"])


def test_promoted_pods_stay_within_the_guarantee(owner: Cluster, guest: Cluster, platform: Platform) -> None:
    owner.apply(*(gpu_pod(name, 8) for name in ("first", "second")))
    eventually(lambda: count_pods(owner, "Running") == 2, what="the guarantee is in use")
    owner.apply(gpu_pod("third", 8))
    owner.wait_pod("third")
    assert [borrowed_annotation(platform, name) for name in ("first", "third")] == ["false", "true"]
    owner.kubectl("delete", "pod", "first", "--grace-period=1")
    eventually(lambda: borrowed_annotation(platform, "third") == "false", what="it is written down")
    eventually(lambda: "InsideGuarantee" in dict(owner.events("third")), what="its tenant is told")

    platform.kill_gateway()
    owner.apply(gpu_pod("ahead", 8, priorityClassName="vkgateway-guaranteed"))
    owner.wait_pod("ahead")
    guest.apply(gpu_pod("low", 8, **LOW))
    guest.wait_pod("low")
    assert [borrowed_annotation(platform, name) for name in ("second", "third", "ahead")] == ["false", "false", "true"]
    assert "inside the tenant's guarantee" in platform.vkgateway("explain", "third", "--tenant", "owner")
    assert "borrowed" in platform.vkgateway("explain", "ahead", "--tenant", "owner")


@pytest.fixture
def full(owner: Cluster, guest: Cluster) -> None:
    """Use all GPUs: half by the guarantee's owner, whose pods must not be disturbed, the rest by borrowing pods."""
    owner.apply(*(gpu_pod(f"mine{n}", 8) for n in range(2)))
    eventually(lambda: count_pods(owner, "Running") == 2, what="the guarantee is in use")
    guest.apply(*(gpu_pod(f"theirs{n}", 8) for n in range(2)))
    eventually(lambda: count_pods(guest, "Running") == 2, what="the rest is lent")


@pytest.mark.usefixtures("full")
def test_tampering_has_no_effect(guest: Cluster, platform: Platform) -> None:
    guest.apply(gpu_pod("gate", 8))
    eventually(lambda: guest.find("pod", "gate"), what="a pod")
    guest.kubectl("patch", "pod", "gate", "--type=json", "-p", '[{"op": "remove", "path": "/spec/schedulingGates"}]')
    guest.apply(gpu_pod("node", 8, nodeName=guest.get("pod", "theirs0")["spec"]["nodeName"]))
    for name in ("gate", "node"):
        wait_for_reason(guest, name, "WaitingForRoom")
        assert platform.compute.find("pod", name, "-n", "guest--default") is None
    consistently(lambda: count_pods(guest, "Running") == 2)
    guest.kubectl("delete", "pod", "theirs0", "--grace-period=1")
    eventually(lambda: count_pods(guest, "Running") == 2, what="one of them takes the place, by the rules")


@pytest.mark.usefixtures("full")
def test_gated_pod_has_no_compute_pod_and_reports_its_reason(guest: Cluster, platform: Platform) -> None:
    guest.apply(gpu_pod("next", 8))
    wait_for_reason(guest, "next", "WaitingForRoom")
    first = find_condition(guest.get("pod", "next"), ADMITTED_CONDITION)["message"]
    message = wait_for_message(guest, "next", "place 1 in a100.local", "expected start")
    assert "owner" not in message
    assert platform.compute.find("pod", "next", "-n", "guest--default") is None
    expected = ("WaitingForRoom", first.partition("; place")[0])
    eventually(lambda: expected in guest.events("next"), what="an event with the reason")


def test_impossible_request_is_reported_immediately(guest: Cluster) -> None:
    guest.apply(*(gpu_pod(f"huge-{n}", 8, marks={GANG: "huge", "vkgateway.io/gang-min": "5"}) for n in range(5)))
    guest.apply(gpu_pod("wrong", 1, marks={GANG: "wrong", "vkgateway.io/gang-min": "3", "vkgateway.io/gang-size": "2"}))
    guest.apply(gpu_pod("lonely", 1, marks={GANG: "lonely", "vkgateway.io/gang-min": "2"}))
    wait_for_reason(guest, "huge-0", "Infeasible")
    assert "4 of 5" in find_condition(guest.get("pod", "huge-0"), ADMITTED_CONDITION)["message"]
    wait_for_reason(guest, "wrong", "Invalid")
    assert "vkgateway.io/gang-min" in find_condition(guest.get("pod", "wrong"), ADMITTED_CONDITION)["message"]
    wait_for_reason(guest, "lonely", "WaitingForMembers")
    assert "1 of 2 pods created" in find_condition(guest.get("pod", "lonely"), ADMITTED_CONDITION)["message"]


def test_eviction_completes_after_a_gateway_restart(owner: Cluster, guest: Cluster, platform: Platform) -> None:
    guest.apply(*(gpu_job(f"low{n}", 8, parallelism=2, marks={GANG: "job"}, **LOW) for n in range(2)))
    eventually(lambda: count_pods(guest, "Running") == 4, what="the pool is full of low work")
    owner.apply(gpu_job("train", 8, parallelism=2, marks={GANG: "job"}))
    eventually(lambda: any(map(is_notified, list_pods(guest))), what="a notice")
    platform.kill_gateway()
    eventually(lambda: count_pods(owner, "Running") == 2, what="the guaranteed gang runs")
    assert {pod["status"]["reason"] for pod in failed_pods(guest, 2)} == {PREEMPTED}
    assert count_pods(guest, "Running") == 2


def test_no_gang_starts_partially_after_a_gateway_restart(guest: Cluster, platform: Platform) -> None:
    names = ["a", "b", "c"]
    marks = {"vkgateway.io/gang-min": "6"}
    guest.apply(*(gpu_pod(f"{name}-{n}", 2, marks={GANG: name} | marks) for name in names for n in range(6)))
    eventually(lambda: not all(map(is_gated, list_pods(guest))), what="the first gate is lifted")
    platform.kill_gateway()
    eventually(lambda: count_pods(guest, "Running") == 12, what="two gangs run, whole")
    states = {name: {pod["status"]["phase"] for pod in list_pods(guest, f"{name}-")} for name in names}
    assert sorted(map(sorted, states.values())) == [["Pending"], ["Running"], ["Running"]]
    consistently(lambda: count_pods(guest, "Running") == 12)
