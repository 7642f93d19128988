"""Usage by day in the form of OpenCost's allocation API (https://opencost.io/docs/integrations/api), pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from vkgateway.api import times
from vkgateway.tenants.usage.records import tenant_labels

if TYPE_CHECKING:
    from vkgateway.tenants.usage.ledger import DayUsage

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
