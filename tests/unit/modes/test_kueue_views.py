"""What Kueue's Workloads mean: states, slots, reasons."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vkgateway.scheduler.backends.attempt import Attempt, AttemptState
from vkgateway.scheduler.backends.kueue.kinds import decode_workload, read_attempt
from vkgateway.scheduler.core.decisions import PendingReason

CREATED = "2026-03-01T12:00:00Z"


def attempt(*conditions: dict[str, str], **fields: Any) -> Attempt:
    """Return the attempt of a Workload in the form in which Kueue 0.17 writes it."""
    metadata = {
        "name": "a-1234",
        "uid": "w1",
        "resourceVersion": "7",
        "creationTimestamp": CREATED,
        "labels": {"vkgateway.io/pool": "a100"},
        "annotations": {"vkgateway.io/gang-tenant": "a", "vkgateway.io/digest": "d"},
        **fields.pop("metadata", {}),
    }
    status = {"conditions": list(conditions), **fields.pop("status", {})}
    document = {"metadata": metadata, "spec": {"priority": 5, "podSets": [], **fields}, "status": status}
    return read_attempt(decode_workload(json.dumps(document).encode()), "local", lambda host: f"node-{host}")


def condition(kind: str, status: str = "True", message: str = "", reason: str = "x") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": CREATED}


def test_new_workload_is_pending() -> None:
    found = attempt()
    assert (found.state, found.pool, found.tenant, found.digest) == (
        AttemptState.PENDING,
        ("local", "a100"),
        "a",
        "d",
    )
    assert (found.priority, found.created) == (5, 1772366400.0)
    assert found.wait is not None
    assert "not considered" in found.wait.message


@pytest.mark.parametrize(
    ("conditions", "state"),
    [
        ([condition("QuotaReserved"), condition("Admitted")], AttemptState.ADMITTED),
        ([condition("QuotaReserved")], AttemptState.PENDING),
        ([condition("QuotaReserved"), condition("Admitted"), condition("Evicted")], AttemptState.EVICTED),
        ([condition("Admitted"), condition("Evicted", "False")], AttemptState.ADMITTED),
        ([condition("Admitted"), condition("Finished")], AttemptState.EVICTED),
    ],
)
def test_conditions_decide_the_state(conditions: list[dict[str, str]], state: AttemptState) -> None:
    assert attempt(*conditions).state is state


def test_deleted_workload_no_longer_counts_as_admitted() -> None:
    found = attempt(condition("Admitted"), metadata={"deletionTimestamp": CREATED})
    assert found.state is AttemptState.DELETING


def test_preempted_workload_names_the_preemptor() -> None:
    message = (
        "Preempted to accommodate a workload (UID: 5c023c28-8533-4927-b266-56bca5e310c1, JobUID: UNKNOWN) due to "
        "reclamation within the cohort"
    )
    found = attempt(condition("Admitted"), condition("Evicted"), condition("Preempted", message=message))
    assert found.preemptor == "5c023c28-8533-4927-b266-56bca5e310c1"


def test_topology_assignment_names_nodes() -> None:
    slices = [
        {
            "domainCount": 2,
            "valuesPerLevel": [{"individual": {"prefix": "h", "roots": ["1", "2"]}}],
            "podCounts": {"individual": [3, 1]},
        },
        {"domainCount": 1, "valuesPerLevel": [{"universal": "h9"}], "podCounts": {"universal": 2}},
    ]
    admission = {
        "clusterQueue": "a.a100",
        "podSetAssignments": [
            {"name": "s1", "count": 6, "topologyAssignment": {"levels": ["kubernetes.io/hostname"], "slices": slices}},
            {"name": "s2", "count": 4},
        ],
    }
    found = attempt(condition("Admitted"), status={"admission": admission})
    assert found.slots == {"s1": {"node-h1": 3, "node-h2": 1, "node-h9": 2}, "s2": {"": 4}}


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (
            "couldn't assign flavors to pod set s1: insufficient unused quota for nvidia.com/gpu in flavor "
            "vkgateway.a100, 8 more needed. Pending the preemption of 1 workload(s)",
            PendingReason.EVICTION,
        ),
        (
            "couldn't assign flavors to pod set s1: insufficient unused quota for nvidia.com/gpu in flavor "
            "vkgateway.a100, 8 more needed",
            PendingReason.ROOM,
        ),
        (
            "couldn't assign flavors to pod set s1: insufficient quota for nvidia.com/gpu in flavor vkgateway.a100, "
            "request > maximum capacity (64 > 32)",
            PendingReason.INFEASIBLE,
        ),
        ('topology "vkgateway.a100" allows to fit only 1 out of 2 pod(s)', PendingReason.ROOM),
        ("LocalQueue other-tenant.a100 doesn't exist", PendingReason.ROOM),
        ("something new about ClusterQueue other-tenant.a100", PendingReason.ROOM),
        ("something entirely new", PendingReason.ROOM),
    ],
)
def test_message_becomes_a_reason_without_names(message: str, code: PendingReason) -> None:
    wait = attempt(condition("QuotaReserved", "False", message)).wait
    assert wait is not None
    assert wait.code is code
    for name in ("vkgateway.", "other-tenant", "s1", "Queue"):
        assert name not in wait.message


def test_deactivated_workload_waits_for_an_administrator() -> None:
    wait = attempt(active=False).wait
    assert wait is not None
    assert "administrator" in wait.message
