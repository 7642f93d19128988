"""Controllers and an admin's common tasks in a tenant cluster, and their effect on compute pods."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cluster import BUSYBOX, REAL, Cluster, Document, Platform, eventually, pod_manifest
from tests.support.machine import patience_option

V100: dict[str, Any] = {"nodeSelector": {"vkgateway.io/pool": "v100"}}
A100: dict[str, Any] = {"nodeSelector": {"vkgateway.io/pool": "a100"}}
GPU = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}


def pod_template(app: str, *, command: str = "sleep 3600", **spec: Any) -> Document:
    container = {"name": "main", "image": BUSYBOX, "command": ["sh", "-c", command]}
    return {
        "metadata": {"labels": {"app": app}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1} | spec,
    }


def workload_manifest(kind: str, name: str, *, version: str = "apps/v1", **spec: Any) -> Document:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def compute_pod(platform: Platform, name: str) -> Document | None:
    """Return the compute pod of a pod of alpha."""
    return platform.compute.find("pod", name, "-n", "alpha--default")


def compute_budget(platform: Platform) -> Document:
    """Return the compute copy of alpha's budget `quorum`."""
    found = platform.compute.find("pdb", "quorum", "-n", "alpha--default")
    status: Document = found["status"] if found is not None else {}
    return status


def pod_names(cluster: Cluster, app: str) -> list[str]:
    return sorted(item["metadata"]["name"] for item in cluster.get("pods", "-l", f"app={app}")["items"])


@pytest.fixture
def cordoned(alpha: Cluster) -> Iterator[str]:
    """Cordon a virtual node, and uncordon it afterwards."""
    alpha.kubectl("cordon", "v100.local")
    eventually(lambda: is_tainted(alpha, "v100.local"), what="the taint of a cordoned node")
    yield "v100.local"
    uncordon(alpha, "v100.local")


def uncordon(cluster: Cluster, node: str) -> None:
    """Uncordon a node, and wait until a controller has removed its taint: before, no pod is placed there."""
    cluster.kubectl("uncordon", node)
    eventually(lambda: not is_tainted(cluster, node), what="the node without the taint")


def is_tainted(cluster: Cluster, node: str) -> bool:
    """Return whether a node has the taint of a cordoned one."""
    taints = cluster.get("node", node)["spec"].get("taints") or []
    return any(taint["key"] == "node.kubernetes.io/unschedulable" for taint in taints)


@pytest.fixture(scope="module", autouse=True)
def tick(platform: Platform, alpha: Cluster) -> Iterator[str]:
    """Create a CronJob that is due every minute, before all tests, so that its test need not wait."""
    if platform.real:
        job = {"spec": {"template": pod_template("tick", command="echo tick", restartPolicy="Never", **REAL)}}
        alpha.apply(workload_manifest("CronJob", "tick", version="batch/v1", schedule="* * * * *", jobTemplate=job))
    yield "tick"
    alpha.kubectl("delete", "cronjob", "tick", "--cascade=foreground", "--wait", "--ignore-not-found")


# -- controllers -------------------------------------------------------------------------------------------------------


def test_stateful_set_creates_pods_in_order_with_stable_names(platform: Platform, alpha: Cluster) -> None:
    labels = {"matchLabels": {"app": "ledger"}}
    alpha.apply(
        workload_manifest(
            "StatefulSet",
            "ledger",
            replicas=2,
            serviceName="ledger",
            selector=labels,
            template=pod_template("ledger", **A100),
        )
    )
    alpha.kubectl("rollout", "status", "statefulset/ledger", patience_option(60), timeout=70)
    assert pod_names(alpha, "ledger") == ["ledger-0", "ledger-1"]
    first = alpha.get("pod", "ledger-0")["metadata"]["uid"]

    alpha.kubectl("delete", "pod", "ledger-0", "--wait")
    eventually(
        lambda: (alpha.find("pod", "ledger-0") or {"metadata": {"uid": first}})["metadata"]["uid"] != first,
        what="the pod made again under its name",
    )
    alpha.wait_pod("ledger-0")
    alpha.kubectl("scale", "statefulset/ledger", "--replicas=1")
    eventually(lambda: compute_pod(platform, "ledger-1") is None, what="the last one gone below")
    assert compute_pod(platform, "ledger-0") is not None
    alpha.kubectl("delete", "statefulset", "ledger", "--cascade=foreground", "--wait")


def test_daemon_set_has_a_pod_on_each_virtual_node(alpha: Cluster) -> None:
    nodes = {node["metadata"]["name"] for node in alpha.get("nodes")["items"]}
    alpha.apply(
        workload_manifest(
            "DaemonSet", "agent", selector={"matchLabels": {"app": "agent"}}, template=pod_template("agent")
        )
    )
    alpha.kubectl("rollout", "status", "daemonset/agent", patience_option(90), timeout=100)
    assert {item["spec"]["nodeName"] for item in alpha.get("pods", "-l", "app=agent")["items"]} == nodes
    alpha.kubectl("delete", "daemonset", "agent", "--cascade=foreground", "--wait")


