"""Several integrations on one pod: precedence, contradictions, and hostile objects."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.translate.gangs.pods import beside, job, ours, pod, read, volcano_group
from vkgateway.scheduler.gangs import INTEGRATIONS, Kind, MarkError, gang_references, read_marks

VOLCANO = {"scheduling.k8s.io/group-name": "g"}
KUEUE_LABEL = {"kueue.x-k8s.io/pod-group-name": "k"}
TRAINING = {"training.kubeflow.org/job-name": "bert", "training.kubeflow.org/replica-type": "worker"}
OWNER = ("kubeflow.org/v1", "PyTorchJob", "bert")


def kueue(total: int) -> dict[str, str]:
    return {"kueue.x-k8s.io/pod-group-total-count": str(total)}


def test_order_of_precedence() -> None:
    keys = [way.key for way in INTEGRATIONS]
    written = ["gang", "podgroup", "workload", "volcano", "coscheduling", "kueue"]
    assert keys == [*written, "training", "ray", "spark", "jobset", "lws", "job"]
    assert all(way.source for way in INTEGRATIONS)


def test_explicit_marks_win_over_inferred_ones() -> None:
    marked = pod(labels=TRAINING, annotations=VOLCANO, owner=OWNER)
    marks = read(marked, volcano_group("g", minMember=3))
    assert (marks.group, marks.minimum) == ("research/volcano/g", 3)
    assert [reference.kind for reference in gang_references(marked)] == ["PodGroup"]


def test_vkgateway_annotations_win() -> None:
    marked = pod(labels={**TRAINING, **KUEUE_LABEL}, annotations={**ours(gang="a", size="4"), **kueue(4)}, owner=OWNER)
    assert read(marked).group == "research/gang/a"


@pytest.mark.parametrize(
    ("annotations", "says"),
    [
        (
            {**ours(gang="a", size="4"), **VOLCANO},
            r"minMember of PodGroup g .* contradicts .*vkgateway.io/gang-size \(4\)",
        ),
        ({**VOLCANO, **kueue(6)}, r"total-count is '6', which contradicts spec.minMember of PodGroup g .*\(3\)"),
        ({**VOLCANO, **kueue(3), **ours(min="2")}, r"gang-min is '2', which contradicts spec.minMember"),
    ],
)
def test_two_explicit_minimums_are_refused(annotations: dict[str, str], says: str) -> None:
    labels = KUEUE_LABEL if kueue(0).keys() & annotations.keys() else {}
    with pytest.raises(MarkError, match=says) as caught:
        read(pod(labels=labels, annotations=annotations), volcano_group("g", minMember=3))
    assert "remove one of the two" in str(caught.value)


def test_equal_minimums_are_accepted() -> None:
    marked = pod(labels=KUEUE_LABEL, annotations={**VOLCANO, **kueue(3), **ours(min="3", size="5")})
    marks = read(marked, volcano_group("g", minMember=3))
    assert (marks.group, marks.minimum, marks.size) == ("research/volcano/g", 3, 5)


COSCHEDULING = Kind("scheduling.x-k8s.io", "PodGroup", "podgroups")
VOLCANO_KIND = Kind("scheduling.volcano.sh", "PodGroup", "podgroups")
JOBSET = Kind("jobset.x-k8s.io", "JobSet", "jobsets")
GROUP_LABEL = {"scheduling.x-k8s.io/pod-group": "c"}
OF_A_SET = {"jobset.sigs.k8s.io/jobset-name": "s", "jobset.sigs.k8s.io/replicatedjob-name": "r"}


def test_mark_of_an_unserved_kind_yields_to_others() -> None:
    marked = pod(labels=GROUP_LABEL, annotations=VOLCANO)
    group = beside("scheduling.x-k8s.io/v1alpha1", "PodGroup", "c", {"minMember": 3})
    marks = read(marked, group, unserved=frozenset({VOLCANO_KIND}))
    assert (marks.group, marks.minimum, marks.missing_reference) == ("research/coscheduling/c", 3, None)
    assert read(marked, group).group == "research/volcano/g", "of a kind that is served, or may be, the first counts"


def test_inferred_mark_wins_over_an_unserved_explicit_one() -> None:
    marked = pod(labels={**GROUP_LABEL, **TRAINING}, owner=OWNER)
    training = beside("kubeflow.org/v1", "PyTorchJob", "bert", {"pytorchReplicaSpecs": {"Worker": {"replicas": 4}}})
    marks = read(marked, training, unserved=frozenset({COSCHEDULING}))
    assert (marks.group, marks.minimum) == ("research/training/pytorchjobs/bert", 4)
    assert {reference.kind for reference in gang_references(marked)} == {"PodGroup"}


def test_pod_with_only_unserved_marks_waits() -> None:
    marked = pod(labels=GROUP_LABEL, annotations=VOLCANO)
    marks = read(marked, unserved=frozenset({VOLCANO_KIND, COSCHEDULING}))
    assert (marks.group, marks.is_unserved) == ("research/volcano/g", True)
    assert marks.missing_reference is not None
    assert not read(marked).is_unserved


def test_annotated_count_works_without_the_served_kind() -> None:
    marked = pod(labels=OF_A_SET, annotations=ours(min="4"), owner=("batch/v1", "Job", "s-r-0"))
    marks = read(marked, job("s-r-0", parallelism=4), unserved=frozenset({JOBSET}))
    assert (marks.group, marks.minimum, marks.missing_reference, marks.is_unserved) == (
        "research/jobset/s",
        4,
        None,
        False,
    )


def test_annotated_count_does_not_replace_an_unserved_group() -> None:
    marked = pod(labels=GROUP_LABEL, annotations=ours(min="4"))
    marks = read(marked, unserved=frozenset({COSCHEDULING}))
    assert (marks.group, marks.is_unserved) == ("research/coscheduling/c", True)


def test_size_must_equal_the_kueue_count() -> None:
    with pytest.raises(MarkError, match="contradicts the 6 pods of annotation kueue"):
        read(pod(labels=KUEUE_LABEL, annotations={**kueue(6), **ours(size="5")}))


def test_topology_levels() -> None:
    required, preferred = "kueue.x-k8s.io/podset-required-topology", "kueue.x-k8s.io/podset-preferred-topology"
    assert read(pod(annotations={required: "example.com/rack"})).required_level == "example.com/rack"
    marks = read(pod(labels=KUEUE_LABEL, annotations={**kueue(2), preferred: "example.com/domain"}))
    assert (marks.required_level, marks.preferred_level) == ("", "example.com/domain")
    with pytest.raises(MarkError, match="remove one of the two"):
        read(pod(annotations={required: "a", preferred: "b"}))


def test_pod_without_metadata_is_read() -> None:
    assert read_marks({}, {}).minimum == 1
    assert gang_references({"metadata": {"labels": None, "annotations": None}, "spec": None}) == ()


def test_invalid_marks_need_no_objects() -> None:
    assert gang_references(pod(annotations={**ours(gang="job", min="x"), **VOLCANO})) == ()


def test_reading_is_pure_and_repeatable() -> None:
    marked, group = pod(annotations=VOLCANO), volcano_group("g", minMember=3, minTaskMember={"b": 1, "a": 1})
    before = repr((marked, group))
    assert read(marked, group) == read(marked, group)
    assert repr((marked, group)) == before


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**6) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
_KNOWN = [
    "minMember",
    "minTaskMember",
    "schedulingPolicy",
    "gang",
    "minCount",
    "disruptionMode",
    "schedulingConstraints",
    "topology",
    "podGroups",
    "policy",
    "name",
    "pytorchReplicaSpecs",
    "Worker",
    "replicas",
    "elasticPolicy",
    "minReplicas",
    "maxReplicas",
    "runPolicy",
    "minAvailable",
    "workerGroupSpecs",
    "numOfHosts",
    "groupName",
    "executor",
    "instances",
    "dynamicAllocation",
    "enabled",
    "maxExecutors",
    "launcherCreationPolicy",
    "parallelism",
    "completions",
    "activeDeadlineSeconds",
    "key",
    "replicatedJobs",
    "template",
    "spec",
    "dependsOn",
    "startupPolicy",
    "startupPolicyOrder",
    "leaderWorkerTemplate",
    "size",
]
_SPECS = st.recursive(
    _JSON,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(_KNOWN), inner, max_size=4),
    max_leaves=12,
)
_PODS: list[tuple[Any, str, str, str]] = [
    (pod(schedulingGroup={"podGroupName": "g"}), "scheduling.k8s.io/v1alpha2", "PodGroup", "g"),
    (pod(workloadRef={"name": "g", "podGroup": "a"}), "scheduling.k8s.io/v1alpha1", "Workload", "g"),
    (pod(annotations=VOLCANO), "scheduling.volcano.sh/v1beta1", "PodGroup", "g"),
    (pod(labels={"scheduling.x-k8s.io/pod-group": "g"}), "scheduling.x-k8s.io/v1alpha1", "PodGroup", "g"),
    (pod(labels=TRAINING, owner=OWNER), "kubeflow.org/v1", "PyTorchJob", "bert"),
    (pod(labels={"ray.io/cluster": "g", "ray.io/node-type": "head"}), "ray.io/v1", "RayCluster", "g"),
    (
        pod(
            labels={"spark-app-selector": "s", "spark-role": "executor", "sparkoperator.k8s.io/app-name": "g"},
        ),
        "sparkoperator.k8s.io/v1beta2",
        "SparkApplication",
        "g",
    ),
    (
        pod(labels={"jobset.sigs.k8s.io/jobset-name": "g", "jobset.sigs.k8s.io/replicatedjob-name": "gang"}),
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        "g",
    ),
    (
        pod(labels={"leaderworkerset.sigs.k8s.io/name": "g", "leaderworkerset.sigs.k8s.io/group-index": "0"}),
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        "g",
    ),
    (pod(annotations=ours(gang="job"), owner=("batch/v1", "Job", "g")), "batch/v1", "Job", "g"),
]


@given(case=st.sampled_from(_PODS), spec=_SPECS, status=_JSON)
def test_any_object_is_read_or_refused(case: Any, spec: Any, status: Any) -> None:
    marked, version, kind, name = case
    try:
        marks = read(marked, beside(version, kind, name, spec, status))
    except MarkError:
        return
    assert marks.minimum >= 1
    assert marks.size is None or marks.size >= 1
    assert sum(marks.role_minimum.values()) <= marks.minimum


def test_every_referenced_object_is_read() -> None:
    for marked, version, kind, name in _PODS:
        assert [(reference.kind, reference.name) for reference in gang_references(marked)] == [(kind, name)], version
    assert read(_PODS[-1][0], job("g", parallelism=3)).minimum == 3
