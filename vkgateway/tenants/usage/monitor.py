"""Monitor of usage and budgets: counts running pods, stores the sums, and says which borrowing stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
import structlog

from vkgateway.api.names import RESERVED_PREFIX, SYSTEM_NAMESPACE
from vkgateway.api.objects import Meta
from vkgateway.api.types import TenantBudget
from vkgateway.clusters.status import Verdict, false_verdict, true_verdict
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.clock import Clock
from vkgateway.kube.resources import CONFIG_MAPS
from vkgateway.scheduler.core.snapshot import PoolKey
from vkgateway.tenants.usage.budgets import (
    WARNING_PERCENT,
    BudgetState,
    BudgetUse,
    UsageReport,
    budget_uses,
    stopped_resources,
)
from vkgateway.tenants.usage.days import month_of, month_text, months_before, next_month_text
from vkgateway.tenants.usage.ledger import MonthUsage, StoredMonth, UsageLedger
from vkgateway.tenants.usage.past_shares import PastShareKeeper
from vkgateway.tenants.usage.records import UsageRecord

log = structlog.get_logger(__name__)

COUNT_SECONDS: Final = 15.0
"""Seconds between two counts of the running pods, after which a used-up budget takes effect."""
SAVE_SECONDS: Final = 60.0
"""Seconds between two writes of a tenant's sums. The change of a budget's state is written at once."""
KEPT_MONTHS: Final = 2
"""Stored months before the current one."""
_MAX_DAYS: Final = 31
_LOAD_SECONDS: Final = 5.0
"""Time limit of the first attempt to load, before this gateway leads."""
_MAX_UNCOUNTED: Final = 100_000
"""Records that are remembered until the sums are loaded."""


class Store(Protocol):
    """Where the sums are stored."""

    async def load(self) -> list[MonthUsage]:
        """Return all stored months. Raises ApiError."""

    async def save(self, month: MonthUsage) -> None:
        """Write a month of a tenant. Raises ApiError."""

    async def delete(self, months: Iterable[StoredMonth]) -> None:
        """Delete stored months. Raises ApiError."""


class UsageMonitor:
    """Usage of all tenants, and their budgets. Only the leader loads, counts and stores.

    Until the stored sums are loaded, no budget is exceeded.

    `past_shares` are stored together with the sums. `running` returns the usage of running pods until a time; another
    thread calls it. `tenants` returns the names of all tenants, `budgets_of` the budgets of a tenant's spec in force,
    `uid_of` the UID of the Tenant of a name; empty: there is none. `on_change` is called with the name of a tenant of
    which the state of a budget changed, `on_stop` when other pods may borrow than before: a scheduling cycle must
    follow.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        past_shares: PastShareKeeper | None = None,
        running: Callable[[float], Iterable[UsageRecord]] = lambda _now: (),
        tenants: Callable[[], Iterable[str]] = tuple,
        budgets_of: Callable[[str], tuple[TenantBudget, ...]] = lambda _tenant: (),
        uid_of: Callable[[str], str] = lambda _tenant: "",
        on_change: Callable[[str], None] = lambda _tenant: None,
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._running = running
        self._tenants = tenants
        self._budgets_of = budgets_of
        self._uid_of = uid_of
        self._on_change = on_change
        self._on_stop = on_stop
        self._past_shares = past_shares or PastShareKeeper(0.0)
        self._clock = clock
        self._ledger = UsageLedger()
        self._is_loaded = False
        self._uncounted: list[UsageRecord] = []
        self._uses: dict[tuple[str, str], tuple[BudgetUse, ...]] = {}
        """Use of the budgets of each tenant (name and UID) since the last count; tenants that were not asked for are
        missing.
        """
        self._saved_months: set[StoredMonth] = set()
        self._problem = ""
        """Last problem of the store; empty if there is none."""
        self._pruned_in = ""
        """Month in which old months were deleted last."""

    # Input.

    def count(self, records: Iterable[UsageRecord]) -> None:
        """Count usage records. Overlapping records of a pod count once."""
        if self._is_loaded:
            self._ledger.count(records)
        elif len(self._uncounted) < _MAX_UNCOUNTED:
            self._uncounted.extend(records)

    # Answers.

    def report(self, *, days: int = _MAX_DAYS, tenant: str = "") -> UsageReport:
        """Return the usage of the last UTC days, at most 31, and the budgets; `tenant`: of one tenant only.

        Of a name that has a Tenant, this is the usage of that Tenant, not of deleted ones of the same name.
        """
        now = self._clock.time()
        uid = self._identify(tenant) if tenant else ""
        names = [tenant] if tenant else sorted(self._tenants())
        return UsageReport(
            days=self._ledger.daily_usage(now, days=max(1, min(days, _MAX_DAYS)), tenant=tenant, uid=uid),
            budgets=[use for name in names for use in self._budget_uses(name, now)],
        )

    def encode_report(self, tenant: str, days: int) -> bytes:
        """Return the report as JSON, of all tenants if `tenant` is empty. Called in separate threads."""
        return msgspec.json.encode(self.report(days=days, tenant=tenant))

    def stopped_borrowing(self, tenant: str, pool: PoolKey) -> Mapping[str, float]:
        """Return the resources that new pods of a tenant may not borrow in a pool, with the hours of their budget."""
        if not self._is_loaded:
            return {}
        key = tenant, self._identify(tenant)
        if key not in self._uses:
            self._uses[key] = self._budget_uses(tenant, self._clock.time())
        return stopped_resources(self._uses[key], pool[1])

    def verdict_for(self, tenant: str, previous: Verdict | None) -> Verdict | None:
        """Return the content of the condition WithinBudget, or the previous one while unknown; None: no budget.

        A changed budget takes effect here, since this follows each change of a Tenant.
        """
        if not self._is_loaded:
            return previous
        key = tenant, self._identify(tenant)
        before = self._uses.get(key)
        uses = self._uses[key] = self._budget_uses(tenant, self._clock.time())
        if before is not None and _states(before) != _states(uses):
            self._on_stop()
        return budget_verdict(uses)

    def budgets(self) -> list[BudgetUse]:
        """Return the use of all budgets at the last count."""
        return [use for _, uses in sorted(self._uses.items()) for use in uses]

    def _budget_uses(self, tenant: str, now: float) -> tuple[BudgetUse, ...]:
        return budget_uses(tenant, self._budgets_of(tenant), self._ledger, now=now, uid=self._identify(tenant))

    def _identify(self, tenant: str) -> str:
        """Return the UID of the Tenant of a name. It gets sums that were stored without a UID."""
        if uid := self._uid_of(tenant):
            self._ledger.adopt(tenant, uid)
        return uid

    # Work of the leader.

    async def load(self) -> None:
        """Load the stored sums before this gateway leads. A failure is logged, and `run` tries again."""
        try:
            async with asyncio.timeout(_LOAD_SECONDS):
                await self._load()
        except (errors.ApiError, TimeoutError) as error:
            self._report(error)

    async def _load(self) -> None:
        months = await self._store.load()
        self._saved_months = {(each.tenant, each.uid, each.month) for each in months}
        self._ledger.load(months)
        self._is_loaded = True
        self._ledger.count(self._uncounted)
        self._uncounted.clear()
        self._past_shares.use_ledger(self._ledger)

    async def run(self) -> None:
        """Count and store until cancelled."""
        due = self._clock.monotonic() + SAVE_SECONDS
        while True:
            try:
                if not self._is_loaded:
                    await self._load()
                now = await asyncio.to_thread(self.count_running)
                if self.update_budgets(now) or self._clock.monotonic() >= due:
                    due = self._clock.monotonic() + SAVE_SECONDS
                    await self.save()
                    self._problem = ""
            except errors.ApiError as error:
                self._report(error)
            except Exception:  # the gateway continues without it
                log.exception("usage not counted")
            await self._clock.sleep(COUNT_SECONDS)

    def _report(self, error: Exception) -> None:
        """Log the first of several equal problems."""
        problem = str(error) or type(error).__name__
        if isinstance(error, errors.Forbidden):
            problem = f"no permission for ConfigMaps in {SYSTEM_NAMESPACE}; apply deploy/rbac: {problem}"
        if problem != self._problem and self._is_loaded:
            log.warning("usage is stored later", error=problem)
        elif problem != self._problem:
            log.warning("usage not loaded; no budget stops borrowing until it is", error=problem)
        self._problem = problem

    def count_running(self) -> float:
        """Count the running pods until now, and return the time."""
        now = self._clock.time()
        self._ledger.count(list(self._running(now)))
        return now

    def update_budgets(self, now: float) -> bool:
        """Determine the use of all budgets; return whether the state of any changed."""
        before, self._uses = self._uses, {}
        changed = []
        for tenant in sorted(self._tenants()):
            key = tenant, self._identify(tenant)
            uses = self._uses[key] = self._budget_uses(tenant, now)
            if key in before and _states(before[key]) != _states(uses):
                changed.append(tenant)
        for tenant in changed:
            self._on_change(tenant)
        if changed:
            self._on_stop()
        return bool(changed)

    async def save(self) -> None:
        """Count the running pods, and store what changed. Raises ApiError; then the rest is stored later."""
        if not self._is_loaded:
            return
        now = await asyncio.to_thread(self.count_running)
        self._past_shares.store_shares(self._ledger, month_of(now))
        months = self._ledger.take_changed(now)
        for number, month in enumerate(months):
            try:
                await self._store.save(month)
            except BaseException:
                self._ledger.mark_changed(months[number:])
                raise
            self._saved_months.add((month.tenant, month.uid, month.month))
        await self._prune(month_of(now))

    async def _prune(self, month: str) -> None:
        """Forget and delete old months, once in each month."""
        if self._pruned_in == month:
            return
        oldest = months_before(month, KEPT_MONTHS)
        self._ledger.forget_before(oldest)
        old = {each for each in self._saved_months if each[2] < oldest}
        await self._store.delete(sorted(old))
        self._saved_months -= old
        self._pruned_in = month


