"""Groups that are written down: Kubernetes' PodGroup and Workload, Volcano, coscheduling, Kueue."""

from typing import Any

import pytest

from tests.unit.translate.gangs.pods import beside, kubernetes_group, ours, pod, read, volcano_group
from vkgateway.translate.gangs import MarkError, Reference, references

GANG = {"gang": {"minCount": 4}}


def in_group(name: str = "train-0", **more: Any) -> Any:
    return pod(name, schedulingGroup={"podGroupName": "train"}, **more)


def in_workload(**more: str) -> Any:
    return pod("worker-2", workloadRef={"name": "train", "podGroup": "workers", **more})


def in_volcano(name: str = "job-worker-1", **more: Any) -> Any:
    # As Volcano's job controller makes them: the task is told twice.
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
    assert marks.way == "Kubernetes PodGroup"
    assert (marks.minimum, marks.size, marks.elastic, marks.rank) == (4, None, True, 2)


def test_kubernetes_group_within_a_rack() -> None:
    constraints = {"topology": [{"key": "example.com/rack"}]}
    group = kubernetes_group("train", schedulingPolicy=GANG, schedulingConstraints=constraints)
    assert read(in_group(), group).required_level == "example.com/rack"


@pytest.mark.parametrize(
    ("mode", "elastic"), [("Pod", True), ("PodGroup", False), ({"single": {}}, True), ({"all": {}}, False)]
)
def test_kubernetes_group_that_is_disrupted_as_a_whole(mode: Any, elastic: bool) -> None:
    group = kubernetes_group("train", schedulingPolicy=GANG, disruptionMode=mode)
    assert read(in_group(), group).elastic is elastic


def test_a_basic_group_is_no_gang() -> None:
    marks = read(in_group(), kubernetes_group("train", schedulingPolicy={"basic": {}}))
    assert (marks.group, marks.minimum) == ("research/pod/uid-of-train-0", 1)
    assert marks.waits_for is None


@pytest.mark.parametrize(
    ("marked", "reference"),
    [
        (in_group(), Reference("scheduling.k8s.io", "PodGroup", "podgroups", "research", "train")),
        (in_workload(), Reference("scheduling.k8s.io", "Workload", "workloads", "research", "train")),
        (in_volcano(), Reference("scheduling.volcano.sh", "PodGroup", "podgroups", "research", "job-5f")),
        (in_coscheduling(), Reference("scheduling.x-k8s.io", "PodGroup", "podgroups", "research", "nginx")),
    ],
)
def test_a_group_that_is_not_there_is_waited_for(marked: Any, reference: Reference) -> None:
    assert references(marked) == (reference,)
    marks = read(marked)
    assert marks.waits_for == reference
    assert not marks.elastic
    assert reference.name in str(reference)


def test_a_minimum_beside_a_group_does_not_replace_it() -> None:
    assert read(in_coscheduling(annotations=ours(min="2"))).waits_for is not None


def test_workload() -> None:
    groups = [{"name": "driver", "policy": {"basic": {}}}, {"name": "workers", "policy": GANG}]
    found = beside("scheduling.k8s.io/v1alpha1", "Workload", "train", {"podGroups": groups})
    marks = read(in_workload(), found)
    assert (marks.group, marks.minimum, marks.rank) == ("research/workload/train/workers", 4, 2)
    other = read(in_workload(podGroupReplicaKey="1"), found)
    assert other.group == "research/workload/train/workers/1"


def test_workload_without_the_group() -> None:
    found = beside("scheduling.k8s.io/v1alpha1", "Workload", "train", {"podGroups": [{"name": "driver"}]})
    with pytest.raises(MarkError, match="one of those it has: driver"):
        read(in_workload(), found)


def test_volcano() -> None:
    marks = read(in_volcano(), volcano_group("job-5f", minMember=6, minTaskMember={"ps": 2, "worker": 4}))
    assert (marks.group, marks.way) == ("research/volcano/job-5f", "Volcano PodGroup")
    assert (marks.minimum, marks.role, dict(marks.role_minimum)) == (6, "worker", {"ps": 2, "worker": 4})
    assert marks.rank == 1


def test_volcano_task_minimums_count_beside_the_minimum() -> None:
    marks = read(in_volcano(), volcano_group("job-5f", minMember=1, minTaskMember={"ps": 2, "worker": 4, "chief": 0}))
    assert (marks.minimum, dict(marks.role_minimum)) == (6, {"ps": 2, "worker": 4})


def test_volcano_without_a_minimum_starts_with_one_pod() -> None:
    assert read(in_volcano(), volcano_group("job-5f")).minimum == 1


def test_volcano_own_name_of_the_annotation() -> None:
    marked = pod(annotations={"scheduling.volcano.sh/group-name": "g"})
    assert read(marked, volcano_group("g", minMember=3)).minimum == 3


@pytest.mark.parametrize("number", [-1, "4", 2.5, True, 10**9])
def test_volcano_nonsense(number: Any) -> None:
    with pytest.raises(MarkError, match=r"spec\.minMember of PodGroup job-5f"):
        read(in_volcano(), volcano_group("job-5f", minMember=number))


def test_a_group_name_that_is_a_path_is_refused() -> None:
    marked = in_volcano(annotations={"scheduling.k8s.io/group-name": "../../secrets/x"})
    with pytest.raises(MarkError, match="no name of an object"):
        read(marked)
    assert references(marked) == ()


def test_coscheduling() -> None:
    group = beside("scheduling.x-k8s.io/v1alpha1", "PodGroup", "nginx", {"minMember": 3})
    marks = read(in_coscheduling(), group)
    assert (marks.group, marks.minimum, marks.rank) == ("research/coscheduling/nginx", 3, 7)


def test_groups_of_several_kinds_do_not_stand_for_each_other() -> None:
    assert read(in_coscheduling(), volcano_group("nginx", minMember=3)).waits_for is not None


def test_kueue() -> None:
    index = {"kueue.x-k8s.io/pod-group-pod-index": "5", "kueue.x-k8s.io/pod-group-role": "worker"}
    marks = read(in_kueue(**index))
    assert marks.group == "research/kueue/group-a"
    assert (marks.minimum, marks.size, marks.elastic, marks.rank, marks.role) == (6, 6, False, 5, "worker")
    assert references(in_kueue()) == ()


def test_kueue_tells_which_label_holds_the_index() -> None:
    marked = in_kueue(**{"example.com/place": "3"})
    marked["metadata"]["annotations"]["kueue.x-k8s.io/pod-group-pod-index-label"] = "example.com/place"
    assert read(marked).rank == 3


@pytest.mark.parametrize(
    ("total", "says"), [(None, "add the annotation"), ("0", "whole number"), ("x", "whole number")]
)
def test_kueue_nonsense(total: str | None, says: str) -> None:
    with pytest.raises(MarkError, match=says):
        read(in_kueue(total))
