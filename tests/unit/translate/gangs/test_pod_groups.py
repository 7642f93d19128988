"""Explicit groups: Kubernetes' PodGroup and Workload, Volcano, coscheduling, Kueue."""

from typing import Any

import pytest

from tests.unit.translate.gangs.pods import beside, job, kubernetes_group, ours, pod, read, volcano_group
from vkgateway.scheduler.gangs import MarkError, Reference, gang_references

GANG = {"gang": {"minCount": 4}}


def in_group(name: str = "train-0", **more: Any) -> Any:
    return pod(name, schedulingGroup={"podGroupName": "train"}, **more)


def in_workload(**more: str) -> Any:
    return pod("worker-2", workloadRef={"name": "train", "podGroup": "workers", **more})


def in_volcano(name: str = "job-worker-1", **more: Any) -> Any:
    # Pods of Volcano's job controller carry the task twice.
    marks = {"volcano.sh/task-spec": "worker", "volcano.sh/task-index": "1"}
    annotations = {"scheduling.k8s.io/group-name": "job-5f", **marks, **more.pop("annotations", {})}
    return pod(name, labels={"volcano.sh/job-name": "job", **marks}, annotations=annotations, **more)


def in_coscheduling(**more: Any) -> Any:
    return pod("nginx-7", labels={"scheduling.x-k8s.io/pod-group": "nginx"}, **more)


def in_kueue(total: str | None = "6", **more: str) -> Any:
    labels = {"kueue.x-k8s.io/queue-name": "gpus", "kueue.x-k8s.io/pod-group-name": "group-a", **more}
    return pod("p", labels=labels, annotations={} if total is None else {"kueue.x-k8s.io/pod-group-total-count": total})


@pytest.mark.parametrize("version", ["scheduling.k8s.io/v1alpha2", "scheduling.k8s.io/v1beta1"])
def test_kubernetes_group(version: str) -> None:
    marks = read(in_group("train-2"), kubernetes_group("train", version, schedulingPolicy=GANG))
    assert marks.group == "research/podgroup/train"
    assert marks.integration == "Kubernetes PodGroup"
    assert (marks.minimum, marks.size, marks.elastic, marks.rank) == (4, None, True, 2)


def test_kubernetes_group_within_a_rack() -> None:
    constraints = {"topology": [{"key": "example.com/rack"}]}
    group = kubernetes_group("train", schedulingPolicy=GANG, schedulingConstraints=constraints)
    assert read(in_group(), group).required_level == "example.com/rack"


@pytest.mark.parametrize(
    ("mode", "elastic"), [("Pod", True), ("PodGroup", False), ({"single": {}}, True), ({"all": {}}, False)]
)
def test_kubernetes_group_disrupted_together_is_not_elastic(mode: Any, elastic: bool) -> None:
    group = kubernetes_group("train", schedulingPolicy=GANG, disruptionMode=mode)
    assert read(in_group(), group).elastic is elastic


def of_job(name: str = "j", *, labels: Any = None, annotations: Any = None) -> Any:
    """Return a pod of an Indexed Job for which the Job controller creates a PodGroup."""
    owner = ("batch/v1", "Job", name)
    return in_group(f"{name}-2-x7k2p", owner=owner, labels=labels, annotations=annotations)


def group_of_job(name: str = "j") -> Any:
    group = kubernetes_group("train", schedulingPolicy=GANG)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": "o-1", "controller": True}
    group["metadata"]["ownerReferences"] = [owner]
    return group


def test_pod_group_of_the_job_controller_is_read() -> None:
    assert (read(of_job(), group_of_job()).group, read(of_job(), group_of_job()).minimum) == (
        "research/podgroup/train",
        4,
    )


def test_annotations_of_a_job_win_over_its_pod_group() -> None:
    """Users cannot remove the minimum of that group."""
    marked, made = of_job(annotations=ours(gang="job", min="2")), job("j", parallelism=4, completions=4)
    assert {reference.kind for reference in gang_references(marked)} == {"PodGroup", "Job"}
    marks = read(marked, group_of_job(), made)
    assert (marks.group, marks.minimum, marks.size, marks.elastic) == ("research/job/j", 2, 4, True)


