"""Tests of budgets: their states, and what stops."""

from __future__ import annotations

import pytest

from tests.unit.usage.records import GPU, at, uses
from vkgateway.api.types import TenantBudget
from vkgateway.tenants.usage.budgets import BudgetState, stopped_resources


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
    assert stopped_resources(found, "a100") == {GPU: 4}
    assert not stopped_resources(found, "v100")


def test_budget_of_all_pools_stops_everywhere() -> None:
    found = uses(TenantBudget(resource=GPU, hours=4), TenantBudget(resource="example.com/nic", hours=1))
    assert stopped_resources(found, "h100") == {GPU: 4}
