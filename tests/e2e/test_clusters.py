"""Two compute clusters of one gateway: gangs stay in one cluster, either cluster may be silent, and removal cleans
both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cluster import BUSYBOX, Cluster, Document, Platform, eventually, frozen, pod_manifest
from tests.e2e.conftest import start_platform
from tests.support.machine import patience_option
from vkgateway.api.names import API_VERSION, GANG_ANNOTATION, GANG_MIN_ANNOTATION
from vkgateway.planes.supervisor.client import SupervisorClient
from vkgateway_platform.embedded import gateway_process

SYSTEM = "vkgateway-system"
POOL = "v100"
NODES, GPUS = 2, 8
"""Of that pool in each of the two clusters, and of each of its nodes."""


@pytest.fixture(scope="module")
def berlin(platform: Platform) -> Iterator[Platform]:
    """Yield a second compute cluster: another platform without gateway, attached with a gateway's rights."""
    with start_platform("--real-node", "no") as second_platform:
        asyncio.run(SupervisorClient.for_data_dir(second_platform.data_dir).remove_process(gateway_process.NAME))
        _attach(platform, second_platform)
        yield second_platform
        platform.compute.kubectl("delete", "computecluster", "berlin", timeout=120)
        platform.compute.kubectl("delete", "secret", "berlin", "-n", SYSTEM)


def _attach(platform: Platform, attached: Platform) -> None:
    kubeconfig = attached.data_dir / "gateway.kubeconfig"
    platform.compute.kubectl(
        "create", "secret", "generic", "berlin", "-n", SYSTEM, f"--from-file=kubeconfig={kubeconfig}"
    )
    pool = {"name": POOL, "nodeSelector": {"platform.vkgateway.io/pool": POOL}}
    connection = {"kubeconfigSecret": {"namespace": SYSTEM, "name": "berlin"}}
    cluster = {
        "apiVersion": API_VERSION,
        "kind": "ComputeCluster",
        "metadata": {"name": "berlin"},
        "spec": {"connection": connection, "pools": [pool]},
    }
    platform.compute.apply(cluster)
    platform.compute.kubectl("wait", "computecluster/berlin", "--for=condition=Ready", patience_option(60), timeout=70)


@pytest.fixture(scope="module")
def tenant(platform: Platform, berlin: Platform) -> Iterator[Cluster]:
    """Yield a tenant with a guarantee of the pool in both clusters, and with volumes."""
    guarantee = f"guarantee=nvidia.com/gpu={NODES * GPUS}"
    pools = ("--pool", f"{POOL}:{guarantee}", "--pool", f"{POOL}.berlin:{guarantee}")
    platform.vkgateway("tenant", "create", "both", *pools, "--storage-class", "local")
    platform.publish_api_server("both")
    yield platform.tenant("both")
    platform.vkgateway("tenant", "delete", "both", "--yes", timeout=180)
    for cluster in (platform.compute, berlin.compute):
        namespaces = cluster.get("namespaces", "-l", "vkgateway.io/tenant=both")["items"]
        assert [namespace["metadata"]["name"] for namespace in namespaces] == []


def gang_job(name: str, number: int) -> Document:
    """Return a Job whose pods use a whole node each and start together."""
    container = {
        "name": "main",
        "image": BUSYBOX,
        "command": ["sleep", "3600"],
        "resources": {"limits": {"nvidia.com/gpu": str(GPUS)}},
        "envFrom": [{"configMapRef": {"name": "settings"}}],
    }
    marks = {GANG_ANNOTATION: name, GANG_MIN_ANNOTATION: str(number)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "parallelism": number,
            "completions": number,
            "backoffLimit": 100,
            "template": {
                "metadata": {"annotations": marks},
                "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]},
            },
        },
    }


def claim_manifest(name: str) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "labels": {"data": "yes"}},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "64Mi"}}},
    }


def claim_user_pod(name: str, of: str, **spec: Any) -> Document:
    """Return a pod that uses a claim."""
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": of}}
    mounts = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    pod = pod_manifest(name, container=mounts, volumes=[volume], **spec)
    pod["metadata"]["labels"] = {"data": "yes"}
    return pod


def clusters_of(cluster: Cluster, name: str, *, running: int) -> set[str]:
    """Return the compute clusters in which a gang runs, once `running` of its pods do."""

    def running_pods() -> list[Document]:
        pods = cluster.get("pods", "-l", f"job-name={name}")["items"]
        return [pod for pod in pods if pod["status"]["phase"] == "Running" and not is_terminating(pod)]

    eventually(lambda: len(running_pods()) == running, what=f"{running} running pods of {name}")
    return {pod["spec"]["nodeName"].rpartition(".")[2] for pod in running_pods()}


def is_terminating(document: Document) -> bool:
    return "deletionTimestamp" in document["metadata"]


