"""Pods that request devices are created with a gate, and Jobs ignore evictions. A missing gate policy is restored."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.e2e.cluster import TENANT_VERSION, Cluster, Document, Platform, eventually, pod_manifest
from tests.support.machine import patience_option
from vkgateway.api.names import ADMISSION_GATE
from vkgateway.api.types import DEFAULT_KUBERNETES_VERSION
from vkgateway.planes.plane import POLICIES_SINCE
from vkgateway.planes.templates import Templates, TenantFacts

POLICY = "vkgateway-admission"
FACTS = TenantFacts(
    name="gates",
    template="default",
    kubernetes_version=TENANT_VERSION or DEFAULT_KUBERNETES_VERSION,
    address="127.0.0.1",
    port=1,
    cluster_domain="cluster.local",
)
BY_POLICY = FACTS.minor >= POLICIES_SINCE
"""Whether the API server gates pods itself. An older one calls the gateway's webhook."""
MORE_THAN_THERE_IS = 999
"""GPUs for which no pod is ever admitted, so that its gate stays."""


@pytest.fixture(scope="module")
def gated(platform: Platform) -> Iterator[Cluster]:
    """Yield the cluster of a tenant that was created with the policy."""
    platform.vkgateway("tenant", "create", "gates", "--pool", "a100")
    cluster = platform.tenant("gates")
    eventually(
        lambda: new_pod_gates(cluster, container_requesting(limits={"nvidia.com/gpu": "1"})), what="the policy at work"
    )
    yield cluster
    platform.vkgateway("tenant", "delete", "gates", "--yes")


def gate_objects(cluster: Cluster) -> list[Document]:
    """Return the objects of the tenant that gate its pods."""
    facts = FACTS
    if not BY_POLICY:
        webhook = cluster.get("mutatingwebhookconfiguration", POLICY)["webhooks"][0]["clientConfig"]
        facts = replace(
            facts, webhooks_url=webhook["url"].removesuffix("/admission/gate"), webhooks_ca=webhook["caBundle"]
        )
    return [
        found
        for found in Templates().load_template("default").render_objects(facts)
        if found["metadata"]["name"] == POLICY
    ]


def container_requesting(**resources: dict[str, str]) -> dict[str, Any]:
    """Return a container that requests resources."""
    return {"resources": resources}


def dry_run_pod(cluster: Cluster, container: dict[str, Any], **spec: Any) -> Document:
    """Return a pod as it would be created, from a dry run."""
    document = pod_manifest("newborn", container=container, **spec)
    output = cluster.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(document))
    created: Document = json.loads(output)
    return created


def new_pod_gates(cluster: Cluster, container: dict[str, Any], **spec: Any) -> list[str]:
    return gate_names(dry_run_pod(cluster, container, **spec))


def gate_names(born: Document) -> list[str]:
    return [gate["name"] for gate in born["spec"].get("schedulingGates", [])]


GPU = {"nvidia.com/gpu": "1"}
INIT = {"name": "first", "image": "vkgateway.local/busybox:1"}
ASKING = [
    pytest.param(container_requesting(limits=GPU), {}, id="limits"),
    pytest.param(container_requesting(limits=GPU, requests=GPU), {}, id="limits and requests"),
    pytest.param(
        container_requesting(limits={"cpu": "1", "example.org/fpga": "2"}), {}, id="another device, after cpu"
    ),
    pytest.param({}, {"initContainers": [INIT | container_requesting(limits=GPU)]}, id="init container only"),
    pytest.param(
        {},
        {"initContainers": [INIT | container_requesting(limits=GPU) | {"restartPolicy": "Always"}]},
        id="sidecar only",
    ),
    pytest.param(
        container_requesting(limits=GPU) | {"env": [{"name": "TWICE", "value": "1"}, {"name": "TWICE", "value": "2"}]},
        {},
        id="a variable twice",
    ),
    pytest.param(container_requesting(limits=GPU), {"schedulerName": "of-our-own"}, id="another scheduler"),
]


@pytest.mark.parametrize(("container", "spec"), ASKING)
def test_pod_with_a_device_request_is_created_gated(
    gated: Cluster, container: dict[str, Any], spec: dict[str, Any]
) -> None:
    assert new_pod_gates(gated, container, **spec) == [ADMISSION_GATE]


def test_gate_is_added_once_and_others_are_kept(gated: Cluster) -> None:
    other_gates = [{"name": "example.org/other"}]
    own_gates = [{"name": ADMISSION_GATE}]

    assert new_pod_gates(gated, container_requesting(limits=GPU), schedulingGates=other_gates) == [
        "example.org/other",
        ADMISSION_GATE,
    ]
    assert new_pod_gates(gated, container_requesting(limits=GPU), schedulingGates=own_gates) == [ADMISSION_GATE]


