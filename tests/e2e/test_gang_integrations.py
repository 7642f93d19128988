"""Gangs of real controllers: KubeRay and JobSet in a tenant, coscheduling's PodGroup, Kueue's labels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e import controllers
from tests.e2e.cluster import Cluster, Document, Platform, eventually, pod_manifest
from tests.e2e.published import module_folder
from tests.e2e.test_arbiter import consistently
from vkgateway.api.names import ADMISSION_GATE

SCHEDULER_PLUGINS = "0.33.5"
GPUS: dict[str, Any] = {"resources": {"limits": {"nvidia.com/gpu": "8"}}}
A100: dict[str, Any] = {"nodeSelector": {"vkgateway.io/pool": "a100"}}


@pytest.fixture(scope="module")
def team(platform: Platform) -> Iterator[Cluster]:
    """Yield a tenant in two pools of hollow nodes: four nodes with 8 GPUs each, and two."""
    platform.vkgateway("tenant", "create", "team", "--pool", "a100", "--pool", "v100")
    yield platform.tenant("team")
    platform.vkgateway("tenant", "delete", "team", "--yes")


@pytest.fixture(scope="module")
def ray(team: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run KubeRay's operator."""
    with controllers.run_kuberay(team, tmp_path_factory.mktemp("kuberay")):
        yield


@pytest.fixture(scope="module")
def jobset(team: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run JobSet's controller."""
    with controllers.run_jobset(team, tmp_path_factory.mktemp("jobset")):
        yield


@pytest.fixture
def blockers(team: Cluster) -> Iterator[list[str]]:
    """Block three nodes of the pool, and delete all objects of the test at its end.

    The Jobs of a set are deleted, too. Otherwise its controller would take them for failed Jobs of the next set with
    the same name.
    """
    names = [f"full-{number}" for number in range(3)]
    team.apply(*(pod_manifest(name, container=GPUS, **A100) for name in names))
    for name in names:
        team.wait_pod(name)
    yield names
    for kind in ("rayclusters", "jobsets", "podgroups.scheduling.x-k8s.io"):
        team.try_kubectl("delete", kind, "--all", "--cascade=foreground", "--wait=true")
    team.kubectl("delete", "pods", "--all", "--grace-period=1")


def gang_pods(cluster: Cluster) -> dict[str, Document]:
    """Return the pods of the gang by name, without the blockers."""
    found = {pod["metadata"]["name"]: pod for pod in cluster.get("pods")["items"]}
    return {name: pod for name, pod in found.items() if not name.startswith("full-")}


def count_phases(cluster: Cluster) -> dict[str, int]:
    """Return the number of gated pods, and of other pods by phase."""
    counted: dict[str, int] = {}
    for pod in gang_pods(cluster).values():
        gates = {gate["name"] for gate in pod["spec"].get("schedulingGates", ())}
        state = "gated" if ADMISSION_GATE in gates else pod["status"]["phase"]
        counted[state] = counted.get(state, 0) + 1
    return counted


def json_output(platform: Platform, *args: str) -> Any:
    return json.loads(platform.vkgateway(*args, "-o", "json"))


def pending_gangs(platform: Platform) -> dict[str, tuple[str, int, str]]:
    """Return the tenant's pending gangs by name: integration, number of pods, and reason."""
    found = json_output(platform, "queue", "--tenant", "team")
    return {entry["name"]: (entry["way"], entry["pods"], entry["code"]) for entry in found}


def explained_gang(platform: Platform, name: str) -> Any:
    """Return the output of `explain` about a pod's gang."""
    return json_output(platform, "explain", name, "--tenant", "team")["gang"]


def delete_pod(cluster: Cluster, name: str) -> None:
    cluster.kubectl("delete", "pod", name, "--grace-period=1")


def ray_cluster(*, workers: int, head: dict[str, Any], **spec: Any) -> Document:
    """Return a RayCluster. `spec` applies to its one worker group, whose pods use a whole node each."""

    def template(container: dict[str, Any]) -> Document:
        return {"spec": {"containers": [{"name": "ray", "image": "ray:2", **container}], **A100}}

    bounds = {"minReplicas": 0, "maxReplicas": 4} | spec.pop("bounds", {})
    group = {"groupName": "big", "replicas": workers, "rayStartParams": {}, "template": template(GPUS)}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "ray", "namespace": "default"},
        "spec": {
            "headGroupSpec": {"rayStartParams": {}, "template": template(head)},
            "workerGroupSpecs": [group | bounds],
            **spec,
        },
    }


