"""A real Prometheus reads the gateway: alerts fire and end, and every panel of the dashboards shows data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.e2e.cluster import REAL, Cluster, Platform, eventually, pod_manifest
from tests.e2e.foreign_pool import read_pools, write_pools
from tests.e2e.image_registry import serve_images
from tests.e2e.prometheus import Prometheus, start_prometheus
from tests.e2e.test_arbiter import GANG, LOW, count_pods, delete_workloads, gpu_job, gpu_pod, in_pool, list_pods
from tests.support.machine import patience_option
from tests.support.monitoring import DASHBOARDS, label_queries, panel_queries
from vkgateway.api.errors import UnavailableError
from vkgateway_platform.embedded.realnode.busybox import Busybox
from vkgateway_platform.embedded.realnode.images import BUSYBOX, PAUSE_IMAGE, busybox_image

pytestmark = pytest.mark.embedded_gateway(reason="the URL of the Service reaches the leader or a standby")
UNKNOWN_POOL = {
    "apiVersion": "vkgateway.io/v1alpha1",
    "kind": "Tenant",
    "metadata": {"name": "gamma"},
    "spec": {"pools": [{"name": "nowhere"}]},
}
UNREACHABLE = {
    "apiVersion": "vkgateway.io/v1alpha1",
    "kind": "ComputeCluster",
    "metadata": {"name": "far"},
    "spec": {
        "connection": {"kubeconfigSecret": {"namespace": "vkgateway-system", "name": "missing"}},
        "pools": [{"name": "far", "nodeSelector": {"far": "far"}}],
    },
}
NEED_REAL_NODE = {
    "Images by pull time": "no kubelet pulls an image",
    "Starting pods": "pods on hollow nodes are ready at once",
}
"""Reasons by panel."""
KUEUE_POOL = {"name": "queued", "nodeSelector": {"far": "far"}, "scheduling": {"mode": "kueue"}}


@pytest.fixture(scope="module")
def prometheus(platform: Platform, alpha: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    try:
        with start_prometheus(platform, tmp_path_factory.mktemp("prometheus")) as found:
            yield found
    except UnavailableError as error:
        pytest.skip(f"no Prometheus: {error}")


def test_a_healthy_platform_has_no_critical_alert(prometheus: Prometheus) -> None:
    eventually(
        lambda: not prometheus.query('ALERTS{severity="critical",alertstate="firing"}'),
        seconds=60,
        what="no critical alert fires",
    )
    fresh = "vkgateway_certificate_expiry_timestamp_seconds - time() > 30 * 86400"
    eventually(lambda: len(prometheus.query(fresh)) == 5, seconds=60, what="five certificates are valid for long")


@pytest.mark.fires("VkgatewayTenantNotReady")
def test_a_tenant_that_is_not_accepted(platform: Platform, prometheus: Prometheus) -> None:
    platform.compute.apply(UNKNOWN_POOL)
    prometheus.wait_until_firing("VkgatewayTenantNotReady", "gamma")
    assert ("VkgatewayTenantControlPlaneDown", "gamma") not in prometheus.firing()
    platform.compute.kubectl("delete", "tenant", "gamma", patience_option(60), timeout=70)
    prometheus.wait_until_silent("VkgatewayTenantNotReady", "gamma")


@pytest.mark.fires("VkgatewayComputeClusterUnreachable")
def test_a_compute_cluster_without_credentials(platform: Platform, prometheus: Prometheus) -> None:
    platform.compute.apply(UNREACHABLE)
    prometheus.wait_until_firing("VkgatewayComputeClusterUnreachable", "far")
    platform.compute.kubectl("delete", "computecluster", "far", patience_option(60), timeout=70)
    prometheus.wait_until_silent("VkgatewayComputeClusterUnreachable", "far")


@pytest.mark.fires("VkgatewaySchedulerNotReady")
def test_a_pool_whose_scheduler_is_missing(platform: Platform, prometheus: Prometheus) -> None:
    pools = read_pools(platform)
    write_pools(platform, [*pools, KUEUE_POOL])
    prometheus.wait_until_firing("VkgatewaySchedulerNotReady", "local")
    write_pools(platform, pools)
    prometheus.wait_until_silent("VkgatewaySchedulerNotReady", "local")


@pytest.mark.fires("VkgatewayPoolsOverlap")
def test_pools_that_share_nodes(platform: Platform, prometheus: Prometheus) -> None:
    pools = read_pools(platform)
    write_pools(platform, [*pools, {"name": "again", "nodeSelector": pools[0]["nodeSelector"]}])
    prometheus.wait_until_firing("VkgatewayPoolsOverlap", "local")
    write_pools(platform, pools)
    prometheus.wait_until_silent("VkgatewayPoolsOverlap", "local")


@pytest.mark.fires("VkgatewayImagesNotPulled")
@pytest.mark.usefixtures("real")
def test_images_that_nodes_cannot_pull(platform: Platform, prometheus: Prometheus) -> None:
    pools = read_pools(platform)
    keeping = {"images": ["registry.invalid/none:1"], "pauseImage": PAUSE_IMAGE}
    write_pools(platform, [pool | ({"prePull": keeping} if pool["name"] == "real" else {}) for pool in pools])
    prometheus.wait_until_firing("VkgatewayImagesNotPulled", "local")
    write_pools(platform, pools)
    prometheus.wait_until_silent("VkgatewayImagesNotPulled", "local")


@pytest.mark.fires("VkgatewayImagePullsFailing")
@pytest.mark.usefixtures("real")
def test_a_registry_that_does_not_answer(platform: Platform, alpha: Cluster, prometheus: Prometheus) -> None:
    images = [f"{platform.status()['address']}:1/none:{number}" for number in range(12)]
    alpha.apply(*(pod_manifest(f"none{number}", image=image, **REAL) for number, image in enumerate(images)))
    prometheus.wait_until_firing("VkgatewayImagePullsFailing", "real.local", seconds=90)
    delete_workloads(alpha)


@pytest.fixture(scope="module")
def life(platform: Platform, alpha: Cluster, beta: Cluster, prometheus: Prometheus) -> None:
    """Let tenants do what the dashboards show: a new tenant, a budget, gangs, an eviction, a log, a pulled image."""
    platform.vkgateway("tenant", "create", "gamma", "--pool", "v100")
    budget = json.dumps({"spec": {"budget": [{"resource": "nvidia.com/gpu", "hours": 1000}]}})
    platform.compute.kubectl("patch", "tenant", "gamma", "--type=merge", "-p", budget)
    beta.apply(*(gpu_pod(f"low{number}", 8, **in_pool("a100"), **LOW) for number in range(4)))
    eventually(lambda: count_pods(beta, "Running", "low") == 4, what="the pool is full")
    alpha.apply(gpu_job("train", 8, parallelism=2, marks={GANG: "job"}, **in_pool("a100")))
    eventually(lambda: count_pods(alpha, "Running", "train") == 2, what="the guaranteed gang runs")
    alpha.apply(gpu_job("waits", 8, parallelism=4, marks={GANG: "job"}, **in_pool("a100")))
    assert alpha.kubectl("logs", list_pods(alpha, "train")[0]["metadata"]["name"])
    if platform.real:
        with serve_images(platform) as registry:
            registry.add_image("pulled:1", busybox_image(Busybox.from_file(BUSYBOX)))
            unready = {"readinessProbe": {"exec": {"command": ["false"]}}}
            alpha.apply(pod_manifest("starting", container=unready, **REAL))
            alpha.apply(pod_manifest("pulled", image=f"{registry.address}/pulled:1", **REAL))
            alpha.wait_pod("pulled")
            # The kubelet's event follows later.
            eventually(lambda: prometheus.query("vkgateway_top_image_pull_seconds"), what="the pull is counted")
            eventually(lambda: prometheus.query("vkgateway_pods_starting > 0"), what="a pod starts")
    eventually(lambda: prometheus.query("vkgateway_arbiter_tenant_waiting_gangs > 0"), what="a gang waits")


@pytest.fixture(scope="module")
def after_life(platform: Platform, alpha: Cluster, beta: Cluster, life: None) -> Iterator[None]:
    """Remove what the dashboards show after the last test."""
    assert life is None
    yield
    delete_workloads(alpha)
    delete_workloads(beta)
    platform.vkgateway("tenant", "delete", "gamma", "--yes")


@pytest.mark.usefixtures("after_life")
@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
@pytest.mark.parametrize("selection", ["all", "each"])
def test_every_panel_of_a_dashboard_shows_data(
    platform: Platform, prometheus: Prometheus, file: Path, selection: str
) -> None:
    """Each query runs with the values that Grafana has for "All", and for a selection of every tenant and pool."""
    values = {name: prometheus.label_values(metric, label) for name, metric, label in label_queries(file)}
    selected = {name: f"({'|'.join(found)})" for name, found in values.items()} if selection == "each" else {}
    missing = missing_panels(platform)
    for query in panel_queries(file, rate_interval="1m", **selected):
        if query.panel not in missing:
            # A busy gateway answers too late sometimes: until the next time, current values are missing.
            eventually(lambda query=query: prometheus.has_data(query), seconds=60, what=f"data: {query}")  # type: ignore[misc]


@pytest.mark.usefixtures("after_life")
@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_variables_of_a_dashboard_have_values(prometheus: Prometheus, file: Path) -> None:
    found = {name: set(prometheus.label_values(metric, label)) for name, metric, label in label_queries(file)}
    expected = {"tenant": {"alpha", "beta", "gamma"}, "pool": {"a100.local", "v100.local"}}
    assert found
    assert all(expected[name] <= values for name, values in found.items())


def missing_panels(platform: Platform) -> Mapping[str, str]:
    """Return the panels that show no data on this platform, with the reason. promtool parses their expressions."""
    return {} if platform.real else NEED_REAL_NODE
