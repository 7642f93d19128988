"""Budgets of tenants in a simulation: hours counted and borrowing stopped by the code of the gateway."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from vkgateway.scheduler.core.snapshot import WAITING, Gang, Pod, Quota
from vkgateway.tenants.usage.budgets import BudgetState, BudgetUse, budget_uses, stopped_resources
from vkgateway.tenants.usage.days import month_start, months_before
from vkgateway.tenants.usage.ledger import MonthUsage, UsageLedger
from vkgateway.tenants.usage.records import UsageRecord
from vkgateway_platform.simulate.gangs import SubmittedGangs
from vkgateway_platform.simulate.scenario import Scenario
from vkgateway_platform.simulate.state import SimulationState
from vkgateway_platform.simulate.usage import MILLI_PER_UNIT

_ROUNDING: Final = 0.001
"""Seconds after midnight at which a month begins, so that rounding does not move it to the day before."""


class Budgets:
    """Hours of the tenants that have a budget. Without budgets, it counts nothing.

    The gateway counts running pods every 15 s. The simulation counts them before each cycle, which has the same effect:
    only cycles start pods.
    """

    def __init__(self, scenario: Scenario, state: SimulationState, gangs: SubmittedGangs) -> None:
        self._state = state
        self._gangs = gangs
        self._budgets = scenario.budgets
        self._begin = scenario.settings.begin
        self._resources = {
            tenant: tuple(dict.fromkeys(each.resource for each in budgets))
            for tenant, budgets in scenario.budgets.items()
        }
        self._quotas = scenario.quotas
        """The quotas of the last cycle: as long as no budget changes its state, they are the same objects."""
        self._ledger = UsageLedger()
        self._stored = {(each.tenant, each.month): each for each in (*scenario.usage, *state.usage)}
        self._ledger.load(self._stored.values())
        self._uses: tuple[BudgetUse, ...] = ()
        gangs.on_change = self._count_gang
        self.stop_quotas()

    def stop_quotas(self) -> tuple[Quota, ...]:
        """Count running pods until now, and return the quotas: they name what a used-up budget stops."""
        if not self._budgets:
            return self._quotas
        self._count_running()
        uses = {tenant: self._uses_of(tenant) for tenant in self._budgets}
        self._uses = tuple(use for each in uses.values() for use in each)
        for use in self._uses:
            if use.state is BudgetState.EXHAUSTED:
                self._state.used_up.setdefault(used_up_key(use), self._state.now)
        quotas = tuple(
            _with_stopped(quota, uses[quota.tenant]) if quota.tenant in uses else quota for quota in self._quotas
        )
        if quotas != self._quotas:
            self._quotas = quotas
        return self._quotas

    def next_month(self) -> float | None:
        """Return when pods may borrow again whose budget is used up; None: there are none.

        A budget of 0 hours stops in the next month, too.
        """
        stopped = (use for use in self._uses if use.state is BudgetState.EXHAUSTED and use.budget > 0)
        return min(
            (month_start(months_before(use.month, -1)) - self._begin + _ROUNDING for use in stopped), default=None
        )

    def store(self) -> None:
        """Put the sums into the state, so that a simulation can continue from it."""
        if self._budgets:
            self._count_running()
            self._stored |= {(each.tenant, each.month): each for each in self._ledger.take_changed(self._time)}
            self._state.usage = list(self._stored.values())

    @property
    def _time(self) -> float:
        return self._begin + self._state.now

    def _uses_of(self, tenant: str) -> tuple[BudgetUse, ...]:
        return budget_uses(tenant, self._budgets[tenant], self._ledger, now=self._time)

    def _count_running(self) -> None:
        for tenant in self._resources:
            for gang in self._gangs.of_tenant(tenant):
                self._count_gang(gang)

    def _count_gang(self, gang: Gang) -> None:
        """Count the pods of a gang until now: it runs, or changes at this moment."""
        resources = self._resources.get(gang.tenant)
        if resources:
            self._ledger.count(self._records(gang, resources))

    def _records(self, gang: Gang, resources: Iterable[str]) -> Iterator[UsageRecord]:
        for pod in gang.pods:
            if pod.state is not WAITING and pod.pool is not None:
                for resource in resources:
                    if pod.shape.amount_of(resource):
                        yield self._record(gang, pod, resource)

    def _record(self, gang: Gang, pod: Pod, resource: str) -> UsageRecord:
        assert pod.pool is not None
        cluster, pool = pod.pool
        return UsageRecord(
            tenant=gang.tenant,
            namespace="",
            pod=pod.uid,
            gang=gang.id,
            band=gang.band.value,
            borrowed=pod.borrowed,
            pool=pool,
            compute_cluster=cluster,
            resource=resource,
            units=pod.shape.amount_of(resource) / MILLI_PER_UNIT,
            start=self._begin + pod.since,
            end=self._time,
        )


def _with_stopped(quota: Quota, uses: Iterable[BudgetUse]) -> Quota:
    hours = stopped_resources(uses, quota.pool[1])
    stopped = tuple(sorted(hours))
    return quota if stopped == quota.stopped else replace(quota, stopped=stopped, budget_hours=hours)


def used_up_key(use: BudgetUse) -> str:
    """Return the key of a budget and month in `SimulationState.used_up`."""
    return "/".join((use.month, use.tenant, use.pool, use.resource))


def monthly_uses(scenario: Scenario, months: Iterable[MonthUsage]) -> Iterator[BudgetUse]:
    """Yield the use of each budget in each month in which its tenant used anything, the oldest month first."""
    ledger, stored = UsageLedger(), list(months)
    ledger.load(stored)
    for month, tenant in sorted((each.month, each.tenant) for each in stored):
        yield from budget_uses(tenant, scenario.budgets.get(tenant, ()), ledger, now=month_start(month))
