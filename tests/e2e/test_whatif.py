"""What-if answers of the running gateway, and that they come true."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, Document, Platform, eventually, pod_manifest
from vkgateway.api.names import EVICTION_DEADLINE_ANNOTATION

POOL = "v100"
"""Pool with two nodes of 8 GPUs."""


@pytest.fixture(scope="module")
def asker(platform: Platform) -> Iterator[Cluster]:
    """Yield a tenant that is guaranteed one of the pool's two nodes."""
    platform.vkgateway("tenant", "create", "asker", "--pool", f"{POOL}:guarantee=nvidia.com/gpu=8")
    yield platform.tenant("asker")
    platform.vkgateway("tenant", "delete", "asker", "--yes")


@pytest.fixture(scope="module")
def lender(platform: Platform) -> Iterator[Cluster]:
    """Yield a tenant that fills the pool with borrowing pods."""
    platform.vkgateway("tenant", "create", "lender", "--pool", POOL)
    cluster = platform.tenant("lender")
    cluster.apply(*(node_pod(f"low-{number}", priorityClassName="vkgateway-low") for number in range(2)))
    for number in range(2):
        cluster.wait_pod(f"low-{number}")
    yield cluster
    platform.vkgateway("tenant", "delete", "lender", "--yes")


def node_pod(name: str, **spec: Any) -> Document:
    """Return a pod that uses a node."""
    return pod_manifest(name, container={"resources": {"limits": {"nvidia.com/gpu": "8"}}}, **spec)


def ask_whatif(platform: Platform, *question: str) -> Any:
    return json.loads(platform.vkgateway("whatif", *question, "-o", "json"))


def notified_pods(cluster: Cluster) -> list[str]:
    found = cluster.get("pods")["items"]
    return [
        pod["metadata"]["name"]
        for pod in found
        if EVICTION_DEADLINE_ANNOTATION in pod["metadata"].get("annotations", {})
    ]


def compute_node(platform: Platform, tenant: str, name: str) -> str:
    return str(platform.compute.get("pod", name, "-n", f"{tenant}--default")["spec"]["nodeName"])


GANG = ("gang", "--tenant", "asker", "--request", "nvidia.com/gpu=8")


def test_gang_prediction_comes_true_and_changes_nothing(platform: Platform, asker: Cluster, lender: Cluster) -> None:
    answer = ask_whatif(platform, *GANG)
    [outcome], [evicted] = answer["gangs"], answer["evictions"]
    assert (answer["verdict"], outcome["borrowed"]) == ("StartsAfterEviction", False)
    assert (evicted["gang"]["tenant"], evicted["inside"]) == ("lender", False)
    [place] = outcome["placements"]
    victim = evicted["gang"]["name"]
    assert compute_node(platform, "lender", victim) == place["node"]
    text = platform.vkgateway("whatif", *GANG)
    assert "once the arbiter has evicted 1 pod" in text
    assert victim in text
    assert notified_pods(lender) == []
    assert json.loads(platform.vkgateway("queue", "--tenant", "asker", "-o", "json")) == []

    asker.apply(node_pod("train"))
    asker.wait_pod("train")
    assert compute_node(platform, "asker", "train") == place["node"]
    phases = {pod["metadata"]["name"]: pod["status"]["phase"] for pod in lender.get("pods")["items"]}
    assert {name for name, phase in phases.items() if phase != "Running"} <= {victim}
    drained = ask_whatif(platform, "drain", place["node"])
    assert (drained["verdict"], [entry["gang"]["name"] for entry in drained["gangs"]]) == ("AllRestart", ["train"])
    assert {eviction["gang"]["name"] for eviction in drained["evictions"]} == {"low-0", "low-1"} - {victim}


def test_guarantee_is_checked_as_the_gateway_checks_the_tenant(
    platform: Platform, asker: Cluster, lender: Cluster
) -> None:
    refused = ask_whatif(platform, "guarantee", "--tenant", "third", "--pool", f"{POOL}:guarantee=nvidia.com/gpu=16")
    assert refused["verdict"] == "Refused"
    assert "1 more node like v100-0 would hold it" in refused["notes"][0]
    line = ("tenant", "create", "third", "--pool")
    result = platform.try_vkgateway(*line, f"{POOL}:guarantee=nvidia.com/gpu=16")
    assert (result.code, "nvidia.com/gpu" in result.err) == (2, True)
    fits = platform.try_vkgateway(*line, f"{POOL}:guarantee=nvidia.com/gpu=8", "--dry-run")
    assert (fits.code, "kind: Tenant" in fits.out) == (0, True)
    assert "It fits next to the existing guarantees" in fits.err


def test_added_nodes_are_explained_by_the_gangs_that_start(platform: Platform, asker: Cluster, lender: Cluster) -> None:
    lender.apply(node_pod("waits", priorityClassName="vkgateway-low"))

    def start_effects() -> dict[str, str]:
        found = ask_whatif(platform, "grow", POOL, "--nodes", "2")["effects"]
        return {effect["gang"]["name"]: effect["after"] for effect in found}

    eventually(lambda: "starts on new-" in start_effects().get("waits", ""), what="the waiting pod would start")
    lender.kubectl("delete", "pod", "waits", "--grace-period=1")


def test_unknown_names_list_the_existing_ones(platform: Platform) -> None:
    for question, message in (
        (("drain", "v100-17"), "node 'v100-17' is in no pool"),
        (("grow", "h100", "--nodes", "1"), "pool 'h100' does not exist"),
        (("gang", "--tenant", "nobody", "--request", "nvidia.com/gpu=8"), "tenant 'nobody' does not exist"),
    ):
        refused = platform.try_vkgateway("whatif", *question)
        assert (refused.code, message in refused.err, "vailable" in refused.err) == (3, True, True), refused
