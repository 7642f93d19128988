"""The rules follow the compute cluster, and apply before a pod's containers start."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.support.machine import patience
from tests.support.waiting import wait_until
from tests.unit.background import in_background
from tests.unit.local.netpol.test_ruleset import SITE
from vkgateway.api.errors import UnavailableError
from vkgateway.api.names import SYSTEM_NAMESPACE, TENANT_LABEL
from vkgateway.kube.resources import ENDPOINT_SLICES, NAMESPACES, NETWORK_POLICIES, PODS
from vkgateway_platform.embedded.netpol import enforcer as enforcing
from vkgateway_platform.embedded.netpol import plugin
from vkgateway_platform.embedded.netpol.calls import serve_calls
from vkgateway_platform.embedded.netpol.enforcer import Enforcer
from vkgateway_platform.embedded.realnode.host import ToolError

Document = dict[str, Any]


class Kernel:
    """A kernel that accepts tables, and refuses them while `refusing`."""

    def __init__(self) -> None:
        self.tables: list[str] = []
        self.refusing = 0

    async def load(self, text: str) -> None:
        if self.refusing:
            self.refusing -= 1
            raise ToolError("`nft -f -` failed: no memory")
        self.tables.append(text)

    @property
    def table(self) -> str:
        return self.tables[-1] if self.tables else ""


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as made:
        labels = {TENANT_LABEL: "alpha"}
        made.store.create(NAMESPACES, {"metadata": {"name": "alpha--web", "labels": labels}})
        yield made


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@asynccontextmanager
async def running(server: FakeApiServer, kernel: Kernel) -> AsyncIterator[Enforcer]:
    async with server.client() as client:
        enforcer = Enforcer(client, SITE, load=kernel.load)
        async with in_background(enforcer.run()):
            await wait_until(lambda: kernel.tables)
            yield enforcer


def pod(server: FakeApiServer, name: str, address: str = "", *, node: str = SITE.node, **status: str) -> str:
    spec = {"nodeName": node, "containers": [{"name": "main", "image": "busybox"}]}
    made = server.store.create(PODS, {"metadata": {"name": name}, "spec": spec}, "alpha--web")
    updated = {**made, "status": {"phase": "Running", "podIP": address, **status}}
    server.store.update(PODS, updated, name=name, namespace="alpha--web", status=True)
    uid: str = made["metadata"]["uid"]
    return uid


def addresses(enforcer: Enforcer) -> dict[str, str]:
    return {one.address: one.namespace for one in enforcer.build_state().pods}


async def test_running_pods_are_known_from_their_status(server: FakeApiServer, kernel: Kernel) -> None:
    pod(server, "one", "10.214.7.2")
    pod(server, "ended", "10.214.7.3", phase="Succeeded")
    pod(server, "elsewhere", "10.232.0.1", node="a100-0")
    async with running(server, kernel) as enforcer:
        assert addresses(enforcer) == {"10.214.7.2": "alpha--web"}
        assert "jump egress-tenant-alpha" in kernel.table


async def test_pod_is_attached_when_its_rules_apply(server: FakeApiServer, kernel: Kernel) -> None:
    async with running(server, kernel) as enforcer:
        uid = pod(server, "one")
        await enforcer.attach(uid, ["10.214.7.2"])
        assert "10.214.7.2 : jump egress-0" in kernel.table
        kernel.refusing = 1
        other = pod(server, "two")
        attaching = asyncio.create_task(enforcer.attach(other, ["10.214.7.3"]))
        await wait_until(lambda: not kernel.refusing)
        assert not attaching.done()
        attaching.cancel()
        await asyncio.gather(attaching, return_exceptions=True)


async def test_unknown_pod_is_refused(server: FakeApiServer, kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enforcing, "_ATTACH_SECONDS", 0.05)
    async with running(server, kernel) as enforcer:
        with pytest.raises(UnavailableError, match="the rules for pod unknown are not in force"):
            await enforcer.attach("unknown", ["10.214.7.2"])
        assert addresses(enforcer) == {}


async def test_reused_address_belongs_to_the_new_pod(server: FakeApiServer, kernel: Kernel) -> None:
    async with running(server, kernel) as enforcer:
        first, second = pod(server, "first"), pod(server, "second")
        await enforcer.attach(first, ["10.214.7.2"])
        await enforcer.attach(second, ["10.214.7.2"])
        enforcer.detach(first, ["10.214.7.2"])
        assert list(addresses(enforcer)) == ["10.214.7.2"]
        enforcer.detach(second, ["10.214.7.2"])
        assert addresses(enforcer) == {}
        await enforcer.attach(first, ["10.214.7.4"])
        server.store.delete(PODS, "first", "alpha--web", grace=0)
        await wait_until(lambda: addresses(enforcer) == {})


async def test_policies_and_servers_of_tenants_change_the_rules(server: FakeApiServer, kernel: Kernel) -> None:
    pod(server, "one", "10.214.7.2")
    async with running(server, kernel):
        assert "reject" in kernel.table
        assert "10.213.7.1 . 20001" not in kernel.table
        slice_of_api = {
            "metadata": {"name": "api-alpha", "labels": {TENANT_LABEL: "alpha"}},
            "endpoints": [{"addresses": ["10.213.7.1"]}],
            "ports": [{"port": 20001, "protocol": "TCP"}],
        }
        server.store.create(ENDPOINT_SLICES, slice_of_api, SYSTEM_NAMESPACE)
        await wait_until(lambda: "10.213.7.1 . 20001" in kernel.table)
        shut = {"metadata": {"name": "shut"}, "spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}
        server.store.create(NETWORK_POLICIES, shut, "alpha--web")
        await wait_until(lambda: kernel.table.count("reject") == 3)


def call(socket: Path, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    program = plugin.plugin_script().replace(plugin.SOCKET, str(socket))
    config = {"cniVersion": "1.0.0", "name": "x", "type": plugin.NAME}
    config["prevResult"] = {"cniVersion": "1.0.0", "ips": [{"address": "10.214.7.2/24"}]}  # type: ignore[assignment]
    return subprocess.run(
        [sys.executable, "-IS", "-c", program],
        input=json.dumps(config),
        env={**os.environ, "CNI_COMMAND": command, **environment},
        capture_output=True,
        text=True,
        timeout=patience(30),
        check=False,
    )


async def test_plugin_reports_pods_and_forwards_their_addresses(
    server: FakeApiServer, kernel: Kernel, tmp_path: Path
) -> None:
    socket = tmp_path / "socket"
    async with running(server, kernel) as enforcer:
        uid = pod(server, "one")
        asked = {"CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE=alpha--web;K8S_POD_NAME=one;K8S_POD_UID={uid}"}
        async with serve_calls(enforcer, socket):
            added = await asyncio.to_thread(call, socket, "ADD", **asked)
            assert added.returncode == 0, added
            assert json.loads(added.stdout)["ips"] == [{"address": "10.214.7.2/24"}]
            assert list(addresses(enforcer)) == ["10.214.7.2"]
            assert (await asyncio.to_thread(call, socket, "CHECK", **asked)).returncode == 0
            removed = await asyncio.to_thread(call, socket, "DEL", **asked)
            assert (removed.returncode, removed.stdout) == (0, "")
            assert addresses(enforcer) == {}


def test_pods_end_but_do_not_start_without_the_enforcer(tmp_path: Path) -> None:
    asked = {"CNI_ARGS": "K8S_POD_UID=1"}
    added = call(tmp_path / "socket", "ADD", **asked)
    assert added.returncode == 1
    assert "the process that enforces NetworkPolicies does not answer" in json.loads(added.stdout)["msg"]
    assert call(tmp_path / "socket", "DEL", **asked).returncode == 0
    assert "1.0.0" in json.loads(call(tmp_path / "socket", "VERSION").stdout)["supportedVersions"]


async def test_invalid_call_is_answered(tmp_path: Path, server: FakeApiServer, kernel: Kernel) -> None:
    async with running(server, kernel) as enforcer, serve_calls(enforcer, tmp_path / "socket"):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "socket")
        writer.write(b"nonsense\n")
        assert json.loads(await reader.readline())["error"]
        writer.close()
        await writer.wait_closed()
