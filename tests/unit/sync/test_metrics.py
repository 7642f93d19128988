"""Metrics of a tenant's pods, removed with the tenant."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from prometheus_client import REGISTRY

from tests.support.waiting import wait_until
from tests.unit.sync.world import World, start_world
from vkgateway.runtime import metrics


@pytest.fixture
async def world() -> AsyncIterator[World]:
    metrics.forget_tenant("alpha")
    async with start_world() as world:
        yield world
    metrics.forget_tenant("alpha")


def metric_value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, {"tenant": "alpha", **labels})


async def test_pod_life_cycle_is_counted(world: World) -> None:
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        world.run_pod()
        await wait_until(lambda: world.pod_phase() == "Running")
        await world.wait_settled()
    assert metric_value("vkgateway_pods_forwarded_total") == 1
    assert metric_value("vkgateway_pod_forward_seconds_count") == 1
    assert metric_value("vkgateway_pod_statuses_mirrored_total") == 1
    assert metric_value("vkgateway_pods_failed_total", reason="PolicyRefused") is None


async def test_refusals_are_counted_by_reason(world: World) -> None:
    world.create_pod("bad", hostNetwork=True)
    async with world.run_gateway():
        await wait_until(lambda: world.pod_phase("bad") == "Failed")
        await world.wait_settled()
    assert metric_value("vkgateway_pods_failed_total", reason="PolicyRefused") == 1
    assert metric_value("vkgateway_pods_forwarded_total") == 0


def test_a_tenant_cannot_create_series_without_bound() -> None:
    """The name of a resource that a pod requests is part of the reason, and a tenant's choice."""
    meter = metrics.PodMeter("alpha")
    for number in range(100):
        meter.count_failed(f"OutOfexample.com/{number}")
    meter.count_failed("OutOfexample.com/0")
    reasons = failures_by_reason("alpha")
    assert len(reasons) == 17
    assert (reasons["OutOfexample.com/0"], reasons[metrics.OTHER_REASON]) == (2, 84)
    metrics.forget_tenant("alpha")
    assert failures_by_reason("alpha") == {}


def failures_by_reason(tenant: str) -> dict[str, float]:
    return {
        sample.labels["reason"]: sample.value
        for found in metrics.FAILED.collect()
        for sample in found.samples
        if sample.name == "vkgateway_pods_failed_total" and sample.labels["tenant"] == tenant
    }


async def test_series_are_removed_with_their_tenant_and_restart_from_zero() -> None:
    meter, other = metrics.PodMeter("alpha"), metrics.PodMeter("beta")
    for one in (meter, other):
        one.count_forwarded(3.0)
        one.count_failed("Lost")
    metrics.forget_tenant("alpha")
    assert metric_value("vkgateway_pods_forwarded_total") is None
    assert metric_value("vkgateway_pods_failed_total", reason="Lost") is None
    assert REGISTRY.get_sample_value("vkgateway_pods_forwarded_total", {"tenant": "beta"}) == 1
    metrics.PodMeter("alpha").count_mirrored()
    assert metric_value("vkgateway_pods_forwarded_total") == 0
    metrics.forget_tenant("alpha")
    metrics.forget_tenant("beta")
    metrics.forget_tenant("nobody")
