"""Monthly budgets of tenants: how much is used, what stops, and what the Tenant reports (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from vkgateway.gateway.status import Verdict, false_verdict, true_verdict
from vkgateway.gateway.usage.days import month_of, month_text, next_month_text
from vkgateway.gateway.usage.ledger import DayUsage, UsageLedger
from vkgateway.model.api import TenantBudget

WARNING_PERCENT: Final = 80
"""Used percentage of a budget at which its tenant and the platform are warned."""


class BudgetState(StrEnum):
    """State of a budget."""

    OK = "ok"
    WARNING = "warning"
    EXHAUSTED = "exhausted"
    """The tenant starts no more borrowing pods that request the resource."""


class BudgetUse(msgspec.Struct, frozen=True, kw_only=True):
    """Use of one budget in the current UTC month, in unit-hours (GPU-hours)."""

    tenant: str
    resource: str
    pool: str
    """Pool to which the budget is restricted; empty: all pools."""
    month: str
    """UTC month, such as 2026-11."""
    budget: float
    used: float
    state: BudgetState


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    """Usage by UTC day, and budgets of the current UTC month."""

    days: list[DayUsage] = []
    budgets: list[BudgetUse] = []


def budget_uses(
    tenant: str, budgets: Iterable[TenantBudget], ledger: UsageLedger, *, now: float
) -> tuple[BudgetUse, ...]:
    """Return the use of a tenant's budgets in the current month. All hours count, guaranteed and borrowed."""
    month = month_of(now)
    return tuple(
        _use_of(each, tenant, month, ledger.month_hours(tenant, month, resource=each.resource, pool=each.pool))
        for each in budgets
    )


def _use_of(budget: TenantBudget, tenant: str, month: str, used: float) -> BudgetUse:
    state = BudgetState.OK
    if used >= budget.hours:
        state = BudgetState.EXHAUSTED
    elif used * 100 >= budget.hours * WARNING_PERCENT:
        state = BudgetState.WARNING
    return BudgetUse(
        tenant=tenant,
        resource=budget.resource,
        pool=budget.pool,
        month=month,
        budget=budget.hours,
        used=used,
        state=state,
    )


def stopped_resources(uses: Iterable[BudgetUse], pool: str) -> frozenset[str]:
    """Return the resources of a pool that a tenant may not borrow any more."""
    return frozenset(each.resource for each in uses if each.state is BudgetState.EXHAUSTED and each.pool in ("", pool))


def budget_verdict(uses: Sequence[BudgetUse]) -> Verdict | None:
    """Return the content of the condition WithinBudget; None without a budget.

    The text changes only with the state of a budget, and so does the status of the Tenant.
    """
    if not uses:
        return None
    exhausted = [each for each in uses if each.state is BudgetState.EXHAUSTED]
    if exhausted:
        until = next_month_text(exhausted[0].month)
        return false_verdict(
            "BudgetUsedUp",
            f"{_names(exhausted)} used up: pods start only inside the guarantee until {until} (UTC)",
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