MARKED = [
    pytest.param({"annotations": {"vkgateway.io/gang": "job"}}, id="annotation"),
    pytest.param({"labels": {"jobset.sigs.k8s.io/jobset-name": "s"}}, id="label"),
]


@pytest.mark.parametrize("metadata", MARKED)
def test_pod_with_a_gang_mark_is_created_gated_without_devices(gated: Cluster, metadata: dict[str, Any]) -> None:
    document = pod_manifest("newborn")
    document["metadata"] |= metadata
    output = gated.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(document))
    assert gate_names(json.loads(output)) == [ADMISSION_GATE]


@pytest.mark.skipif(not BY_POLICY, reason="pods are gated by size where the API server has admission policies")
def test_pod_larger_than_any_node_is_created_gated(gated: Cluster) -> None:
    def gates_for_cpu(cpu: str, **spec: Any) -> list[str]:
        return new_pod_gates(gated, container_requesting(requests={"cpu": cpu}), **spec)

    eventually(lambda: gates_for_cpu("97") == [ADMISSION_GATE], what="the policy by size at work")
    assert gates_for_cpu("96") == []
    sidecar = INIT | container_requesting(requests={"cpu": "500m"}) | {"restartPolicy": "Always"}
    assert gates_for_cpu("95500m", initContainers=[sidecar]) == []
    assert gates_for_cpu("96", initContainers=[sidecar]) == [ADMISSION_GATE]


NOT_ASKING = [
    pytest.param({}, {}, id="nothing"),
    pytest.param(container_requesting(limits={"cpu": "1", "memory": "1Gi"}), {}, id="cpu and memory"),
    pytest.param(container_requesting(limits={"nvidia.com/gpu": "0"}), {}, id="no devices of a kind"),
    pytest.param(container_requesting(limits=GPU), {"nodeName": "a100.zone-0.local"}, id="bound by hand"),
]


@pytest.mark.parametrize(("container", "spec"), NOT_ASKING)
def test_other_pods_are_created_without_gate(gated: Cluster, container: dict[str, Any], spec: dict[str, Any]) -> None:
    assert new_pod_gates(gated, container, **spec) == []


def workload(kind: str, **spec: Any) -> Document:
    labels = {"app": kind.lower()}
    template = pod_manifest(
        "unused", container=container_requesting(limits={"nvidia.com/gpu": str(MORE_THAN_THERE_IS)})
    )["spec"]
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": kind.lower(), "namespace": "default"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": template},
            **spec,
        },
    }


@pytest.mark.parametrize(("kind", "spec", "size"), [("Deployment", {"replicas": 2}, 2), ("DaemonSet", {}, 2)])
def test_pods_of_controllers_are_gated(gated: Cluster, kind: str, spec: dict[str, Any], size: int) -> None:
    gated.apply(workload(kind, **spec))

    def created_pods() -> list[Document]:
        found: list[Document] = gated.get("pods", "-l", f"app={kind.lower()}")["items"]
        return found if len(found) == size else []

    pods = eventually(created_pods, what=f"{size} pods of the {kind}")

    assert {tuple(gate_names(found)) for found in pods} == {(ADMISSION_GATE,)}
    conditions = [entry for entry in pods[0]["status"].get("conditions", []) if entry["type"] == "PodScheduled"]
    assert [entry["reason"] for entry in conditions] == ["SchedulingGated"]
    gated.kubectl("delete", kind.lower(), kind.lower(), "--wait")


def test_unchanged_policies_are_not_rewritten(gated: Cluster) -> None:
    part = "spec" if BY_POLICY else "webhooks"
    objects = gate_objects(gated)
    assert len(objects) == (2 if BY_POLICY else 1)
    for expected in objects:
        assert gated.get(expected["kind"], POLICY)[part] == expected[part]


def test_gated_pod_cannot_be_bound(gated: Cluster) -> None:
    gated.apply(
        pod_manifest("waits", container=container_requesting(limits={"nvidia.com/gpu": str(MORE_THAN_THERE_IS)}))
    )
    target = {"apiVersion": "v1", "kind": "Node", "name": "a100.zone-0.local"}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "waits"}, "target": target}
    path = "/api/v1/namespaces/default/pods/waits/binding"

    result = gated.try_kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(binding))

    assert result.code != 0
    assert "schedulingGates" in result.err
    gated.kubectl("delete", "pod", "waits", "--wait")


def break_policy(gated: Cluster) -> None:
    """Delete or change the objects that gate pods."""
    if not BY_POLICY:
        gated.kubectl("delete", "mutatingwebhookconfiguration", POLICY)
        return
    gated.kubectl("delete", "mutatingadmissionpolicybinding", POLICY)
    never = {"spec": {"matchConditions": [{"name": "never", "expression": "false"}]}}
    gated.kubectl("patch", "mutatingadmissionpolicy", POLICY, "--type=merge", "-p", json.dumps(never))


