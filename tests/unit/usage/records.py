"""Usage records and stores for tests."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from vkgateway.api.types import TenantBudget
from vkgateway.kube import errors
from vkgateway.tenants.usage.budgets import BudgetUse, budget_uses
from vkgateway.tenants.usage.ledger import MonthUsage, StoredMonth, UsageLedger
from vkgateway.tenants.usage.records import UsageRecord

GPU = "nvidia.com/gpu"
HOUR = 3600.0


def at(text: str) -> float:
    """Return a UTC time such as `2026-11-26 23:00` in seconds since the epoch."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def used(pod: str, start: float, end: float, **fields: object) -> UsageRecord:
    given: dict[str, object] = {
        "tenant": "alpha",
        "namespace": "ns",
        "pod": pod,
        "gang": f"alpha/ns/gang/{pod}",
        "band": "guaranteed",
        "borrowed": False,
        "pool": "a100",
        "computeCluster": "local",
        "resource": GPU,
        "units": 8.0,
        "start": start,
        "end": end,
        **fields,
    }
    return msgspec.convert(given, UsageRecord)


NOON = at("2026-11-26 12:00")


def uses(
    *budgets: TenantBudget, hours: float = 1.0, now: float = NOON + HOUR, **fields: object
) -> tuple[BudgetUse, ...]:
    """Return the use of the budgets of alpha after 8 devices ran for some hours from NOON."""
    ledger = UsageLedger()
    ledger.count([used("p", NOON, NOON + hours * HOUR, **fields)])
    return budget_uses("alpha", budgets, ledger, now=now)


class MemoryStore:
    """Store in memory, which can fail."""

    def __init__(self) -> None:
        self.months: dict[StoredMonth, bytes] = {}
        self.is_down = False
        self.saves = 0

    def _check(self) -> None:
        if self.is_down:
            raise errors.Unreachable("the management cluster is down")

    async def load(self) -> list[MonthUsage]:
        self._check()
        return [msgspec.json.decode(text, type=MonthUsage) for text in self.months.values()]

    async def save(self, month: MonthUsage) -> None:
        self._check()
        self.saves += 1
        self.months[month.tenant, month.uid, month.month] = msgspec.json.encode(month)

    async def delete(self, months: Iterable[StoredMonth]) -> None:
        self._check()
        for each in months:
            self.months.pop(each, None)
