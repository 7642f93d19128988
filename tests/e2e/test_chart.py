"""The chart on a real cluster: installed, tested, upgraded, and removed; tenants keep running."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
import yaml

from tests.e2e.chart import CHART, RELEASE, SYSTEM, ChartPlatform
from tests.e2e.cluster import REAL, Cluster, eventually, pod_manifest
from tests.e2e.conftest import HERE, start_platform
from tests.e2e.requests_loop import requests_loop
from vkgateway.local.realnode.probe import find_obstacle

pytestmark = pytest.mark.skipif(bool(why := find_obstacle()), reason=f"no real node here: {why}")

TEMPLATE = HERE.parents[1] / "tenant_templates/default"
CONTROL_PLANE = "vkgateway-tenant-gamma"
EXTERNAL_ETCD = "etcd.enabled=false,datastore.endpoints={https://etcd.example.com:2379}"
SELECTOR = "app.kubernetes.io/component=control-plane"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChartPlatform]:
    """Yield a platform with two replicas of the gateway, and with a template for two replicas of control planes."""
    templates = tmp_path_factory.mktemp("templates")
    template = templates / "replicated"
    for name in ("default", template.name):
        shutil.copytree(TEMPLATE, templates / name)
    file = template / "template.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"pod": {"replicas": 2}}))
    with start_platform("--hollow-nodes", "a100=1", chart=True) as platform:
        assert isinstance(platform, ChartPlatform)
        platform.upgrade({"replicas": 2})
        platform.use_templates(templates)
        yield platform


@pytest.fixture(scope="module")
def gamma(installed: ChartPlatform) -> Cluster:
    """Return a tenant whose control plane has two replicas, with a running pod."""
    installed.vkgateway("tenant", "create", "gamma", "--template", "replicated", "--pool", "real")
    cluster = installed.tenant("gamma")
    cluster.apply(pod_manifest("stays", **REAL))
    cluster.wait_pod("stays")
    return cluster


def control_plane_pods(platform: ChartPlatform) -> dict[str, int]:
    """Return the tenant's ready control-plane pods by name, with the restarts of their containers."""
    pods = platform.compute.get("pods", "-n", CONTROL_PLANE, "-l", SELECTOR)["items"]
    return {
        pod["metadata"]["name"]: sum(status["restartCount"] for status in pod["status"]["containerStatuses"])
        for pod in pods
        if all(status["ready"] for status in pod["status"].get("containerStatuses", [{"ready": False}]))
        and "deletionTimestamp" not in pod["metadata"]
    }


def test_helm_test_tries_a_tenant(installed: ChartPlatform) -> None:
    printed = installed.helm("test", RELEASE, "-n", SYSTEM, "--logs")
    assert "Succeeded" in printed
    assert installed.compute.find("tenant", "vkgateway-check") is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--namespace", SYSTEM, "--set", "image.tagg=1"], ["tagg"]),
        (["--namespace", "elsewhere"], ["elsewhere", "--namespace vkgateway-system"]),
        (["--namespace", SYSTEM, "--set", "etcd.members=3"], ["etcd.members", "3"]),
        (
            ["--namespace", SYSTEM, "--set", "imagePullSecrets[0].name=absent"],
            ["Secret absent of imagePullSecrets", "kubectl create secret docker-registry absent"],
        ),
        (
            ["--namespace", SYSTEM, f"--set=datastore.existingSecret=absent,{EXTERNAL_ETCD}"],
            ["Secret absent of datastore.existingSecret", "kubectl create secret generic absent"],
        ),
        (
            # A Secret of the gateway, which has the CA only.
            ["--namespace", SYSTEM, f"--set=datastore.existingSecret=vkgateway-etcd-authority,{EXTERNAL_ETCD}"],
            ["has no key tls.crt"],
        ),
    ],
)
def test_wrong_value_is_one_sentence_and_changes_nothing(
    installed: ChartPlatform, options: list[str], words: list[str]
) -> None:
    before = installed.helm("history", RELEASE, "-n", SYSTEM)
    result = installed.try_helm("upgrade", RELEASE, str(CHART), "--install", "--reuse-values", *options)
    assert result.code != 0
    assert all(word in result.err for word in words), result.err
    assert installed.helm("history", RELEASE, "-n", SYSTEM) == before


