"""Tests of statuses: what is told of facts, and when anything is told at all."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from vkgateway.gateway.status import (
    ComputeFacts,
    TenantFacts,
    Verdict,
    changed,
    compute_status,
    difference,
    failing,
    passed,
    tenant_status,
    told_before,
    waiting,
)
from vkgateway.model.api import ComputeClusterStatus, TenantStatus
from vkgateway.model.objects import condition

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)
READY = TenantFacts(accepted=passed("Accepted"), control_plane=passed("Serving"), virtual_nodes=passed("Ready"))


def told(facts: TenantFacts, old: TenantStatus | None = None, *, now: datetime = NOW) -> TenantStatus:
    return tenant_status(facts, old=old or TenantStatus(), generation=3, now=now)


def test_phases_follow_the_conditions() -> None:
    assert told(TenantFacts()).phase == "Pending"
    assert told(TenantFacts(accepted=passed("Accepted"))).phase == "Provisioning"
    ready = told(READY)
    assert ready.phase == "Ready"
    broken = TenantFacts(accepted=passed("A"), control_plane=failing("Unreachable"), virtual_nodes=passed("R"))
    degraded = told(broken, ready)
    assert degraded.phase == "Degraded"
    assert told(READY, degraded).phase == "Ready"
    assert told(TenantFacts(deleting=Verdict("False", "Deleting")), ready).phase == "Deleting"


def test_ready_says_what_is_missing_first() -> None:
    facts = TenantFacts(accepted=passed("Accepted"), control_plane=waiting("Starting", "it starts"))
    ready = condition(told(facts).conditions, "Ready")
    assert ready is not None
    assert (ready.status, ready.reason, ready.message) == ("False", "Starting", "it starts")


def test_nothing_differs_when_nothing_changed_but_the_time() -> None:
    first = told(READY)
    assert difference(first, told(READY, first, now=LATER)) == {}


def test_only_what_differs_is_written() -> None:
    first = told(READY)
    second = told(TenantFacts(accepted=passed("Accepted")), first, now=LATER)
    assert set(difference(first, second)) == {"phase", "conditions"}
    assert [one.type for one in changed(first.conditions, second.conditions)] == [
        "ControlPlaneReady",
        "VirtualNodesReady",
    ]


def test_a_guarantee_is_no_part_of_ready_and_an_event_only_where_it_changes() -> None:
    kept, short = replace(READY, guarantee=passed("Kept")), replace(READY, guarantee=failing("NodesMissing", "16 -> 8"))
    less = replace(READY, guarantee=failing("NodesMissing", "16 -> 0"))
    statuses = [told(READY)]
    events = []
    for facts in (kept, short, short, less, kept):
        statuses.append(told(facts, statuses[-1], now=LATER))
        events.append([one.message for one in changed(statuses[-2].conditions, statuses[-1].conditions)])
    assert events == [[], ["16 -> 8"], [], ["16 -> 0"], [""]]
    assert {status.phase for status in statuses} == {"Ready"}
    assert told_before(statuses[3].conditions, "GuaranteeKept") == short.guarantee
    assert told_before(statuses[0].conditions, "GuaranteeKept") is None


def test_transition_times_move_with_the_status_alone() -> None:
    first = told(TenantFacts(accepted=waiting("A", "one")))
    second = told(TenantFacts(accepted=waiting("B", "two")), first, now=LATER)
    third = told(TenantFacts(accepted=passed("C")), second, now=LATER)
    times = [condition(one.conditions, "Accepted") for one in (first, second, third)]
    assert [one.last_transition_time for one in times if one] == [
        "2026-01-01T00:00:00Z",
        "2026-01-01T00:00:00Z",
        "2026-01-01T00:01:00Z",
    ]


def test_a_compute_cluster_that_is_not_connected_is_not_ready() -> None:
    facts = ComputeFacts(failing("Unreachable", "refused"), passed("Ready"))
    status = compute_status(facts, old=ComputeClusterStatus(version="v1.36.3"), generation=1, now=NOW)
    ready = condition(status.conditions, "Ready")
    assert ready is not None
    assert (ready.status, ready.message) == ("False", "refused")
    assert status.version == "v1.36.3"
