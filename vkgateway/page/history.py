"""Usage of pools and tenants over the last day, sampled at a fixed interval, in memory (pure)."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any, Final

from vkgateway.scheduler.core.reasons.report_types import ArbiterReport, PoolReport, TenantReport

STEP_SECONDS: Final = 60
"""Seconds between two samples."""
MOST_SAMPLES: Final = 24 * 3600 // STEP_SECONDS

_Sample = Mapping[str, "array[float]"]
"""Used, borrowed, waiting and total amount by key."""


def pool_key(row: PoolReport) -> str:
    """Return the key of a pool's resource on the page."""
    return f"{row.node}/{row.resource}"


def tenant_key(row: TenantReport) -> str:
    """Return the key of a tenant's quota on the page."""
    return f"{row.tenant}/{row.pool}.{row.compute_cluster}/{row.resource}"


class History:
    """Samples of the last day. Amounts are in whole units, times in seconds since the epoch."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=MOST_SAMPLES)
        self._pools: deque[_Sample] = deque(maxlen=MOST_SAMPLES)
        self._tenants: deque[_Sample] = deque(maxlen=MOST_SAMPLES)
        self._uids: deque[Mapping[str, str]] = deque(maxlen=MOST_SAMPLES)
        """UIDs of the tenants by name: a later tenant of the same name must not read the samples of a deleted one."""

    def add_sample(self, report: ArbiterReport, now: float, *, uids: Mapping[str, str]) -> None:
        """Add the sums of a report. `uids` are those of the tenants by name."""
        self._times.append(now)
        self._uids.append(self._uids[-1] if self._uids and self._uids[-1] == uids else uids)
        self._pools.append(
            {pool_key(row): array("f", (row.used, row.borrowed, row.waiting, row.allocatable)) for row in report.pools}
        )
        self._tenants.append(
            {
                tenant_key(row): array("f", (row.used, row.borrowed, row.waiting, row.guarantee))
                for row in report.tenants
            }
        )

    def pool_series(self) -> dict[str, Any]:
        return self._series(self._pools, None)

    def tenant_series(self, tenant: str, uid: str) -> dict[str, Any]:
        """Return the series of the quotas of the tenant with this name and UID."""
        own = [
            sample if uids.get(tenant) == uid else {} for sample, uids in zip(self._tenants, self._uids, strict=True)
        ]
        return self._series(own, f"{tenant}/")

    def _series(self, samples: Collection[_Sample], prefix: str | None) -> dict[str, Any]:
        keys = {key for sample in samples for key in sample if prefix is None or key.startswith(prefix)}
        return {
            "step": STEP_SECONDS,
            "times": list(self._times),
            "series": {key: _columns([sample.get(key) for sample in samples]) for key in sorted(keys)},
        }


def _columns(values: list[array[float] | None]) -> dict[str, list[float | None]]:
    names = ("used", "borrowed", "waiting", "total")
    return {name: [None if value is None else value[number] for value in values] for number, name in enumerate(names)}
