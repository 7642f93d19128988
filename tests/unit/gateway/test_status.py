"""Tests of statuses of Tenants and ComputeClusters."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from vkgateway.api.objects import find_condition
from vkgateway.api.types import ComputeClusterStatus, TenantStatus
from vkgateway.clusters.status import (
    ComputeFacts,
    TenantFacts,
    Verdict,
    changed_conditions,
    compute_status,
    false_verdict,
    status_patch,
    tenant_status,
    true_verdict,
    unknown_verdict,
    verdict_from_condition,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)
READY = TenantFacts(
    accepted=true_verdict("Accepted"), control_plane=true_verdict("Serving"), virtual_nodes=true_verdict("Ready")
)


def build_status(facts: TenantFacts, old: TenantStatus | None = None, *, now: datetime = NOW) -> TenantStatus:
    return tenant_status(facts, old=old or TenantStatus(), generation=3, now=now)


def test_phases_follow_conditions() -> None:
    assert build_status(TenantFacts()).phase == "Pending"
    assert build_status(TenantFacts(accepted=true_verdict("Accepted"))).phase == "Provisioning"
    ready = build_status(READY)
    assert ready.phase == "Ready"
    broken = TenantFacts(
        accepted=true_verdict("A"), control_plane=false_verdict("Unreachable"), virtual_nodes=true_verdict("R")
    )
    degraded = build_status(broken, ready)
    assert degraded.phase == "Degraded"
    assert build_status(READY, degraded).phase == "Ready"
    assert build_status(TenantFacts(deleting=Verdict("False", "Deleting")), ready).phase == "Deleting"


def test_ready_reports_first_missing_condition() -> None:
    facts = TenantFacts(accepted=true_verdict("Accepted"), control_plane=unknown_verdict("Starting", "it starts"))
    ready = find_condition(build_status(facts).conditions, "Ready")
    assert ready is not None
    assert (ready.status, ready.reason, ready.message) == ("False", "Starting", "it starts")


def test_status_patch_is_empty_without_changes() -> None:
    first = build_status(READY)
    assert status_patch(first, build_status(READY, first, now=LATER)) == {}


def test_status_patch_has_only_changed_fields() -> None:
    first = build_status(READY)
    second = build_status(TenantFacts(accepted=true_verdict("Accepted")), first, now=LATER)
    assert set(status_patch(first, second)) == {"phase", "conditions"}
    assert [one.type for one in changed_conditions(first.conditions, second.conditions)] == [
        "ControlPlaneReady",
        "VirtualNodesReady",
    ]


def test_guarantee_does_not_affect_ready_and_emits_events_on_change() -> None:
    kept, short = (
        replace(READY, guarantee=true_verdict("Kept")),
        replace(READY, guarantee=false_verdict("NodesMissing", "16 -> 8")),
    )
    less = replace(READY, guarantee=false_verdict("NodesMissing", "16 -> 0"))
    statuses = [build_status(READY)]
    events = []
    for facts in (kept, short, short, less, kept):
        statuses.append(build_status(facts, statuses[-1], now=LATER))
        events.append([one.message for one in changed_conditions(statuses[-2].conditions, statuses[-1].conditions)])
    assert events == [[], ["16 -> 8"], [], ["16 -> 0"], [""]]
    assert {status.phase for status in statuses} == {"Ready"}
    assert verdict_from_condition(statuses[3].conditions, "GuaranteeKept") == short.guarantee
    assert verdict_from_condition(statuses[0].conditions, "GuaranteeKept") is None


def test_budget_does_not_affect_ready_and_warns_before_it_stops() -> None:
    within = replace(READY, budget=true_verdict("WithinBudget"))
    nearly = replace(READY, budget=Verdict("True", "BudgetNearlyUsed", "80 %", is_failure=True))
    used_up = replace(READY, budget=false_verdict("BudgetUsedUp", "gpu"))
    more = replace(READY, budget=false_verdict("BudgetUsedUp", "gpu and nic"))
    statuses, events = [build_status(READY)], []
    for facts in (within, nearly, nearly, used_up, more, within, READY):
        statuses.append(build_status(facts, statuses[-1], now=LATER))
        events.append([one.reason for one in changed_conditions(statuses[-2].conditions, statuses[-1].conditions)])
    assert events == [[], ["BudgetNearlyUsed"], [], ["BudgetUsedUp"], ["BudgetUsedUp"], ["WithinBudget"], []]
    assert {status.phase for status in statuses} == {"Ready"}
    assert find_condition(statuses[-1].conditions, "WithinBudget") is None


def test_transition_time_changes_only_with_status() -> None:
    first = build_status(TenantFacts(accepted=unknown_verdict("A", "one")))
    second = build_status(TenantFacts(accepted=unknown_verdict("B", "two")), first, now=LATER)
    third = build_status(TenantFacts(accepted=true_verdict("C")), second, now=LATER)
    times = [find_condition(one.conditions, "Accepted") for one in (first, second, third)]
    assert [one.last_transition_time for one in times if one] == [
        "2026-01-01T00:00:00Z",
        "2026-01-01T00:00:00Z",
        "2026-01-01T00:01:00Z",
    ]


def test_disconnected_compute_cluster_is_not_ready() -> None:
    facts = ComputeFacts(false_verdict("Unreachable", "refused"), true_verdict("Ready"))
    status = compute_status(facts, old=ComputeClusterStatus(version="v1.36.3"), generation=1, now=NOW)
    ready = find_condition(status.conditions, "Ready")
    assert ready is not None
    assert (ready.status, ready.message) == ("False", "refused")
    assert status.version == "v1.36.3"
