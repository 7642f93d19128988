"""A real metrics-server in a tenant, and `kubectl top` by it.

It needs the program, which is not among those that the platform fetches:
`go install sigs.k8s.io/metrics-server/cmd/metrics-server@v0.8.0`, and METRICS_SERVER with its path. It runs beside the
platform with nothing but the token of its service account.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import REAL, Cluster, Document, Platform, eventually, pod

PROGRAM = os.environ.get("METRICS_SERVER", "")
PORT = 14443
NAME: Document = {"name": "metrics-server", "namespace": "kube-system"}
RBAC = "rbac.authorization.k8s.io"


def rights() -> list[Document]:
    """Those of its published manifests."""
    account = {"kind": "ServiceAccount", "name": NAME["name"], "namespace": NAME["namespace"]}
    rules = [
        {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]},
    ]
    found: list[Document] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": NAME},
        {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": "metrics-reading"}, "rules": rules},
    ]
    for name, role in (("metrics-reading", "metrics-reading"), ("metrics-delegation", "system:auth-delegator")):
        reference = {"apiGroup": RBAC, "kind": "ClusterRole", "name": role}
        binding = {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name}}
        found.append({**binding, "roleRef": reference, "subjects": [account]})
    reference = {"apiGroup": RBAC, "kind": "Role", "name": "extension-apiserver-authentication-reader"}
    binding = {"apiVersion": f"{RBAC}/v1", "kind": "RoleBinding", "metadata": NAME}
    return [*found, {**binding, "roleRef": reference, "subjects": [account]}]


def api(host: str) -> list[Document]:
    """What leads the tenant's API server to it."""
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": NAME, "spec": {"ports": [{"name": "https", "port": 443}]}},
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": NAME | {"labels": {"kubernetes.io/service-name": "metrics-server"}},
            "addressType": "IPv4",
            "ports": [{"name": "https", "port": PORT}],
            "endpoints": [{"addresses": [host], "conditions": {"ready": True}}],
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": "v1beta1.metrics.k8s.io"},
            "spec": {
                "group": "metrics.k8s.io",
                "version": "v1beta1",
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "insecureSkipTLSVerify": True,
                "service": NAME,
            },
        },
    ]


@pytest.fixture
def metrics_server(platform: Platform, alpha: Cluster, tmp_path: Path) -> Iterator[None]:
    assert platform
    alpha.apply(*rights())
    token = alpha.kubectl("create", "token", "metrics-server", "-n", "kube-system").strip()
    config = str(alpha.with_token(token, tmp_path).kubeconfig)
    addresses = alpha.get("node", "real.local")["status"]["addresses"]
    alpha.apply(*api(next(entry["address"] for entry in addresses if entry["type"] == "InternalIP")))
    argv = (
        PROGRAM,
        f"--kubeconfig={config}",
        f"--authentication-kubeconfig={config}",
        f"--authorization-kubeconfig={config}",
        f"--cert-dir={tmp_path}",
        f"--secure-port={PORT}",
        "--kubelet-preferred-address-types=InternalIP",
        "--kubelet-use-node-status-port",
        "--kubelet-insecure-tls",
        "--metric-resolution=15s",
    )
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(argv, stdout=log, stderr=log) as running:
        try:
            yield
        finally:
            running.terminate()
            running.wait(30)


@pytest.mark.usefixtures("real", "metrics_server")
def test_top_tells_of_the_tenants_pods_and_nodes(alpha: Cluster) -> None:
    command = "while true; do i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done; sleep 0.1; done"
    alpha.apply(pod("counted", command=command, **REAL))
    alpha.wait_pod("counted")
    found = eventually(
        lambda: (answer := alpha.try_kubectl("top", "pod", "counted", "--no-headers")).code == 0 and answer.out,
        seconds=120,
        what="kubectl top pod",
    )
    assert int(str(found).split()[1].removesuffix("m")) > 0
    nodes = eventually(
        lambda: (answer := alpha.try_kubectl("top", "node", "real.local", "--no-headers")).code == 0 and answer.out,
        what="kubectl top node",
    )
    assert str(nodes).startswith("real.local")
    alpha.kubectl("delete", "pod", "counted", "--wait=false")