def test_second_release_is_refused(installed: ChartPlatform) -> None:
    result = installed.try_helm("install", "second", str(CHART), "--namespace", SYSTEM)
    assert result.code != 0
    assert RELEASE in result.err


def test_upgrade_of_the_gateway_restarts_no_tenant(installed: ChartPlatform, gamma: Cluster) -> None:
    gateways = {pod["metadata"]["uid"] for pod in installed.gateway_pods()}
    control_planes = control_plane_pods(installed)
    with requests_loop(gamma) as requests:
        installed.upgrade({"config": {"logging": {"level": "debug"}}})
        eventually(lambda: not gateways & {pod["metadata"]["uid"] for pod in installed.gateway_pods()}, what="new pods")
        gamma.apply(pod_manifest("after-upgrade", **REAL))
        gamma.wait_pod("after-upgrade")
    assert requests.sent > 0
    assert requests.failures == []
    assert control_plane_pods(installed) == control_planes
    assert gamma.get("pod", "stays")["status"]["containerStatuses"][0]["restartCount"] == 0


def test_lost_replica_and_rolling_restart_fail_no_request(installed: ChartPlatform, gamma: Cluster) -> None:
    compute = installed.compute
    eventually(lambda: len(control_plane_pods(installed)) == 2, what="two replicas")
    with requests_loop(gamma) as requests:
        lost = next(iter(control_plane_pods(installed)))
        compute.kubectl("delete", "pod", lost, "-n", CONTROL_PLANE, "--grace-period=0", "--force")
        eventually(lambda: len(control_plane_pods(installed).keys() - {lost}) == 2, what="another replica is ready")
        replaced = control_plane_pods(installed)
        compute.kubectl("rollout", "restart", "deployment/control-plane", "-n", CONTROL_PLANE)
        compute.kubectl(
            "rollout", "status", "deployment/control-plane", "-n", CONTROL_PLANE, "--timeout=100s", timeout=110
        )
        eventually(lambda: not replaced.keys() & control_plane_pods(installed).keys(), what="the old pods are gone")
        eventually(lambda: len(control_plane_pods(installed)) == 2, what="two replicas again")
    assert requests.sent > 0
    assert requests.failures == [], f"of {requests.sent}, {requests.retried} retried"


def test_deleted_namespace_of_a_control_plane_returns_with_its_data(installed: ChartPlatform, gamma: Cluster) -> None:
    compute, before = installed.compute, gamma.get("pod", "stays")["metadata"]["uid"]
    deleted = compute.get("namespace", CONTROL_PLANE)["metadata"]["uid"]
    compute.kubectl("delete", "namespace", CONTROL_PLANE, "--wait=false")
    eventually(
        lambda: (found := compute.find("namespace", CONTROL_PLANE)) and found["metadata"]["uid"] != deleted,
        what="another namespace",
    )
    eventually(lambda: gamma.try_kubectl("get", "pod", "stays").code == 0, what="the control plane answers again")
    pod = gamma.get("pod", "stays")
    assert (pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"]) == (before, 0)
    gamma.apply(pod_manifest("after-deletion", **REAL))
    gamma.wait_pod("after-deletion")


def test_uninstall_keeps_tenants_and_says_so(installed: ChartPlatform, gamma: Cluster) -> None:
    printed = installed.helm("uninstall", RELEASE, "-n", SYSTEM, "--wait")
    assert "tenants.vkgateway.io" in printed
    assert installed.compute.find("tenant", "gamma") is not None
    pod = installed.compute.get("pod", "stays", "-n", "gamma--default")["status"]
    assert (pod["phase"], pod["containerStatuses"][0]["restartCount"]) == ("Running", 0)
