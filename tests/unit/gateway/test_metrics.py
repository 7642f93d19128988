"""Tests of the daemon's metrics."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import REGISTRY

import vkgateway.sync.metrics
from vkgateway.gateway import metrics

PAGE = Path(vkgateway.__file__).parents[1] / "docs" / "reference" / "metrics.md"


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


def test_every_metric_is_documented() -> None:
    page = PAGE.read_text()
    assert vkgateway.sync.metrics.FORWARDED
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