def test_deleted_or_changed_gate_policy_is_restored(platform: Platform, gated: Cluster) -> None:
    # The gateway restores the policy once in a while, too. Before 1.34 it answers a webhook, so it must run.
    with platform.stopped_gateway() if BY_POLICY else contextlib.nullcontext():
        break_policy(gated)
        eventually(lambda: new_pod_gates(gated, container_requesting(limits=GPU)) == [], what="pods without a gate")

    names = {"spec": {"apiServer": {"subjectAltNames": ["gates.example.org"]}}}  # has the control plane gone through
    platform.compute.kubectl("patch", "tenant", "gates", "--type=merge", "-p", json.dumps(names))

    eventually(
        lambda: new_pod_gates(gated, container_requesting(limits=GPU)) == [ADMISSION_GATE], what="the gate is back"
    )


def cpu_pod(name: str, amount: int, **metadata: Any) -> Document:
    """Return a pod that requests whole CPUs. The nodes have 96."""
    pod = pod_manifest(name, container=container_requesting(requests={"cpu": str(amount)}))
    pod["metadata"] |= metadata
    return pod


def cpu_job(name: str) -> Document:
    template = cpu_pod(name, 90)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "parallelism": 2,
            "completions": 2,
            "template": {
                "metadata": {"annotations": {"vkgateway.io/gang": "job"}},
                "spec": template["spec"] | {"restartPolicy": "Never"},
            },
        },
    }


def dry_run_job(cluster: Cluster, restart_policy: str, container: dict[str, Any], **spec: Any) -> tuple[Document, str]:
    """Return the spec of a Job as it would be created, and the warnings."""
    template = {"spec": pod_manifest("unused", container=container, restartPolicy=restart_policy)["spec"]}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "newborn", "namespace": "default"},
        "spec": {"template": template, **spec},
    }
    result = cluster.try_kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(job))
    assert result.code == 0, result
    return json.loads(result.out)["spec"], result.err


IGNORED = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}
OWN = {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]}


def test_job_ignores_evictions(gated: Cluster) -> None:
    for container in ({}, container_requesting(limits=GPU)):
        spec, warnings = dry_run_job(gated, "Never", container)
        assert (spec["podFailurePolicy"], spec["podReplacementPolicy"]) == (IGNORED, "Failed")
        assert warnings == ""
    assert dry_run_job(gated, "Never", {}, podFailurePolicy=OWN)[0]["podFailurePolicy"] == OWN


def test_job_that_counts_evictions_gets_a_warning(gated: Cluster) -> None:
    spec, warnings = dry_run_job(gated, "OnFailure", container_requesting(limits=GPU), backoffLimit=3)
    assert "podFailurePolicy" not in spec
    assert "counts against spec.backoffLimit (3)" in warnings
    assert dry_run_job(gated, "OnFailure", {})[1] == "", "the arbiter does not evict its pods"


def event_message(cluster: Cluster, name: str, reason: str) -> str:
    """Return the message of a pod's first event with a reason, empty if there is none."""
    return next((message for found, message in cluster.events(name) if found == reason), "")


def count_running(cluster: Cluster, job: str) -> int:
    found = cluster.get("pods", "-l", f"job-name={job}")["items"]
    return sum(pod["status"]["phase"] == "Running" for pod in found)


@pytest.mark.skipif(not BY_POLICY, reason="pods are gated by size where the API server has admission policies")
def test_cpu_must_fit_one_node(gated: Cluster) -> None:
    gated.kubectl("delete", "deployments,daemonsets,pods", "--all", "--grace-period=1", patience_option(60))
    try:
        gated.apply(*(cpu_pod(f"too-large-{number}", 100) for number in range(3)), cpu_pod("fits", 85))
        gated.wait_pod("fits")
        assert "a pod can have cpu 96 at most" in eventually(
            lambda: event_message(gated, "too-large-0", "Infeasible"), what="why it waits"
        )

        gated.apply(cpu_job("one"), cpu_job("two"))
        eventually(lambda: count_running(gated, "one") + count_running(gated, "two") >= 2, what="a gang that runs")
        assert {count_running(gated, "one"), count_running(gated, "two")} == {0, 2}

        # Four machines have 11, 6, 6 and 96 left; then two by two, in a zone each, 11 and 6, and 6 and 6.
        gated.apply(cpu_pod("last", 90))
        gated.wait_pod("last")
        gated.apply(cpu_pod("between", 12))
        reason = eventually(
            lambda: event_message(gated, "between", "FailedScheduling"), what="the compute scheduler's reason"
        )
        assert "Insufficient cpu" in reason
        assert "a100-" not in reason
    finally:
        gated.kubectl("delete", "jobs,pods", "--all", "--grace-period=1", "--wait=false")
