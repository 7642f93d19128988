"""Monthly budgets of tenants: how much is used, and what stops."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from vkgateway.api.requests import is_extended
from vkgateway.api.types import TenantBudget
from vkgateway.tenants.usage.days import month_of
from vkgateway.tenants.usage.ledger import DayUsage, UsageLedger

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
    tenant: str, budgets: Iterable[TenantBudget], ledger: UsageLedger, *, now: float, uid: str = ""
) -> tuple[BudgetUse, ...]:
    """Return the use of a tenant's budgets in the current month. All hours count, guaranteed and borrowed.

    `uid` is that of the Tenant: the hours of an earlier tenant of the same name do not count.
    """
    month = month_of(now)
    return tuple(
        _use_of(each, tenant, month, ledger.month_hours(tenant, month, resource=each.resource, pool=each.pool, uid=uid))
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


def budget_problems(budgets: Iterable[TenantBudget], pools: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the budgets of a tenant with these pools: a field, such as budget[0].hours, and why."""
    seen = set[tuple[str, str]]()
    for index, budget in enumerate(budgets):
        path = f"budget[{index}]"
        if not is_extended(budget.resource):
            yield (
                f"{path}.resource",
                f"{budget.resource!r} has no hours; use an extended resource, such as nvidia.com/gpu",
            )
        if not 0 <= budget.hours < math.inf:
            yield f"{path}.hours", f"{budget.hours:g} is not a number of hours; use 0 or more"
        if budget.pool and budget.pool not in pools:
            names = ", ".join(sorted(pools)) or "none"
            yield f"{path}.pool", f"the tenant has no pool {budget.pool!r}; its pools: {names}"
        if (budget.resource, budget.pool) in seen:
            yield path, f"{budget.resource} has two budgets for the same pools; remove one"
        seen.add((budget.resource, budget.pool))


def stopped_resources(uses: Iterable[BudgetUse], pool: str) -> Mapping[str, float]:
    """Return the resources of a pool that a tenant may not borrow any more, with the hours of the budget."""
    found: dict[str, float] = {}  # the smallest of a resource: that of a pool, or that of all
    for each in uses:
        if each.state is BudgetState.EXHAUSTED and each.pool in ("", pool):
            found[each.resource] = min(each.budget, found.get(each.resource, each.budget))
    return found
