"""Two gateways that share a compute cluster by pool: neither touches the other's tenants, not even with equal names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.e2e.cluster import Cluster, Document, Platform, eventually
from tests.e2e.conftest import start_platform
from tests.e2e.test_arbiter import GANG, count_pods, find_condition, gpu_job
from tests.support.machine import patience_option
from vkgateway.api.names import API_VERSION

SYSTEM = "vkgateway-system"
NODES, GPUS = 2, 8
"""Nodes of each pool, and GPUs of each node."""


@dataclass(frozen=True)
class Sharing:
    """Platform whose compute cluster is shared, and another platform whose gateway is attached to it."""

    first: Platform
    second: Platform

    def pods(self, tenant: str) -> dict[str, Document]:
        """Return the compute pods of a tenant name that don't terminate, by UID."""
        selector = f"vkgateway.io/tenant={tenant}"
        listed = self.first.compute.kubectl("get", "pods", "-A", "-l", selector, "-o", "json")
        pods: list[Document] = json.loads(listed)["items"]
        return {pod["metadata"]["uid"]: pod for pod in pods if "deletionTimestamp" not in pod["metadata"]}


def pool(name: str) -> Document:
    return {"name": name, "nodeSelector": {"platform.vkgateway.io/pool": name}}


@pytest.fixture(scope="module")
def sharing() -> Iterator[Sharing]:
    """Yield two gateways with a pool of the same cluster each, tenant `red` of the first and `blue` of the second."""
    nodes = ("--hollow-nodes", f"a100={NODES}", "--hollow-nodes", f"v100={NODES}")
    with (
        start_platform("--real-node", "no", *nodes) as first,
        start_platform("--real-node", "no", "--hollow-nodes", "a100=1") as second,
    ):
        share(first, second)
        first.vkgateway("tenant", "create", "red", "--pool", "a100")
        second.vkgateway("tenant", "create", "blue", "--pool", "v100.shared")
        yield Sharing(first, second)


def share(first: Platform, second: Platform) -> None:
    """Leave the first gateway one pool, and attach the second one with the other."""
    change = json.dumps({"spec": {"pools": [pool("a100")]}})
    first.compute.kubectl("patch", "computecluster", "local", "--type=merge", "-p", change)
    kubeconfig = first.data_dir / "gateway.kubeconfig"
    second.compute.kubectl(
        "create", "secret", "generic", "shared", "-n", SYSTEM, f"--from-file=kubeconfig={kubeconfig}"
    )
    connection = {"kubeconfigSecret": {"namespace": SYSTEM, "name": "shared"}}
    second.compute.apply(
        {
            "apiVersion": API_VERSION,
            "kind": "ComputeCluster",
            "metadata": {"name": "shared"},
            "spec": {"connection": connection, "pools": [pool("v100")]},
        }
    )
    second.compute.kubectl("wait", "computecluster/shared", "--for=condition=Ready", patience_option(60), timeout=70)


def gang_of_whole_nodes(name: str) -> Document:
    return gpu_job(name, GPUS, parallelism=NODES, marks={GANG: name, "vkgateway.io/gang-min": str(NODES)})


def wait_running(cluster: Cluster, number: int) -> None:
    eventually(lambda: count_pods(cluster, "Running") == number, what=f"{number} running pods")


def nodes_of(pods: dict[str, Document]) -> set[str]:
    return {pod["spec"]["nodeName"].rpartition("-")[0] for pod in pods.values()}


def virtual_nodes_condition(platform: Platform, tenant: str) -> Document:
    return find_condition({"status": {}} | platform.compute.get("tenant", tenant), "VirtualNodesReady")


def test_each_gateway_fills_its_pool(sharing: Sharing) -> None:
    for platform, tenant in ((sharing.first, "red"), (sharing.second, "blue")):
        platform.tenant(tenant).apply(gang_of_whole_nodes("train"))
    for platform, tenant, own_pool in ((sharing.first, "red", "a100"), (sharing.second, "blue", "v100")):
        wait_running(platform.tenant(tenant), NODES)
        assert nodes_of(sharing.pods(tenant)) == {own_pool}


def test_tenant_with_the_name_of_another_gateway_s_tenant_is_refused(sharing: Sharing) -> None:
    before = sharing.pods("red").keys()
    assert len(before) == NODES
    sharing.second.vkgateway("tenant", "create", "red", "--pool", "v100.shared", "--no-wait")
    eventually(
        lambda: virtual_nodes_condition(sharing.second, "red").get("reason") == "NameTaken", what="the name is taken"
    )
    assert "ConfigMap tenant-red" in virtual_nodes_condition(sharing.second, "red")["message"]
    other = sharing.second.tenant("red")
    other.apply(gang_of_whole_nodes("train"))
    eventually(lambda: count_pods(other, "Pending") == NODES, what="pods that wait")
    assert other.get("nodes")["items"] == []
    sharing.second.vkgateway("tenant", "delete", "red", "--yes", timeout=120)
    assert sharing.pods("red").keys() == before
    wait_running(sharing.first.tenant("red"), NODES)


def test_restarts_touch_no_pod(sharing: Sharing) -> None:
    before = {tenant: sharing.pods(tenant).keys() for tenant in ("red", "blue")}
    for platform in (sharing.first, sharing.second):
        platform.kill_gateway()
    for platform, tenant in ((sharing.first, "red"), (sharing.second, "blue")):
        cluster = platform.tenant(tenant)
        cluster.kubectl("delete", "job", "train", "--cascade=orphan")
        pod = cluster.get("pods")["items"][0]["metadata"]["name"]
        cluster.kubectl("delete", "pod", pod, patience_option(60), timeout=70)
    after = {tenant: sharing.pods(tenant).keys() for tenant in before}
    assert {tenant: len(uids) for tenant, uids in after.items()} == {"red": NODES - 1, "blue": NODES - 1}
    assert all(after[tenant] < before[tenant] for tenant in before)


def test_second_gateway_leaves_without_a_trace(sharing: Sharing) -> None:
    before = sharing.pods("red").keys()
    sharing.second.vkgateway("tenant", "delete", "blue", "--yes", timeout=120)
    sharing.second.compute.kubectl("delete", "computecluster", "shared", patience_option(60), timeout=70)
    assert sharing.pods("red").keys() == before
    left = sharing.first.compute.get("namespaces,configmaps", "-A", "-l", "vkgateway.io/tenant")["items"]
    assert {found["metadata"]["labels"]["vkgateway.io/tenant"] for found in left} == {"red"}