@pytest.mark.usefixtures("ray")
def test_ray_cluster_starts_as_a_gang(platform: Platform, team: Cluster, blockers: list[str]) -> None:
    """Head and two workers need three nodes, of which one is free."""
    team.apply(ray_cluster(workers=2, head=GPUS))
    pending = ("ray", 3, "WaitingForRoom")
    eventually(lambda: pending_gangs(platform).get("ray") == pending, what="the cluster waits for room, whole")
    assert count_phases(team) == {"gated": 3}
    assert (explained_gang(platform, next(iter(gang_pods(team))))["minimum"], len(gang_pods(team))) == (3, 3)
    delete_pod(team, blockers[0])
    consistently(lambda: count_phases(team) == {"gated": 3})
    delete_pod(team, blockers[1])
    eventually(lambda: count_phases(team) == {"Running": 3}, what="head and workers run")


@pytest.mark.usefixtures("ray")
def test_autoscaled_ray_cluster_starts_with_its_minimum(platform: Platform, team: Cluster, blockers: list[str]) -> None:
    """The head needs no GPU and starts immediately. Of three workers, one is enough."""
    scaled = {"enableInTreeAutoscaling": True, "bounds": {"minReplicas": 1}}
    team.apply(ray_cluster(workers=3, head={}, **scaled))
    eventually(lambda: count_phases(team) == {"Running": 2, "gated": 2}, what="head and one worker run")
    facts = explained_gang(platform, next(iter(gang_pods(team))))
    assert (facts["name"], facts["minimum"], facts["pods"], facts["waiting"]) == ("ray", 2, 4, 2)
    delete_pod(team, blockers[0])
    eventually(lambda: count_phases(team) == {"Running": 3, "gated": 1}, what="it grows by one")


def replicated_jobs(name: str, replicas: int, pods: int) -> Document:
    """Return identical Jobs of a JobSet, whose pods use a whole node each."""
    container = pod_manifest("any", container=GPUS)["spec"]["containers"]
    job = {"parallelism": pods, "completions": pods, "template": {"spec": {"containers": container}}}
    return {"name": name, "replicas": replicas, "template": {"spec": job | {"backoffLimit": 0}}}


def job_set(*replicated: Document, annotations: dict[str, str] | None = None, **spec: Any) -> Document:
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "set", "namespace": "default", "annotations": annotations or {}},
        "spec": {"replicatedJobs": list(replicated), **spec},
    }


def in_pool(document: Document) -> Document:
    document["template"]["spec"]["template"]["spec"] |= A100
    return document


@pytest.mark.usefixtures("jobset")
def test_jobset_starts_as_a_gang(platform: Platform, team: Cluster, blockers: list[str]) -> None:
    """A driver and two Jobs of one pod need three nodes, of which one is free."""
    team.apply(job_set(in_pool(replicated_jobs("driver", 1, 1)), in_pool(replicated_jobs("worker", 2, 1))))
    pending = ("jobset", 3, "WaitingForRoom")
    eventually(lambda: pending_gangs(platform).get("set") == pending, what="the set waits for room, whole")
    assert count_phases(team) == {"gated": 3}
    assert explained_gang(platform, next(iter(gang_pods(team))))["minimum"] == 3
    delete_pod(team, blockers[0])
    consistently(lambda: count_phases(team) == {"gated": 3})
    delete_pod(team, blockers[1])
    eventually(lambda: count_phases(team) == {"Running": 3}, what="all Jobs run")


@pytest.mark.usefixtures("jobset")
def test_restarted_jobset_waits_until_all_pods_fit(platform: Platform, team: Cluster, blockers: list[str]) -> None:
    """The driver has succeeded and its node is taken, so that only two of three pods fit."""
    delete_pod(team, blockers[0])
    delete_pod(team, blockers[1])
    driver, worker = in_pool(replicated_jobs("driver", 1, 1)), in_pool(replicated_jobs("worker", 2, 1))
    driver["template"]["spec"]["template"]["metadata"] = {"annotations": {"kwok.vkgateway.io/run-seconds": "2"}}
    worker["template"]["spec"]["template"]["spec"]["restartPolicy"] = "Never"
    team.apply(job_set(driver, worker, failurePolicy={"maxRestarts": 1}))
    eventually(lambda: count_phases(team) == {"Running": 2, "Succeeded": 1}, what="its driver has ended")
    team.apply(pod_manifest("full-late", container=GPUS, **A100))
    team.wait_pod("full-late")
    first = gang_pods(team)
    delete_pod(team, next(name for name in first if name.startswith("set-worker-0-")))
    pending = ("jobset", 3, "WaitingForRoom")
    eventually(lambda: pending_gangs(platform).get("set/restart-1") == pending, what="the next attempt waits, whole")
    assert count_phases(team) == {"gated": 3}
    assert not first.keys() & gang_pods(team).keys()
    assert explained_gang(platform, next(iter(gang_pods(team))))["minimum"] == 3
    delete_pod(team, "full-late")
    eventually(lambda: count_phases(team) == {"Running": 3}, what="all Jobs run again")