# -- disruptions -------------------------------------------------------------------------------------------------------


def evict(cluster: Cluster, name: str, namespace: str = "default") -> tuple[int, str]:
    """Request an eviction through the API, as drains do."""
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
    }
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
    result = cluster.try_kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
    return result.code, result.err


def test_eviction_honours_the_budget_and_reaches_the_compute_pod(platform: Platform, alpha: Cluster) -> None:
    labels = {"matchLabels": {"app": "quorum"}}
    alpha.apply(
        workload_manifest("Deployment", "quorum", replicas=2, selector=labels, template=pod_template("quorum", **A100)),
        workload_manifest("PodDisruptionBudget", "quorum", version="policy/v1", minAvailable=2, selector=labels),
    )
    alpha.kubectl("rollout", "status", "deployment/quorum", patience_option(60), timeout=70)
    first, _ = pod_names(alpha, "quorum")
    eventually(
        lambda: alpha.get("pdb", "quorum")["status"].get("currentHealthy") == 2, what="the budget to know its pods"
    )
    code, output = evict(alpha, first)
    assert code != 0
    assert "disruption budget" in output
    assert compute_pod(platform, first) is not None
    eventually(lambda: compute_budget(platform).get("disruptionsAllowed") == 0, what="the budget below")
    code, output = evict(platform.compute, first, "alpha--default")
    assert code != 0
    assert "disruption budget" in output

    alpha.kubectl("patch", "pdb", "quorum", "--type=merge", "-p", '{"spec":{"minAvailable":1}}')
    eventually(lambda: alpha.get("pdb", "quorum")["status"].get("disruptionsAllowed") == 1, what="room in the budget")
    eventually(lambda: compute_budget(platform).get("disruptionsAllowed") == 1, what="room in the budget below")
    assert evict(alpha, first)[0] == 0
    eventually(lambda: compute_pod(platform, first) is None, what="the evicted one gone below")
    alpha.kubectl("rollout", "status", "deployment/quorum", patience_option(60), timeout=70)
    eventually(lambda: alpha.find("pod", first) is None, what="the evicted one gone above")

    def two_pods() -> list[str]:
        names = pod_names(alpha, "quorum")
        return names if len(names) == 2 else []

    second, _ = eventually(two_pods, what="two pods again")
    eventually(lambda: evict(platform.compute, second, "alpha--default")[0] == 0, what="room in the budget below")
    eventually(lambda: alpha.pod_phase(second) in ("Failed", ""), what="the pod that was evicted below has ended")
    alpha.kubectl("rollout", "status", "deployment/quorum", patience_option(60), timeout=70)
    alpha.kubectl("delete", "deployment,pdb", "quorum", "--cascade=foreground", "--wait")
    eventually(lambda: platform.compute.find("pdb", "quorum", "-n", "alpha--default") is None)


def _terminating_pods(cluster: Cluster, app: str) -> list[str]:
    """Return the pods of an app if all of them terminate."""
    metadata = [pod["metadata"] for pod in cluster.get("pods", "-l", f"app={app}")["items"]]
    return [each["name"] for each in metadata] if all("deletionTimestamp" in each for each in metadata) else []


def test_pod_of_a_drained_machine_is_replaced_before_it_has_ended(platform: Platform, alpha: Cluster) -> None:
    where = REAL if platform.real else V100
    template = pod_template("slow", command="trap '' TERM; until [ -e /tmp/end ]; do sleep 1; done", **where)
    template["spec"]["terminationGracePeriodSeconds"] = 1000
    selector = {"matchLabels": {"app": "slow"}}
    alpha.apply(workload_manifest("Deployment", "slow", replicas=1, selector=selector, template=template))
    alpha.kubectl("rollout", "status", "deployment/slow", patience_option(60), timeout=70)
    (old,) = pod_names(alpha, "slow")
    assert evict(platform.compute, old, "alpha--default")[0] == 0
    eventually(lambda: set(pod_names(alpha, "slow")) - {old}, what="the replacement")
    if platform.real:  # a hollow node's pods end at once
        pod = alpha.get("pod", old)
        assert "deletionTimestamp" in pod["metadata"]
        assert pod["status"]["phase"] == "Running"
        conditions = {each["type"]: each.get("reason") for each in pod["status"]["conditions"]}
        assert conditions["DisruptionTarget"] == "EvictionByEvictionAPI"
        alpha.kubectl("rollout", "status", "deployment/slow", patience_option(60), timeout=70)
    alpha.kubectl("delete", "deployment", "slow")
    if platform.real:
        pods = eventually(lambda: _terminating_pods(alpha, "slow"), what="all pods of the Deployment terminate")
        # A kubelet does not shorten the grace period of a pod that terminates, and restarts the others.
        for name in pods:
            alpha.kubectl("exec", name, "--", "touch", "/tmp/end")
    eventually(lambda: not pod_names(alpha, "slow"), what="all pods of the Deployment deleted")


