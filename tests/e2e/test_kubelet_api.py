"""Kubelet API as tools use it: metrics, copies, attached terminals, forwarded ports, commands, tokens."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pty
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.cluster import REAL, Cluster, CommandResult, Document, Platform, eventually, pod_manifest
from tests.support.machine import patience, patience_option
from vkgateway.kube import kubeconfig

NODE = "real.local"
PROXY = f"/api/v1/nodes/{NODE}/proxy"
READER: list[Document] = [
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "figures"},
        "rules": [{"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]}],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "figures"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "figures"},
        "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": "reader"}],
    },
    {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reader", "namespace": "default"}},
]


@pytest.fixture(scope="module")
def busy(platform: Platform, alpha: Cluster) -> Iterator[str]:
    """Yield a pod that uses some CPU on the real node and has a probe. Its name is part of no image's."""
    if not platform.real:
        pytest.skip(f"no real node here: {platform.status().get('realNode')}")
    probe = {"exec": {"command": ["true"]}, "periodSeconds": 1}
    command = "while true; do i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done; sleep 0.1; done"
    alpha.apply(pod_manifest("treadmill", command=command, container={"readinessProbe": probe}, **REAL))
    alpha.wait_pod("treadmill")
    yield "treadmill"
    alpha.kubectl("delete", "pod", "treadmill", "--wait=false")


def check_hides_compute_cluster(platform: Platform, text: str) -> None:
    """Check that a text shows nothing of the compute cluster."""
    below = platform.compute.get("pod", "treadmill", "-n", "alpha--default")
    for secret in ("real-0", "alpha--", below["metadata"]["uid"], below["metadata"]["uid"].replace("-", "_")):
        assert secret not in text, secret
    assert "beta" not in text
    assert "kube-system" not in text


def test_summary_has_the_tenants_pods_with_tenant_uids(platform: Platform, alpha: Cluster, busy: str) -> None:
    def read_summary() -> tuple[str, Document] | None:
        """Return the summary and the pod in it. The kubelet measures a new pod only after a while."""
        text = read_proxy(alpha, "stats/summary")
        found = (pod for pod in json.loads(text or '{"pods": []}')["pods"] if pod["podRef"]["name"] == busy)
        return next(((text, pod) for pod in found if is_measured(pod)), None)

    def is_measured(pod: Document) -> bool:
        used = [container.get("cpu", {}).get("usageCoreNanoSeconds") for container in pod["containers"]]
        return bool(used) and all(used) and "workingSetBytes" in pod.get("memory", {})

    found = eventually(read_summary, what="the pod's figures")
    assert found is not None
    text, busy_pod = found
    check_hides_compute_cluster(platform, text)
    summary = json.loads(text)
    assert busy_pod["podRef"]["uid"] == alpha.get("pod", busy)["metadata"]["uid"]
    assert busy_pod["containers"][0]["cpu"]["usageCoreNanoSeconds"] > 0
    assert summary["node"]["nodeName"] == NODE
    assert summary["node"]["memory"]["workingSetBytes"] >= busy_pod["memory"]["workingSetBytes"]


@pytest.mark.parametrize(
    ("path", "sample"),
    [
        ("metrics/resource", 'container_cpu_usage_seconds_total{namespace="default",pod="treadmill",container="main"}'),
        ("metrics/resource", "node_memory_working_set_bytes "),
        ("metrics/cadvisor", "container_memory_working_set_bytes{"),
        ("metrics/probes", "prober_probe_total{"),
        ("metrics", f'kubelet_node_name{{node="{NODE}"}} 1.0'),
    ],
)
def test_metrics(platform: Platform, alpha: Cluster, busy: str, path: str, sample: str) -> None:
    assert busy
    text = wait_for_sample(alpha, path, sample)
    check_hides_compute_cluster(platform, text)


def wait_for_sample(alpha: Cluster, path: str, sample: str) -> str:
    """The text at a path once it holds a sample."""

    def read_text() -> str:
        text = read_proxy(alpha, path)
        return text if sample in text else ""

    return eventually(read_text, what=sample)


def read_proxy(cluster: Cluster, path: str) -> str:
    """Return the text at a path of the kubelet; empty if it fails, as it may while containers come and go."""
    answer = answer_to(cluster, path)
    return answer.out if answer is not None else ""


