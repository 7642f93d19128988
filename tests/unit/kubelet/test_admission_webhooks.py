"""The webhooks for older API servers, on the kubelet endpoint."""

from __future__ import annotations

import json

import pytest

from tests.unit.kubelet.conftest import Endpoint

REVIEW = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {
        "uid": "705ab4f5",
        "kind": {"kind": "Pod"},
        "operation": "CREATE",
        "object": {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}},
    },
}


async def test_review_is_answered_on_kept_alive_connection(endpoint: Endpoint) -> None:
    caller = await endpoint.call()
    for _ in range(2):
        status, headers, body = await caller.send("POST", "/admission/gate?timeout=3s", json.dumps(REVIEW).encode())
        assert (status, headers["content-type"]) == (200, "application/json")
        assert json.loads(body)["response"].keys() == {"uid", "allowed", "patchType", "patch"}


async def test_review_of_a_job_is_answered(endpoint: Endpoint) -> None:
    job = {"spec": {"template": {"spec": {"restartPolicy": "Never"}}}}
    review = REVIEW | {"request": {"uid": "1", "kind": {"kind": "Job"}, "operation": "CREATE", "object": job}}
    status, _, body = await (await endpoint.call()).send("POST", "/admission/job", json.dumps(review).encode())
    assert status == 200
    assert json.loads(body)["response"].keys() == {"uid", "allowed", "patchType", "patch"}


async def test_review_of_largest_pod_is_answered(endpoint: Endpoint) -> None:
    review = json.dumps(REVIEW | {"padding": "x" * 3 * 1024 * 1024}).encode()
    caller = await endpoint.call()
    assert (await caller.send("POST", "/admission/gate", review))[0] == 200


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b'{"request":null}'])
async def test_invalid_review_is_refused(endpoint: Endpoint, body: bytes) -> None:
    caller = await endpoint.call()
    assert (await caller.send("POST", "/admission/gate", body))[0] == 400


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/admission/gate", 405), ("POST", "/admission/other", 404), ("POST", "/admission", 404)],
)
async def test_other_admission_paths_are_refused(endpoint: Endpoint, method: str, path: str, status: int) -> None:
    caller = await endpoint.call()
    assert (await caller.send(method, path, b"{}"))[0] == status


async def test_review_of_unknown_tenant_is_refused(endpoint: Endpoint) -> None:
    caller = await endpoint.call("beta")
    assert (await caller.send("POST", "/admission/gate", b"{}"))[0] == 403
