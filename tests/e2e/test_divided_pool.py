"""Pool with nodes in several zones, shown to its tenant as one virtual node per zone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.cluster import Cluster, Document, Platform, eventually, pod_manifest
from tests.e2e.test_arbiter import count_pods, delete_workloads, gpu_pod, list_pods, wait_for_reason

ZONE = "topology.kubernetes.io/zone"
GPU = "nvidia.com/gpu"


@pytest.fixture(scope="module")
def team(platform: Platform) -> Iterator[Cluster]:
    """Yield a tenant with half of the pool."""
    platform.vkgateway("tenant", "create", "zoned", "--pool", f"a100:guarantee={GPU}=8,limit={GPU}=16")
    yield platform.tenant("zoned")
    platform.vkgateway("tenant", "delete", "zoned", "--yes")


@pytest.fixture
def tenant(team: Cluster) -> Iterator[Cluster]:
    """Yield the tenant without pods."""
    yield team
    delete_workloads(team)


def labelled_pod(document: Document, app: str) -> Document:
    """Return a pod of the pool, with a label for its spread constraint."""
    document["metadata"]["labels"] = {"app": app}
    document["spec"]["nodeSelector"] = {"vkgateway.io/pool": "a100", **document["spec"].get("nodeSelector", {})}
    return document


def over_zones(app: str) -> list[Document]:
    """Return a topology spread constraint that must be satisfied."""
    return [
        {
            "maxSkew": 1,
            "topologyKey": ZONE,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": app}},
        }
    ]


def virtual_nodes(cluster: Cluster, start: str) -> list[str]:
    return sorted(pod["spec"]["nodeName"] for pod in list_pods(cluster, start))


def compute_zones(platform: Platform, start: str) -> list[str]:
    """Return the zones of the compute nodes on which the tenant's pods run."""
    nodes = {
        node["metadata"]["name"]: node["metadata"]["labels"].get(ZONE)
        for node in platform.compute.get("nodes")["items"]
    }
    found = platform.compute.get("pods", "-n", "zoned--default")["items"]
    return sorted(str(nodes[pod["spec"]["nodeName"]]) for pod in found if pod["metadata"]["name"].startswith(start))


def test_each_zone_of_the_pool_is_a_virtual_node(tenant: Cluster) -> None:
    zones = {node["metadata"]["name"]: node["metadata"]["labels"][ZONE] for node in tenant.get("nodes")["items"]}
    assert zones == {"a100.zone-0.local": "zone-0", "a100.zone-1.local": "zone-1"}


@pytest.mark.parametrize("devices", [0, 1])
def test_pods_spread_over_zones(tenant: Cluster, platform: Platform, devices: int) -> None:
    app = f"spread{devices}"
    names = [f"{app}-{number}" for number in range(2)]
    pods = [gpu_pod(name, devices) if devices else pod_manifest(name) for name in names]
    for pod in pods:
        labelled_pod(pod, app)["spec"]["topologySpreadConstraints"] = over_zones(app)
    tenant.apply(*pods)
    eventually(lambda: count_pods(tenant, "Running", app) == 2, what="both pods run")
    assert virtual_nodes(tenant, app) == ["a100.zone-0.local", "a100.zone-1.local"]
    assert compute_zones(platform, app) == ["zone-0", "zone-1"]


@pytest.mark.parametrize("devices", [0, 1])
def test_pod_runs_in_its_selected_zone(tenant: Cluster, platform: Platform, devices: int) -> None:
    name = f"there{devices}"
    pod = gpu_pod(name, devices) if devices else pod_manifest(name)
    pod["spec"]["nodeSelector"] = {ZONE: "zone-1"}
    tenant.apply(labelled_pod(pod, name))
    eventually(lambda: tenant.pod_phase(name) == "Running", what="it runs")
    assert virtual_nodes(tenant, name) == ["a100.zone-1.local"]
    assert compute_zones(platform, name) == ["zone-1"]


def test_limit_applies_to_the_pool_not_to_each_zone(tenant: Cluster) -> None:
    for number, zone in enumerate(("zone-0", "zone-1", "zone-0")):
        pod = gpu_pod(f"big-{number}", 8, nodeSelector={ZONE: zone})
        tenant.apply(labelled_pod(pod, "big"))
        if number < 2:
            tenant.wait_pod(f"big-{number}")
    wait_for_reason(tenant, "big-2", "WaitingForQuota")
