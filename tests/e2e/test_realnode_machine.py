"""Namespaces of the real node on a real machine: interrupted at any step, repeated, and removed without traces."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.cluster import eventually
from vkgateway.planes.pki import Authority
from vkgateway_platform.embedded.realnode import (
    PROGRAMS,
    RealNode,
    RealNodeOptions,
    host,
    host_network,
    namespaces,
    probe,
)
from vkgateway_platform.embedded.realnode import node as node_module

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(why := probe.find_obstacle()), reason=f"no real node here: {why}"),
]

# High, so that no platform uses it: platforms take the lowest number that is free.
NUMBER = 254


class Cut(BaseException):
    """Simulated kill of the process."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RealNode]:
    options = RealNodeOptions(
        directory=tmp_path / "a node",
        number=NUMBER,
        programs={name: Path("/bin/false") for name in PROGRAMS},
        api_server="https://10.213.254.1:6443",
    )
    node = RealNode(options, authority=Authority.create("test"))
    yield node
    node.teardown()


def find_traces(node: RealNode) -> list[str]:
    """Return the node's traces on the machine."""
    network = node.options.network
    mounts = [place for place in namespaces.mount_points() if place.startswith(str(node.options.directory))]
    # Groups of other nodes come and go meanwhile, which a walk does not mind.
    folders = [folder for folder, _, _ in os.walk("/sys/fs/cgroup")]
    groups = [folder for folder in folders if folder.endswith(f"/{node.options.cgroup_name}")]
    routes = [line for line in host.run_command("ip", "route").splitlines() if network.host_link in line]
    tables = [
        line
        for line in host.run_command("nft", "list", "tables").splitlines()
        if line.endswith(f" {network.nft_table}")
    ]
    return [*mounts, *groups, *routes, *tables]


def interrupt_after(commands: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `commands` of the machine's tools run, then interrupt."""
    remaining = iter(range(commands))

    def run(*command: str, stdin: str = "", timeout: float = 60.0) -> str:
        if next(remaining, None) is None:
            raise Cut
        return host.run_command(*command, stdin=stdin, timeout=timeout)

    replace_run_command(run, monkeypatch)


def replace_run_command(run: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (namespaces, host_network, node_module):
        monkeypatch.setattr(module, "run_command", run)


def is_interrupted(node: RealNode, commands: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Prepare with an interruption after `commands` commands. Return False if the preparation completed before."""
    interrupt_after(commands, monkeypatch)
    try:
        node.prepare()
    except Cut:
        return True
    finally:
        replace_run_command(host.run_command, monkeypatch)
    return False


def namespaces_of(node: RealNode) -> namespaces.NodeNamespaces:
    return namespaces.NodeNamespaces(node.options.network, node.options.folders.namespaces_dir)


def run_inside(node: RealNode, script: str) -> str:
    return host.run_command(*namespaces_of(node).enter_command("sh", "-ec", script))


def program_names(node: RealNode) -> list[str]:
    """Return the names of the programs that run in the node."""
    return [Path(f"/proc/{pid}/comm").read_text().strip() for pid in namespaces_of(node).list_members()]


def test_interrupted_preparation_is_completed_by_a_second_call(node: RealNode, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = 0
    while is_interrupted(node, commands, monkeypatch):
        node.prepare()
        assert "10.213.254.2/31" in run_inside(node, "ip -brief address"), commands
        assert "tmpfs" in run_inside(node, "findmnt -n -o FSTYPE /run/containerd"), commands
        node.teardown()
        assert find_traces(node) == [], commands
        commands += 1
    assert commands > 10


def test_interrupted_preparation_can_be_removed(node: RealNode, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = 0
    while is_interrupted(node, commands, monkeypatch):
        node.teardown()
        assert find_traces(node) == [], commands
        commands += 1
    assert commands > 10


def test_removal_by_a_previous_owner_leaves_the_node(node: RealNode, tmp_path: Path) -> None:
    options = replace(node.options, directory=tmp_path / "one before")
    before = RealNode(options, authority=Authority.create("test"))
    before.prepare()
    before.teardown()
    node.prepare()
    run_inside(node, "sleep 600 </dev/null >/dev/null 2>&1 &")
    before_teardown = find_traces(node)
    before.teardown()
    assert find_traces(node) == before_teardown
    assert [trace for trace in before_teardown if node.options.network.host_link in trace]
    # The shell has forked, and its child may be about to become the program.
    eventually(lambda: program_names(node) == ["sleep"], what="the program alone")
    # Mount points that are removed would be gone inside, too.
    assert node.options.owner_key in json.loads(Path("/run/vkgateway/claims.json").read_text())["users"]


def test_machine_keeps_its_settings_and_the_node_gets_the_kubelets(node: RealNode) -> None:
    setting = Path("/proc/sys/kernel/panic")
    before = setting.read_text()
    node.prepare()
    assert setting.read_text() == before
    assert run_inside(node, f"cat {setting}") == "10\n"


def test_removal_kills_processes_and_unmounts(node: RealNode) -> None:
    node.prepare()
    run_inside(node, "mount -t tmpfs tmpfs /run/containerd; sleep 600 </dev/null >/dev/null 2>&1 &")
    assert namespaces_of(node).list_members() != set()
    node.teardown()
    assert find_traces(node) == []
    node.teardown()
