"""What the reconcilers count, for Prometheus.

Label lookups cost more than the counting, so whoever counts often holds on to its child: a tenant's reconcilers to
theirs, the engine to one a sort of work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import Counter, Histogram

WORK_SECONDS: Final = Histogram(
    "vkgateway_work_seconds",
    "How long one look at an object takes, API servers included; by sort: pod, copy, namespace, service, ...",
    ["sort"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 30),
)
RETRIES: Final = Counter(
    "vkgateway_work_retries", "Looks at an object that failed and are repeated, by kind of failure.", ["reason"]
)
FORWARDED: Final = Counter("vkgateway_pods_forwarded", "Pods created in a compute cluster.", ["tenant"])
MIRRORED: Final = Counter("vkgateway_pod_statuses_mirrored", "Statuses of pods written to the tenant.", ["tenant"])
FAILED: Final = Counter(
    "vkgateway_pods_failed",
    "Pods that the gateway called Failed (refused, taken, lost), by the reason they carry.",
    ["tenant", "reason"],
)
FORWARD_SECONDS: Final = Histogram(
    "vkgateway_pod_forward_seconds",
    "From a pod's creation in the tenant (in whole seconds) to its creation in the compute cluster.",
    ["tenant"],
    buckets=(1, 2, 5, 10, 30, 60, 300, 1800),
)
_BY_TENANT: Final = (FORWARDED, MIRRORED, FORWARD_SECONDS)


@dataclass(frozen=True, slots=True)
class PodMeter:
    """One tenant's children of the metrics about pods."""

    forwarded: Callable[[float], None]
    """Counts a pod created below, so many seconds after it was created above."""
    mirrored: Callable[[], None]
    failed: Callable[[str], None]


def pod_meter(tenant: str) -> PodMeter:
    """Return what a tenant's reconcilers count with; asked again it is the same series."""
    forwarded, seconds = FORWARDED.labels(tenant), FORWARD_SECONDS.labels(tenant)

    def count(after: float) -> None:
        forwarded.inc()
        seconds.observe(max(0.0, after))

    return PodMeter(
        forwarded=count,
        mirrored=MIRRORED.labels(tenant).inc,
        failed=lambda reason: FAILED.labels(tenant, reason).inc(),
    )


def forget_tenant(tenant: str) -> None:
    """Drop the series of a tenant that is gone."""
    for metric in _BY_TENANT:
        _remove_series(metric, (tenant,))
    samples = [sample for metric in FAILED.collect() for sample in metric.samples]
    for reason in {sample.labels["reason"] for sample in samples if sample.labels["tenant"] == tenant}:
        _remove_series(FAILED, (tenant, reason))


def _remove_series(metric: Any, labels: tuple[str, ...]) -> None:
    try:
        metric.remove(*labels)
    except KeyError:
        return
