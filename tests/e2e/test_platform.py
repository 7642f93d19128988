"""Embedded platform: dead processes are restarted, running ones are kept, and mistakes get one sentence."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator

import pytest

from tests.e2e.cluster import VKGATEWAY, Cluster, Platform, eventually, new_data_dir, pod_manifest
from tests.support.machine import patience, patience_option
from vkgateway.planes.supervisor import procfs

pytestmark = pytest.mark.embedded_gateway(reason="these tests are about the processes of the embedded platform")


@contextlib.contextmanager
def new_platform() -> Iterator[Platform]:
    """Yield a second data directory without a platform, and remove it with its contents."""
    platform = Platform(new_data_dir())
    try:
        yield platform
    finally:
        platform.try_vkgateway("down", "--purge", "--yes")
        shutil.rmtree(platform.data_dir, ignore_errors=True)


@pytest.fixture
def elsewhere() -> Iterator[Platform]:
    """Yield a data directory for one test."""
    with new_platform() as platform:
        yield platform


@pytest.fixture(scope="module")
def second(platform: Platform) -> Iterator[Platform]:
    """Yield a second platform next to the first, whose `up` was killed and repeated."""
    with new_platform() as second_platform:
        second_platform.kubectl_path = platform.kubectl_path
        up = subprocess.Popen(
            [*VKGATEWAY, "up", "--real-node", "no"],
            env=os.environ | {"VKGATEWAY_DATA_DIR": str(second_platform.data_dir)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        eventually((second_platform.data_dir / "platform.json").exists, what="a half-made platform")
        up.kill()
        up.wait()
        second_platform.vkgateway("up", "--real-node", "no", timeout=300)
        yield second_platform


def running_pids(platform: Platform) -> dict[str, int]:
    """Return the process IDs by name once everything runs."""

    def find() -> dict[str, int]:
        processes = platform.processes()
        is_complete = all(process["state"] == "running" for process in processes.values())
        return {name: process["pid"] for name, process in processes.items()} if is_complete else {}

    return eventually(find, what="everything running")


def is_restarted(platform: Platform, name: str, killed: int) -> bool:
    process = platform.processes()[name]
    return process["state"] == "running" and process["pid"] != killed and "SIGKILL" in process["reason"]


def test_status_shows_every_part_running(platform: Platform, alpha: Cluster) -> None:
    assert alpha
    status = platform.status()
    names = {process["name"] for process in status["processes"]}

    assert {"etcd", "compute/apiserver", "compute/controller-manager", "compute/scheduler", "gateway"} <= names
    assert {"tenant/alpha/apiserver", "tenant/alpha/controller-manager", "tenant/alpha/scheduler"} <= names
    assert {process["state"] for process in status["processes"]} == {"running"}
    assert names == set(platform.processes())
    assert "compute/apiserver" in platform.vkgateway("status")


def test_component_logs_are_shown(platform: Platform) -> None:
    assert "compute" in platform.vkgateway("logs", "gateway")
    result = platform.try_vkgateway("logs", "nothing-of-that-name")
    assert result.code == 3
    assert "nothing-of-that-name" in result.err


def test_killed_processes_are_restarted_and_pods_survive(platform: Platform, alpha: Cluster) -> None:
    alpha.apply(pod_manifest("lasting"))
    alpha.wait_pod("lasting")
    uid = alpha.get("pod", "lasting")["metadata"]["uid"]
    for name in platform.processes():
        killed = running_pids(platform)[name]
        os.kill(killed, signal.SIGKILL)
        eventually(functools.partial(is_restarted, platform, name, killed), what=f"{name} running again")
    running_pids(platform)
    eventually(lambda: alpha.try_kubectl("get", "--raw", "/readyz").code == 0, what="the tenant's API server")
    alpha.kubectl("wait", "nodes", "--all", "--for=condition=Ready", patience_option(60), timeout=70)
    assert alpha.get("pod", "lasting")["metadata"]["uid"] == uid
    alpha.apply(pod_manifest("afterwards"))
    alpha.wait_pod("afterwards")
    alpha.kubectl("delete", "pod", "lasting", "afterwards", "--wait")


def test_changes_during_a_gateway_outage_are_repaired(platform: Platform, alpha: Cluster) -> None:
    for name in ("ends", "forced", "victim"):
        alpha.apply(pod_manifest(name))
        alpha.wait_pod(name)
    gateway = running_pids(platform)["gateway"]
    os.kill(gateway, signal.SIGSTOP)
    try:
        alpha.kubectl("delete", "pod", "forced", "--force", "--grace-period=0")
        platform.compute.kubectl("delete", "pod", "victim", "-n", "alpha--default", "--wait=false")
        alpha.apply(pod_manifest("late"))
    finally:
        os.kill(gateway, signal.SIGKILL)
        os.kill(gateway, signal.SIGCONT)
    alpha.wait_pod("late")
    eventually(lambda: alpha.pod_phase("victim") == "Failed", what="the deletion below told above")
    eventually(lambda: platform.compute.find("pod", "forced", "-n", "alpha--default") is None, what="the orphan gone")
    assert alpha.pod_phase("ends") == "Running"
    alpha.kubectl("delete", "pod", "ends", "victim", "late", "--wait")


def test_repeated_up_changes_nothing(platform: Platform, alpha: Cluster) -> None:
    alpha.apply(pod_manifest("before"))
    alpha.wait_pod("before")
    pids = running_pids(platform)

    platform.vkgateway("up", timeout=120)

    new_processes = {
        name: process for name, process in platform.processes().items() if process["pid"] != pids.get(name)
    }
    assert not new_processes, f"{new_processes}\n{platform.vkgateway('logs', 'gateway', '--tail', '60')}"
    assert platform.processes().keys() == pids.keys()
    alpha.kubectl("delete", "pod", "before", "--wait")


def test_new_supervisor_adopts_running_processes(platform: Platform) -> None:
    pids = running_pids(platform)
    found = subprocess.run(
        ["pgrep", "-f", f"vkgateway.planes.supervisor.*{platform.data_dir}"],
        capture_output=True,
        text=True,
        check=True,
    )
    for pid in found.stdout.split():
        os.kill(int(pid), signal.SIGKILL)

    platform.vkgateway("up", timeout=120)

    assert {name: process["pid"] for name, process in platform.processes().items()} == pids


def test_interrupted_up_can_be_repeated(second: Platform) -> None:
    running_pids(second)
    eventually(lambda: second.status()["state"] == "up", what="everything answers")


def test_down_and_up_keep_tenants_and_pods(second: Platform, platform: Platform) -> None:
    """The second platform has its own ports and address, and keeps its state over `down`."""
    second.vkgateway("tenant", "create", "gamma", "--pool", "v100")
    gamma = second.tenant("gamma")
    gamma.apply(pod_manifest("kept"))
    gamma.wait_pod("kept")
    uid = gamma.get("pod", "kept")["metadata"]["uid"]
    servers = {
        cluster.kubectl("config", "view", "-o", "jsonpath={.clusters[0].cluster.server}")
        for cluster in (platform.compute, second.compute)
    }
    assert len(servers) == 2

    pids = set(running_pids(second).values())
    assert _keeps_hollow_packets(second)
    second.vkgateway("down")
    assert not _keeps_hollow_packets(second)
    assert _keeps_hollow_packets(platform), "each platform has routes of its own"
    # Another program may have one of their numbers by now.
    assert [left for left in procfs.list_marked(second.data_dir.resolve()) if left.pid in pids] == []
    second.vkgateway("up", timeout=300)

    # At once: `up` has waited for the tenant's API server.
    assert gamma.get("pod", "kept")["metadata"]["uid"] == uid
    gamma.kubectl("wait", "pod/kept", "--for=condition=Ready", patience_option(60), timeout=70)


def _keeps_hollow_packets(platform: Platform) -> bool:
    """Return whether a platform has its route that lets no packet for hollow pods leave the machine."""
    number = json.loads((platform.data_dir / "platform.json").read_text()).get("number", 0)
    shown = subprocess.run(["ip", "route", "show", "10.232.0.0/14"], capture_output=True, text=True, check=True)
    return f"metric {20_000 + number}" in shown.stdout


def test_down_while_up_runs_is_refused(elsewhere: Platform) -> None:
    environment = os.environ | {"VKGATEWAY_DATA_DIR": str(elsewhere.data_dir)}
    up = subprocess.Popen(
        [*VKGATEWAY, "up", "--real-node", "no"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Whoever runs the tests in the background may have interrupts ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads here
    )
    try:
        eventually((elsewhere.data_dir / "platform.json").exists, what="a half-made platform")
        up.send_signal(signal.SIGSTOP)  # or it could be done before the other command has begun

        refused = elsewhere.try_vkgateway("down")

        assert refused.code == 4, str(refused)
        assert "up" in refused.err
    finally:
        up.send_signal(signal.SIGCONT)
        up.send_signal(signal.SIGINT)
        code = up.wait(timeout=patience(60))
    assert code == 130


@pytest.mark.parametrize(("content", "word"), [("{ not json", "platform.json"), ('{"layout": 999}', "newer")])
def test_unreadable_data_directory_is_unchanged(elsewhere: Platform, content: str, word: str) -> None:
    record = elsewhere.data_dir / "platform.json"
    record.write_text(content)

    result = elsewhere.try_vkgateway("up")

    assert result.code != 0
    assert word in result.err
    assert "Traceback" not in result.err
    assert record.read_text() == content
    record.unlink()


def test_port_in_use_is_reported(elsewhere: Platform, platform: Platform) -> None:
    assert platform
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = elsewhere.try_vkgateway("up", "--real-node", "no", "--port", f"etcd={port}")

    assert result.code != 0
    assert str(port) in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    "wish",
    [
        "delete nodes",
        "create clusterroles",
        "impersonate users",
        "create tenants.vkgateway.io",
        "delete computeclusters.vkgateway.io",
        "create nodes",
        "create mutatingadmissionpolicies.admissionregistration.k8s.io",
    ],
)
def test_gateway_has_only_the_needed_rights_in_the_compute_cluster(platform: Platform, wish: str) -> None:
    result = platform.compute.try_kubectl("auth", "can-i", *wish.split(), "--as", "vkgateway")

    assert result.out.strip() == "no"
