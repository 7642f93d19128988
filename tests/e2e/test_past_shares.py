"""Half-life of past shares: it changes whose gang is first in the queue, and the past survives the gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, Document, Platform, eventually, pod_manifest
from tests.e2e.faulty_gateway import gateway_settings, restart_with_faults
from vkgateway.settings.config import Arbiter

pytestmark = pytest.mark.embedded_gateway(reason="the tests replace the process of the gateway")
GPU = "nvidia.com/gpu"
TENANTS = ("greedy", "modest", "holder")


@pytest.fixture(scope="module")
def tenants(platform: Platform) -> Iterator[dict[str, Cluster]]:
    """Yield tenants without a guarantee."""
    for name in TENANTS:
        platform.vkgateway("tenant", "create", name, "--pool", "v100")
    yield {name: platform.tenant(name) for name in TENANTS}
    platform.vkgateway("up")  # the platform's own gateway again, for the tests of other files
    for name in TENANTS:
        platform.vkgateway("tenant", "delete", name, "--yes")


def gpu_pods(name: str) -> list[Document]:
    """Return two pods that fill the pool."""
    container: dict[str, Any] = {"resources": {"limits": {GPU: "8"}}}
    return [pod_manifest(f"{name}-{number}", container=container) for number in range(2)]


def queue_of(platform: Platform) -> list[str]:
    """Return the tenants of the pending gangs in queue order."""
    return [gang["tenant"] for gang in pending_gangs(platform)]


def is_pending(platform: Platform, tenant: str) -> bool:
    return tenant in queue_of(platform)


def pending_gangs(platform: Platform) -> list[Document]:
    answer = platform.try_vkgateway("queue", "--pool", "v100", "-o", "json")
    return [gang for gang in json.loads(answer.out) if gang["place"]] if answer.code == 0 else []


def stored_share(platform: Platform) -> float:
    """Return the past share of greedy in its ConfigMap; 0: none is stored."""
    shares = (share for month in stored_months(platform) for share in (month.get("shares") or {}).get("shares", ()))
    return sum(float(share["average"]) for share in shares)


def stored_hours(platform: Platform) -> float:
    """Return the borrowed hours of greedy in its ConfigMap."""
    days = (rows for month in stored_months(platform) for rows in month["days"].values())
    return sum(float(hours[1]) for rows in days for _, hours in rows)


def stored_months(platform: Platform) -> list[Document]:
    """Return the stored usage of greedy."""
    found = platform.compute.get("configmaps", "-n", "vkgateway-system", "-l", "vkgateway.io/usage-of=greedy")
    return [json.loads(item["data"]["usage.json"]) for item in found["items"]]


def test_tenant_that_borrowed_before_comes_later_with_a_half_life(
    platform: Platform, tenants: dict[str, Cluster], tmp_path: Path
) -> None:
    tenants["greedy"].apply(*gpu_pods("past"))
    eventually(lambda: stored_hours(platform) > 0, what="the hours of greedy are stored")
    tenants["greedy"].kubectl("delete", "pods", "--all", "--grace-period=1")
    tenants["holder"].apply(*gpu_pods("hold"))
    for number in range(2):
        tenants["holder"].wait_pod(f"hold-{number}")
    for name in ("greedy", "modest"):
        tenants[name].apply(gpu_pods("next")[0])
        eventually(partial(is_pending, platform, name), what=f"{name} waits")
    assert queue_of(platform) == ["greedy", "modest"], "in the order of their creation"

    election = gateway_settings(platform).leader_election
    restart_with_faults(platform, tmp_path / "faults", arbiter=Arbiter(half_life="24h"), leader_election=election)

    eventually(lambda: queue_of(platform) == ["modest", "greedy"], what="modest comes first")
    shares = {gang["tenant"]: gang["share"] for gang in pending_gangs(platform)}
    assert shares["greedy"]["past"] > 0
    assert shares["modest"] == shares["greedy"] | {"tenant": "modest", "past": 0, "at": shares["modest"]["at"]}
    table = platform.vkgateway("queue", "--pool", "v100")
    assert "FAIR SHARE" in table
    assert "past" in table
    explained = platform.vkgateway("explain", "next-0", "--tenant", "greedy")
    assert "Fair share:" in explained
    assert "half of that is forgiven by" in explained
    series = 'vkgateway_arbiter_tenant_share{pool="v100.local",tenant="greedy",what="past"}'
    eventually(lambda: series in platform.metrics(), what="the metric of the past share")


def test_past_survives_the_gateway(platform: Platform, tenants: dict[str, Cluster]) -> None:
    eventually(lambda: stored_share(platform) > 0, what="the past share of greedy is stored")
    before = shown_past(platform)
    former = platform.processes()["gateway"]["pid"]
    platform.kill_gateway()
    eventually(lambda: platform.processes()["gateway"]["pid"] not in (None, former), what="another gateway")
    eventually(lambda: len(queue_of(platform)) == 2, what="it schedules")
    assert queue_of(platform) == ["modest", "greedy"]
    assert shown_past(platform) == pytest.approx(before, rel=0.02)
    tenants["holder"].kubectl("delete", "pod", "hold-0", "--grace-period=1")
    tenants["modest"].wait_pod("next-0")


def shown_past(platform: Platform) -> float:
    return next(float(gang["share"]["past"]) for gang in pending_gangs(platform) if gang["tenant"] == "greedy")
