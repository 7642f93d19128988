"""Placement in a NUMA zone, and in a pool: pods that need one zone, groups that need one topology domain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, Document, Platform, eventually
from tests.e2e.test_arbiter import (
    consistently,
    count_pods,
    delete_workloads,
    find_condition,
    gpu_pod,
    list_pods,
    pending_reason,
    wait_for_reason,
)
from vkgateway.kinds.pods.translation.conditions import ADMITTED_CONDITION

GPU = "nvidia.com/gpu"
PRODUCT = "nvidia.com/gpu.product"
LWS = "leaderworkerset.sigs.k8s.io"


def crd_manifest(group: str, kind: str, plural: str, version: str, *, scope: str) -> Document:
    """Return a CustomResourceDefinition that accepts any object."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    approved = {"api-approved.kubernetes.io": "unapproved, for a test"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}", "annotations": approved},
        "spec": {
            "group": group,
            "scope": scope,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [{"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }


@pytest.fixture(scope="module")
def team(platform: Platform) -> Iterator[Cluster]:
    """Yield a tenant that may borrow everything, in two pools."""
    platform.vkgateway("tenant", "create", "team", "--pool", "a100", "--pool", "v100")
    yield platform.tenant("team")
    platform.vkgateway("tenant", "delete", "team", "--yes")


@pytest.fixture
def tenant(team: Cluster) -> Iterator[Cluster]:
    """Yield the tenant without pods."""
    yield team
    delete_workloads(team)


def zone_resources(node: str, *free: int) -> Document:
    """Return two zones of four GPUs, as node-feature-discovery's topology updater publishes them."""
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": node},
        "attributes": [
            {"name": "topologyManagerPolicy", "value": "single-numa-node"},
            {"name": "topologyManagerScope", "value": "container"},
        ],
        "zones": [
            {
                "name": f"node-{index}",
                "type": "Node",
                "resources": [{"name": GPU, "capacity": "4", "allocatable": "4", "available": str(amount)}],
            }
            for index, amount in enumerate(free)
        ],
    }


@pytest.fixture
def zoned(platform: Platform) -> Iterator[list[str]]:
    """Publish the zones of all nodes of the pool, and yield the nodes' names."""
    kind = crd_manifest(
        "topology.node.k8s.io", "NodeResourceTopology", "noderesourcetopologies", "v1alpha2", scope="Cluster"
    )
    platform.compute.apply_crds(kind)
    name = str(kind["metadata"]["name"])
    every = [str(node["metadata"]["name"]) for node in platform.compute.get("nodes")["items"]]
    names = [name for name in every if name.startswith("a100-")]
    platform.compute.apply(*(zone_resources(name, 4, 4) for name in names))
    platform.kill_gateway()  # a new one looks at once
    yield names
    platform.compute.kubectl("delete", "crd", name)
    platform.kill_gateway()


def compute_node(platform: Platform, name: str) -> str:
    """Return the compute node of a pod."""
    return str(platform.compute.get("pod", name, "-n", "team--default")["spec"]["nodeName"])


def wait_until_infeasible(tenant: Cluster, pod: Document) -> None:
    """Create a pod until it fits no zone: a standby that leads now may have looked for zones a minute ago."""
    name = str(pod["metadata"]["name"])

    def is_infeasible() -> bool:
        if tenant.pod_phase(name) == "Running":
            tenant.kubectl("delete", "pod", name, "--grace-period=1")
            tenant.apply(pod)
        return pending_reason(tenant, name) == "Infeasible"

    tenant.apply(pod)
    eventually(is_infeasible, what="the zones are known")


def test_single_numa_zone_pod_waits_until_a_zone_fits(tenant: Cluster, platform: Platform, zoned: list[str]) -> None:
    node_spec: dict[str, Any] = {"nodeSelector": {"vkgateway.io/pool": "a100"}}
    wait_until_infeasible(tenant, gpu_pod("five", 5, **node_spec))

    names = [f"three-{number}" for number in range(2 * len(zoned))]
    tenant.apply(*(gpu_pod(name, 3, **node_spec) for name in names))
    eventually(lambda: count_pods(tenant, "Running", "three-") == len(names), what="a pod in each zone")
    assert sorted(compute_node(platform, name) for name in names) == sorted(zoned * 2)

    tenant.apply(gpu_pod("two", 2, **node_spec))
    wait_for_reason(tenant, "two", "WaitingForRoom")
    tenant.apply(gpu_pod("one", 1, **node_spec))
    tenant.wait_pod("one")
    assert find_condition(tenant.get("pod", "two"), ADMITTED_CONDITION)["reason"] == "WaitingForRoom", (
        "both halves are free"
    )

    platform.compute.apply(*(zone_resources(node, 1, 1) for node in zoned if node != compute_node(platform, "one")))
    consistently(lambda: tenant.pod_phase("two") == "Pending")
    deleted_pod = next(name for name in names if compute_node(platform, name) != compute_node(platform, "one"))
    freed_node = compute_node(platform, deleted_pod)
    tenant.kubectl("delete", "pod", deleted_pod, "--grace-period=1")
    tenant.wait_pod("two")
    assert compute_node(platform, "two") == freed_node

    # What comes free on a node that does not publish: with zones of 0 and 1 free, and one that may be in either.
    full = compute_node(platform, "one")
    platform.compute.apply(zone_resources(full, 0, 1))
    tenant.apply(gpu_pod("last", 3, **node_spec))
    wait_for_reason(tenant, "last", "WaitingForRoom")
    consistently(lambda: tenant.pod_phase("last") == "Pending")
    other_pod = next(name for name in names if name != deleted_pod and compute_node(platform, name) == full)
    tenant.kubectl("delete", "pod", other_pod, "--grace-period=1")
    tenant.wait_pod("last")
    assert compute_node(platform, "last") == full


def group_pod(group: int, index: int, *, spec: Document) -> Document:
    """Return a pod as LeaderWorkerSet's controller and webhook create it: set `serve` with groups of three."""
    name = f"serve-{group}" if index == 0 else f"serve-{group}-{index}"
    pod = gpu_pod(name, 1)
    pod["metadata"] |= {
        "labels": {
            f"{LWS}/name": "serve",
            f"{LWS}/group-index": str(group),
            f"{LWS}/worker-index": str(index),
            f"{LWS}/group-key": f"group{group}",
            f"{LWS}/template-revision-hash": "5d8f",
        },
        "annotations": {
            f"{LWS}/size": "3",
            f"{LWS}/exclusive-topology": PRODUCT,
            **({f"{LWS}/leader-name": f"serve-{group}"} if index else {}),
        },
    }
    pod["spec"] |= spec
    return pod


def leader_affinity(group: int) -> Document:
    """Return the affinity of a leader: with pods of its group, and apart from all others."""
    key = f"{LWS}/group-key"
    own_group = [{"key": key, "operator": "In", "values": [f"group{group}"]}]
    other_groups: list[Document] = [
        {"key": key, "operator": "Exists"},
        {"key": key, "operator": "NotIn", "values": [f"group{group}"]},
    ]

    def required(expressions: list[Document]) -> Document:
        term = {"labelSelector": {"matchExpressions": expressions}, "topologyKey": PRODUCT}
        return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}

    return group_pod(
        group, 0, spec={"affinity": {"podAffinity": required(own_group), "podAntiAffinity": required(other_groups)}}
    )


def test_each_leader_worker_group_has_its_own_domain(tenant: Cluster, platform: Platform) -> None:
    kind = crd_manifest("leaderworkerset.x-k8s.io", "LeaderWorkerSet", "leaderworkersets", "v1", scope="Namespaced")
    tenant.apply_crds(kind)
    tenant.apply(
        {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": {
                "name": "serve",
                "namespace": "default",
                "annotations": {f"{LWS}/exclusive-topology": PRODUCT},
            },
            "spec": {"replicas": 2, "leaderWorkerTemplate": {"size": 3}},
        }
    )
    tenant.apply(leader_affinity(0), leader_affinity(1))
    for group in range(2):
        tenant.wait_pod(f"serve-{group}")
    chosen = [str(tenant.get("pod", f"serve-{group}")["spec"]["nodeName"]) for group in range(2)]
    assert sorted(name.partition(".")[0] for name in chosen) == ["a100", "v100"], "each leader has its own domain"

    for group, node in enumerate(chosen):
        domain = tenant.get("node", node)["metadata"]["labels"][PRODUCT]
        tenant.apply(group_pod(group, 1, spec={"nodeSelector": {PRODUCT: domain}}))
    wait_for_reason(tenant, "serve-0-1", "WaitingForMembers")
    for group, node in enumerate(chosen):
        domain = tenant.get("node", node)["metadata"]["labels"][PRODUCT]
        tenant.apply(group_pod(group, 2, spec={"nodeSelector": {PRODUCT: domain}}))
    eventually(lambda: count_pods(tenant, "Running", "serve-") == 6, what="both groups, whole")
    where = {str(pod["metadata"]["name"]): str(pod["spec"]["nodeName"]) for pod in list_pods(tenant, "serve-")}
    assert {name[:7]: node for name, node in where.items()} == {"serve-0": chosen[0], "serve-1": chosen[1]}
    assert all(node == where[name[:7]] for name, node in where.items())
    products = {
        name: str(platform.compute.get("node", compute_node(platform, name))["metadata"]["labels"][PRODUCT])
        for name in where
    }
    assert len({products[name] for name in where if name.startswith("serve-0")}) == 1
    assert len(set(products.values())) == 2, "below they are apart as well"
