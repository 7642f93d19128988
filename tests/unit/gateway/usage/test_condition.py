"""Tests of the condition WithinBudget: what a Tenant reports of its budgets."""

from __future__ import annotations

from tests.unit.usage.records import GPU, uses
from vkgateway.api.types import TenantBudget
from vkgateway.tenants.usage.monitor import budget_verdict


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


def test_budget_of_no_hours_has_no_end() -> None:
    exhausted = budget_verdict(uses(TenantBudget(resource=GPU, hours=0)))
    assert exhausted is not None
    assert exhausted.message == (
        f"the budget of November 2026 for 0 hours of {GPU} is used up: pods start only inside the guarantee"
    )
