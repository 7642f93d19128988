"""Kueue as the scheduler of a pool, with its real controller: starts, borrowing, and reclaim with notice."""

from __future__ import annotations

import datetime
import json
import os
import time
from collections.abc import Iterator
from random import Random

import pytest

from tests.e2e.cluster import Cluster, Document, Platform, eventually
from tests.e2e.foreign_pool import (
    GPU,
    NOTICE,
    POOL,
    WORKLOADS,
    gang_job,
    gpus_by_node,
    list_objects,
    mode_in_effect,
    scheduled_by,
    schedulers_condition,
    set_mode,
)
from tests.e2e.pool_stories import budget_story, kill_story, set_budget, used_nodes
from tests.e2e.test_arbiter import (
    GANG,
    LOW,
    RUN_SECONDS,
    consistently,
    count_pods,
    delete_workloads,
    end_container,
    find_condition,
    gpu_job,
    is_gated,
    is_notified,
    list_pods,
    pending_reason,
)
from tests.support.machine import patience_option
from vkgateway.api.names import COMPUTE_NODE_ANNOTATION, EVICTION_DEADLINE_ANNOTATION
from vkgateway.kinds.pods.translation.conditions import PREEMPTED

SOAK = float(os.environ.get("VKGATEWAY_SOAK_SECONDS", "20"))
"""Seconds for which a test creates gangs."""


@pytest.fixture(scope="module")
def tenants(platform: Platform) -> Iterator[tuple[Cluster, Cluster]]:
    """Yield a tenant that is guaranteed half of the pool, and one that borrows."""
    platform.vkgateway("tenant", "create", "kowner", "--pool", f"{POOL}:guarantee={GPU}=16")
    platform.vkgateway("tenant", "create", "kguest", "--pool", POOL)
    yield platform.tenant("kowner"), platform.tenant("kguest")
    for name in ("kowner", "kguest"):
        platform.vkgateway("tenant", "delete", name, "--yes")