def _states(uses: Iterable[BudgetUse]) -> Mapping[tuple[str, str], tuple[str, float]]:
    """Return the state of each budget. The size counts, too: the Tenant reports it."""
    return {(each.resource, each.pool): (f"{each.month} {each.state}", each.budget) for each in uses}


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


USAGE_LABEL: Final = f"{RESERVED_PREFIX}usage-of"
"""Label of the ConfigMaps: the tenant. Another label than that of copies, which a compute cluster may watch here."""
MONTH_LABEL: Final = f"{RESERVED_PREFIX}usage-month"
_DATA_KEY: Final = "usage.json"
_UNREADABLE_KEY: Final = "unreadable.json"
"""Sums that could not be read, for an administrator. New sums begin at zero beside them."""
_decode_month = msgspec.json.Decoder(MonthUsage).decode


class _StoredUsage(msgspec.Struct):
    """A ConfigMap, as far as it is read."""

    metadata: Meta
    data: dict[str, str] = {}


class UsageStore:
    """Reader and writer of the ConfigMaps. `client` refuses writes while this process does not lead."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._unreadable: dict[str, str] = {}
        """Sums that could not be read and are not kept yet, by ConfigMap."""

    async def load(self) -> list[MonthUsage]:
        """Return all stored months. Unreadable ones are left out, and kept beside the new sums. Raises ApiError."""
        page = await self._client.list_all(CONFIG_MAPS, namespace=SYSTEM_NAMESPACE, label_selector=USAGE_LABEL)
        found = []
        for item in page.items:
            stored = msgspec.json.decode(item, type=_StoredUsage)
            text = stored.data.get(_DATA_KEY, "")
            try:
                found.append(_decode_month(text))
            except msgspec.DecodeError as error:
                name = stored.metadata.name
                self._unreadable[name] = text
                log.warning("stored usage is unreadable", config_map=name, kept_as=_UNREADABLE_KEY, error=str(error))
        return found

    async def save(self, month: MonthUsage) -> None:
        """Write a month of a tenant. Raises ApiError."""
        body = config_map(month)
        name = body["metadata"]["name"]
        if text := self._unreadable.get(name):
            body["data"][_UNREADABLE_KEY] = text
        try:
            await self._client.patch(CONFIG_MAPS, name, body, namespace=SYSTEM_NAMESPACE, metadata_only=True)
        except errors.NotFound:
            await self._client.create(CONFIG_MAPS, body, namespace=SYSTEM_NAMESPACE, metadata_only=True)
        self._unreadable.pop(name, None)

    async def delete(self, months: Iterable[StoredMonth]) -> None:
        """Delete stored months. Raises ApiError."""
        for month in months:
            try:
                await self._client.delete(CONFIG_MAPS, object_name(*month), namespace=SYSTEM_NAMESPACE)
            except errors.NotFound:
                continue


def object_name(tenant: str, uid: str, month: str) -> str:
    """Return the name of the ConfigMap of a tenant's month, such as `usage-alpha-2026-11-0f3c...`, with the UID.

    A tenant of the same name as a deleted one has another ConfigMap.
    """
    return f"usage-{tenant}-{month}" + (f"-{uid}" if uid else "")


def config_map(month: MonthUsage) -> dict[str, Any]:
    """Return the ConfigMap of a tenant's month."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": object_name(month.tenant, month.uid, month.month),
            "namespace": SYSTEM_NAMESPACE,
            "labels": {USAGE_LABEL: month.tenant, MONTH_LABEL: month.month},
        },
        "data": {_DATA_KEY: msgspec.json.encode(month).decode()},
    }
