"""Tenants of a simulation from a document: names with pools as in the Tenant object, or Tenant manifests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from vkgateway.api.requests import to_milli
from vkgateway.api.types import TenantBudget, TenantPool
from vkgateway.scheduler.core.snapshot import Pool, Quota
from vkgateway.tenants.usage.budgets import budget_problems
from vkgateway_platform.simulate.traces.errors import TraceError


def read_quotas(documents: Iterable[Any], pools: Sequence[Pool]) -> tuple[Quota, ...]:
    """Return the quotas of all tenants in these documents.

    A document is a list of `{name, pools}`, that list under `tenants`, a Tenant or a List of them. With one pool in the
    cluster a tenant's pool needs no name.

    Raises:
        TraceError: a field is missing or wrong, or a pool does not exist.
    """
    quotas = tuple(
        quota for document in documents for tenant in _list_tenants(document) for quota in _tenant_quotas(tenant, pools)
    )
    if not quotas:
        raise TraceError("there are no tenants", hint="Write a list of {name, pools: [{guarantee, limit, weight}]}.")
    return quotas


def read_budgets(documents: Iterable[Any], pools: Sequence[Pool]) -> dict[str, tuple[TenantBudget, ...]]:
    """Return the monthly budgets in these documents by tenant: `budget` has the entries of spec.budget of a Tenant.

    Raises:
        TraceError: a field is missing or wrong, or a pool does not exist.
    """
    found = {}
    for document in documents:
        for tenant in _list_tenants(document):
            name, spec = _name_and_spec(tenant)
            if budgets := _tenant_budgets(name, spec, pools):
                found[name] = budgets
    return found


def _tenant_budgets(name: str, spec: Mapping[str, Any], pools: Sequence[Pool]) -> tuple[TenantBudget, ...]:
    try:
        budgets = msgspec.convert(spec.get("budget") or (), tuple[TenantBudget, ...])
    except msgspec.ValidationError as error:
        raise TraceError(f"tenant {name}: budget: {error}", hint="Write a list of {resource, hours, pool}.") from error
    for field, message in budget_problems(budgets, {pool.key[1] for pool in pools}):
        raise TraceError(f"tenant {name}: {field}: {message}")
    return budgets


def _list_tenants(document: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(document, Mapping):
        for key in ("tenants", "items"):
            if isinstance(document.get(key), list):
                document = document[key]
                break
        else:
            document = [document]
    for tenant in document if isinstance(document, list) else ():
        if not isinstance(tenant, Mapping):
            raise TraceError(f"tenant {tenant!r} is not a mapping of name and pools")
        yield tenant


def _name_and_spec(tenant: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    name = (tenant.get("metadata") or tenant).get("name")
    if not name:
        raise TraceError(f"tenant {dict(tenant)!r} has no name")
    return str(name), tenant.get("spec") or tenant


def _tenant_quotas(tenant: Mapping[str, Any], pools: Sequence[Pool]) -> Iterator[Quota]:
    name, spec = _name_and_spec(tenant)
    for entry in spec.get("pools") or [{}]:
        try:
            found = msgspec.convert({"name": "", **entry}, TenantPool)
            guarantee, limit = to_milli(found.guarantee), to_milli(found.limit)
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise TraceError(f"tenant {name}: {error}", hint="Pools are written as in the Tenant object.") from error
        yield Quota(
            tenant=name,
            pool=_find_pool(found.name, name, pools).key,
            guarantee=guarantee,
            limit=limit,
            weight=found.weight,
            cells=found.cells,
        )


def _find_pool(name: str, tenant: str, pools: Sequence[Pool]) -> Pool:
    known = {pool.key[1]: pool for pool in pools}
    if name in known:
        return known[name]
    if not name and len(pools) == 1:
        return pools[0]
    raise TraceError(f"tenant {tenant}: pool {name!r} does not exist", hint=f"Available pools: {', '.join(known)}.")