@pytest.fixture(scope="module")
def kueue(
    platform: Platform, tenants: tuple[Cluster, Cluster], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Run Kueue, and switch the pool to it until the last test of this file."""
    with scheduled_by(platform, "kueue", tmp_path_factory.mktemp("kueue")):
        yield
        for tenant in tenants:
            delete_workloads(tenant)


@pytest.fixture
def owner(tenants: tuple[Cluster, Cluster], kueue: None) -> Iterator[Cluster]:
    """Yield the tenant with the guarantee."""
    yield tenants[0]
    delete_workloads(tenants[0])


@pytest.fixture
def guest(tenants: tuple[Cluster, Cluster], kueue: None) -> Iterator[Cluster]:
    """Yield the tenant without a guarantee."""
    yield tenants[1]
    delete_workloads(tenants[1])


def admitted(platform: Platform) -> list[str]:
    """Return the gangs of admitted Workloads."""
    return [
        workload["metadata"]["annotations"]["vkgateway.io/gang-id"]
        for workload in list_objects(platform, WORKLOADS)
        if find_condition(workload, "Admitted").get("status") == "True"
    ]


def test_guaranteed_gang_starts_through_kueue(owner: Cluster, platform: Platform) -> None:
    owner.apply(gang_job("train", 2, 8))
    eventually(lambda: count_pods(owner, "Running", "train") == 2, what="the gang runs")
    assert len(admitted(platform)) == 1
    for pod in platform.compute.get("pods", "-n", "kowner--default")["items"]:
        annotations = pod["metadata"]["annotations"]
        assert annotations[COMPUTE_NODE_ANNOTATION] == pod["spec"]["nodeName"]
        assert annotations["vkgateway.io/borrowed"] == "false"
        assert annotations["kueue.x-k8s.io/podset-unconstrained-topology"] == "true"
        assert pod["spec"]["priorityClassName"] == "vkgateway-guaranteed"
    delete_workloads(owner)
    eventually(lambda: not list_objects(platform, WORKLOADS), what="the Workload is released")


def test_guarantee_is_reclaimed_with_notice_from_a_whole_gang(
    owner: Cluster, guest: Cluster, platform: Platform
) -> None:
    guest.apply(gang_job("low", 4, 8, **LOW))
    eventually(lambda: count_pods(guest, "Running", "low") == 4, what="the low gang borrows the whole pool")
    owner.apply(gang_job("train", 2, 8))
    eventually(lambda: len(notified_pods(guest)) == 4, what="all four pods get their notice")
    victim = notified_pods(guest)[0]
    condition = find_condition(victim, "DisruptionTarget")
    assert condition["reason"] == PREEMPTED
    assert "another tenant's workload" in condition["message"]
    assert "kowner" not in condition["message"]
    deadline = datetime.datetime.fromisoformat(victim["metadata"]["annotations"][EVICTION_DEADLINE_ANNOTATION])
    noticed = datetime.datetime.fromisoformat(condition["lastTransitionTime"])
    assert (deadline - noticed).total_seconds() <= NOTICE + 1, "times are rounded to seconds"
    eventually(lambda: count_pods(owner, "Running", "train") == 2, what="the guaranteed gang runs")
    assert all(amount <= 8 for amount in gpus_by_node(platform).values())
    # Its controller replaced the victims. The gang of four does not fit next to the guarantee, and waits as a whole.
    eventually(
        lambda: [is_gated(pod) for pod in list_pods(guest, "low") if pod["status"]["phase"] == "Pending"] == [True] * 4
    )
    job = guest.get("job", "low")
    assert not job["status"].get("failed")
    name = next(pod["metadata"]["name"] for pod in list_pods(guest, "low") if pod["status"]["phase"] == "Pending")
    eventually(lambda: pending_reason(guest, name) == "WaitingForRoom", what="the low gang waits for room")
    assert "train" not in json.dumps(guest.get("pod", name)["status"])
    queue = platform.vkgateway("queue", "--tenant", "kguest")
    assert "low" in queue
    assert "WaitingForRoom" in platform.vkgateway("explain", name, "--tenant", "kguest")
    consistently(lambda: count_pods(guest, "Running", "low") == 0)
    delete_workloads(owner)
    eventually(lambda: count_pods(guest, "Running", "low") == 4, what="the low gang starts again")


def notified_pods(cluster: Cluster) -> list[Document]:
    """Return the low pods that have a deadline, or had one."""
    return [pod for pod in list_pods(cluster, "low") if is_notified(pod)]


def test_pool_is_filled_pod_by_pod(guest: Cluster, platform: Platform) -> None:
    """A pod that Kueue counted twice would leave room unused."""
    guest.apply(gang_job("first", 1, 4), gang_job("rest", 7, 4))
    eventually(lambda: count_pods(guest, "Running") == 8, what="8 pods of 4 GPUs fill the pool")
    assert sorted(gpus_by_node(platform).values()) == [8] * 4


def test_equal_gangs_start_in_the_order_of_their_places(guest: Cluster, platform: Platform) -> None:
    """Several are created in the same second."""
    guest.apply(gang_job("full", 4, 8))
    eventually(lambda: count_pods(guest, "Running", "full") == 4, what="the first gang fills the pool")
    names = [f"turn{index:02}" for index in range(12)]
    guest.apply(*(gang_job(name, 1, 8) for name in names))
    eventually(lambda: len(places(platform, "kguest")) == len(names), what="all gangs have a place")
    shown = places(platform, "kguest")
    assert sorted(shown.values()) == list(range(1, len(names) + 1))
    order = sorted(names, key=lambda name: shown[name])
    running = ["full"]
    for start in range(0, len(names), 4):
        for name in running:
            guest.kubectl("delete", "job", name, "--wait=false")
        running = order[start : start + 4]
        wait_until_started(guest, running)


def places(platform: Platform, tenant: str) -> dict[str, int]:
    """Return the place of each waiting gang of a tenant, by the name of its Job."""
    report = json.loads(platform.vkgateway("queue", "--tenant", tenant, "-o", "json"))
    return {gang["name"].partition("/")[0]: gang["place"] for gang in report if gang["place"]}


def wait_until_started(cluster: Cluster, names: list[str]) -> None:
    """Wait until exactly these Jobs have a running pod. Pods of deleted Jobs run on for a while."""

    def started_jobs() -> list[str]:
        return [
            pod["metadata"]["labels"]["batch.kubernetes.io/job-name"]
            for pod in list_pods(cluster)
            if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
        ]

    eventually(lambda: sorted(started_jobs()) == sorted(names), what=f"{', '.join(names)} run")


def test_mode_change_is_refused_while_pods_run(guest: Cluster, platform: Platform) -> None:
    guest.apply(gang_job("runs", 1, 8))
    eventually(lambda: count_pods(guest, "Running") == 1, what="the pod runs")
    set_mode(platform, "native")
    eventually(
        lambda: schedulers_condition(platform).get("reason") == "ModeChangeRefused", what="the change is refused"
    )
    assert mode_in_effect(platform) == "kueue"
    set_mode(platform, "kueue")
    eventually(lambda: schedulers_condition(platform).get("status") == "True", what="Kueue schedules the pool")
    assert count_pods(guest, "Running") == 1


def test_gateway_restart_keeps_admitted_gangs(guest: Cluster, platform: Platform) -> None:
    guest.apply(gang_job("stays", 2, 8))
    eventually(lambda: count_pods(guest, "Running") == 2, what="the gang runs")
    uids = {workload["metadata"]["uid"] for workload in list_objects(platform, WORKLOADS)}
    platform.kill_gateway()
    guest.apply(gang_job("later", 2, 8))
    eventually(lambda: count_pods(guest, "Running") == 4, what="the next gang runs after the restart")
    found = {workload["metadata"]["uid"] for workload in list_objects(platform, WORKLOADS)}
    assert uids < found
    assert len(found) == 2
    assert not any(find_condition(pod, "DisruptionTarget") for pod in list_pods(guest))


def test_gateway_that_is_killed_again_and_again_leaves_nothing(
    owner: Cluster, guest: Cluster, platform: Platform
) -> None:
    kill_story(owner, guest, platform, kind=WORKLOADS)


def test_singles_and_gangs_come_and_go(owner: Cluster, guest: Cluster, platform: Platform) -> None:
    """Kueue evicts no gang twice for the same one, and none that runs because it was not reported as ready."""
    random, evictions = Random(1), dict[str, tuple[str, str, str]]()
    until, number = time.monotonic() + SOAK, 0
    while time.monotonic() < until or not (has_completed_jobs(owner) and has_completed_jobs(guest)):
        if time.monotonic() < until:
            marks = {GANG: "job", RUN_SECONDS: str(random.randint(2, 8))}
            count, gpus = random.choice((1, 1, 1, 2, 3, 4)), random.choice((1, 2, 4, 8))
            spec = random.choice(({}, LOW))
            cluster = random.choice((owner, guest))
            cluster.apply(gpu_job(f"soak{number}", gpus, parallelism=count, marks=marks, **spec))
            number += 1
        for workload in list_objects(platform, WORKLOADS):
            evicted, preempted = find_condition(workload, "Evicted"), find_condition(workload, "Preempted")
            if evicted.get("status") == "True":
                gang = workload["metadata"]["annotations"]["vkgateway.io/gang-id"]
                preemptor = preempted.get("message", "").partition("UID: ")[2].partition(",")[0]
                evictions[workload["metadata"]["uid"]] = gang, preemptor, evicted["reason"]
        assert all(amount <= 8 for amount in gpus_by_node(platform).values())
        assert time.monotonic() < until + 300, "gangs are left"
        time.sleep(random.uniform(0, 1.5))
    assert len(set(evictions.values())) == len(evictions)
    assert {reason for _, _, reason in evictions.values()} <= {"Preempted"}
    eventually(lambda: not list_objects(platform, WORKLOADS), what="no Workload left")


def has_completed_jobs(cluster: Cluster) -> bool:
    """Return whether all Jobs of a tenant have completed."""
    jobs = cluster.get("jobs")["items"]
    return all(find_condition(job, "Complete").get("status") == "True" for job in jobs)


def test_cordoned_node_keeps_its_gang(guest: Cluster, platform: Platform) -> None:
    guest.apply(gang_job("stays", 2, 8))
    eventually(lambda: count_pods(guest, "Running", "stays") == 2, what="the gang runs")
    node, *_ = (name for name, used in gpus_by_node(platform).items() if used)
    assigned = assigned_nodes(platform)
    platform.compute.kubectl("cordon", node)
    try:
        consistently(lambda: assigned_nodes(platform) == assigned, seconds=5)
        assert count_pods(guest, "Running", "stays") == 2
    finally:
        platform.compute.kubectl("uncordon", node)


def test_pod_of_a_lost_node_starts_again_elsewhere(guest: Cluster, platform: Platform) -> None:
    """It is not evicted by another tenant."""
    guest.apply(gang_job("moves", 2, 8))
    eventually(lambda: count_pods(guest, "Running", "moves") == 2, what="the gang runs")
    node, other = (name for name, used in gpus_by_node(platform).items() if used)
    manifest = platform.compute.get("node", node)
    platform.compute.kubectl("delete", "node", node)
    try:
        eventually(
            lambda: len(set(used_nodes(platform)) - {node}) == 2 and count_pods(guest, "Running", "moves") == 2,
            seconds=200,
            what="the gang runs on two other nodes",
        )
        assert other in used_nodes(platform)
        assert all(find_condition(pod, "DisruptionTarget").get("reason") != PREEMPTED for pod in list_pods(guest))
        assert len(list_objects(platform, WORKLOADS)) == 1
    finally:
        create_node(platform, manifest)
    delete_workloads(guest)
    eventually(lambda: not list_objects(platform, WORKLOADS), what="the Workload is released")


def assigned_nodes(platform: Platform) -> str:
    """Return what Kueue assigned, as text."""
    return json.dumps([workload["status"].get("admission") for workload in list_objects(platform, WORKLOADS)])


def create_node(platform: Platform, manifest: Document) -> None:
    """Create a hollow node again."""
    kept = {key: manifest["metadata"].get(key, {}) for key in ("name", "labels", "annotations")}
    platform.compute.apply({**manifest, "metadata": kept})
    platform.compute.kubectl("wait", "node", kept["name"], "--for=condition=Ready", patience_option(60))


ADMIN_QUEUE: list[Document] = [
    {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ResourceFlavor",
        "metadata": {"name": "gpus"},
        "spec": {"nodeLabels": {"kubernetes.io/os": "linux"}},
    },
    {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ClusterQueue",
        "metadata": {"name": "gpus"},
        "spec": {
            "namespaceSelector": {},
            "preemption": {"withinClusterQueue": "LowerPriority"},
            "resourceGroups": [
                {
                    "coveredResources": [GPU, "cpu", "memory"],
                    "flavors": [
                        {
                            "name": "gpus",
                            "resources": [
                                {"name": GPU, "nominalQuota": 24},
                                {"name": "cpu", "nominalQuota": 1000},
                                {"name": "memory", "nominalQuota": "1Ti"},
                            ],
                        }
                    ],
                }
            ],
        },
    },
]
"""Queues of an administrator without a topology: Kueue counts GPUs, and assigns no nodes."""


@pytest.fixture
def admin_queues(owner: Cluster, guest: Cluster, platform: Platform) -> Iterator[None]:
    """Pass gangs to queues of the administrator."""
    # Other tests may have left tenants with the pool. Each needs its queue.
    names = [f"{tenant['metadata']['name']}-gpus" for tenant in platform.compute.get("tenants")["items"]]
    platform.compute.apply(*ADMIN_QUEUE, *(local_queue(name) for name in names))
    set_mode(platform, "kueue", queue="{tenant}-gpus", manageQueues=False)
    eventually(lambda: not list_objects(platform, "clusterqueues,localqueues"), what="the gateway's queues are deleted")
    eventually(lambda: guarantee_condition(platform).get("reason") == "QueuesNotManaged", what="no guarantee is kept")
    yield
    for tenant in (owner, guest):
        delete_workloads(tenant)
    eventually(lambda: not list_objects(platform, WORKLOADS), what="no Workload left")
    set_mode(platform, "kueue")
    eventually(lambda: guarantee_condition(platform).get("status") == "True", what="the guarantee is kept again")
    for kind, name in (("clusterqueue", "gpus"), ("resourceflavor", "gpus")):
        platform.compute.kubectl("delete", kind, name)
    platform.compute.kubectl("delete", "localqueue", "-n", "vkgateway-system", *names)


def local_queue(name: str) -> Document:
    """Return a tenant's queue before the administrator's."""
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "LocalQueue",
        "metadata": {"name": name, "namespace": "vkgateway-system"},
        "spec": {"clusterQueue": "gpus"},
    }


def guarantee_condition(platform: Platform) -> Document:
    return find_condition(platform.compute.get("tenant", "kowner"), "GuaranteeKept")


def test_used_up_budget_stops_borrowing(owner: Cluster, platform: Platform) -> None:
    budget_story(owner, platform, tenant="kowner")


def test_quota_of_an_ended_pod_is_free_while_its_gang_runs(owner: Cluster, platform: Platform) -> None:
    set_budget(platform, "kowner", {"resource": GPU, "hours": 0})
    try:
        eventually(lambda: borrowing_limit(platform, "kowner") == "0", what="the queue borrows nothing")
        owner.apply(gang_job("train", 2, 8))
        eventually(lambda: count_pods(owner, "Running", "train") == 2, what="the gang uses the whole guarantee")
        owner.apply(gang_job("next", 1, 8))
        consistently(lambda: count_pods(owner, "Running", "next") == 0, seconds=5)
        end_container(owner, list_pods(owner, "train")[0]["metadata"]["name"], 0)
        eventually(lambda: count_pods(owner, "Running", "next") == 1, what="the next gang runs")
        assert count_pods(owner, "Running", "train") == 1
        counts = [workload["status"].get("reclaimablePods") for workload in list_objects(platform, WORKLOADS)]
        assert sorted(sum(each["count"] for each in found or ()) for found in counts) == [0, 1]
        platform.kill_gateway()
        end_container(owner, next(pod for pod in list_pods(owner, "train") if is_running(pod))["metadata"]["name"], 0)
        eventually(
            lambda: len(list_objects(platform, WORKLOADS)) == 1, what="the Workload of the ended gang is deleted"
        )
    finally:
        set_budget(platform, "kowner")


def borrowing_limit(platform: Platform, tenant: str) -> str | None:
    """Return the number of GPUs that the queue of a tenant may borrow; None: any number, or no queue yet."""
    for queue in list_objects(platform, "clusterqueues"):
        if queue["metadata"]["name"] == f"{tenant}.{POOL}":
            resources = queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"]
            return next((str(each.get("borrowingLimit")) for each in resources if each["name"] == GPU), None)
    return None


def is_running(pod: Document) -> bool:
    return bool(pod["status"]["phase"] == "Running")


@pytest.mark.usefixtures("admin_queues")
def test_queues_of_an_administrator(owner: Cluster, guest: Cluster, platform: Platform) -> None:
    assert guarantee_condition(platform)["status"] == "Unknown"
    eventually(lambda: schedulers_condition(platform)["status"] == "True", what="the queues are ready")
    guest.apply(gang_job("low", 3, 8, **LOW))
    eventually(lambda: count_pods(guest, "Running", "low") == 3, what="the low gang runs")
    guest.apply(gang_job("waits", 1, 8, **LOW))
    name = eventually(lambda: list_pods(guest, "waits"))[0]["metadata"]["name"]
    eventually(lambda: pending_reason(guest, name) == "WaitingForRoom", what="another gang waits for room")
    assert "waits" in platform.vkgateway("queue", "--tenant", "kguest")
    assert "WaitingForRoom" in platform.vkgateway("explain", name, "--tenant", "kguest")
    owner.apply(gang_job("unkept", 2, 8))
    eventually(lambda: len(notified_pods(guest)) == 3, what="the low gang gets its notice")
    eventually(lambda: count_pods(owner, "Running", "unkept") == 2, what="the gang runs")
    assert all(amount <= 8 for amount in gpus_by_node(platform).values())
    for pod in platform.compute.get("pods", "-n", "kowner--default")["items"]:
        assert COMPUTE_NODE_ANNOTATION not in pod["metadata"]["annotations"]
        assert pod["metadata"]["annotations"]["vkgateway.io/borrowed"] == "true"
    assert "borrowed" in platform.vkgateway(
        "explain", list_pods(owner, "unkept")[0]["metadata"]["name"], "--tenant", "kowner"
    )
    delete_workloads(owner)
    eventually(lambda: borrowed_part(platform, "unkept") == [1.0], what="the usage log has the ended pods")


def borrowed_part(platform: Platform, gang: str) -> list[float]:
    """Return the borrowed part of the GPU-hours of a gang; nothing while it is not in the usage log."""
    usage = json.loads(platform.vkgateway("usage", *platform.usage_log(), "--by", "gang,resource", "-o", "json"))
    return [
        each["borrowedHours"] / each["hours"]
        for each in usage
        if each["by"]["gang"].endswith(f"/{gang}") and each["by"]["resource"] == GPU
    ]
