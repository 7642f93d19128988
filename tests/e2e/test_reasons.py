"""Reports about waiting and usage: queue, explain, top, usage, replay and metrics."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, Document, Platform, eventually, pod_manifest
from tests.support.machine import patience_option

POD_GROUPS = "podgroups.scheduling.volcano.sh"


@pytest.fixture(scope="module")
def waiter(platform: Platform) -> Iterator[Cluster]:
    """Yield a tenant with a limit of 8 GPUs in one pool, and one in another."""
    most = "v100:guarantee=nvidia.com/gpu=8,limit=nvidia.com/gpu=8"
    platform.vkgateway("tenant", "create", "waiter", "--pool", most, "--pool", "a100:limit=nvidia.com/gpu=1")
    yield platform.tenant("waiter")
    platform.vkgateway("tenant", "delete", "waiter", "--yes")


V100: dict[str, Any] = {"nodeSelector": {"vkgateway.io/pool": "v100"}}


def gpu_pod(name: str, amount: int, annotations: dict[str, str] | None = None, **spec: Any) -> Document:
    """Return a pod that requests GPUs, in the pool v100 unless it names a node."""
    spec = spec if "nodeName" in spec else V100 | spec
    pod = pod_manifest(name, container={"resources": {"limits": {"nvidia.com/gpu": str(amount)}}}, **spec)
    pod["metadata"]["annotations"] = annotations or {}
    return pod


def json_output(platform: Platform, *args: str) -> Any:
    return json.loads(platform.vkgateway(*args, "-o", "json"))


def test_pending_gang_is_queued_and_explained(platform: Platform, waiter: Cluster) -> None:
    waiter.apply(gpu_pod("first", 8))
    waiter.wait_pod("first")
    waiter.apply(gpu_pod("second", 8))
    facts = {"tenant": "waiter", "code": "WaitingForQuota", "place": 1}
    eventually(lambda: facts.items() <= (pending_gang(platform, "second") or {}).items(), what="second stands in line")

    kubeconfig = str(waiter.kubeconfig)
    eventually(lambda: json_output(platform, "queue", "--kubeconfig", kubeconfig), what="told to the tenant, too")
    explaining = ("explain", "second", "--kubeconfig", kubeconfig)
    eventually(lambda: "WaitingForQuota" in platform.vkgateway(*explaining), what="explained to the tenant")
    assert "limit" in platform.vkgateway(*explaining)
    assert "second" in platform.vkgateway("explain", "second", "--tenant", "waiter")

    waiter.kubectl("delete", "pod", "first", "--grace-period=1")
    waiter.wait_pod("second")
    eventually(lambda: pending_gang(platform, "second") is None, what="second is not in line any more")
    waiter.kubectl("delete", "pod", "second", "--grace-period=1")


def test_surplus_of_an_elastic_gang_is_queued(platform: Platform, waiter: Cluster) -> None:
    marks = {"vkgateway.io/gang": "grows", "vkgateway.io/gang-min": "1", "vkgateway.io/gang-elastic-max": "4"}
    waiter.apply(*(gpu_pod(f"grows-{number}", 4, marks) for number in range(3)))
    for number in range(2):
        waiter.wait_pod(f"grows-{number}")
    expected = ("v100.local", 0, 1, 2, "nvidia.com/gpu 4", "WaitingForQuota")

    def is_queued(*options: str) -> bool:
        found = [gang for gang in json_output(platform, "queue", *options) if gang["name"] == "grows"]
        facts = ("pool", "place", "pods", "running", "asks", "code")
        return [tuple(gang[fact] for fact in facts) for gang in found] == [expected]

    eventually(is_queued, what="one of three waits beside two that run")
    eventually(lambda: is_queued("--kubeconfig", str(waiter.kubeconfig)), what="told to the tenant, too")
    waiter.kubectl("delete", "pod", "grows-0", "--grace-period=1")
    waiter.wait_pod("grows-2")
    eventually(lambda: pending_gang(platform, "grows") is None, what="nothing of it waits")
    waiter.kubectl("delete", "pods", "grows-1", "grows-2", "--grace-period=1")


def test_directly_bound_pod_over_the_limit_fails_like_on_a_kubelet(platform: Platform, waiter: Cluster) -> None:
    node = "a100.zone-0.local"
    assert waiter.get("node", node)["status"]["allocatable"]["nvidia.com/gpu"] == "1"
    cpus: dict[str, Any] = {"resources": {"requests": {"cpu": "100000"}}}
    waiter.apply(gpu_pod("big", 2, nodeName=node), pod_manifest("wide", container=cpus, nodeName=node))
    past_the_limit = ("big", "OutOfnvidia.com/gpu", "Node didn't have enough resource: nvidia.com/gpu")
    past_any_machine = ("wide", "OutOfcpu", "no machine of the pool has cpu 100000; a pod can have cpu 96 at most")
    for name, reason, message in (past_the_limit, past_any_machine):
        waiter.wait_pod(name, "jsonpath={.status.phase}=Failed")
        status = waiter.get("pod", name)["status"]
        assert (status["reason"], message in status["message"]) == (reason, True)
        assert platform.compute.find("pod", name, "-n", "waiter--default") is None
    waiter.apply(pod_manifest("other", nodeSelector={"vkgateway.io/pool": "a100"}))
    waiter.wait_pod("other")
    waiter.kubectl("delete", "pods", "big", "wide", "other", "--grace-period=1")


def pending_gang(platform: Platform, name: str) -> Any:
    found = [gang for gang in json_output(platform, "queue") if gang["name"] == name]
    return found[0] if found else None


def test_top_and_usage_account_for_pools_and_tenants(platform: Platform, waiter: Cluster) -> None:
    began = time.monotonic()
    waiter.apply(gpu_pod("counted", 4, restartPolicy="Never"))
    waiter.wait_pod("counted")

    def used_devices() -> tuple[int, int, int]:
        """Return the use of the pool, and use and guarantee of the tenant."""
        state = json_output(platform, "top")
        [pool] = [entry for entry in state["pools"] if entry["pool"] == "v100"]
        [tenant] = [entry for entry in state["tenants"] if (entry["tenant"], entry["pool"]) == ("waiter", "v100")]
        return pool["used"], tenant["used"], tenant["guarantee"]

    # Pods of earlier tests count until their nodes have ended them.
    eventually(lambda: used_devices() == (4, 4, 8), what="its devices alone in use")
    waiter.kubectl("annotate", "pod", "counted", "kwok.vkgateway.io/run-seconds=15")
    waiter.kubectl("wait", "pod/counted", "--for=jsonpath={.status.phase}=Succeeded", patience_option(60), timeout=70)
    eventually(lambda: used_hours(platform, "counted") > 14 * 4 / 3600, what="its use in the log")
    assert used_hours(platform, "counted") < (time.monotonic() - began) * 4 / 3600
    waiter.kubectl("delete", "pod", "counted", "--grace-period=1")


def used_hours(platform: Platform, pod: str) -> float:
    """Return the GPU-hours of a pod in the usage log."""
    found = json_output(platform, "usage", "--since", "1h", "--by", "tenant,pod", *platform.usage_log())
    return float(
        sum(entry["hours"] for entry in found if (entry["by"]["tenant"], entry["by"]["pod"]) == ("waiter", pod))
    )


def test_logged_decisions_are_replayed_identically(platform: Platform, waiter: Cluster) -> None:
    waiter.apply(gpu_pod("logged", 1))
    waiter.wait_pod("logged")

    def replayed_cycles() -> list[Document]:
        """Return the cycles of the log once an admission is among them."""
        cycles: list[Document] = json_output(platform, "replay", *platform.decision_log())
        return cycles if any(cycle["admits"] and cycle["same"] for cycle in cycles) else []

    cycles = eventually(replayed_cycles, what="an admission that was decided again")
    assert not [cycle for cycle in cycles if cycle["same"] is False]
    waiter.kubectl("delete", "pod", "logged", "--grace-period=1")


def test_arbiter_metrics_are_served(platform: Platform, waiter: Cluster) -> None:
    parts = [f'guaranteed_start_seconds_count{{term="{term}"}}' for term in ("watch", "cycle", "bind")]
    before = metric_values(platform)
    waiter.apply(gpu_pod("measured", 1))
    waiter.wait_pod("measured")

    def has_metrics() -> bool:
        after = metric_values(platform)
        return all(after.get(part, 0.0) > before.get(part, 0.0) for part in parts)

    eventually(has_metrics, what="each part of a guaranteed start is counted")
    after = metric_values(platform)
    assert after["arbiter_cycle_seconds_count"] > before["arbiter_cycle_seconds_count"]
    assert any(name.startswith("arbiter_free_units") for name in after)
    waiter.kubectl("delete", "pod", "measured", "--grace-period=1")


def metric_values(platform: Platform) -> dict[str, float]:
    """Return the gateway's metrics by name and labels."""
    lines = platform.metrics().splitlines()
    pairs = (line.rpartition(" ") for line in lines if line.startswith("vkgateway_"))
    return {name.removeprefix("vkgateway_"): float(value) for name, _, value in pairs}


