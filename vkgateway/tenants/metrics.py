"""Prometheus metrics of the daemon; lower layers add theirs to the same registry."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter as Count
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from prometheus_client import Counter, Gauge, Histogram

from vkgateway.api.objects import Condition
from vkgateway.kube.transport import Traffic
from vkgateway.planes.pki import cert_expiry
from vkgateway.scheduler.service.metrics import (
    OVERDUE_SECONDS,
    count_decisions,
    observe_cycle,
    observe_start,
    observe_state,
)

__all__ = [
    "API_REQUESTS",
    "API_WATCHES",
    "BLOCKED_TENANTS",
    "BUDGET_HOURS",
    "BUDGET_USED",
    "CERTIFICATE_EXPIRY",
    "COMPUTE_CLUSTERS",
    "COMPUTE_CLUSTER_CONDITIONS",
    "DATASTORE",
    "LEADER",
    "LEASE_RENEWAL",
    "LEASE_TRANSITIONS",
    "LOOP_LAG",
    "ONBOARDING",
    "OVERDUE_SECONDS",
    "PHASES",
    "QUEUE_DEPTH",
    "TENANTS",
    "TENANT_CONDITIONS",
    "TRAFFIC",
    "count_compute_clusters",
    "count_decisions",
    "count_tenants",
    "count_traffic",
    "measure_datastore",
    "measure_loop_lag",
    "measure_queue",
    "observe_cycle",
    "observe_start",
    "observe_state",
    "record_certificate",
    "set_budgets",
    "set_cluster_conditions",
    "set_tenant_conditions",
]

PHASES: Final = ("Pending", "Provisioning", "Ready", "Degraded", "Deleting")

TENANTS: Final = Gauge("vkgateway_tenants", "Tenants by phase.", ["phase"])
COMPUTE_CLUSTERS: Final = Gauge("vkgateway_compute_clusters", "Compute clusters by reachability.", ["reachable"])
TENANT_CONDITIONS: Final = Gauge(
    "vkgateway_tenant_condition",
    "Whether a condition of a tenant is True: 1 or 0, with its reason. Unknown conditions are 0.",
    ["tenant", "condition", "reason"],
)
COMPUTE_CLUSTER_CONDITIONS: Final = Gauge(
    "vkgateway_compute_cluster_condition",
    "Whether a condition of a compute cluster is True: 1 or 0, with its reason. Unknown conditions are 0.",
    ["compute_cluster", "condition", "reason"],
)
BUDGET_HOURS: Final = Gauge(
    "vkgateway_budget_hours",
    "Monthly budget of a tenant in unit-hours (GPU-hours), of one pool or of all.",
    ["tenant", "resource", "pool"],
)
BUDGET_USED: Final = Gauge(
    "vkgateway_budget_used_hours",
    "Unit-hours (GPU-hours) of a budget that the tenant used in the current UTC month.",
    ["tenant", "resource", "pool"],
)
CERTIFICATE_EXPIRY: Final = Gauge(
    "vkgateway_certificate_expiry_timestamp_seconds",
    "When a certificate of the gateway expires, in seconds since the epoch.",
    ["certificate"],
)
QUEUE_DEPTH: Final = Gauge("vkgateway_queue_depth", "Objects that are due for reconciliation, by tenant.", ["tenant"])
LOOP_LAG: Final = Gauge("vkgateway_event_loop_lag_seconds", "Delay of the event loop at the last measurement.")
LEADER: Final = Gauge("vkgateway_leader", "Whether this gateway may write: 1 for the leader, 0 for a standby.")
LEASE_TRANSITIONS: Final = Gauge(
    "vkgateway_lease_transitions",
    "How often the leader's Lease changed its holder, restarts included, as the Lease counts; NaN for a standby.",
)
"""The process ends when it loses the Lease, so a count of each process would never exceed 1."""
LEASE_RENEWAL: Final = Histogram(
    "vkgateway_lease_renewal_seconds",
    "Seconds of a successful renewal of the leader's Lease.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
)
ONBOARDING: Final = Histogram(
    "vkgateway_tenant_ready_seconds",
    "Seconds from the first reconciliation of a tenant until it is Ready for the first time.",
    buckets=(1, 2, 3, 4, 5, 7.5, 10, 15, 30, 60, 120, 300),
)

DATASTORE: Final = Gauge(
    "vkgateway_datastore_bytes", "Bytes of the tenants' shared datastore: in use, file size, and quota.", ["what"]
)
BLOCKED_TENANTS: Final = Gauge(
    "vkgateway_datastore_held_tenants",
    "Tenants whose writes to the datastore are blocked because they were filling it.",
)

API_REQUESTS: Final = Counter(
    "vkgateway_api_requests",
    "Requests that the gateway sent to API servers, by kind of cluster and method; watches have the method WATCH.",
    ["cluster", "method"],
)
API_WATCHES: Final = Gauge("vkgateway_api_watches", "Open watches of the gateway, by kind of cluster.", ["cluster"])

TRAFFIC: Final[Mapping[str, Traffic]] = {kind: Traffic() for kind in ("management", "compute", "tenant")}
"""Counts of the clients of each kind of cluster."""
_reported_requests: Final[dict[str, Count[str]]] = {kind: Count() for kind in TRAFFIC}

LAG_SECONDS: Final = 1.0


class BudgetUse(Protocol):
    """Use of a budget, as `usage.budgets` reports it."""

    @property
    def tenant(self) -> str: ...

    @property
    def resource(self) -> str: ...

    @property
    def pool(self) -> str: ...

    @property
    def budget(self) -> float: ...

    @property
    def used(self) -> float: ...


class _Queue(Protocol):
    def ready_count(self, tenant: str) -> int: ...


def count_tenants(phases: Iterable[str]) -> None:
    """Set the number of tenants in each phase."""
    counts = Count(phases)
    for phase in PHASES:
        TENANTS.labels(phase).set(counts[phase])


def set_tenant_conditions(conditions: Mapping[str, Sequence[Condition]]) -> None:
    """Set the conditions of each tenant, and drop deleted tenants."""
    _set_conditions(TENANT_CONDITIONS, conditions)


def set_cluster_conditions(conditions: Mapping[str, Sequence[Condition]]) -> None:
    """Set the conditions of each compute cluster, and drop deleted compute clusters."""
    _set_conditions(COMPUTE_CLUSTER_CONDITIONS, conditions)


def _set_conditions(gauge: Gauge, conditions: Mapping[str, Sequence[Condition]]) -> None:
    """Set one series for each object and condition; one whose reason changed replaces the former."""
    gauge.clear()
    for name, found in conditions.items():
        for condition in found:
            gauge.labels(name, condition.type, condition.reason).set(condition.status == "True")


def record_certificate(name: str, cert_pem: bytes) -> None:
    """Record when a certificate in use expires. One that cannot be read has no series."""
    with contextlib.suppress(ValueError):
        expiry = cert_expiry(cert_pem).timestamp()
        CERTIFICATE_EXPIRY.labels(name).set(expiry)


def measure_queue(queue: _Queue, *, tenants: Iterable[str]) -> None:
    """Set the queue depth of each tenant, and drop deleted tenants."""
    QUEUE_DEPTH.clear()
    for tenant in tenants:
        QUEUE_DEPTH.labels(tenant).set(queue.ready_count(tenant))


def set_budgets(budgets: Iterable[BudgetUse]) -> None:
    """Set the size and the use of each budget, and drop removed budgets."""
    BUDGET_HOURS.clear()
    BUDGET_USED.clear()
    for each in budgets:
        BUDGET_HOURS.labels(each.tenant, each.resource, each.pool).set(each.budget)
        BUDGET_USED.labels(each.tenant, each.resource, each.pool).set(each.used)


def count_compute_clusters(reachable: Iterable[bool]) -> None:
    """Set the numbers of reachable and unreachable compute clusters."""
    counts = Count(reachable)
    for is_reachable in (True, False):
        COMPUTE_CLUSTERS.labels(str(is_reachable).lower()).set(counts[is_reachable])


def measure_datastore(*, in_use: int, file: int, quota: int, blocked: int) -> None:
    """Set the sizes of the datastore in bytes, and the number of blocked tenants."""
    for what, size in (("in_use", in_use), ("file", file), ("quota", quota)):
        DATASTORE.labels(what).set(size)
    BLOCKED_TENANTS.set(blocked)


def count_traffic() -> None:
    """Update the metrics of requests and watches from the clients' counts, which are cheaper to increment."""
    for kind, traffic in TRAFFIC.items():
        reported = _reported_requests[kind]
        for method, count in traffic.requests.items():
            API_REQUESTS.labels(kind, method).inc(count - reported[method])
        reported.update(traffic.requests - reported)
        API_WATCHES.labels(kind).set(traffic.open_watches)


async def measure_loop_lag() -> None:
    """Measure the event loop's lag every second until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + LAG_SECONDS
        await asyncio.sleep(LAG_SECONDS)
        LOOP_LAG.set(max(0.0, loop.time() - due))
