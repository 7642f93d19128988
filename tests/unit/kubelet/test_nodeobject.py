"""Documents of a Node, and detection of changes by other clients."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from vkgateway.api.objects import Taint
from vkgateway.nodes.virtualnode import (
    build_documents,
    labels_and_taints,
    project_node,
    stamp_conditions,
    without_times,
)
from vkgateway.scheduler.governed import CORDON_TAINT

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
EARLIER = "2026-01-01T00:00:00Z"


def _wanted(**status: Any) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "fine"}
    return {
        "metadata": {"name": "a100.local", "labels": {"type": "virtual-kubelet"}},
        "spec": {"providerID": "x"},
        "status": {"capacity": {"cpu": "8"}, "conditions": [ready], **status},
    }


def test_object_and_status_are_separate_documents() -> None:
    written = build_documents(_wanted(), None, now=NOW)
    assert written.main == {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "a100.local", "labels": {"type": "virtual-kubelet"}},
        "spec": {"providerID": "x"},
    }
    assert written.status["metadata"] == {"name": "a100.local"}
    assert written.status["status"]["capacity"] == {"cpu": "8"}


def test_new_condition_has_current_transition_time() -> None:
    [ready] = build_documents(_wanted(), None, now=NOW).status["status"]["conditions"]
    assert ready["lastTransitionTime"] == ready["lastHeartbeatTime"] == "2026-01-02T03:04:05Z"


def test_transition_time_changes_only_with_status() -> None:
    current = {"status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": EARLIER}]}}
    [ready] = build_documents(_wanted(), current, now=NOW).status["status"]["conditions"]
    assert ready["lastTransitionTime"] == EARLIER
    current["status"]["conditions"][0]["status"] = "False"
    [ready] = build_documents(_wanted(), current, now=NOW + timedelta(seconds=1)).status["status"]["conditions"]
    assert ready["lastTransitionTime"] == "2026-01-02T03:04:06Z"


def test_times_do_not_matter_in_comparison() -> None:
    timed = _wanted()
    timed["status"]["conditions"][0] |= {"lastHeartbeatTime": EARLIER, "lastTransitionTime": EARLIER}
    assert without_times(timed) == without_times(_wanted()) == _wanted()
    [ready] = build_documents(timed, None, now=NOW).status["status"]["conditions"]
    assert ready["lastHeartbeatTime"] == ready["lastTransitionTime"] == "2026-01-02T03:04:05Z"


def test_conditions_of_other_clients_are_not_written() -> None:
    current = [{"type": "NetworkUnavailable", "status": "False"}]
    assert [entry["type"] for entry in stamp_conditions(_wanted()["status"]["conditions"], current, now=NOW)] == [
        "Ready"
    ]


def test_projection_contains_wanted_fields_only() -> None:
    stored = _wanted(capacity={"cpu": "8", "memory": "1Gi"})
    stored["metadata"] |= {"uid": "1", "labels": {"type": "virtual-kubelet", "mine": "yes"}}
    stored["status"]["conditions"] = [
        {"type": "Mine", "status": "True"},
        stored["status"]["conditions"][0] | {"lastHeartbeatTime": EARLIER},
    ]
    assert project_node(stored, _wanted()) == project_node(_wanted(), _wanted())


def test_projection_contains_changes_of_other_clients() -> None:
    before = project_node(_wanted(), _wanted())
    for path, value in (
        (("metadata", "labels"), {}),
        (("status", "capacity"), {"cpu": "9"}),
        (("status", "conditions"), []),
    ):
        stored = _wanted()
        stored[path[0]][path[1]] = value
        assert project_node(stored, _wanted()) != before


def test_taints_of_conditions_are_skipped() -> None:
    node = {
        "metadata": {"labels": {"team": "vision"}},
        "spec": {
            "unschedulable": True,
            "taints": [
                {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": EARLIER},
                {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"},
                {"key": "maintenance", "value": "soon", "effect": "NoSchedule"},
            ],
        },
    }
    mine = Taint(key="maintenance", value="soon", effect="NoSchedule")
    assert labels_and_taints(node) == ({"team": "vision"}, (mine, CORDON_TAINT))
    assert labels_and_taints({"metadata": {}}) == ({}, ())
