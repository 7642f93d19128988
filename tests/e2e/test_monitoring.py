"""A real Prometheus reads the gateway: alerts fire and end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, Platform, eventually
from tests.e2e.prometheus import Prometheus, start_prometheus
from vkgateway.local.realnode.images import PAUSE_IMAGE
from vkgateway.model.errors import UnavailableError

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
    assert len(prometheus.query("vkgateway_certificate_expiry_timestamp_seconds - time() > 30 * 86400")) == 5


def test_a_tenant_that_is_not_accepted(platform: Platform, prometheus: Prometheus) -> None:
    platform.compute.apply(UNKNOWN_POOL)
    wait_until_firing(prometheus, "VkgatewayTenantNotReady", "gamma")
    assert ("VkgatewayTenantControlPlaneDown", "gamma") not in prometheus.firing()
    platform.compute.kubectl("delete", "tenant", "gamma", "--timeout=60s", timeout=70)
    wait_until_silent(prometheus, "VkgatewayTenantNotReady", "gamma")


def test_a_compute_cluster_without_credentials(platform: Platform, prometheus: Prometheus) -> None:
    platform.compute.apply(UNREACHABLE)
    wait_until_firing(prometheus, "VkgatewayComputeClusterUnreachable", "far")
    platform.compute.kubectl("delete", "computecluster", "far", "--timeout=60s", timeout=70)
    wait_until_silent(prometheus, "VkgatewayComputeClusterUnreachable", "far")


def test_a_pool_whose_scheduler_is_missing(platform: Platform, prometheus: Prometheus) -> None:
    pools = platform.compute.get("computecluster", "local")["spec"]["pools"]
    patch_pools(platform, [*pools, KUEUE_POOL])
    wait_until_firing(prometheus, "VkgatewaySchedulerNotReady", "local")
    patch_pools(platform, pools)
    wait_until_silent(prometheus, "VkgatewaySchedulerNotReady", "local")


@pytest.mark.usefixtures("real")
def test_images_that_nodes_cannot_pull(platform: Platform, prometheus: Prometheus) -> None:
    pools = platform.compute.get("computecluster", "local")["spec"]["pools"]
    keeping = {"images": ["registry.invalid/none:1"], "pauseImage": PAUSE_IMAGE}
    patch_pools(platform, [pool | ({"prePull": keeping} if pool["name"] == "real" else {}) for pool in pools])
    wait_until_firing(prometheus, "VkgatewayImagesNotPulled", "local")
    patch_pools(platform, pools)
    wait_until_silent(prometheus, "VkgatewayImagesNotPulled", "local")


def patch_pools(platform: Platform, pools: list[dict[str, Any]]) -> None:
    patch = json.dumps({"spec": {"pools": pools}})
    platform.compute.kubectl("patch", "computecluster", "local", "--type=merge", f"--patch={patch}")


def wait_until_firing(prometheus: Prometheus, alert: str, subject: str) -> None:
    eventually(lambda: (alert, subject) in prometheus.firing(), seconds=60, what=f"{alert} fires")


def wait_until_silent(prometheus: Prometheus, alert: str, subject: str) -> None:
    eventually(lambda: (alert, subject) not in prometheus.firing(), seconds=60, what=f"{alert} ends")