@pytest.mark.usefixtures("jobset")
def test_ordered_jobs_of_a_jobset_are_separate_gangs(platform: Platform, team: Cluster, blockers: list[str]) -> None:
    team.apply(
        job_set(
            in_pool(replicated_jobs("driver", 1, 1)),
            in_pool(replicated_jobs("worker", 1, 2)),
            startupPolicy={"startupPolicyOrder": "InOrder"},
        )
    )
    eventually(lambda: count_phases(team) == {"Running": 1, "gated": 2}, what="the driver runs, and its workers wait")
    eventually(lambda: pending_gangs(platform).get("set/worker", ("", 0, ""))[1] == 2, what="two wait for room")
    delete_pod(team, blockers[0])
    delete_pod(team, blockers[1])
    eventually(lambda: count_phases(team) == {"Running": 3}, what="all Jobs run")


@pytest.mark.usefixtures("jobset", "blockers")
def test_exclusive_jobs_of_a_jobset_get_a_pool_each(team: Cluster) -> None:
    """The webhook refuses all but the first pod of each Job until that has a node, so no gang contains them all."""
    delete_pod(team, "full-0")
    exclusive = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "vkgateway.io/pool"}
    team.apply(job_set(replicated_jobs("worker", 2, 2), annotations=exclusive))
    eventually(lambda: count_phases(team) == {"Running": 4}, what="both Jobs run")
    places = {(name.split("-")[2], pod["spec"]["nodeName"].split(".")[0]) for name, pod in gang_pods(team).items()}
    assert sorted(pool for _, pool in places) == ["a100", "v100"]


def test_coscheduling_pod_group_starts_as_a_gang(platform: Platform, team: Cluster, blockers: list[str]) -> None:
    crd = module_folder("sigs.k8s.io/scheduler-plugins", SCHEDULER_PLUGINS) / "manifests" / "coscheduling" / "crd.yaml"
    team.kubectl("apply", "-f", str(crd))
    served = "podgroups.scheduling.x-k8s.io"
    eventually(lambda: team.try_kubectl("get", served).code == 0, what="PodGroups served")
    team.apply(
        {
            "apiVersion": "scheduling.x-k8s.io/v1alpha1",
            "kind": "PodGroup",
            "metadata": {"name": "group", "namespace": "default"},
            "spec": {"minMember": 2, "scheduleTimeoutSeconds": 10},
        },
        *(labelled_pod(f"member-{number}", {"scheduling.x-k8s.io/pod-group": "group"}) for number in range(2)),
    )
    check_starts_whole(platform, team, blockers, "group", "coscheduling")


def test_kueue_pod_group_starts_as_a_gang(platform: Platform, team: Cluster, blockers: list[str]) -> None:
    labels, count = {"kueue.x-k8s.io/pod-group-name": "group"}, {"kueue.x-k8s.io/pod-group-total-count": "2"}
    team.apply(labelled_pod("member-0", labels, count))
    eventually(
        lambda: pending_gangs(platform).get("group", ("", 0, ""))[2] == "WaitingForMembers", what="one of two waits"
    )
    team.apply(labelled_pod("member-1", labels, count))
    check_starts_whole(platform, team, blockers, "group", "kueue")


def check_starts_whole(platform: Platform, team: Cluster, blockers: list[str], name: str, integration: str) -> None:
    """Check that two pods, with a node each, wait while one node is free, and start together."""
    eventually(
        lambda: pending_gangs(platform).get(name) == (integration, 2, "WaitingForRoom"), what="both wait for room"
    )
    assert count_phases(team) == {"gated": 2}
    assert explained_gang(platform, "member-0")["minimum"] == 2
    delete_pod(team, blockers[0])
    eventually(lambda: count_phases(team) == {"Running": 2}, what="both run")


def labelled_pod(name: str, labels: dict[str, str], annotations: dict[str, str] | None = None) -> Document:
    pod = pod_manifest(name, container=GPUS, **A100)
    pod["metadata"] |= {"labels": labels, "annotations": annotations or {}}
    return pod
