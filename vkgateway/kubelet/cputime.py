"""CPU time of a virtual node: what its pods have used, those that have gone included, so that it never falls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from vkgateway.model.times import render_time


class CpuTimeCounter:
    """One virtual node's counter. It begins with its first look, as a node's begins with its start."""

    def __init__(self, *, now: datetime) -> None:
        self.started_at = render_time(now)
        """When it began (RFC 3339)."""
        self.total_nanoseconds = 0
        """Core-nanoseconds."""
        self._last_usage: dict[str, int] = {}

    def add_usage(self, used: Mapping[str, int], *, there: Iterable[str]) -> int:
        """Count what pods used since the last look, `used` so far by UID (core-nanoseconds); returns the total.

        `there` are the UIDs of the tenant's pods on the node; what others used is counted and not looked for again.
        A pod's own counter never falls, its control group outlives its containers; what seems to is an older answer.
        """
        for uid, so_far in used.items():
            more = max(0, so_far - self._last_usage.get(uid, 0))
            self.total_nanoseconds += more
            self._last_usage[uid] = self._last_usage.get(uid, 0) + more
        for uid in self._last_usage.keys() - set(there):
            del self._last_usage[uid]
        return self.total_nanoseconds


class CpuTimeCounters:
    """The counters of all virtual nodes of all tenants."""

    def __init__(self) -> None:
        self._counters: dict[str, dict[str, CpuTimeCounter]] = {}

    def get_counter(self, tenant: str, node: str, *, now: datetime) -> CpuTimeCounter:
        """The counter of one node, begun now if there was none."""
        return self._counters.setdefault(tenant, {}).setdefault(node, CpuTimeCounter(now=now))

    def forget_tenant(self, tenant: str) -> None:
        """Drop a tenant's."""
        self._counters.pop(tenant, None)
