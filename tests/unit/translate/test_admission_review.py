"""Webhook response: pods that request devices are gated once, all others are unchanged."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.fakes.patches import apply_json_patch
from vkgateway.model.errors import InputError
from vkgateway.model.names import ADMISSION_GATE
from vkgateway.translate.admission_review import review_pod

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
    response = review_pod(asked)["response"]
    assert (response["uid"], response["allowed"]) == (asked["request"]["uid"], True)
    pod = asked["request"]["object"]
    if "patch" in response:
        assert response["patchType"] == "JSONPatch"
        pod = apply_json_patch(pod, json.loads(base64.b64decode(response["patch"])))
    return [gate["name"] for gate in pod["spec"].get("schedulingGates") or ()]


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


@pytest.mark.parametrize(
    "asked", [None, [], {}, {"request": {}}, {**review({}), "apiVersion": "admission.k8s.io/v1beta1"}]
)
def test_invalid_review_is_refused(asked: Any) -> None:
    with pytest.raises(InputError, match="AdmissionReview"):
        review_pod(asked)
