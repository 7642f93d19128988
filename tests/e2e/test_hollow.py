"""Pods on hollow nodes: their commands see nothing of the machine, and their kubelet accepts one caller only."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request

import pytest

from tests.e2e.cluster import Cluster, Platform, eventually
from tests.e2e.strangers import http_status, unverified_context
from tests.e2e.test_arbiter import find_condition
from tests.support.machine import patience, patience_option

SANDBOX = "vkgateway_platform/embedded/hollow/kubelet/sandbox.py"


def start_hollow(cluster: Cluster, name: str, *, annotations: dict[str, str] | None = None, wait: bool = True) -> None:
    """Run a pod on a hollow node."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {
            "restartPolicy": "Never",
            "nodeSelector": {"vkgateway.io/pool": "a100"},
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "any"}],
        },
    }
    cluster.apply(pod)
    if wait:
        cluster.kubectl("wait", "--for=condition=Ready", f"pod/{name}", patience_option(60))


@pytest.fixture(scope="module")
def hollow(alpha: Cluster) -> Iterator[str]:
    """Yield a pod of alpha on a hollow node."""
    start_hollow(alpha, "hollow")
    yield "hollow"
    alpha.kubectl("delete", "pod", "hollow", "--wait=false", "--ignore-not-found")


def sandbox_processes(platform: Platform) -> list[int]:
    """Return the sandbox processes of this platform."""
    [kubelet] = [p["pid"] for p in platform.status()["processes"] if p["name"] == "compute/hollow-kubelet"]
    found = subprocess.run(["pgrep", "-f", "-P", str(kubelet), SANDBOX], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


def test_exec_on_a_hollow_node_sees_only_busybox(alpha: Cluster, hollow: str) -> None:
    result = alpha.try_kubectl("exec", hollow, "--", "sh", "-c", "ls /; ls /tmp; hostname; exit 7")
    assert result.code == 7, str(result)
    assert result.out.split() == ["bin", "dev", "tmp", hollow]
    script = (
        "cat /proc/1/environ || mount -t proc proc /tmp || unshare -r id || kill -9 -1; wget -T 2 -qO- 127.0.0.1:9631"
    )
    attack = alpha.try_kubectl("exec", hollow, "--", "sh", "-c", script)
    assert attack.code != 0
    assert not attack.out


def test_exec_with_input_terminals_and_both_protocols(alpha: Cluster, hollow: str) -> None:
    assert alpha.kubectl("exec", "-i", hollow, "--", "cat", stdin="through and back\n") == "through and back\n"
    resized = 'while [ "$(stty size)" = "24 80" ]; do :; done; stty size'
    command = f"{alpha.kubectl_path} --kubeconfig {alpha.kubeconfig} exec -it {hollow} -- sh -c '{resized}'"
    terminal = f"stty rows 31 cols 97; {command}"
    completed = subprocess.run(
        ["script", "-qec", terminal, "/dev/null"], capture_output=True, text=True, timeout=patience(60), check=False
    )
    assert "31 97" in completed.stdout, completed
    spdy = subprocess.run(
        [
            alpha.kubectl_path,
            "--kubeconfig",
            str(alpha.kubeconfig),
            "exec",
            hollow,
            "--",
            "sh",
            "-c",
            "echo out; exit 4",
        ],
        env={"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "false"},
        capture_output=True,
        text=True,
        timeout=patience(60),
        check=False,
    )
    assert (spdy.returncode, spdy.stdout) == (4, "out\n"), spdy.stderr


@pytest.mark.parametrize("how", ["pod deleted", "client killed"])
def test_command_ends_with_its_pod_and_its_client(platform: Platform, alpha: Cluster, how: str) -> None:
    start_hollow(alpha, "short")
    argv = (alpha.kubectl_path, "--kubeconfig", str(alpha.kubeconfig), "exec", "short", "--", "sh", "-c")
    command = [*argv, "echo runs; sleep 1000 & sleep 1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "runs\n"
        assert sandbox_processes(platform)
        if how == "pod deleted":
            alpha.kubectl("delete", "pod", "short", "--wait=false")
            assert client.wait(patience(30)) == 1
            assert client.stderr is not None
            assert "pod short has ended" in client.stderr.read()
        else:
            client.kill()
    eventually(lambda: not sandbox_processes(platform), what="nothing is left of the command")
    alpha.kubectl("delete", "pod", "short", "--ignore-not-found")


def test_hollow_kubelet_accepts_only_the_compute_api_server(platform: Platform, alpha: Cluster, hollow: str) -> None:
    port = platform.status()["ports"]["hollow-kubelet"]
    path = f"https://127.0.0.1:{port}/containerLogs/alpha--default/{hollow}/main"
    assert http_status(path, unverified_context()) == 0
    stranger = unverified_context()  # another certificate of the compute cluster's own authority
    stranger.load_cert_chain(platform.data_dir / "pki/gateway.crt", platform.data_dir / "pki/gateway.key")
    assert http_status(path, stranger) == 403
    exec_path = path.replace("containerLogs", "exec") + "?command=id&output=1"
    assert http_status(Request(exec_path, method="POST"), stranger) == 403
    assert "hollow node" in alpha.kubectl("logs", hollow)


def test_kwok_opens_no_port(platform: Platform) -> None:
    [kwok] = [p["pid"] for p in platform.status()["processes"] if p["name"] == "compute/kwok"]
    assert not _listening_sockets(kwok)


def _listening_sockets(pid: int) -> set[str]:
    sockets: set[str] = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            sockets.add(link.readlink().name)
    rows = [
        line.split() for file in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{file}").read_text().splitlines()
    ]
    return {row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets}


def test_kwok_annotations_have_no_effect_for_tenants(platform: Platform, alpha: Cluster) -> None:
    forged = {"name": "forged", "annotations": {"kwok.x-k8s.io/node": "fake"}}
    alpha.apply({"apiVersion": "v1", "kind": "Node", "metadata": forged})
    alpha.kubectl("annotate", "node", "a100.zone-0.local", "kwok.x-k8s.io/node=fake")
    for number, (seconds, code) in enumerate([("abc", "x"), ("1e308", "9" * 30), ("-5", "3}} {{ 1 }}"), ("nan", "")]):
        name = f"kwok-{number}"
        annotations = {
            "kwok.x-k8s.io/node": "fake",
            "kwok.vkgateway.io/run-seconds": seconds,
            "kwok.vkgateway.io/exit-code": code,
        }
        start_hollow(alpha, name, annotations=annotations, wait=False)
    start_hollow(alpha, "kwok-after")
    assert platform.compute.find("node", "forged") is None
    assert find_condition(alpha.get("node", "forged"), "Ready").get("status") != "True"
    assert {p["problem"] for p in platform.status()["processes"] if p["name"] == "compute/kwok"} == {""}
    alpha.kubectl("delete", "node", "forged")
    alpha.kubectl("annotate", "node", "a100.zone-0.local", "kwok.x-k8s.io/node-")
    alpha.kubectl("delete", "pod", "kwok-after", *(f"kwok-{number}" for number in range(4)), "--wait=false")
