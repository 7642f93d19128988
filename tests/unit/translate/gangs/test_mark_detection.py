"""Detection of gang marks: one rule for the gateway and for the tenants' admission policy."""

from __future__ import annotations

import re
from typing import Any

import pytest

from vkgateway.kinds.pods.policy.admission_review import review_pod
from vkgateway.planes.templates import Templates, TenantFacts
from vkgateway.scheduler.gangs import INTEGRATIONS, Kind, MarkError, read_marks
from vkgateway.scheduler.gangs.mark_detection import (
    MARK_ANNOTATIONS,
    MARK_FIELDS,
    MARK_LABELS,
    has_mark,
    has_unserved_marks,
    mark_kinds,
    needs_served_kind,
)

MARKED = [
    pytest.param({"annotations": {"vkgateway.io/gang": "job"}}, {}, id="gang"),
    pytest.param({"annotations": {"vkgateway.io/gang-min": "2"}}, {}, id="gang of the owner"),
    pytest.param({"labels": {"vkgateway.io/gang": "train"}}, {}, id="annotation set as a label"),
    pytest.param({}, {"schedulingGroup": {"podGroupName": "g"}}, id="podgroup"),
    pytest.param({}, {"workloadRef": {"name": "w", "podGroup": "g"}}, id="workload"),
    pytest.param({"annotations": {"scheduling.k8s.io/group-name": "g"}}, {}, id="volcano"),
    pytest.param({"annotations": {"scheduling.volcano.sh/group-name": "g"}}, {}, id="volcano, newer"),
    pytest.param({"labels": {"scheduling.x-k8s.io/pod-group": "g"}}, {}, id="coscheduling"),
    pytest.param({"annotations": {"kueue.x-k8s.io/pod-group-total-count": "2"}}, {}, id="kueue"),
    pytest.param({"labels": {"training.kubeflow.org/job-name": "bert"}}, {}, id="training"),
    pytest.param({"labels": {"ray.io/cluster": "c", "ray.io/node-type": "head"}}, {}, id="ray"),
    pytest.param({"labels": {"jobset.sigs.k8s.io/jobset-name": "s"}}, {}, id="jobset"),
    pytest.param({"labels": {"leaderworkerset.sigs.k8s.io/name": "l"}}, {}, id="lws"),
]
UNMARKED = [
    pytest.param({}, {}, id="nothing"),
    pytest.param({"labels": {"app": "web", "job-name": "x"}, "annotations": {"a": "b"}}, {}, id="others"),
    pytest.param({"labels": {"kueue.x-k8s.io/queue-name": "q"}}, {}, id="a queue"),
    pytest.param({"labels": {"kueue.x-k8s.io/pod-group-name": "g"}}, {}, id="a pod group of no size"),
    pytest.param({"annotations": {"vkgateway.io/gang-run-limit": "5m"}}, {}, id="a lone pod's run limit"),
    pytest.param({"labels": {"spark-app-selector": "pi", "spark-role": "driver"}}, {}, id="spark starts pod by pod"),
]


