"""Usage by UTC day and budgets, as the gateway has them: sums, tables, CSV and OpenCost."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from vkgateway.api import times
from vkgateway.api.errors import InputError
from vkgateway.cli.output import Column, print_table, serialize
from vkgateway.tenants.usage.records import KEY_FIELDS, tenant_labels

if TYPE_CHECKING:
    from vkgateway.tenants.usage.budgets import BudgetUse
    from vkgateway.tenants.usage.ledger import DayUsage


DAY_KEYS: Final = ("day", "tenant", "tenantUid", "band", "pool", "computeCluster", "resource")
"""Keys by which the gateway's sums can be grouped."""
MAX_DAYS: Final = 31
_NUMBERS: Final = ("hours", "borrowedHours", "lostHours")


def sum_days(usage: Sequence[DayUsage], *, by: Sequence[str]) -> list[dict[str, Any]]:
    """Return the sums of each group, sorted by its keys: the keys, and the hours.

    Tenants that had the same name are different groups of `tenant` (see `tenant_labels`).
    """
    labels = tenant_labels((each.tenant, each.tenant_uid) for each in usage)
    sums: dict[tuple[str, ...], list[float]] = {}
    for each in usage:
        tenant = labels[each.tenant, each.tenant_uid]
        key = tuple(tenant if name == "tenant" else str(getattr(each, KEY_FIELDS.get(name, name))) for name in by)
        total = sums.setdefault(key, [0.0, 0.0, 0.0])
        for index, hours in enumerate((each.hours, each.borrowed, each.lost)):
            total[index] += hours
    return [
        dict(zip(by, key, strict=True)) | dict(zip(_NUMBERS, total, strict=True)) for key, total in sorted(sums.items())
    ]


def parse_prices(texts: Iterable[str]) -> dict[str, float]:
    """Return prices such as `nvidia.com/gpu=2.5` by resource. Raises InputError."""
    prices: dict[str, float] = {}
    for text in texts:
        name, _, amount = text.partition("=")
        try:
            prices[name] = float(amount)
        except ValueError:
            prices[name] = -1.0
        if "/" not in name or not 0 <= prices[name] < float("inf"):
            raise InputError(f"--price {text!r} is not a price", hint="Write it as nvidia.com/gpu=2.5, for one hour.")
    return prices


def print_days(usage: Sequence[DayUsage], *, by: Sequence[str], output: str, prices: Mapping[str, float]) -> None:
    """Print usage by day: with one decimal in tables, in full otherwise."""
    if output == "opencost":
        click.echo(json.dumps(allocations(usage, prices=prices, now=datetime.now(UTC)), indent=2))
        return
    rows = sum_days(usage, by=by)
    if output == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow([*by, *_NUMBERS])
        writer.writerows([*row.values()] for row in rows)
    elif output in ("json", "yaml"):
        click.echo(serialize(rows, output=output), nl=False)
    elif not rows:
        click.echo("No usage in this period.", err=True)
    else:
        columns: list[Column[Any]] = [Column(key, str) for key in by]
        columns += [Column(title, str, "right") for title in ("hours", "borrowed", "lost")]
        print_table(
            [[*(row[key] or "-" for key in by), *(f"{row[name]:.1f}" for name in _NUMBERS)] for row in rows],
            columns=columns,
        )


def print_budgets(budgets: Sequence[BudgetUse], *, output: str) -> None:
    """Print the budgets of the current UTC month."""
    import msgspec

    rows: list[dict[str, Any]] = [msgspec.to_builtins(each) for each in budgets]
    if output in ("json", "yaml"):
        click.echo(serialize(rows, output=output), nl=False)
    elif output == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(["tenant", "resource", "pool", "month", "budget", "used", "state"])
        writer.writerows([*row.values()] for row in rows)
    elif not rows:
        click.echo("No tenant has a budget.", err=True)
    else:
        titles = ("tenant", "resource", "pool", "month")
        columns: list[Column[Any]] = [Column(title, str) for title in titles]
        columns += [Column(title, str, "right") for title in ("used", "budget", "percent")]
        columns += [Column("state", str)]
        print_table([_budget_row(each) for each in budgets], columns=columns)


def _budget_row(each: BudgetUse) -> list[str]:
    percent = f"{100 * each.used / each.budget:.0f}" if each.budget else "-"
    return [
        each.tenant,
        each.resource,
        each.pool or "-",
        each.month,
        f"{each.used:.1f}",
        f"{each.budget:g}",
        percent,
        each.state.value,
    ]


_ZERO_FIELDS: Final = (
    "cpuCores",
    "cpuCoreHours",
    "cpuCost",
    "ramBytes",
    "ramByteHours",
    "ramCost",
    "pvCost",
    "networkCost",
    "loadBalancerCost",
    "sharedCost",
)
"""Fields of an allocation that readers may expect, and that usage does not have."""


def allocations(usage: Sequence[DayUsage], *, prices: Mapping[str, float], now: datetime) -> dict[str, Any]:
    """Return the answer of `/allocation` with one set for each UTC day, the oldest first.

    `prices`: price of an hour of one unit by resource. The namespace of an allocation is the tenant, the cluster is the
    compute cluster. Only GPUs have GPU-hours; the cost of other devices is external cost.
    """
    days: dict[str, dict[str, Any]] = {}
    labels = tenant_labels((each.tenant, each.tenant_uid) for each in usage)
    for each in usage:
        tenant = labels[each.tenant, each.tenant_uid]
        name = f"{each.compute_cluster}/{tenant}/{each.pool}/{each.band}/{each.resource}"
        days.setdefault(each.day, {})[name] = _allocation(name, tenant, each, prices.get(each.resource, 0.0), now)
    return {"code": 200, "status": "success", "data": [days[day] for day in sorted(days)]}


def _allocation(name: str, tenant: str, usage: DayUsage, price: float, now: datetime) -> dict[str, Any]:
    start = datetime.fromisoformat(usage.day).replace(tzinfo=UTC)
    end = min(start + timedelta(days=1), max(now, start + timedelta(minutes=1)))
    minutes = (end - start).total_seconds() / 60
    window = {"start": times.render_time(start), "end": times.render_time(end)}
    hours, cost, is_gpu = usage.hours, usage.hours * price, is_gpu_resource(usage.resource)
    labels = {"tenant": tenant, "pool": usage.pool, "band": usage.band, "resource": usage.resource}
    return {
        "name": name,
        "properties": {
            "cluster": usage.compute_cluster,
            "namespace": tenant,
            "labels": {f"vkgateway_io_{key}": value for key, value in labels.items()},
        },
        "window": window,
        **window,
        "minutes": minutes,
        **dict.fromkeys(_ZERO_FIELDS, 0.0),
        "gpuCount": hours * 60 / minutes if is_gpu else 0.0,
        "gpuHours": hours if is_gpu else 0.0,
        "gpuCost": cost if is_gpu else 0.0,
        "externalCost": 0.0 if is_gpu else cost,
        "totalCost": cost,
    }


def is_gpu_resource(resource: str) -> bool:
    """Return whether an extended resource is a GPU or a part of one, by its name."""
    device = resource.rpartition("/")[2].lower()
    return "gpu" in device or device.startswith("mig-")
