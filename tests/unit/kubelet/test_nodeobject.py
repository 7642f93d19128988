"""What is written of a Node, and what counts as changed by somebody else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from vkgateway.kubelet.nodeobject import (
    build_documents,
    labels_and_taints,
    project_node,
    stamp_conditions,
    without_times,
)
from vkgateway.model.objects import Taint
from vkgateway.translate.governed import CORDON_TAINT

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
EARLIER = "2026-01-01T00:00:00Z"


def _wanted(**status: Any) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "fine"}
    return {
        "metadata": {"name": "a100.local", "labels": {"type": "virtual-kubelet"}},
        "spec": {"providerID": "x"},
        "status": {"capacity": {"cpu": "8"}, "conditions": [ready], **status},
    }


def test_main_object_and_status_are_written_apart() -> None:
    written = build_documents(_wanted(), None, now=NOW)
    assert written.main == {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "a100.local", "labels": {"type": "virtual-kubelet"}},
        "spec": {"providerID": "x"},
    }
    assert written.status["metadata"] == {"name": "a100.local"}
    assert written.status["status"]["capacity"] == {"cpu": "8"}


def test_a_new_condition_begins_now() -> None:
    [ready] = build_documents(_wanted(), None, now=NOW).status["status"]["conditions"]
    assert ready["lastTransitionTime"] == ready["lastHeartbeatTime"] == "2026-01-02T03:04:05Z"


def test_a_condition_keeps_its_transition_until_its_status_changes() -> None:
    current = {"status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": EARLIER}]}}
    [ready] = build_documents(_wanted(), current, now=NOW).status["status"]["conditions"]
    assert ready["lastTransitionTime"] == EARLIER
    current["status"]["conditions"][0]["status"] = "False"
    [ready] = build_documents(_wanted(), current, now=NOW + timedelta(seconds=1)).status["status"]["conditions"]
    assert ready["lastTransitionTime"] == "2026-01-02T03:04:06Z"


def test_nodes_that_differ_in_times_only_say_the_same() -> None:
    timed = _wanted()
    timed["status"]["conditions"][0] |= {"lastHeartbeatTime": EARLIER, "lastTransitionTime": EARLIER}
    assert without_times(timed) == without_times(_wanted()) == _wanted()
    [ready] = build_documents(timed, None, now=NOW).status["status"]["conditions"]
    assert ready["lastHeartbeatTime"] == ready["lastTransitionTime"] == "2026-01-02T03:04:05Z"


def test_conditions_of_others_are_not_written() -> None:
    current = [{"type": "NetworkUnavailable", "status": "False"}]
    assert [entry["type"] for entry in stamp_conditions(_wanted()["status"]["conditions"], current, now=NOW)] == [
        "Ready"
    ]


def test_projection_sees_what_is_wanted_and_nothing_else() -> None:
    stored = _wanted(capacity={"cpu": "8", "memory": "1Gi"})
    stored["metadata"] |= {"uid": "1", "labels": {"type": "virtual-kubelet", "mine": "yes"}}
    stored["status"]["conditions"] = [
        {"type": "Mine", "status": "True"},
        stored["status"]["conditions"][0] | {"lastHeartbeatTime": EARLIER},
    ]
    assert project_node(stored, _wanted()) == project_node(_wanted(), _wanted())


def test_projection_shows_what_others_changed() -> None:
    before = project_node(_wanted(), _wanted())
    for path, value in (
        (("metadata", "labels"), {}),
        (("status", "capacity"), {"cpu": "9"}),
        (("status", "conditions"), []),
    ):
        stored = _wanted()
        stored[path[0]][path[1]] = value
        assert project_node(stored, _wanted()) != before


def test_what_the_tenant_put_on_a_node_is_read_and_what_conditions_put_there_is_not() -> None:
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
