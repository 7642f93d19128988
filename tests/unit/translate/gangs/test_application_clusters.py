"""Gangs of Ray and Spark."""

from typing import Any

import pytest

from tests.unit.translate.gangs.pods import beside, ours, pod, read
from vkgateway.scheduler.gangs import MarkError, Reference


def ray_pod(node: str, group: str, name: str = "raycluster-x-abcde") -> Any:
    # As KubeRay labels them.
    labels = {
        "ray.io/cluster": "rc",
        "ray.io/node-type": node,
        "ray.io/group": group,
        "ray.io/is-ray-node": "yes",
        "app.kubernetes.io/created-by": "kuberay-operator",
    }
    return pod(name, labels=labels, owner=("ray.io/v1", "RayCluster", "rc"))


def ray(*groups: dict[str, Any], **spec: Any) -> Any:
    return beside("ray.io/v1", "RayCluster", "rc", {"headGroupSpec": {}, "workerGroupSpecs": list(groups), **spec})


GPUS = {"groupName": "gpus", "replicas": 3, "minReplicas": 1, "maxReplicas": 5}
HOSTS = {"groupName": "hosts", "replicas": 2, "minReplicas": 2, "maxReplicas": 2147483647, "numOfHosts": 4}


def test_ray_head_and_all_workers() -> None:
    marks = read(ray_pod("worker", "hosts"), ray(GPUS, HOSTS))
    assert (marks.group, marks.integration) == ("research/ray/rc", "Ray cluster")
    assert (marks.minimum, marks.size, marks.maximum, marks.elastic) == (12, 12, None, False)
    assert (marks.role, dict(marks.role_minimum)) == ("hosts", {"head": 1, "gpus": 3, "hosts": 8})


def test_autoscaled_ray_cluster_starts_with_its_minimum() -> None:
    marks = read(ray_pod("worker", "gpus"), ray(GPUS, enableInTreeAutoscaling=True))
    assert (marks.minimum, marks.size, marks.maximum, marks.elastic) == (2, 4, 6, True)
    assert dict(marks.role_minimum) == {"head": 1, "gpus": 1}


def test_autoscaled_ray_cluster_counts_hosts() -> None:
    marks = read(ray_pod("head", "headgroup"), ray({**HOSTS, "maxReplicas": 3}, enableInTreeAutoscaling=True))
    assert (marks.minimum, marks.size, marks.maximum) == (9, 9, 13)


def test_ray_head_has_the_first_rank() -> None:
    cluster = ray(GPUS, HOSTS)
    head = read(ray_pod("head", "headgroup"), cluster)
    assert (head.rank, head.role) == (0, "head")
    assert 0 < read(ray_pod("worker", "gpus"), cluster).rank < read(ray_pod("worker", "hosts"), cluster).rank


@pytest.mark.parametrize(
    ("group", "pods"),
    [
        ({**GPUS, "replicas": 9}, 5),
        ({**GPUS, "replicas": 0}, 1),
        ({"groupName": "gpus", "minReplicas": 2}, 2),
        ({**GPUS, "suspend": True}, 0),
        ({**GPUS, "minReplicas": 5}, 5),
        ({"groupName": "gpus", "replicas": 0}, 0),
    ],
)
def test_ray_workers_stay_within_their_bounds(group: dict[str, Any], pods: int) -> None:
    assert read(ray_pod("head", "headgroup"), ray(group)).minimum == 1 + pods


@pytest.mark.parametrize(
    ("group", "says"),
    [
        ({**GPUS, "minReplicas": 7}, r"workerGroupSpecs\[0\]\.minReplicas of RayCluster rc .* maxReplicas \(5\)"),
        ({**GPUS, "replicas": -1}, r"workerGroupSpecs\[0\]\.replicas .* not a number of pods"),
    ],
)
def test_invalid_ray_cluster_is_refused(group: dict[str, Any], says: str) -> None:
    with pytest.raises(MarkError, match=says):
        read(ray_pod("head", "headgroup"), ray(group))


def test_gang_waits_for_a_missing_ray_cluster() -> None:
    marks = read(ray_pod("worker", "gpus"))
    assert marks.missing_reference == Reference("ray.io", "RayCluster", "rayclusters", "research", "rc")
    head = read(ray_pod("head", "headgroup"))
    assert head.rank < marks.rank
    assert (head.role, marks.role) == ("head", "gpus")


def test_ray_cleanup_job_is_no_member() -> None:
    assert read(ray_pod("redis-cleanup", "headgroup")).minimum == 1
    assert read(ray_pod("redis-cleanup", "headgroup")).missing_reference is None


def spark_pod(role: str, executor: int = 1, operator: bool = False, **more: Any) -> Any:
    # Labels of spark-submit and of the Spark operator.
    labels = {"spark-app-selector": "spark-5fd0", "spark-role": role, "spark-app-name": "etl", "spark-version": "3.5.1"}
    if role == "executor":
        labels["spark-exec-id"] = str(executor)
    if operator:
        labels["sparkoperator.k8s.io/app-name"] = "etl"
    return pod(f"etl-exec-{executor}", labels=labels, **more)


def test_spark_executors_start_one_by_one() -> None:
    marks = read(spark_pod("executor", 7))
    assert (marks.group, marks.minimum, marks.elastic) == ("research/spark/spark-5fd0/executors", 1, True)
    assert (marks.rank, marks.role, marks.missing_reference) == (7, "executor", None)


def test_spark_driver_is_standalone() -> None:
    marks = read(spark_pod("driver"))
    assert marks.group == "research/pod/uid-of-etl-exec-1"
    assert (marks.minimum, marks.missing_reference) == (1, None)


@pytest.mark.parametrize(
    ("spec", "size", "maximum"),
    [
        ({"executor": {"instances": 8}}, 8, None),
        ({"executor": {}}, 1, None),
        ({"executor": {"instances": 8}, "dynamicAllocation": {"enabled": True, "maxExecutors": 40}}, None, 40),
        ({"dynamicAllocation": {"enabled": True}}, None, None),
    ],
)
def test_spark_application_declares_its_executors(spec: Any, size: int | None, maximum: int | None) -> None:
    found = beside("sparkoperator.k8s.io/v1beta2", "SparkApplication", "etl", spec)
    marks = read(spark_pod("executor", operator=True), found)
    assert (marks.minimum, marks.size, marks.maximum) == (1, size, maximum)


def test_annotation_makes_spark_executors_a_gang() -> None:
    found = beside("sparkoperator.k8s.io/v1beta2", "SparkApplication", "etl", {"executor": {"instances": 8}})
    marks = read(spark_pod("executor", operator=True, annotations=ours(min="8")), found)
    assert (marks.minimum, marks.size, marks.elastic) == (8, 8, False)
    with pytest.raises(MarkError, match="more than the gang's 8 pods"):
        read(spark_pod("executor", operator=True, annotations=ours(min="9")), found)


def test_incomplete_spark_labels_are_ignored() -> None:
    for labels in (
        {"spark-role": "executor"},
        {"spark-app-selector": "s"},
        {"spark-app-selector": "s", "spark-role": "x"},
    ):
        assert read(pod("x", labels=labels)).group == "research/pod/uid-of-x"


def test_spark_executors_are_ranked_by_number() -> None:
    marked = spark_pod("executor", 3)
    marked["metadata"]["name"] = "etl-exec-99"
    assert read(marked).rank == 3
