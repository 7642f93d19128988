"""Tests of the daemon's metrics."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from prometheus_client import REGISTRY
from prometheus_client.metrics import MetricWrapperBase

import vkgateway.runtime.metrics
from vkgateway.api.objects import Condition
from vkgateway.api.types import (
    ACCEPTED,
    CONTROL_PLANE_READY,
    DATASTORE_WRITABLE,
    GUARANTEE_KEPT,
    PUBLISHED,
    READY,
    VIRTUAL_NODES_READY,
    WITHIN_BUDGET,
)
from vkgateway.kinds.pods import startup_metrics
from vkgateway.planes.pki import Authority
from vkgateway.runtime import metrics as sync_metrics
from vkgateway.scheduler.service import metrics as arbiter_metrics
from vkgateway.tenants import metrics
from vkgateway.tenants.usage.budgets import BudgetState, BudgetUse

PAGE = Path(vkgateway.__file__).parents[1] / "docs" / "reference" / "metrics.md"
TENANT_CONDITIONS = (
    ACCEPTED,
    CONTROL_PLANE_READY,
    DATASTORE_WRITABLE,
    GUARANTEE_KEPT,
    PUBLISHED,
    READY,
    VIRTUAL_NODES_READY,
    WITHIN_BUDGET,
)
OURS = [
    collector
    for module in (arbiter_metrics, metrics, startup_metrics, sync_metrics)
    for collector in vars(module).values()
    if isinstance(collector, MetricWrapperBase)
]
EXPIRY = "vkgateway_certificate_expiry_timestamp_seconds"


class Queue:
    """Work queue of two tenants."""

    def ready_count(self, tenant: str) -> int:
        return {"alpha": 3}.get(tenant, 0)


def depth(tenant: str) -> float | None:
    return REGISTRY.get_sample_value("vkgateway_queue_depth", {"tenant": tenant})


def test_queue_depth_drops_deleted_tenants() -> None:
    metrics.measure_queue(Queue(), tenants=["alpha", "beta"])
    assert (depth("alpha"), depth("beta")) == (3, 0)
    metrics.measure_queue(Queue(), tenants=["beta"])
    assert (depth("alpha"), depth("beta")) == (None, 0)
    metrics.measure_queue(Queue(), tenants=[])


def test_conditions_have_one_series_for_each_object_and_condition() -> None:
    ready, broken = Condition(type="Ready", status="True", reason="Ready"), Condition(type="Ready", status="False")
    for setter, label, name in (
        (metrics.set_tenant_conditions, "tenant", "vkgateway_tenant_condition"),
        (metrics.set_cluster_conditions, "compute_cluster", "vkgateway_compute_cluster_condition"),
    ):
        setter({"alpha": [ready], "beta": [broken]})
        assert REGISTRY.get_sample_value(name, {label: "alpha", "condition": "Ready", "reason": "Ready"}) == 1
        assert REGISTRY.get_sample_value(name, {label: "beta", "condition": "Ready", "reason": ""}) == 0
        setter({"beta": [ready]})
        samples = [sample for metric in REGISTRY.collect() for sample in metric.samples if sample.name == name]
        assert [sample.labels[label] for sample in samples] == ["beta"]
        setter({})


def test_budgets_have_their_size_and_use_and_removed_ones_have_none() -> None:
    use = BudgetUse(
        tenant="alpha", resource="gpu", pool="", month="2026-11", budget=10.0, used=8.5, state=BudgetState.WARNING
    )
    metrics.set_budgets([use])
    labels = {"tenant": "alpha", "resource": "gpu", "pool": ""}
    assert REGISTRY.get_sample_value("vkgateway_budget_hours", labels) == 10
    assert REGISTRY.get_sample_value("vkgateway_budget_used_hours", labels) == 8.5
    metrics.set_budgets([])
    assert REGISTRY.get_sample_value("vkgateway_budget_hours", labels) is None


def test_certificates_in_use_have_an_expiry() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    metrics.record_certificate("trial", Authority.create("trial", days=10, now=now).cert_pem)
    metrics.record_certificate("broken", b"none")
    found = [REGISTRY.get_sample_value(EXPIRY, {"certificate": name}) for name in ("trial", "broken")]
    assert found == [(now + timedelta(days=10)).timestamp(), None]
    metrics.CERTIFICATE_EXPIRY.clear()


def test_an_idle_tenant_has_few_series() -> None:
    before = series_of("idle")
    sync_metrics.PodMeter("idle")
    metrics.measure_queue(Queue(), tenants=["idle"])
    metrics.set_tenant_conditions({"idle": [Condition(type=kind, status="True") for kind in TENANT_CONDITIONS]})
    assert (before, series_of("idle")) == (0, 25)
    sync_metrics.forget_tenant("idle")
    metrics.measure_queue(Queue(), tenants=[])
    metrics.set_tenant_conditions({})
    assert series_of("idle") == 0


def test_no_label_names_a_pod_a_gang_or_a_namespace() -> None:
    """Each label has few values: names of tenants, pools and compute clusters, or words of a fixed list."""
    names = {label for collector in OURS for label in collector._labelnames}
    assert names == {
        *("tenant", "pool", "compute_cluster", "resource"),
        *("certificate", "cluster", "condition", "kind", "method", "phase", "reachable", "result", "sort"),
        *("term", "what"),
        "image",  # the 20 with the longest pulls
        "reason",  # of failed pods: bounded by `PodMeter`
    }


def series_of(tenant: str) -> int:
    return sum(sample.labels.get("tenant") == tenant for found in REGISTRY.collect() for sample in found.samples)


def test_every_metric_is_documented() -> None:
    page = PAGE.read_text()
    assert vkgateway.runtime.metrics.FORWARDED
    ours = [metric for metric in REGISTRY.collect() if metric.name.startswith("vkgateway_")]
    assert len(ours) >= 11
    for metric in ours:
        shown = metric.name + ("_total" if metric.type == "counter" else "")
        assert f"`{shown}" in page, shown


def test_traffic_counts_each_request_once() -> None:
    traffic = metrics.TRAFFIC["tenant"]
    before = requests("GET")
    for _ in range(2):
        traffic.count_request("GET")
        metrics.count_traffic()
        metrics.count_traffic()
    assert requests("GET") - before == 2
    with traffic.count_watch():
        metrics.count_traffic()
        assert REGISTRY.get_sample_value("vkgateway_api_watches", {"cluster": "tenant"}) == 1


def requests(method: str) -> float:
    return REGISTRY.get_sample_value("vkgateway_api_requests_total", {"cluster": "tenant", "method": method}) or 0.0
