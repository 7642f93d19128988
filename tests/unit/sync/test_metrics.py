"""What is counted of a tenant's pods, and that it goes with the tenant."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from prometheus_client import REGISTRY

from tests.unit.sync.world import World, until, world
from vkgateway.sync import metrics


@pytest.fixture
async def here() -> AsyncIterator[World]:
    metrics.forget_tenant("alpha")
    async with world() as made:
        yield made
    metrics.forget_tenant("alpha")


def count(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, {"tenant": "alpha", **labels})


async def test_a_pods_way_is_counted(here: World) -> None:
    here.create()
    async with here.gateway():
        await here.forwarded()
        here.run()
        await until(lambda: here.phase() == "Running")
        await here.settled()
    assert count("vkgateway_pods_forwarded_total") == 1
    assert count("vkgateway_pod_forward_seconds_count") == 1
    assert count("vkgateway_pod_statuses_mirrored_total") == 1
    assert count("vkgateway_pods_failed_total", reason="PolicyRefused") is None


async def test_refusals_are_counted_by_their_reason(here: World) -> None:
    here.create("bad", hostNetwork=True)
    async with here.gateway():
        await until(lambda: here.phase("bad") == "Failed")
        await here.settled()
    assert count("vkgateway_pods_failed_total", reason="PolicyRefused") == 1
    assert count("vkgateway_pods_forwarded_total") == 0


async def test_series_go_with_their_tenant_and_come_back_from_zero() -> None:
    meter, other = metrics.pod_meter("alpha"), metrics.pod_meter("beta")
    for one in (meter, other):
        one.forwarded(3.0)
        one.failed("Lost")
    metrics.forget_tenant("alpha")
    assert count("vkgateway_pods_forwarded_total") is None
    assert count("vkgateway_pods_failed_total", reason="Lost") is None
    assert REGISTRY.get_sample_value("vkgateway_pods_forwarded_total", {"tenant": "beta"}) == 1
    metrics.pod_meter("alpha").mirrored()
    assert count("vkgateway_pods_forwarded_total") == 0
    metrics.forget_tenant("alpha")
    metrics.forget_tenant("beta")
    metrics.forget_tenant("nobody")
