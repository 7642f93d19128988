"""What the daemon counts, for Prometheus; the lower layers add theirs to the same registry."""

from __future__ import annotations

import asyncio
from collections import Counter as Count
from collections.abc import Iterable
from typing import Final, Protocol

from prometheus_client import Gauge, Histogram

from vkgateway.sync.arbiter_metrics import count_decisions, observe_cycle, observe_start, observe_state

__all__ = [
    "BLOCKED_TENANTS",
    "COMPUTE_CLUSTERS",
    "DATASTORE",
    "LOOP_LAG",
    "ONBOARDING",
    "PHASES",
    "QUEUE_DEPTH",
    "TENANTS",
    "count_compute_clusters",
    "count_decisions",
    "count_tenants",
    "measure_datastore",
    "measure_loop_lag",
    "measure_queue",
    "observe_cycle",
    "observe_start",
    "observe_state",
]

PHASES: Final = ("Pending", "Provisioning", "Ready", "Degraded", "Deleting")

TENANTS: Final = Gauge("vkgateway_tenants", "Tenants by phase.", ["phase"])
COMPUTE_CLUSTERS: Final = Gauge("vkgateway_compute_clusters", "Compute clusters by whether they answer.", ["reachable"])
QUEUE_DEPTH: Final = Gauge("vkgateway_queue_depth", "Objects that wait to be worked on now, by tenant.", ["tenant"])
LOOP_LAG: Final = Gauge("vkgateway_event_loop_lag_seconds", "How late the event loop is, at the last look.")
ONBOARDING: Final = Histogram(
    "vkgateway_tenant_ready_seconds",
    "From a tenant's first look to its being ready for the first time.",
    buckets=(1, 2, 3, 4, 5, 7.5, 10, 15, 30, 60, 120, 300),
)

DATASTORE: Final = Gauge(
    "vkgateway_datastore_bytes", "The tenants' shared datastore: in use, its file, and what it may grow to.", ["what"]
)
BLOCKED_TENANTS: Final = Gauge(
    "vkgateway_datastore_held_tenants", "Tenants that may not write to the datastore, since they were filling it."
)

LAG_SECONDS: Final = 1.0


class _Queue(Protocol):
    def ready_count(self, tenant: str) -> int: ...


def count_tenants(phases: Iterable[str]) -> None:
    """Set how many tenants are in each phase."""
    counts = Count(phases)
    for phase in PHASES:
        TENANTS.labels(phase).set(counts[phase])


def measure_queue(queue: _Queue, *, tenants: Iterable[str]) -> None:
    """Set how much waits for each tenant; tenants that are gone are not told of any more."""
    QUEUE_DEPTH.clear()
    for tenant in tenants:
        QUEUE_DEPTH.labels(tenant).set(queue.ready_count(tenant))


def count_compute_clusters(reachable: Iterable[bool]) -> None:
    """Set how many compute clusters answer, and how many do not."""
    counts = Count(reachable)
    for answers in (True, False):
        COMPUTE_CLUSTERS.labels(str(answers).lower()).set(counts[answers])


def measure_datastore(*, in_use: int, file: int, quota: int, held: int) -> None:
    """Set how full the datastore is, in bytes, and how many tenants it is closed to."""
    for what, size in (("in_use", in_use), ("file", file), ("quota", quota)):
        DATASTORE.labels(what).set(size)
    BLOCKED_TENANTS.set(held)


async def measure_loop_lag() -> None:
    """Measure the event loop's lag once a second, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + LAG_SECONDS
        await asyncio.sleep(LAG_SECONDS)
        LOOP_LAG.set(max(0.0, loop.time() - due))