def test_pods_with_gpus_keep_a_hard_spread_over_machines(platform: Platform, alpha: Cluster) -> None:
    labels = {"matchLabels": {"app": "spread"}}
    constraint = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": labels,
    }
    template = pod_template("spread", topologySpreadConstraints=[constraint], **V100)
    template["spec"]["containers"][0] |= GPU
    alpha.apply(workload_manifest("Deployment", "spread", replicas=4, selector=labels, template=template))
    alpha.kubectl("rollout", "status", "deployment/spread", patience_option(60), timeout=70)
    placed = Counter(
        pod["spec"]["nodeName"] for name in pod_names(alpha, "spread") if (pod := compute_pod(platform, name))
    )
    assert sorted(placed.values()) == [2, 2], placed
    alpha.kubectl("delete", "deployment", "spread", "--cascade=foreground", "--wait")


def test_cordoned_virtual_node_gets_no_new_pods(alpha: Cluster, cordoned: str) -> None:
    alpha.apply(pod_manifest("late", **V100), pod_manifest("late-gpu", container=GPU, **V100))
    eventually(
        lambda: "cordoned" in str(alpha.get("pod", "late-gpu")["status"].get("conditions")),
        what="the reason of the pod that waits for a GPU",
    )
    assert alpha.pod_phase("late") == "Pending"
    assert alpha.get("node", cordoned)["spec"]["unschedulable"] is True
    uncordon(alpha, cordoned)
    alpha.wait_pod("late")
    alpha.wait_pod("late-gpu")
    alpha.kubectl("delete", "pod", "late", "late-gpu", "--wait")


def test_drain_moves_pods_to_another_virtual_node(platform: Platform, alpha: Cluster, cordoned: str) -> None:
    labels = {"matchLabels": {"app": "wanderer"}}
    either = [{"matchExpressions": [{"key": "vkgateway.io/pool", "operator": "In", "values": ["a100", "v100"]}]}]
    like = {
        "weight": 1,
        "preference": {"matchExpressions": [{"key": "vkgateway.io/pool", "operator": "In", "values": ["v100"]}]},
    }
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": either},
            "preferredDuringSchedulingIgnoredDuringExecution": [like],
        }
    }
    uncordon(alpha, cordoned)
    alpha.apply(
        workload_manifest(
            "Deployment", "wanderer", replicas=2, selector=labels, template=pod_template("wanderer", affinity=affinity)
        )
    )
    alpha.kubectl("rollout", "status", "deployment/wanderer", patience_option(60), timeout=70)
    moved = {
        item["metadata"]["name"]
        for item in alpha.get("pods", "-l", "app=wanderer")["items"]
        if item["spec"]["nodeName"] == cordoned
    }
    assert moved

    alpha.kubectl(
        "drain", cordoned, "--pod-selector=app=wanderer", "--ignore-daemonsets", patience_option(60), timeout=70
    )
    eventually(
        lambda: (
            {str(item["spec"].get("nodeName"))[:5] for item in alpha.get("pods", "-l", "app=wanderer")["items"]}
            == {"a100."}
        ),
        what="all pods on the other node",
    )
    eventually(lambda: not any(compute_pod(platform, name) for name in moved), what="they are gone below")
    alpha.kubectl("rollout", "status", "deployment/wanderer", patience_option(60), timeout=70)
    alpha.kubectl("delete", "deployment", "wanderer", "--cascade=foreground", "--wait")


def test_pods_survive_the_deletion_of_their_virtual_node(platform: Platform, alpha: Cluster) -> None:
    alpha.apply(pod_manifest("stays", **V100))
    alpha.wait_pod("stays")
    before = alpha.get("node", "v100.local")["metadata"]["uid"]
    alpha.kubectl("delete", "node", "v100.local")
    eventually(
        lambda: (alpha.find("node", "v100.local") or {}).get("metadata", {}).get("uid") not in (None, before),
        what="the node back",
    )
    alpha.kubectl("wait", "node/v100.local", "--for=condition=Ready", patience_option(30))
    assert compute_pod(platform, "stays") is not None
    assert alpha.pod_phase("stays") == "Running"
    alpha.kubectl("delete", "pod", "stays", "--wait")


# -- what an admin may do to us ----------------------------------------------------------------------------------------


