"""CPU time of virtual nodes: the usage of all pods, including deleted pods, so that the counter never decreases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from vkgateway.api.times import render_time


class CpuTimeCounter:
    """Counter of one virtual node. It starts with the first request, like a node's counter starts with its boot."""

    def __init__(self, *, now: datetime) -> None:
        self.started_at = render_time(now)
        """Time of the start (RFC 3339)."""
        self.total_nanoseconds = 0
        """Core-nanoseconds."""
        self._last_usage: dict[str, int] = {}

    def add_usage(self, usages: Mapping[str, int], *, current_uids: Iterable[str]) -> int:
        """Add the pods' usage since the last call, and return the total. `usages` are core-nanoseconds by UID.

        `current_uids` are the UIDs of the tenant's pods on the node; the usage of other pods is no longer tracked. A
        pod's counter never decreases, because its control group outlives its containers. A lower value is an older
        answer.
        """
        for uid, usage in usages.items():
            increase = max(0, usage - self._last_usage.get(uid, 0))
            self.total_nanoseconds += increase
            self._last_usage[uid] = self._last_usage.get(uid, 0) + increase
        for uid in self._last_usage.keys() - set(current_uids):
            del self._last_usage[uid]
        return self.total_nanoseconds


class CpuTimeCounters:
    """Counters of all virtual nodes of all tenants."""

    def __init__(self) -> None:
        self._counters: dict[str, dict[str, CpuTimeCounter]] = {}

    def get_counter(self, tenant: str, node: str, *, now: datetime) -> CpuTimeCounter:
        """Return the counter of a node, and create it if necessary."""
        return self._counters.setdefault(tenant, {}).setdefault(node, CpuTimeCounter(now=now))

    def forget_tenant(self, tenant: str) -> None:
        """Drop the counters of a tenant."""
        self._counters.pop(tenant, None)
