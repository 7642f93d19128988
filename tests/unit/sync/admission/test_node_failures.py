"""Record of failures by node: which pods count, for how long, and within which bounds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.sync.admission.samples import compute_view
from vkgateway.scheduler.service.node_failures import FAILURE_SECONDS, NodeFailures, failed_runs


def pod_status(exit_code: int = 1, **fields: Any) -> bytes:
    terminated = {"terminated": {"exitCode": exit_code, "finishedAt": "2026-01-01T00:00:00Z"}}
    status = {"phase": "Failed", "containerStatuses": [{"name": "main", "state": terminated}], **fields}
    return json.dumps(status).encode().replace(b'": ', b'":')


def test_node_is_avoided_after_failures_of_two_gangs_within_an_hour() -> None:
    found = NodeFailures("local")
    found.record_failure("n0", "a/one", 1000.0)
    found.record_failure("n0", "a/one", 1001.0)
    found.record_failure("n1", "a/one", 1000.0)
    assert found.failed_gangs(1001.0) == {}, "one gang fails wherever it runs"
    found.record_failure("n0", "b/two", 2000.0)
    assert found.failed_gangs(2000.0) == {"n0": 2}
    assert found.failed_gangs(1001.0 + FAILURE_SECONDS) == {}
    found.record_failure("n0", "b/three", 5000.0)
    assert found.failed_gangs(5000.0) == {"n0": 2}


def test_record_is_bounded() -> None:
    found = NodeFailures("local")
    for number in range(5000):
        found.record_failure(f"n{number}", "a/one", 1000.0)
        found.record_failure(f"n{number}", "a/two", 1000.0)
    assert len(found.failed_gangs(1000.0)) == 4096
    for number in range(100):
        found.record_failure("n4999", f"a/{number}", 1000.0)
    assert found.failed_gangs(1000.0)["n4999"] == 16


@pytest.mark.parametrize(
    ("status", "failed"),
    [
        (pod_status(), 1),
        (pod_status(0), 0),
        (pod_status(reason="Evicted"), 0),
        (pod_status(conditions=[{"type": "DisruptionTarget", "status": "True"}]), 0),
        (b'{"phase":"Failed"}', 0),
        (b'{"exitCode":', 0),
        (
            b'{"containerStatuses":[{"restartCount":2,"state":{"running":{}},'
            b'"lastState":{"terminated":{"exitCode":137}}}]}',
            3,
        ),
    ],
    ids=["error", "success", "evicted", "disrupted", "no container", "not JSON", "restarted in place"],
)
def test_only_containers_that_ended_with_an_error_count(status: bytes, failed: int) -> None:
    view = compute_view()
    view.status = status
    assert failed_runs(view) == failed


def test_deleted_pod_does_not_count() -> None:
    view = compute_view()
    view.status, view.metadata.deletion_timestamp = pod_status(143), "2026-01-01T00:00:00Z"
    assert failed_runs(view) == 0