def test_volcano_pod_group_declares_a_gang(waiter: Cluster) -> None:
    waiter.apply_crds(pod_group_crd())
    group = {"scheduling.k8s.io/group-name": "pair"}
    waiter.apply(gpu_pod("pair-0", 1, group))
    eventually(lambda: "WaitingForMembers" in pending_reason(waiter, "pair-0"), what="the size of the gang is unknown")
    waiter.apply(
        {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": "pair", "namespace": "default"},
            "spec": {"minMember": 2},
        }
    )
    eventually(lambda: "1 of 2" in pending_reason(waiter, "pair-0"), what="one of two is there")
    waiter.apply(gpu_pod("pair-1", 1, group))
    for name in ("pair-0", "pair-1"):
        waiter.wait_pod(name)
    waiter.kubectl("delete", "pods", "--all", "--grace-period=1")


def pending_reason(cluster: Cluster, name: str) -> str:
    conditions = cluster.get("pod", name)["status"].get("conditions", ())
    return next((f"{e['reason']}: {e['message']}" for e in conditions if e["type"] == "vkgateway.io/Admitted"), "")


def pod_group_crd() -> Document:
    """Return Volcano's CustomResourceDefinition, as far as the test needs it."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": POD_GROUPS},
        "spec": {
            "group": "scheduling.volcano.sh",
            "scope": "Namespaced",
            "names": {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup"},
            "versions": [
                {
                    "name": "v1beta1",
                    "served": True,
                    "storage": True,
                    "schema": {
                        "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                    },
                }
            ],
        },
    }
