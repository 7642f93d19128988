"""Prometheus metrics of the reconcilers.

Label lookups are expensive, so frequent callers keep the child of a metric: the reconcilers of a tenant, and the
workers for each kind of reconcile request.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from prometheus_client import Counter, Histogram

WORK_SECONDS: Final = Histogram(
    "vkgateway_work_seconds",
    "Duration of one reconcile request, including API calls, by kind: pod, copy, namespace, service, ...",
    ["sort"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 30),
)
RETRIES: Final = Counter(
    "vkgateway_work_retries", "Failed reconcile requests that are retried, by kind of failure.", ["reason"]
)
DEFECT: Final = "defect"
"""Kind of failure that is a bug."""
RETRIES.labels(DEFECT)  # exported from the start: `increase` of a series that starts with 1 is 0
FORWARDED: Final = Counter("vkgateway_pods_forwarded", "Pods created in a compute cluster.", ["tenant"])
MIRRORED: Final = Counter("vkgateway_pod_statuses_mirrored", "Statuses of pods written to the tenant.", ["tenant"])
FAILED: Final = Counter(
    "vkgateway_pods_failed",
    "Pods that the gateway set to Failed (refused, evicted, lost), or deleted as their compute pods were, by reason.",
    ["tenant", "reason"],
)
FORWARD_SECONDS: Final = Histogram(
    "vkgateway_pod_forward_seconds",
    "Time from a pod's creation in the tenant cluster (whole seconds) to its creation in the compute cluster.",
    ["tenant"],
    buckets=(1, 2, 5, 10, 30, 60, 300, 1800),
)
OTHER_REASON: Final = "Other"
"""Reason of failed pods beyond `_MAX_REASONS`."""
_MAX_REASONS: Final = 16
"""Reasons of failed pods with series of their own, by tenant. Reasons such as `OutOf…` contain a name that a tenant can
choose.
"""
_BY_TENANT: Final = (FORWARDED, MIRRORED, FORWARD_SECONDS)


@cache
def request_seconds(kind: str) -> Histogram:
    """Return the child of `WORK_SECONDS` for a kind of reconcile request; label lookups are expensive."""
    return WORK_SECONDS.labels(kind)


class PodMeter:
    """One tenant's children of the metrics about pods."""

    def __init__(self, tenant: str) -> None:
        self._tenant = tenant
        self._forwarded = FORWARDED.labels(tenant)
        self._forward_seconds = FORWARD_SECONDS.labels(tenant)
        self._mirrored = MIRRORED.labels(tenant)
        self._reasons: set[str] = set()

    def count_forwarded(self, seconds: float) -> None:
        """Count a compute pod that was created `seconds` after the tenant pod."""
        self._forwarded.inc()
        self._forward_seconds.observe(max(0.0, seconds))

    def count_mirrored(self) -> None:
        """Count a pod status that was written to the tenant cluster."""
        self._mirrored.inc()

    def count_failed(self, reason: str) -> None:
        """Count a pod that the gateway failed, by the reason in its status. The number of reasons is bounded."""
        if len(self._reasons) < _MAX_REASONS:
            self._reasons.add(reason)
        FAILED.labels(self._tenant, reason if reason in self._reasons else OTHER_REASON).inc()


def forget_tenant(tenant: str) -> None:
    """Delete the series of a removed tenant."""
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
