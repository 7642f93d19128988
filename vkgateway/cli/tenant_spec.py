"""Tenant object for `tenant create`, from a manifest and options."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from vkgateway.model import quantity
from vkgateway.model.api import DEFAULT_COMPUTE_CLUSTER, Tenant, TenantBudget, TenantPool
from vkgateway.model.errors import InputError
from vkgateway.model.names import API_VERSION, validate_dns_label, validate_tenant_name
from vkgateway.model.objects import Meta
from vkgateway.model.quantity import Resources

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

    The compute cluster (default `local`) and the part after the colon are optional. `2x8` means two cells of 8. Raises
    InputError that quotes the invalid part.
    """
    place, _, rest = text.partition(":")
    name, _, cluster = place.partition(".")
    validate_dns_label(name, what=f"--pool {text!r}: the pool's name")
    if cluster:
        validate_dns_label(cluster, what=f"--pool {text!r}: the compute cluster's name")
    amounts: dict[str, Resources] = {"guarantee": {}, "limit": {}}
    others: dict[str, Any] = {}
    section = ""
    for item in rest.split(",") if rest else ():
        head, _, tail = item.partition("=")
        if head in _SCALAR_PARSERS:
            others[head] = _SCALAR_PARSERS[head](tail, pool=text)
            continue
        if head in amounts:
            section, item = head, tail  # noqa: PLW2901 - the rest of the item is what is left to read
        resource, amount = _parse_resource(item, pool=text, section=section)
        amounts[section][resource] = amount
    return TenantPool(
        name=name,
        compute_cluster=cluster or DEFAULT_COMPUTE_CLUSTER,
        guarantee=amounts["guarantee"],
        limit=amounts["limit"],
        **others,
    )


def _parse_weight(text: str, *, pool: str) -> float:
    try:
        weight = float(text)
    except ValueError as error:
        raise InputError(f"--pool {pool!r}: weight {text!r} is not a number", hint=POOL_HINT) from error
    if not 0 < weight < math.inf:
        raise InputError(f"--pool {pool!r}: weight {text} is not a positive number", hint=POOL_HINT)
    return weight


def _parse_cells(text: str, *, pool: str) -> tuple[int, ...]:
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
) -> Tenant:
    """Return the tenant with the given options applied; all other fields stay."""
    spec = tenant.spec
    changes: dict[str, Any] = {
        "template": template or spec.template,
        "kubernetes_version": (kubernetes_version or spec.kubernetes_version).removeprefix("v"),
        "pools": tuple(parse_pool(pool) for pool in pools) or spec.pools,
        "budget": tuple(parse_budget(budget) for budget in budgets) or spec.budget,
    }
    policy = {"pod_security": pod_security, "storage_classes": tuple(storage_classes)}
    if changed_fields := {field: value for field, value in policy.items() if value}:
        changes["policy"] = msgspec.structs.replace(spec.policy, **changed_fields)
    if preemption is not None:
        changes["preemption"] = msgspec.structs.replace(spec.preemption, within_tenant=preemption)
    if port is not None or subject_alt_names:
        changes["api_server"] = msgspec.structs.replace(
            spec.api_server,
            port=spec.api_server.port if port is None else port,
            subject_alt_names=tuple(subject_alt_names) or spec.api_server.subject_alt_names,
        )
    tenant.spec = msgspec.structs.replace(spec, **changes)
    return tenant


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
