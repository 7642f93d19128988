"""Webhook responses: pods that request devices are gated once, Jobs ignore evictions, all others are unchanged."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes.patches import apply_json_patch
from vkgateway.api.errors import InputError
from vkgateway.api.names import ADMISSION_GATE
from vkgateway.kinds.pods.policy.admission_review import review_job, review_pod

GPU = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}


def review(spec: dict[str, Any], *, kind: str = "Pod", operation: str = "CREATE") -> dict[str, Any]:
    request = {
        "uid": "705ab4f5",
        "kind": {"group": "", "version": "v1", "kind": kind},
        "operation": operation,
        "object": {"metadata": {"name": "p"}, "spec": spec},
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def gates(asked: dict[str, Any]) -> list[str]:
    """Return the gates of the pod after the response was applied."""
    return [gate["name"] for gate in patched_spec(review_pod, asked).get("schedulingGates") or ()]


def patched_spec(answer: Callable[[Any], dict[str, Any]], asked: dict[str, Any]) -> dict[str, Any]:
    """Return the spec of the object after the response was applied."""
    response = answer(asked)["response"]
    assert (response["uid"], response["allowed"]) == (asked["request"]["uid"], True)
    found = asked["request"]["object"]
    if "patch" in response:
        assert response["patchType"] == "JSONPatch"
        found = apply_json_patch(found, json.loads(base64.b64decode(response["patch"])))
    spec: dict[str, Any] = found["spec"]
    return spec


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": [{}, GPU]},
        {"containers": [{"resources": {"limits": {"cpu": 1, "example.org/fpga": 2}}}]},
        {"containers": [{"resources": {"requests": {"nvidia.com/gpu": "1"}}}], "nodeName": ""},
        {"containers": [{}], "initContainers": [GPU]},
        {"containers": [GPU], "schedulingGates": []},
        {"containers": [GPU], "schedulingGates": None},
    ],
)
def test_pod_with_a_device_request_is_gated(spec: dict[str, Any]) -> None:
    assert gates(review(spec)) == [ADMISSION_GATE]


def test_gate_is_added_once_and_others_are_kept() -> None:
    others = [{"name": "example.org/other"}]
    assert gates(review({"containers": [GPU], "schedulingGates": others})) == ["example.org/other", ADMISSION_GATE]
    ours = [{"name": ADMISSION_GATE}]
    assert gates(review({"containers": [GPU], "schedulingGates": ours})) == [ADMISSION_GATE]


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": [{}]},
        {"containers": [{"resources": {"limits": {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "2Mi"}}}]},
        {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "0"}}}]},
        {"containers": [GPU], "nodeName": "a100.local"},
    ],
)
def test_other_pods_are_unchanged(spec: dict[str, Any]) -> None:
    assert gates(review(spec)) == []


@pytest.mark.parametrize(("kind", "operation"), [("Pod", "UPDATE"), ("PodTemplate", "CREATE")])
def test_only_new_pods_are_gated(kind: str, operation: str) -> None:
    assert gates(review({"containers": [GPU]}, kind=kind, operation=operation)) == []


NEVER = {"template": {"spec": {"restartPolicy": "Never"}}}


def test_new_job_ignores_evictions() -> None:
    """The API server has filled in the default of podReplacementPolicy, which Kubernetes does not allow then."""
    spec = {**NEVER, "podReplacementPolicy": "TerminatingOrFailed"}
    ignored = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    for each in (NEVER, spec):
        assert patched_spec(review_job, review(each, kind="Job")) == {
            **NEVER,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": [ignored]},
        }


@pytest.mark.parametrize(
    "spec",
    [
        {**NEVER, "podFailurePolicy": {"rules": []}},
        {"template": {"spec": {"restartPolicy": "OnFailure"}}},
        {"template": {"spec": {}}},
        {},
    ],
    ids=["a policy", "restarts containers", "the default policy", "invalid"],
)
def test_other_jobs_are_unchanged(spec: dict[str, Any]) -> None:
    assert patched_spec(review_job, review(spec, kind="Job")) == spec


@pytest.mark.parametrize(("kind", "operation"), [("Job", "UPDATE"), ("CronJob", "CREATE")])
def test_only_new_jobs_are_changed(kind: str, operation: str) -> None:
    assert patched_spec(review_job, review(NEVER, kind=kind, operation=operation)) == NEVER


@pytest.mark.parametrize(
    "asked", [None, [], {}, {"request": {}}, {**review({}), "apiVersion": "admission.k8s.io/v1beta1"}]
)
def test_invalid_review_is_refused(asked: Any) -> None:
    for answer in (review_pod, review_job):
        with pytest.raises(InputError, match="AdmissionReview"):
            answer(asked)