def pod(metadata: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": metadata, "spec": {"containers": [{"name": "c", "image": "x"}], **spec}}


@pytest.mark.parametrize(("metadata", "spec"), MARKED)
def test_pods_with_marks_are_detected(metadata: dict[str, Any], spec: dict[str, Any]) -> None:
    assert has_mark(pod(metadata, spec))
    assert "patch" in _reviewed(pod(metadata, spec))


@pytest.mark.parametrize(("metadata", "spec"), UNMARKED)
def test_pods_without_marks_are_not_detected(metadata: dict[str, Any], spec: dict[str, Any]) -> None:
    assert not has_mark(pod(metadata, spec))
    assert "patch" not in _reviewed(pod(metadata, spec))


BY_ITSELF = {"gang", "gang of the owner", "annotation set as a label", "kueue"}
"""Marks that declare the pod count by themselves, so that no kind is needed."""
COSCHEDULING = Kind("scheduling.x-k8s.io", "PodGroup", "podgroups")
VOLCANO = Kind("scheduling.volcano.sh", "PodGroup", "podgroups")
ONE = {"scheduling.x-k8s.io/pod-group": "g"}


@pytest.mark.parametrize(("metadata", "spec"), [each for each in MARKED if each.id not in BY_ITSELF])
def test_marks_of_unserved_kinds_do_not_count(metadata: dict[str, Any], spec: dict[str, Any]) -> None:
    marked = pod(metadata, spec)
    kinds = mark_kinds(marked)
    assert kinds
    assert needs_served_kind(marked)
    assert has_unserved_marks(marked, frozenset(kinds))
    assert not has_unserved_marks(marked, frozenset())
    assert not any(has_unserved_marks(marked, frozenset(kinds) - {kind}) for kind in kinds), (
        "one that is served is enough"
    )


@pytest.mark.parametrize(("metadata", "spec"), [*(each for each in MARKED if each.id in BY_ITSELF), *UNMARKED])
def test_standalone_marks_count_always(metadata: dict[str, Any], spec: dict[str, Any]) -> None:
    marked = pod(metadata, spec)
    assert mark_kinds(marked) == ()
    assert not needs_served_kind(marked)
    assert not has_unserved_marks(marked, frozenset({COSCHEDULING, VOLCANO}))


@pytest.mark.parametrize(("metadata", "spec"), MARKED)
def test_missing_references_have_a_kind_of_the_pods_marks(metadata: dict[str, Any], spec: dict[str, Any]) -> None:
    more = {"training.kubeflow.org/operator-name": "mpi-operator", "jobset.sigs.k8s.io/replicatedjob-name": "r"}
    more |= {"leaderworkerset.sigs.k8s.io/group-index": "0"}
    marked = pod({"namespace": "ns", "name": "p", **metadata, "labels": metadata.get("labels", {}) | more}, spec)
    try:
        waits_for = read_marks(marked, {}).missing_reference
    except MarkError:
        return
    assert waits_for is None or waits_for.object_kind in mark_kinds(marked)


def test_training_job_kind_comes_from_its_operator() -> None:
    labels = {"training.kubeflow.org/job-name": "bert"}
    assert len(mark_kinds(pod({"labels": labels}, {}))) == 6
    labels |= {"training.kubeflow.org/operator-name": "pytorchjob-controller"}
    assert mark_kinds(pod({"labels": labels}, {})) == (Kind("kubeflow.org", "PyTorchJob", "pytorchjobs"),)


@pytest.mark.parametrize(
    ("annotations", "void"),
    [
        ({}, True),
        ({"scheduling.k8s.io/group-name": "g"}, False),
        ({"vkgateway.io/gang": "train", "vkgateway.io/gang-size": "2"}, False),
        ({"kueue.x-k8s.io/pod-group-total-count": "2"}, False),
    ],
    ids=["alone", "beside one whose kind is served", "beside ours", "beside one that needs no kind"],
)
def test_pod_is_unserved_only_if_no_mark_counts(annotations: dict[str, str], void: bool) -> None:
    marked = pod({"labels": ONE, "annotations": annotations}, {})
    assert has_unserved_marks(marked, frozenset({COSCHEDULING})) is void


def test_every_integration_has_a_mark() -> None:
    tried = {str(param.id).split(",")[0] for param in MARKED}
    assert {way.key for way in INTEGRATIONS} - tried == {"spark", "job"}, "a Job's pods carry our annotation"


@pytest.mark.parametrize("version", ["1.36.3", "1.33.1"])
def test_admission_policy_uses_the_same_marks(version: str) -> None:
    expression = _condition(version)
    lists = [set(re.findall(r'"([^"]+)"', found)) for found in re.findall(r"key in \[([^\]]+)\]", expression)]
    assert lists == [set(MARK_LABELS), set(MARK_ANNOTATIONS)]
    assert all(f"has(object.spec.{field})" in expression for field in MARK_FIELDS)


def _reviewed(new: dict[str, Any]) -> dict[str, Any]:
    request = {"uid": "r", "kind": {"kind": "Pod"}, "operation": "CREATE", "object": new}
    answer: dict[str, Any] = review_pod({"apiVersion": "admission.k8s.io/v1", "request": request})["response"]
    return answer


def _condition(version: str) -> str:
    facts = TenantFacts(
        name="t",
        template="default",
        kubernetes_version=version,
        address="127.0.0.1",
        port=1,
        cluster_domain="cluster.local",
        webhooks_url="https://127.0.0.1:1",
        webhooks_ca="Zm9v",
    )
    policy = next(
        found
        for found in Templates().load_template("default").render_objects(facts)
        if found["metadata"]["name"] == "vkgateway-admission" and not found["kind"].endswith("Binding")
    )
    conditions = (policy.get("spec") or policy["webhooks"][0])["matchConditions"]
    return next(str(each["expression"]) for each in conditions if each["name"] == "waits-for-the-arbiter")