def test_jobset_wins_over_pod_groups_of_its_jobs() -> None:
    labels = {"jobset.sigs.k8s.io/jobset-name": "s", "jobset.sigs.k8s.io/replicatedjob-name": "worker"}
    entries = [
        {"name": name, "template": {"spec": {"parallelism": pods}}} for name, pods in (("driver", 1), ("worker", 4))
    ]
    found = beside("jobset.x-k8s.io/v1alpha2", "JobSet", "s", {"replicatedJobs": entries})
    marked = of_job("s-worker-0", labels=labels)
    assert {reference.kind for reference in gang_references(marked)} == {"PodGroup", "JobSet", "Job"}
    assert read(marked, found).missing_reference == Reference(
        "scheduling.k8s.io", "PodGroup", "podgroups", "research", "train"
    )
    assert (read(marked, group_of_job("s-worker-0"), found).group) == "research/jobset/s"
    assert read(marked, group_of_job("s-worker-0"), found).minimum == 5
    by_hand = kubernetes_group("train", schedulingPolicy=GANG)
    assert read(marked, by_hand, found).group == "research/podgroup/train", "somebody wrote that one down"


def test_basic_pod_group_is_no_gang() -> None:
    marks = read(in_group(), kubernetes_group("train", schedulingPolicy={"basic": {}}))
    assert (marks.group, marks.minimum) == ("research/pod/uid-of-train-0", 1)
    assert marks.missing_reference is None


@pytest.mark.parametrize(
    ("marked", "reference"),
    [
        (in_group(), Reference("scheduling.k8s.io", "PodGroup", "podgroups", "research", "train")),
        (in_workload(), Reference("scheduling.k8s.io", "Workload", "workloads", "research", "train")),
        (in_volcano(), Reference("scheduling.volcano.sh", "PodGroup", "podgroups", "research", "job-5f")),
        (in_coscheduling(), Reference("scheduling.x-k8s.io", "PodGroup", "podgroups", "research", "nginx")),
    ],
)
def test_gang_waits_for_a_missing_pod_group(marked: Any, reference: Reference) -> None:
    assert gang_references(marked) == (reference,)
    marks = read(marked)
    assert marks.missing_reference == reference
    assert not marks.elastic
    assert reference.name in str(reference)


def written(way: str, number: int | None, **more: Any) -> tuple[Any, Any]:
    """Return a pod whose name ends with 2 in a group of a kind with a minimum, and the group."""
    if way == "podgroup":
        policy = {"gang": {} if number is None else {"minCount": number}}
        return in_group("train-2", **more), kubernetes_group("train", schedulingPolicy=policy)
    if way == "workload":
        entry = {"name": "workers", "policy": {"gang": {} if number is None else {"minCount": number}}}
        marked = pod("worker-2", workloadRef={"name": "train", "podGroup": "workers"}, **more)
        return marked, beside("scheduling.k8s.io/v1alpha1", "Workload", "train", {"podGroups": [entry]})
    spec = {} if number is None else {"minMember": number}
    if way == "volcano":
        annotations = {"scheduling.k8s.io/group-name": "g", **more.pop("annotations", {})}
        return pod("x-2", annotations=annotations, **more), volcano_group("g", **spec)
    labels = {"scheduling.x-k8s.io/pod-group": "g"}
    return pod("x-2", labels=labels, **more), beside("scheduling.x-k8s.io/v1alpha1", "PodGroup", "g", spec)


WRITTEN = ["podgroup", "workload", "volcano", "coscheduling"]


@pytest.mark.parametrize("way", WRITTEN)
def test_annotation_must_not_change_an_explicit_minimum(way: str) -> None:
    marked, group = written(way, 4, annotations=ours(min="2"))
    with pytest.raises(MarkError, match=r"gang-min is '2', which contradicts spec\..* \(4\); remove one of the two"):
        read(marked, group)
    assert read(marked).missing_reference is not None
    assert read(marked).rank == 2


@pytest.mark.parametrize("way", WRITTEN)
def test_annotations_add_size_and_maximum_to_a_pod_group(way: str) -> None:
    marked, group = written(way, 4, annotations=ours(min="4", size="6", elastic_max="8"))
    marks = read(marked, group)
    assert (marks.minimum, marks.size, marks.maximum, marks.elastic, marks.rank) == (4, 6, 8, True, 2)
    assert marks.missing_reference is None
    for annotations, says in (
        (ours(size="3"), r"spec\..* is '4', which is more than the gang's 3 pods"),
        (ours(elastic_max="3"), r"elastic-max is '3', which is less than the gang's 4 pods; raise it to at least 4"),
    ):
        with pytest.raises(MarkError, match=says):
            read(*written(way, 4, annotations=annotations))


@pytest.mark.parametrize("way", WRITTEN)
def test_pod_group_without_minimum_needs_one_pod(way: str) -> None:
    assert read(*written(way, None)).minimum == 1
    assert read(*written(way, 0)).minimum == 1


