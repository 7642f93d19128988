"""Attacks by a tenant's admin, or by another user of the platform's machine: none of them gets in."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest

from tests.e2e.cluster import Cluster, Platform, eventually
from vkgateway.programs.supervisor import procfs

SANDBOX = "vkgateway/local/hollow/kubelet/sandbox.py"


def start_hollow(cluster: Cluster, name: str) -> None:
    """Run a pod on a hollow node."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": "a100.local"},
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "any"}],
        },
    }
    cluster.apply(pod)
    cluster.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s")


@pytest.fixture(scope="module")
def hollow(alpha: Cluster) -> Iterator[str]:
    """A pod of alpha on a hollow node."""
    start_hollow(alpha, "hollow")
    yield "hollow"
    alpha.kubectl("delete", "pod", "hollow", "--wait=false", "--ignore-not-found")


def sandboxes(platform: Platform) -> list[int]:
    """Processes of sandboxes of this platform."""
    [kubelet] = [p["pid"] for p in platform.status()["processes"] if p["name"] == "compute/hollow-kubelet"]
    found = subprocess.run(["pgrep", "-f", "-P", str(kubelet), SANDBOX], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


def test_exec_on_a_hollow_node_sees_busybox_and_nothing_else(alpha: Cluster, hollow: str) -> None:
    seen = alpha.try_kubectl("exec", hollow, "--", "sh", "-c", "ls /; ls /tmp; hostname; exit 7")
    assert seen.code == 7, str(seen)
    assert seen.out.split() == ["bin", "dev", "tmp", hollow]
    script = (
        "cat /proc/1/environ || mount -t proc proc /tmp || unshare -r id || kill -9 -1; wget -T 2 -qO- 127.0.0.1:9631"
    )
    attack = alpha.try_kubectl("exec", hollow, "--", "sh", "-c", script)
    assert attack.code != 0
    assert not attack.out


def test_input_terminals_and_both_protocols(alpha: Cluster, hollow: str) -> None:
    assert alpha.kubectl("exec", "-i", hollow, "--", "cat", stdin="through and back\n") == "through and back\n"
    resized = 'while [ "$(stty size)" = "24 80" ]; do :; done; stty size'
    command = f"{alpha.kubectl_path} --kubeconfig {alpha.kubeconfig} exec -it {hollow} -- sh -c '{resized}'"
    terminal = f"stty rows 31 cols 97; {command}"
    shown = subprocess.run(
        ["script", "-qec", terminal, "/dev/null"], capture_output=True, text=True, timeout=60, check=False
    )
    assert "31 97" in shown.stdout, shown
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
        timeout=60,
        check=False,
    )
    assert (spdy.returncode, spdy.stdout) == (4, "out\n"), spdy.stderr


@pytest.mark.parametrize("how", ["pod deleted", "client killed"])
def test_a_command_ends_with_its_pod_and_with_its_client(platform: Platform, alpha: Cluster, how: str) -> None:
    start_hollow(alpha, "short")
    argv = (alpha.kubectl_path, "--kubeconfig", str(alpha.kubeconfig), "exec", "short", "--", "sh", "-c")
    with subprocess.Popen([*argv, "sleep 1000 & sleep 1000"], stderr=subprocess.PIPE, text=True) as client:
        eventually(lambda: sandboxes(platform), what="the command runs")
        if how == "pod deleted":
            alpha.kubectl("delete", "pod", "short", "--wait=false")
            assert client.wait(30) == 1
            assert client.stderr is not None
            assert "pod short has ended" in client.stderr.read()
        else:
            client.kill()
    eventually(lambda: not sandboxes(platform), seconds=20, what="nothing is left of the command")
    alpha.kubectl("delete", "pod", "short", "--ignore-not-found")


def test_the_hollow_kubelet_knows_the_compute_api_server_only(platform: Platform, alpha: Cluster, hollow: str) -> None:
    port = platform.status()["ports"]["hollow-kubelet"]
    path = f"https://127.0.0.1:{port}/containerLogs/alpha--default/{hollow}/main"
    with pytest.raises((URLError, ConnectionError, ssl.SSLError)):
        urlopen(path, context=_trusting(), timeout=10)
    stranger = _trusting()  # another certificate of the compute cluster's own authority
    stranger.load_cert_chain(platform.data_dir / "pki/gateway.crt", platform.data_dir / "pki/gateway.key")
    with pytest.raises(URLError, match="403"):
        urlopen(path, context=stranger, timeout=10)
    exec_path = path.replace("containerLogs", "exec") + "?command=id&output=1"
    with pytest.raises(URLError, match="403"):
        urlopen(Request(exec_path, method="POST"), context=stranger, timeout=10)
    assert "hollow node" in alpha.kubectl("logs", hollow)