def test_deleted_lease_is_re_created(alpha: Cluster) -> None:
    eventually(lambda: alpha.find("lease", "v100.local", "-n", "kube-node-lease"), what="the node's lease")
    alpha.kubectl("delete", "lease", "v100.local", "-n", "kube-node-lease")
    eventually(lambda: alpha.find("lease", "v100.local", "-n", "kube-node-lease"), what="the node's lease renewed")
    assert alpha.find("node", "v100.local") is not None


def test_webhook_that_refuses_status_affects_its_tenant_only(alpha: Cluster, beta: Cluster) -> None:
    """No server listens at its address, which with `failurePolicy: Fail` refuses every matching request."""
    alpha.apply(
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "stubborn"},
            "webhooks": [
                {
                    "name": "stubborn.example.org",
                    "admissionReviewVersions": ["v1"],
                    "sideEffects": "None",
                    "timeoutSeconds": 1,
                    "clientConfig": {"url": "https://127.0.0.1:9/"},
                    "rules": [
                        {
                            "apiGroups": [""],
                            "apiVersions": ["v1"],
                            "operations": ["UPDATE"],
                            "resources": ["pods/status"],
                        }
                    ],
                }
            ],
        }
    )
    gates = [{"name": "example.org/never"}]
    alpha.apply(pod_manifest("asked", schedulingGates=gates))
    try:
        patch = ("--subresource=status", "--dry-run=server", "--type=merge", "-p", '{"status": {"message": "asked"}}')
        eventually(lambda: "stubborn" in alpha.try_kubectl("patch", "pod", "asked", *patch).err, what="its refusal")
        alpha.apply(pod_manifest("unheard", **A100))
        beta.apply(pod_manifest("unharmed", **A100))
        beta.wait_pod("unharmed")
        assert alpha.pod_phase("unheard") == "Pending"
    finally:
        alpha.kubectl("delete", "validatingwebhookconfiguration", "stubborn")
        alpha.kubectl("delete", "pod", "asked")
    alpha.wait_pod("unheard")
    alpha.kubectl("delete", "pod", "unheard", "--wait")
    beta.kubectl("delete", "pod", "unharmed", "--wait")


def test_names_texts_and_sizes_at_their_limits(platform: Platform, alpha: Cluster) -> None:
    long = "l" + "o" * 251 + "ng"[:1]
    odd = "ünïcode ✓ \u202e 数据 \\ \" '"
    large = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "large"}, "data": {"x": "x" * 1_000_000}}
    alpha.kubectl("create", "-f", "-", stdin=json.dumps(large))
    document = pod_manifest(long, **A100)
    document["metadata"]["annotations"] = {"example.org/odd": odd, "example.org/large": "y" * 200_000}
    document["spec"]["volumes"] = [{"name": "large", "configMap": {"name": "large"}}]
    alpha.kubectl("create", "-f", "-", stdin=json.dumps(document))
    alpha.wait_pod(long)

    copy_below = compute_pod(platform, long)
    assert copy_below is not None
    assert copy_below["metadata"]["annotations"]["example.org/odd"] == odd
    copy = platform.compute.get("configmap", "large", "-n", "alpha--default")
    assert len(copy["data"]["x"]) == 1_000_000

    heavy = pod_manifest(
        "heavy", container={"env": [{"name": f"V{i}", "value": "x" * 9_990} for i in range(140)]}, **A100
    )
    alpha.kubectl("create", "-f", "-", stdin=json.dumps(heavy))
    alpha.wait_pod("heavy")
    alpha.kubectl("delete", "pod", long, "heavy", "--wait")
    alpha.kubectl("delete", "configmap", "large")


def test_deleted_namespace_can_be_re_created(platform: Platform, alpha: Cluster) -> None:
    for _ in range(2):
        alpha.create_namespace("short-lived")
        document = pod_manifest("inside", **A100)
        document["metadata"]["namespace"] = "short-lived"
        alpha.apply(document)
        alpha.kubectl(
            "wait", "pod/inside", "-n", "short-lived", "--for=condition=Ready", patience_option(60), timeout=70
        )
        alpha.kubectl("delete", "namespace", "short-lived", patience_option(90), timeout=100)
        eventually(
            lambda: platform.compute.find("namespace", "alpha--short-lived") is None, what="the compute namespace gone"
        )


# -- what takes its time -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("real")
def test_cron_job_starts_jobs(alpha: Cluster, tick: str) -> None:
    def started_jobs() -> list[str]:
        found = [job["metadata"] for job in alpha.get("jobs")["items"]]
        return [metadata["name"] for metadata in found if metadata.get("ownerReferences", [{}])[0].get("name") == tick]

    # The last one: the controller deletes older ones.
    started = eventually(started_jobs, seconds=90, what="the job of the next minute")[-1]
    alpha.kubectl("wait", f"job/{started}", "--for=condition=Complete", patience_option(60), timeout=70)
    assert alpha.kubectl("logs", f"job/{started}").strip() == "tick"