def answer_to(cluster: Cluster, path: str) -> CommandResult | None:
    """Return the answer at a path of the kubelet; None if it fails."""
    result = cluster.try_kubectl("get", "--raw", f"{PROXY}/{path}")
    return result if result.code == 0 else None


def test_top_and_autoscaling_work(alpha: Cluster, beta: Cluster) -> None:
    """KWOK simulates the usage: half a core for a pod that requests a tenth."""
    template = {
        "metadata": {"labels": {"app": "grows"}, "annotations": {"kwok.x-k8s.io/usage-cpu": "500m"}},
        "spec": {
            "nodeSelector": {"vkgateway.io/pool": "a100"},
            "containers": [{"name": "main", "image": "x", "resources": {"requests": {"cpu": "100m"}}}],
        },
    }
    alpha.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "grows", "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": "grows"}}, "template": template},
        }
    )
    alpha.kubectl("autoscale", "deployment", "grows", "--cpu=50%", "--min=1", "--max=2")
    eventually(lambda: "500m" in alpha.try_kubectl("top", "pods", "-l", "app=grows").out, what="figures of its pod")
    eventually(lambda: "a100.zone-0.local" in alpha.try_kubectl("top", "nodes").out, what="figures of its node")
    # `kubectl top` fails while pods of other tests end, without figures.
    assert "grows" not in beta.kubectl("get", "podmetrics", "-A")
    assert "500000000n" in alpha.kubectl("get", "podmetrics", "-l", "app=grows")
    alpha.kubectl("wait", "hpa/grows", "--for=jsonpath={.status.desiredReplicas}=2", patience_option(90), timeout=100)
    alpha.kubectl("delete", "hpa/grows", "deployment/grows")


def test_metrics_are_hidden_from_other_tenants(beta: Cluster, busy: str) -> None:
    for path in ("stats/summary", "metrics/resource", "metrics/cadvisor", "metrics/probes", "pods"):
        answer = eventually(partial(answer_to, beta, path), what=path)
        assert answer is not None
        assert busy not in answer.out


def test_pods_of_one_node(alpha: Cluster, busy: str) -> None:
    names = [pod["metadata"]["name"] for pod in json.loads(alpha.kubectl("get", "--raw", f"{PROXY}/pods"))["items"]]
    assert busy in names
    other_pods = json.loads(alpha.kubectl("get", "--raw", "/api/v1/nodes/a100.zone-0.local/proxy/pods"))["items"]
    assert busy not in [pod["metadata"]["name"] for pod in other_pods]


