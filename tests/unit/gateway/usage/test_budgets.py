"""Tests of budgets: their states, what stops, and what the Tenant reports."""

from __future__ import annotations

import pytest

from tests.unit.gateway.usage.records import GPU, HOUR, at, used
from vkgateway.gateway.usage.budgets import (
    BudgetState,
    BudgetUse,
    budget_uses,
    budget_verdict,
    stopped_resources,
)
from vkgateway.gateway.usage.ledger import UsageLedger
from vkgateway.model.api import TenantBudget

NOON = at("2026-11-26 12:00")


def uses(
    *budgets: TenantBudget, hours: float = 1.0, now: float = NOON + HOUR, **fields: object
) -> tuple[BudgetUse, ...]:
    ledger = UsageLedger()
    ledger.count([used("p", NOON, NOON + hours * HOUR, **fields)])
    return budget_uses("alpha", budgets, ledger, now=now)


@pytest.mark.parametrize(
    ("budget", "state"),
    [
        (10.01, BudgetState.OK),
        (10.0, BudgetState.WARNING),
        (8.01, BudgetState.WARNING),
        (8.0, BudgetState.EXHAUSTED),
        (0.0, BudgetState.EXHAUSTED),
    ],
)
def test_state_follows_used_share(budget: float, state: BudgetState) -> None:
    (found,) = uses(TenantBudget(resource=GPU, hours=budget))
    assert (found.state, found.month) == (state, "2026-11")
    assert found.used == pytest.approx(8)


def test_guaranteed_and_borrowed_hours_count() -> None:
    (found,) = uses(TenantBudget(resource=GPU, hours=8), borrowed=True, band="low")
    assert found.state is BudgetState.EXHAUSTED


def test_next_month_starts_at_zero() -> None:
    (found,) = uses(TenantBudget(resource=GPU, hours=8), now=at("2026-12-01 00:00"))
    assert (found.state, found.used, found.month) == (BudgetState.OK, 0, "2026-12")


def test_budget_of_pool_counts_and_stops_there_only() -> None:
    found = uses(TenantBudget(resource=GPU, hours=4, pool="a100"), TenantBudget(resource=GPU, hours=0.5, pool="v100"))
    assert [each.state for each in found] == [BudgetState.EXHAUSTED, BudgetState.OK]
    assert stopped_resources(found, "a100") == {GPU}
    assert not stopped_resources(found, "v100")


def test_budget_of_all_pools_stops_everywhere() -> None:
    found = uses(TenantBudget(resource=GPU, hours=4), TenantBudget(resource="example.com/nic", hours=1))
    assert stopped_resources(found, "h100") == {GPU}


def test_tenant_reports_states() -> None:
    assert budget_verdict(()) is None
    within = budget_verdict(uses(TenantBudget(resource=GPU, hours=100)))
    assert within is not None
    assert (within.status, within.reason, within.is_failure) == ("True", "WithinBudget", False)
    warned = budget_verdict(uses(TenantBudget(resource=GPU, hours=10)))
    assert warned is not None
    assert (warned.status, warned.reason, warned.is_failure) == ("True", "BudgetNearlyUsed", True)
    assert warned.message == f"the budget of November 2026 for 10 hours of {GPU} is used to 80 %"
    exhausted = budget_verdict(
        uses(TenantBudget(resource=GPU, hours=8), TenantBudget(resource=GPU, hours=4, pool="a100"))
    )
    assert exhausted is not None
    assert (exhausted.status, exhausted.reason, exhausted.is_failure) == ("False", "BudgetUsedUp", True)
    assert exhausted.message == (
        f"the budget of November 2026 for 8 hours of {GPU} and for 4 hours of {GPU} in pool a100 is used up: "
        "pods start only inside the guarantee until 1 December 2026 (UTC)"
    )
