"""Metrics, labels and values that an expression in PromQL selects, compared with those of the gateway."""

from __future__ import annotations

import re

from prometheus_client import REGISTRY, Metric

from vkgateway.kinds.pods import startup_metrics
from vkgateway.runtime import metrics as sync_metrics
from vkgateway.tenants import metrics

MODULES = (metrics, sync_metrics, startup_metrics)
"""Importing these modules registers all metrics."""
SELECTOR = re.compile(r"\b(vkgateway_[a-z_]+)(?:{([^}]*)})?")
MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')
ADDED = {"job", "instance", "namespace", "pod", "service"}
"""Labels that Prometheus adds."""
_WITHOUT_SERIES = ("vkgateway_tenant_condition", "vkgateway_compute_cluster_condition")
"""Metrics that have no series at the start."""


def unknown_metrics(expression: str) -> list[str]:
    """Return the metrics that the gateway does not have, and labels that a metric does not have."""
    known = {name: metric for metric in REGISTRY.collect() for name in _series_names(metric)}
    found = []
    for name, matchers in SELECTOR.findall(expression):
        if name not in known:
            found.append(name)
            continue
        labels = {*REGISTRY._names_to_collectors[name]._labelnames, *ADDED, "le"}  # type: ignore[attr-defined]
        found += [f"{name}{{{label}}}" for label, _, _ in MATCHER.findall(matchers) if label not in labels]
    return found


def unknown_values(expression: str) -> list[str]:
    """Return the selected values that a label does not have at the start.

    A counter that starts with 1 at the first event has no increase, so each that an alert counts starts with 0.
    """
    metrics.count_tenants([])
    metrics.count_compute_clusters([])
    startup_metrics.STATISTICS.update_metrics({"a100.local"})
    metrics.measure_datastore(in_use=0, file=0, quota=0, blocked=0)
    series = [sample for metric in REGISTRY.collect() for sample in metric.samples]
    found = []
    for name, matchers in SELECTOR.findall(expression):
        for label, sign, value in MATCHER.findall(matchers):
            if sign == "=" and not name.startswith(_WITHOUT_SERIES):
                known = {sample.labels.get(label) for sample in series if sample.name == name}
                found += [] if value in known else [f'{name}{{{label}="{value}"}}']
    return found


def _series_names(metric: Metric) -> set[str]:
    """Return the names of a metric's series, also before it has any."""
    suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(metric.type, [""])
    return {metric.name + suffix for suffix in suffixes}
