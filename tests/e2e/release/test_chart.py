"""The chart on a real cluster: installed, tested and upgraded; tenants keep running."""

from __future__ import annotations

import pytest

from tests.e2e.chart import CHART, RELEASE, SYSTEM, ChartPlatform
from tests.e2e.cluster import REAL, Cluster, eventually, pod_manifest
from tests.e2e.page import open_page
from tests.e2e.release.conftest import NAME
from tests.e2e.requests_loop import requests_loop
from tests.support.machine import patience_option

CONTROL_PLANE = "vkgateway-tenant-gamma"
EXTERNAL_ETCD = "etcd.enabled=false,datastore.endpoints={https://etcd.example.com:2379}"
SELECTOR = "app.kubernetes.io/component=control-plane"


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


def test_only_what_other_programs_name_has_the_default_name(installed: ChartPlatform) -> None:
    own = "deployments,statefulsets,services,configmaps,secrets,poddisruptionbudgets,networkpolicies,pods,pvc"
    found = installed.compute.get(own, "-n", SYSTEM)["items"]
    names = {one["metadata"]["name"] for one in found if "tenant" not in one["metadata"]["name"]}
    assert {NAME, f"{NAME}-etcd", f"{NAME}-etcd-server", f"data-{NAME}-etcd-0"} <= names
    assert not [name for name in names if name.startswith("vkgateway") or "-vkgateway-" in name]


def test_the_page_is_reached_through_the_api_server(installed: ChartPlatform, gamma: Cluster) -> None:
    with open_page(installed) as operator, open_page(installed, "--tenant", "gamma") as tenant:
        assert operator.sign_in() == 200
        assert tenant.sign_in() == 200
        assert "gamma" in operator.state()["controlPlanes"]
        assert tenant.state()["scope"] == "tenant"
        installed.kill_gateway()
        eventually(lambda: tenant.read("api/state")[0] == 200, what="the page of the new leader")


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
            ["--namespace", SYSTEM, "--set", "certificates.certManager.enabled=true"],
            ["certificates.certManager.enabled cannot change to true", "Set it to false"],
        ),
        (
            # A Secret of the gateway, which has the CA only.
            ["--namespace", SYSTEM, f"--set=datastore.existingSecret={NAME}-etcd-authority,{EXTERNAL_ETCD}"],
            ["has no key tls.crt"],
        ),
        (
            ["--namespace", SYSTEM, "--set", "nameOverride="],
            ["nameOverride cannot change", f"StatefulSet {NAME}-etcd", f'Set nameOverride to "{NAME}"'],
        ),
        (
            ["--namespace", SYSTEM, f"--set=nameOverride=other,datastore.existingSecret=absent,{EXTERNAL_ETCD}"],
            ["nameOverride cannot change", f"StatefulSet {NAME}-etcd"],
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
            "rollout", "status", "deployment/control-plane", "-n", CONTROL_PLANE, patience_option(100), timeout=110
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