def test_kwok_listens_nowhere(platform: Platform) -> None:
    [kwok] = [p["pid"] for p in platform.status()["processes"] if p["name"] == "compute/kwok"]
    assert not _listening(kwok)


def test_metrics_and_state_are_for_their_readers_only(platform: Platform, alpha: Cluster, tmp_path: Path) -> None:
    ports, address = platform.status()["ports"], platform.status()["address"]
    for path in ("metrics", "arbiter/state"):
        with pytest.raises(URLError, match="404"):
            urlopen(f"http://127.0.0.1:{ports['gateway-health']}/{path}", timeout=10)
        for token in ("", _token(alpha), _token(platform.compute)):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            with pytest.raises(URLError, match=r"40[13]"):
                _read(f"https://{address}:{ports['gateway-metrics']}/{path}", headers, _trusting())
    assert urlopen(f"http://127.0.0.1:{ports['gateway-health']}/healthz", timeout=10).status == 200
    assert (platform.data_dir / "run/gateway.sock").stat().st_mode & 0o777 == 0o600


def test_prometheus_and_the_command_line_read_with_a_token(platform: Platform, alpha: Cluster, tmp_path: Path) -> None:
    compute, token = platform.compute, tmp_path / "token"
    token.write_text(_token(compute))
    secret = compute.get("secret", "-n", "vkgateway-system", "gateway-authority")
    ca = tmp_path / "ca.crt"
    ca.write_bytes(base64.b64decode(secret["data"]["ca.crt"]))
    for role in ("metrics-reader", "state-reader"):
        binding = ("clusterrolebinding", f"doors-{role}")
        compute.kubectl("create", *binding, f"--clusterrole=vkgateway-{role}", "--serviceaccount=default:default")
    url = f"https://{platform.status()['address']}:{platform.status()['ports']['gateway-metrics']}"
    headers = {"Authorization": f"Bearer {token.read_text()}"}

    def allowed() -> bool:
        """A refusal is remembered for a while."""
        with contextlib.suppress(HTTPError):
            return "vkgateway_tenants" in _read(f"{url}/metrics", headers, ssl.create_default_context(cafile=str(ca)))
        return False

    eventually(allowed, seconds=30, what="the token may read metrics")
    line = ("--gateway", url, "--gateway-ca", str(ca), "--gateway-token-file", str(token))
    eventually(lambda: platform.try_vkgateway("top", *line).code == 0, seconds=30, what="the token may read the state")
    assert "alpha" in platform.vkgateway("top")
    for role in ("metrics-reader", "state-reader"):
        compute.kubectl("delete", "clusterrolebinding", f"doors-{role}")


def test_status_asks_whether_processes_work(platform: Platform, alpha: Cluster) -> None:
    names = ["gateway", "compute/kwok", "compute/hollow-kubelet", "tenant/alpha/apiserver", "renewal"]
    names += ["node/kubelet"] if platform.real else []
    running = platform.processes()
    with _frozen(*(running[name]["pid"] for name in names)):
        answer = platform.try_vkgateway("status", "-o", "json")
    assert answer.code == 5, str(answer)
    seen = json.loads(answer.out)
    assert seen["state"] == "degraded"
    assert {process["name"] for process in seen["processes"] if process["problem"]} == set(names)
    eventually(lambda: platform.try_vkgateway("status").code == 0, what="all is well again")


def test_status_tells_of_a_frozen_supervisor(platform: Platform) -> None:
    pid = next(p.pid for p in procfs.marked(platform.data_dir.resolve()) if p.name == procfs.SUPERVISOR)
    with _frozen(pid):
        answer = platform.try_vkgateway("status", "-o", "json")
    assert answer.code == 5, str(answer)
    assert any("no supervisor answers" in problem for problem in json.loads(answer.out)["problems"])


@contextlib.contextmanager
def _frozen(*pids: int) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def _token(cluster: Cluster) -> str:
    return cluster.kubectl("create", "token", "default", "--duration=10m").strip()


def _read(url: str, headers: dict[str, str], context: ssl.SSLContext) -> str:
    with urlopen(Request(url, headers=headers), context=context, timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def _listening(pid: int) -> set[str]:
    sockets = {link.readlink().name for link in Path(f"/proc/{pid}/fd").iterdir() if "socket:" in str(link.readlink())}
    rows = [
        line.split() for file in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{file}").read_text().splitlines()
    ]
    return {row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets}


def _trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
