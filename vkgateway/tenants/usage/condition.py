"""Condition WithinBudget of a Tenant: what it reports of its budgets (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from vkgateway.clusters.status import Verdict, false_verdict, true_verdict
from vkgateway.tenants.usage.budgets import WARNING_PERCENT, BudgetState, BudgetUse
from vkgateway.tenants.usage.days import month_text, next_month_text


def budget_verdict(uses: Sequence[BudgetUse]) -> Verdict | None:
    """Return the content of the condition WithinBudget; None without a budget.

    The text changes only with the state of a budget, and so does the status of the Tenant.
    """
    if not uses:
        return None
    exhausted = [each for each in uses if each.state is BudgetState.EXHAUSTED]
    if exhausted:
        # A budget of 0 hours is used up in the next month, too.
        is_monthly = all(each.budget for each in exhausted)
        until = f" until {next_month_text(exhausted[0].month)} (UTC)" if is_monthly else ""
        return false_verdict(
            "BudgetUsedUp",
            f"{_names(exhausted)} used up: pods start only inside the guarantee{until}",
        )
    warned = [each for each in uses if each.state is BudgetState.WARNING]
    if warned:
        # Within the budget, and still worth a warning.
        return Verdict("True", "BudgetNearlyUsed", f"{_names(warned)} used to {WARNING_PERCENT} %", is_failure=True)
    return true_verdict("WithinBudget", f"less than {WARNING_PERCENT} % of each budget is used")


def _names(uses: Sequence[BudgetUse]) -> str:
    """Return a phrase such as `the budget of November 2026 for 100 hours of nvidia.com/gpu is`."""
    parts = (
        f"{each.budget:g} hours of {each.resource}" + (f" in pool {each.pool}" if each.pool else "") for each in uses
    )
    month = month_text(uses[0].month)
    return f"the budget of {month} for {' and for '.join(parts)} is"