def test_annotation_must_not_change_the_kueue_count() -> None:
    marked = in_kueue()
    marked["metadata"]["annotations"] |= ours(min="2")
    with pytest.raises(MarkError, match="remove one of the two"):
        read(marked)


def test_workload() -> None:
    groups = [{"name": "driver", "policy": {"basic": {}}}, {"name": "workers", "policy": GANG}]
    found = beside("scheduling.k8s.io/v1alpha1", "Workload", "train", {"podGroups": groups})
    marks = read(in_workload(), found)
    assert (marks.group, marks.minimum, marks.rank) == ("research/workload/train/workers", 4, 2)
    other = read(in_workload(podGroupReplicaKey="1"), found)
    assert other.group == "research/workload/train/workers/1"


def test_unknown_group_of_a_workload_is_refused() -> None:
    found = beside("scheduling.k8s.io/v1alpha1", "Workload", "train", {"podGroups": [{"name": "driver"}]})
    with pytest.raises(MarkError, match="use one of: driver"):
        read(in_workload(), found)


def test_volcano() -> None:
    marks = read(in_volcano(), volcano_group("job-5f", minMember=6, minTaskMember={"ps": 2, "worker": 4}))
    assert (marks.group, marks.integration) == ("research/volcano/job-5f", "Volcano PodGroup")
    assert (marks.minimum, marks.role, dict(marks.role_minimum)) == (6, "worker", {"ps": 2, "worker": 4})
    assert marks.rank == 1


def test_volcano_task_minimums_raise_the_minimum() -> None:
    marks = read(in_volcano(), volcano_group("job-5f", minMember=1, minTaskMember={"ps": 2, "worker": 4, "chief": 0}))
    assert (marks.minimum, dict(marks.role_minimum)) == (6, {"ps": 2, "worker": 4})


def test_volcano_task_from_a_label() -> None:
    marked = pod(labels={"volcano.sh/task-spec": "ps"}, annotations={"scheduling.k8s.io/group-name": "g"})
    marks = read(marked, volcano_group("g", minMember=1, minTaskMember={"ps": None}))
    assert (marks.role, dict(marks.role_minimum)) == ("ps", {})


def test_volcano_annotation_key() -> None:
    marked = pod(annotations={"scheduling.volcano.sh/group-name": "g"})
    assert read(marked, volcano_group("g", minMember=3)).minimum == 3


@pytest.mark.parametrize("number", [-1, "4", 2.5, True, 10**9])
def test_invalid_volcano_group_is_refused(number: Any) -> None:
    with pytest.raises(MarkError, match=r"spec\.minMember of PodGroup job-5f"):
        read(in_volcano(), volcano_group("job-5f", minMember=number))


def test_group_name_with_a_path_is_refused() -> None:
    marked = in_volcano(annotations={"scheduling.k8s.io/group-name": "../../secrets/x"})
    with pytest.raises(MarkError, match="not a valid object name"):
        read(marked)
    assert gang_references(marked) == ()


def test_coscheduling() -> None:
    group = beside("scheduling.x-k8s.io/v1alpha1", "PodGroup", "nginx", {"minMember": 3})
    marks = read(in_coscheduling(), group)
    assert (marks.group, marks.minimum, marks.rank) == ("research/coscheduling/nginx", 3, 7)


def test_groups_of_different_kinds_are_different_gangs() -> None:
    assert read(in_coscheduling(), volcano_group("nginx", minMember=3)).missing_reference is not None


def test_kueue() -> None:
    index = {"kueue.x-k8s.io/pod-group-pod-index": "5", "kueue.x-k8s.io/pod-group-role": "worker"}
    marks = read(in_kueue(**index))
    assert marks.group == "research/kueue/group-a"
    assert (marks.minimum, marks.size, marks.elastic, marks.rank, marks.role) == (6, 6, False, 5, "worker")
    assert gang_references(in_kueue()) == ()


def test_kueue_index_label() -> None:
    marked = in_kueue(**{"example.com/place": "3"})
    marked["metadata"]["annotations"]["kueue.x-k8s.io/pod-group-pod-index-label"] = "example.com/place"
    assert read(marked).rank == 3


@pytest.mark.parametrize(
    ("total", "says"), [(None, "set the annotation"), ("0", "whole number"), ("x", "whole number")]
)
def test_invalid_kueue_group_is_refused(total: str | None, says: str) -> None:
    with pytest.raises(MarkError, match=says):
        read(in_kueue(total))
