"""The webhook that gates pods for older API servers, beside the kubelet API and behind the same door."""

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


async def test_a_review_is_answered_on_a_connection_kept_alive(endpoint: Endpoint) -> None:
    caller = await endpoint.call()
    for _ in range(2):
        status, headers, body = await caller.send("POST", "/admission/gate?timeout=3s", json.dumps(REVIEW).encode())
        assert (status, headers["content-type"]) == (200, "application/json")
        assert json.loads(body)["response"].keys() == {"uid", "allowed", "patchType", "patch"}


async def test_a_review_as_large_as_a_pod_can_be(endpoint: Endpoint) -> None:
    review = json.dumps(REVIEW | {"padding": "x" * 3 * 1024 * 1024}).encode()
    caller = await endpoint.call()
    assert (await caller.send("POST", "/admission/gate", review))[0] == 200


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b'{"request":null}'])
async def test_what_is_no_review_is_refused(endpoint: Endpoint, body: bytes) -> None:
    caller = await endpoint.call()
    assert (await caller.send("POST", "/admission/gate", body))[0] == 400


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/admission/gate", 405), ("POST", "/admission/other", 404), ("POST", "/admission", 404)],
)
async def test_nothing_else_is_answered_there(endpoint: Endpoint, method: str, path: str, status: int) -> None:
    caller = await endpoint.call()
    assert (await caller.send(method, path, b"{}"))[0] == status


async def test_a_tenant_that_is_not_served_is_not_answered(endpoint: Endpoint) -> None:
    caller = await endpoint.call("beta")
    assert (await caller.send("POST", "/admission/gate", b"{}"))[0] == 403
