"""Tenant object for `tenant create` and `tenant set`, from a manifest or an object, and options."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from vkgateway.api import quantity
from vkgateway.api.errors import InputError
from vkgateway.api.names import API_VERSION, validate_dns_label, validate_tenant_name
from vkgateway.api.objects import Meta, merge_patch
from vkgateway.api.quantity import Resources
from vkgateway.api.types import DEFAULT_COMPUTE_CLUSTER, Tenant, TenantBudget, TenantPool, TenantSpec

T = TypeVar("T")

NONE: Final = "none"
"""Value of an option with a list, and of a part of a pool, for no value."""

POOL_HINT = (
    "Use POOL[.CLUSTER][:guarantee=RESOURCE=QUANTITY,...,limit=RESOURCE=QUANTITY,...,weight=NUMBER,cells=8+8+1], "
    "for example a100:guarantee=nvidia.com/gpu=8,limit=nvidia.com/gpu=16,cpu=64"
)

BUDGET_HINT = (
    "Use resource=RESOURCE,hours=NUMBER[,pool=POOL], for example resource=nvidia.com/gpu,hours=1000,pool=a100. "
    "Repeat --budget for another budget."
)


def parse_pool(text: str) -> TenantPool:
    """Parse `a100.local:guarantee=nvidia.com/gpu=8,cpu=4,limit=nvidia.com/gpu=16,weight=2,cells=4+2x2`.

    The compute cluster (default `local`) and the part after the colon are optional. `2x8` means two cells of 8, and
    `limit=none` no limit. Raises InputError that quotes the invalid part.
    """
    return _change_pool({}, text)


def change_pools(
    pools: Sequence[TenantPool], *, changes: Sequence[str], removed: Sequence[str]
) -> tuple[TenantPool, ...]:
    """Return the pools without the `removed` ones, and with the `changes` in the syntax of `parse_pool`.

    Parts of a pool that a change does not name stay. A pool that does not exist is added. Raises InputError.
    """
    found = {(pool.name, pool.compute_cluster): pool for pool in pools}
    for text in removed:
        if found.pop(_parse_place(text, option=f"--remove-pool {text!r}"), None) is None:
            known = ", ".join(f"{pool.name}.{pool.compute_cluster}" for pool in pools)
            raise InputError(
                f"--remove-pool {text!r}: the tenant does not have this pool", hint=f"Its pools: {known or 'none'}."
            )
    for text in changes:
        pool = _change_pool(found, text)
        found[pool.name, pool.compute_cluster] = pool
    return tuple(found.values())


def _change_pool(pools: Mapping[tuple[str, str], TenantPool], text: str) -> TenantPool:
    """Return the pool that a text names, with the parts that the text gives."""
    place, _, rest = text.partition(":")
    name, cluster = key = _parse_place(place, option=f"--pool {text!r}")
    amounts: dict[str, Resources] = {}
    others: dict[str, Any] = {}
    section = ""
    for item in rest.split(",") if rest else ():
        head, _, tail = item.partition("=")
        if head in _SCALAR_PARSERS:
            others[head] = _SCALAR_PARSERS[head](tail, pool=text)
            continue
        if head in _SECTIONS:
            section, item = head, tail  # noqa: PLW2901 - the rest of the item is what is left to read
            amounts[section] = {}
            if item == NONE:
                continue
        resource, amount = _parse_resource(item, pool=text, section=section)
        amounts[section][resource] = amount
    pool = pools.get(key) or TenantPool(name=name, compute_cluster=cluster)
    return msgspec.structs.replace(pool, **amounts, **others)


def _parse_place(text: str, *, option: str) -> tuple[str, str]:
    """Return pool and compute cluster of `POOL[.CLUSTER]`."""
    name, _, cluster = text.partition(".")
    validate_dns_label(name, what=f"{option}: the pool's name")
    if cluster:
        validate_dns_label(cluster, what=f"{option}: the compute cluster's name")
    return name, cluster or DEFAULT_COMPUTE_CLUSTER


def _parse_weight(text: str, *, pool: str) -> float:
    try:
        weight = float(text)
    except ValueError as error:
        raise InputError(f"--pool {pool!r}: weight {text!r} is not a number", hint=POOL_HINT) from error
    if not 0 < weight < math.inf:
        raise InputError(f"--pool {pool!r}: weight {text} is not a positive number", hint=POOL_HINT)
    return weight


def _parse_cells(text: str, *, pool: str) -> tuple[int, ...]:
    if text == NONE:
        return ()
    cells: list[int] = []
    for piece in text.split("+"):
        match = _CELLS_PATTERN.fullmatch(piece)
        number, size = (int(match[1] or 1), int(match[2])) if match else (0, 0)
        if not number or not size:
            raise InputError(f"--pool {pool!r}: invalid cells {text!r}", hint="Use cells=8+8+1 or cells=2x8+1.")
        if number + len(cells) > _MAX_CELLS:
            raise InputError(
                f"--pool {pool!r}: more than {_MAX_CELLS} cells in {text!r}", hint="Use fewer, larger cells."
            )
        cells += [size] * number
    return tuple(sorted(cells, reverse=True))


_CELLS_PATTERN = re.compile(r"(?:([0-9]{1,6})x)?([0-9]{1,9})")
_MAX_CELLS = 1024
_SECTIONS = frozenset({"guarantee", "limit"})
_SCALAR_PARSERS: dict[str, Callable[..., Any]] = {"weight": _parse_weight, "cells": _parse_cells}


def _parse_resource(item: str, *, pool: str, section: str) -> tuple[str, str]:
    resource, equals, amount = item.partition("=")
    if not section or not equals or not resource:
        raise InputError(f"--pool {pool!r}: invalid part {item!r}", hint=POOL_HINT)
    try:
        negative = quantity.parse_quantity(amount) < 0
    except ValueError as error:
        raise InputError(f"--pool {pool!r}: {section} of {resource}: {error}", hint=POOL_HINT) from error
    if negative:
        raise InputError(
            f"--pool {pool!r}: {section} of {resource}: {amount} is negative", hint="Use a quantity of 0 or more."
        )
    return resource, amount


def parse_budget(text: str) -> TenantBudget:
    """Parse `resource=nvidia.com/gpu,hours=1000,pool=a100`, the fields of an entry of spec.budget.

    The pool is optional. Raises InputError that quotes the invalid part.
    """
    fields: dict[str, str] = {}
    for item in text.split(","):
        name, equals, value = item.partition("=")
        if name not in _BUDGET_FIELDS or not equals or not value:
            raise InputError(f"--budget {text!r}: invalid part {item!r}", hint=BUDGET_HINT)
        if name in fields:
            raise InputError(f"--budget {text!r}: {name} is given twice", hint=BUDGET_HINT)
        fields[name] = value
    for name in ("resource", "hours"):
        if name not in fields:
            raise InputError(f"--budget {text!r}: {name} is missing", hint=BUDGET_HINT)
    if pool := fields.get("pool", ""):
        validate_dns_label(pool, what=f"--budget {text!r}: the pool's name")
    return TenantBudget(resource=fields["resource"], hours=_parse_hours(fields["hours"], budget=text), pool=pool)


_BUDGET_FIELDS = frozenset({"resource", "hours", "pool"})


def _parse_hours(text: str, *, budget: str) -> float:
    try:
        hours = float(text)
    except ValueError as error:
        raise InputError(f"--budget {budget!r}: hours {text!r} is not a number", hint=BUDGET_HINT) from error
    if not 0 <= hours < math.inf:
        raise InputError(f"--budget {budget!r}: hours {text} is not a number of hours", hint="Use 0 or more.")
    return hours


def with_name(tenant: Tenant | None, name: str | None) -> Tenant:
    """Return the tenant with the name from the command line or the manifest.

    Raises InputError for no name, two different names, or an invalid name.
    """
    manifest_name = tenant.metadata.name if tenant is not None else ""
    if name and manifest_name and name != manifest_name:
        raise InputError(
            f"the name is {name!r} on the command line, but {manifest_name!r} in the manifest", hint="Omit one of them."
        )
    chosen = name or manifest_name
    if not chosen:
        raise InputError("no tenant name given", hint="Example: vkgateway tenant create alpha --pool a100")
    validate_tenant_name(chosen)
    if tenant is None:
        return Tenant(metadata=Meta(name=chosen))
    tenant.metadata = msgspec.structs.replace(tenant.metadata, name=chosen)
    return tenant


def apply_options(
    tenant: Tenant,
    *,
    template: str | None = None,
    kubernetes_version: str | None = None,
    pools: Sequence[str] = (),
    budgets: Sequence[str] = (),
    pod_security: str | None = None,
    storage_classes: Sequence[str] = (),
    preemption: str | None = None,
    port: int | None = None,
    subject_alt_names: Sequence[str] = (),
    deletion_protection: bool | None = None,
) -> Tenant:
    """Return the tenant with the given options applied; all other fields stay. `none` empties a list."""
    spec = tenant.spec
    changes: dict[str, Any] = {
        "template": template or spec.template,
        "kubernetes_version": (kubernetes_version or spec.kubernetes_version).removeprefix("v"),
        "pools": tuple(parse_pool(pool) for pool in pools) or spec.pools,
        "budget": _chosen_list(budgets, spec.budget, parse=parse_budget),
    }
    if pod_security is not None or storage_classes:
        changes["policy"] = msgspec.structs.replace(
            spec.policy,
            pod_security=pod_security or spec.policy.pod_security,
            storage_classes=_chosen_list(storage_classes, spec.policy.storage_classes, parse=str),
        )
    if preemption is not None:
        changes["preemption"] = msgspec.structs.replace(spec.preemption, within_tenant=preemption)
    if port is not None or subject_alt_names:
        changes["api_server"] = msgspec.structs.replace(
            spec.api_server,
            port=spec.api_server.port if port is None else port,
            subject_alt_names=_chosen_list(subject_alt_names, spec.api_server.subject_alt_names, parse=str),
        )
    if deletion_protection is not None:
        changes["deletion_protection"] = deletion_protection
    tenant.spec = msgspec.structs.replace(spec, **changes)
    return tenant


def _chosen_list(given: Sequence[str], current: tuple[T, ...], *, parse: Callable[[str], T]) -> tuple[T, ...]:
    """Return the values of an option, or the current ones if it is not given."""
    if list(given) == [NONE]:
        return ()
    return tuple(map(parse, given)) or current


def spec_patch(old: TenantSpec, new: TenantSpec) -> dict[str, Any]:
    """Return the merge patch (RFC 7386) of a spec. Fields that this release does not know stay."""
    return merge_patch(msgspec.to_builtins(old), msgspec.to_builtins(new))


def to_manifest(tenant: Tenant) -> dict[str, Any]:
    """Return the manifest for the API server, which sets the defaults of missing fields."""
    metadata = {key: value for key, value in (("name", tenant.metadata.name),) if value}
    for part in ("labels", "annotations"):
        if values := getattr(tenant.metadata, part):
            metadata[part] = values
    return {
        "apiVersion": API_VERSION,
        "kind": "Tenant",
        "metadata": metadata,
        "spec": msgspec.json.decode(msgspec.json.encode(tenant.spec)),
    }