def is_ready(cluster: Cluster, node: str) -> bool:
    conditions = cluster.get("node", node)["status"]["conditions"]
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def test_each_pool_of_each_cluster_has_a_virtual_node(tenant: Cluster) -> None:
    assert {node["metadata"]["name"] for node in tenant.get("nodes")["items"]} == {f"{POOL}.local", f"{POOL}.berlin"}
    assert is_ready(tenant, f"{POOL}.local")
    assert is_ready(tenant, f"{POOL}.berlin")


def test_gang_runs_in_one_cluster_where_it_fits(platform: Platform, berlin: Platform, tenant: Cluster) -> None:
    tenant.kubectl("create", "configmap", "settings", "--from-literal=GREETING=hello")
    tenant.apply(gang_job("small", 1))
    first = clusters_of(tenant, "small", running=1)
    # One node is left there, and two are in the other: together more than it needs, but only there it fits whole.
    tenant.apply(gang_job("whole", NODES))
    second = clusters_of(tenant, "whole", running=NODES)
    assert len(second) == 1
    assert first | second == {"local", "berlin"}
    for cluster in (platform.compute, berlin.compute):
        copied = cluster.get("configmap", "settings", "-n", "both--default")
        assert copied["data"] == {"GREETING": "hello"}


def test_changes_reach_both_clusters(platform: Platform, berlin: Platform, tenant: Cluster) -> None:
    tenant.kubectl("patch", "configmap", "settings", "-p", '{"data": {"GREETING": "good day"}}')
    for cluster in (platform.compute, berlin.compute):

        def is_updated(cluster: Cluster = cluster) -> bool:
            return bool(cluster.get("configmap", "settings", "-n", "both--default")["data"]["GREETING"] == "good day")

        eventually(is_updated, what="the change below")


def test_pods_follow_their_volume_to_its_cluster(platform: Platform, berlin: Platform, tenant: Cluster) -> None:
    clusters = {"local": platform.compute, "berlin": berlin.compute}
    eventually(lambda: tenant.find("storageclass", "local"), what="the class")
    for name in clusters:
        tenant.apply(
            claim_manifest(name),
            claim_user_pod(f"first-{name}", name, nodeSelector={"kubernetes.io/hostname": f"{POOL}.{name}"}),
        )
    for name in clusters:
        tenant.wait_pod(f"first-{name}", "jsonpath={.status.phase}=Running")
        assert tenant.get("pvc", name)["status"]["phase"] == "Bound"
        tenant.kubectl("delete", "pod", f"first-{name}", "--wait")
        tenant.apply(claim_user_pod(f"second-{name}", name))
    for name, cluster in clusters.items():
        tenant.wait_pod(f"second-{name}", "jsonpath={.status.phase}=Running")
        assert tenant.get("pod", f"second-{name}")["spec"]["nodeName"] == f"{POOL}.{name}"
        below = cluster.get("pvc", "-n", "both--default")["items"]
        assert [pod["metadata"]["name"] for pod in below] == [name]
    tenant.kubectl("delete", "pod,pvc", "--selector", "data=yes", "--wait")
    eventually(
        lambda: not any(cluster.get("pvc", "-n", "both--default")["items"] for cluster in clusters.values()),
        what="no claim below",
    )
    eventually(lambda: tenant.get("pv")["items"] == [], what="no volume above")


def test_silent_cluster_blocks_no_tenant_and_is_repaired(berlin: Platform, tenant: Cluster) -> None:
    number = {"small": 1, "whole": NODES}
    places = {name: clusters_of(tenant, name, running=count) for name, count in number.items()}
    remote_pod, local_pod = sorted(places, key=lambda name: places[name] == {"local"})
    assert places == {remote_pod: {"berlin"}, local_pod: {"local"}}
    with frozen(berlin.pid_of("compute/apiserver")):
        eventually(lambda: not is_ready(tenant, f"{POOL}.berlin"), what="the silent cluster's node is not ready")
        assert is_ready(tenant, f"{POOL}.local")
        assert clusters_of(tenant, remote_pod, running=number[remote_pod]) == {"berlin"}
        tenant.kubectl("delete", "job", local_pod)
        tenant.apply(gang_job("meanwhile", NODES))
        assert clusters_of(tenant, "meanwhile", running=NODES) == {"local"}
        tenant.kubectl("delete", "job", remote_pod, "--wait=false")
    eventually(lambda: is_ready(tenant, f"{POOL}.berlin"), what="the node is ready again")
    eventually(
        lambda: not tenant.get("pods", "-l", f"job-name={remote_pod}")["items"], what="the tenant pods are deleted"
    )
    eventually(
        lambda: not berlin.compute.get("pods", "-n", "both--default")["items"], what="the compute pods are deleted"
    )
    tenant.apply(gang_job("after", NODES))
    assert clusters_of(tenant, "after", running=NODES) == {"berlin"}
