"""Which pods carry a gang's mark: one rule for the gateway and for the admission policy of tenants."""

from __future__ import annotations

import re
from typing import Any

import pytest

from vkgateway.controlplane.templates import Templates, TenantFacts
from vkgateway.translate.gangs import WAYS
from vkgateway.translate.gangs.marked import MARK_ANNOTATIONS, MARK_FIELDS, MARK_LABELS, carries_mark
from vkgateway.translate.gate_review import gate_review

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
def test_marks(metadata: dict[str, Any], spec: dict[str, Any]) -> None:
    assert carries_mark(pod(metadata, spec))
    assert "patch" in _reviewed(pod(metadata, spec))


@pytest.mark.parametrize(("metadata", "spec"), UNMARKED)
def test_no_marks(metadata: dict[str, Any], spec: dict[str, Any]) -> None:
    assert not carries_mark(pod(metadata, spec))
    assert "patch" not in _reviewed(pod(metadata, spec))


def test_every_way_that_makes_pods_start_together_has_a_mark_here() -> None:
    tried = {str(param.id).split(",")[0] for param in MARKED}
    assert {way.key for way in WAYS} - tried == {"spark", "job"}, "a Job's pods carry our annotation"


@pytest.mark.parametrize("version", ["1.36.3", "1.33.1"])
def test_the_tenants_policy_has_the_same_marks(version: str) -> None:
    expression = _condition(version)
    lists = [set(re.findall(r'"([^"]+)"', found)) for found in re.findall(r"key in \[([^\]]+)\]", expression)]
    assert lists == [set(MARK_LABELS), set(MARK_ANNOTATIONS)]
    assert all(f"has(object.spec.{field})" in expression for field in MARK_FIELDS)


def _reviewed(new: dict[str, Any]) -> dict[str, Any]:
    request = {"uid": "r", "kind": {"kind": "Pod"}, "operation": "CREATE", "object": new}
    answer: dict[str, Any] = gate_review({"apiVersion": "admission.k8s.io/v1", "request": request})["response"]
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
        for found in Templates().load("default").objects(facts)
        if found["metadata"]["name"] == "vkgateway-admission" and not found["kind"].endswith("Binding")
    )
    conditions = (policy.get("spec") or policy["webhooks"][0])["matchConditions"]
    return next(str(each["expression"]) for each in conditions if each["name"] == "waits-for-the-arbiter")