def request_status(alpha: Cluster, path: str, token: str) -> int:
    """Call the kubelet endpoint without a certificate, as metrics-server does."""
    node = alpha.get("node", NODE)["status"]
    host = next(entry["address"] for entry in node["addresses"] if entry["type"] == "InternalIP")
    port = node["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    request = urllib.request.Request(f"https://{host}:{port}{path}", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, context=context, timeout=patience(20)) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_service_account_with_metrics_rights_reads_them(alpha: Cluster, beta: Cluster, busy: str) -> None:
    assert busy
    for cluster in (alpha, beta):
        cluster.apply(*READER)
    path = alpha.get("node", NODE)["metadata"]["annotations"]["metrics.k8s.io/resource-metrics-path"]
    token, foreign = (cluster.kubectl("create", "token", "reader").strip() for cluster in (alpha, beta))
    weak = alpha.kubectl("create", "token", "default").strip()

    eventually(lambda: request_status(alpha, path, token) == 200, what="the binding takes effect")
    assert request_status(alpha, path, weak) == 403
    assert request_status(alpha, path, foreign) == 401
    assert request_status(alpha, path.replace("alpha", "beta"), token) == 401
    assert request_status(alpha, path.replace("metrics/resource", "stats/summary"), token) == 403
    assert request_status(alpha, "/tenants/alpha/containerLogs/default/treadmill/main", token) == 403


def test_run_returns_the_output(alpha: Cluster, busy: str) -> None:
    url = f"{PROXY}/run/default/{busy}/main?cmd=echo+hello"
    assert alpha.kubectl("create", "--raw", url, "-f", "-", stdin="").strip() == "hello"


def test_idle_connections_do_not_block_logs(alpha: Cluster) -> None:
    alpha.apply(pod_manifest("heard", nodeSelector={"vkgateway.io/pool": "a100"}))
    alpha.wait_pod("heard")
    status = alpha.get("node", "a100.zone-0.local")["status"]
    address = next(address["address"] for address in status["addresses"] if address["type"] == "InternalIP")
    port = status["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    with contextlib.ExitStack() as idle:
        for _ in range(700):
            idle.enter_context(socket.create_connection((address, port), timeout=patience(20)))
        assert alpha.kubectl("logs", "heard", "--tail=1", timeout=30)
    alpha.kubectl("delete", "pod", "heard", "--wait=false")


def test_files_are_copied_in_both_directions(alpha: Cluster, busy: str, tmp_path: Path) -> None:
    sent, returned = tmp_path / "there", tmp_path / "back"
    sent.write_bytes(os.urandom(20_000_000))
    alpha.kubectl("cp", str(sent), f"default/{busy}:/tmp/file", timeout=120)
    alpha.kubectl("cp", f"default/{busy}:/tmp/file", str(returned), timeout=120)
    digests = {hashlib.sha256(file.read_bytes()).digest() for file in (sent, returned)}
    assert len(digests) == 1


@pytest.mark.usefixtures("real")
async def test_short_log_is_complete_over_websockets(alpha: Cluster) -> None:
    alpha.apply(pod_manifest("brief", command="echo all that there is; sleep 3600", **REAL))
    alpha.wait_pod("brief")
    eventually(lambda: alpha.kubectl("logs", "brief"), what="the log")
    connection = kubeconfig.load(alpha.kubeconfig).client_config(None)
    url = f"{connection.server}/api/v1/namespaces/default/pods/brief/log"

    async def read_log() -> bytes:
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(url, ssl=connection.ssl_context() or True, protocols=("binary.k8s.io",)) as socket,
        ):
            return b"".join([bytes(message.data) async for message in socket])

    assert [await read_log() for _ in range(5)] == [b"all that there is\n"] * 5
    alpha.kubectl("delete", "pod", "brief", "--wait=false")


def test_attach_with_a_terminal(alpha: Cluster, busy: str) -> None:
    assert busy
    terminal = {"stdin": True, "tty": True, "command": ["sh", "-c", "read line; echo got $line; sleep 1"]}
    alpha.apply(pod_manifest("terminal", restartPolicy="Never", container=terminal, **REAL))
    alpha.wait_pod("terminal")
    terminal_fd, kubectl_fd = pty.openpty()
    argv = (alpha.kubectl_path, "--kubeconfig", str(alpha.kubeconfig), "attach", "-it", "terminal")
    with subprocess.Popen(argv, stdin=kubectl_fd, stdout=kubectl_fd, stderr=kubectl_fd) as attached:
        os.close(kubectl_fd)
        os.write(terminal_fd, b"hello\n")
        output = b""
        try:
            while data := os.read(terminal_fd, 4096):
                output += data
        except OSError:
            pass  # the terminal's other side is closed
        assert attached.wait(patience(60)) == 0, output
    os.close(terminal_fd)
    assert b"got hello" in output
    assert alpha.pod_phase("terminal") in ("Running", "Succeeded")
    alpha.kubectl("delete", "pod", "terminal", "--wait=false")


def test_forwarded_port_closes_with_its_pod(alpha: Cluster, busy: str) -> None:
    assert busy
    serving = "mkdir -p /tmp/w; echo here > /tmp/w/index.html; httpd -f -p 8080 -h /tmp/w"
    probe = {"tcpSocket": {"port": 8080}, "periodSeconds": 1}
    alpha.apply(pod_manifest("web", command=serving, container={"readinessProbe": probe}, **REAL))
    alpha.wait_pod("web")
    argv = (alpha.kubectl_path, "--kubeconfig", str(alpha.kubeconfig), "port-forward", "pod/web", ":8080")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as forwarding:
        assert forwarding.stdout is not None
        port = forwarding.stdout.readline().split(":")[1].split(" ")[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/index.html", timeout=patience(20)) as response:
            assert response.read() == b"here\n"
        alpha.kubectl("delete", "pod", "web", "--wait")
        try:
            assert forwarding.wait(patience(60)) is not None
        finally:
            forwarding.kill()
