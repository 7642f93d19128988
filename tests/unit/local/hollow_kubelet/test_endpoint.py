"""The hollow kubelet as the compute API server calls it."""

from __future__ import annotations

import asyncio
import copy
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import aiohttp
import msgspec
import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.support.machine import patience
from vkgateway.api.errors import UnavailableError
from vkgateway.kube.resources import PODS
from vkgateway.kube.tls import load_identity
from vkgateway.nodes.listener import HttpListener
from vkgateway.planes.pki import Authority
from vkgateway_platform.embedded.hollow.kubelet import endpoint
from vkgateway_platform.embedded.hollow.kubelet.command import CommandSpec
from vkgateway_platform.embedded.hollow.kubelet.endpoint import Endpoint
from vkgateway_platform.embedded.hollow.kubelet.tenant_cgroups import TenantCgroups

CALLER = "kube-apiserver-kubelet-client"
POD: dict[str, Any] = {
    "metadata": {"name": "web", "namespace": "alpha--default", "labels": {"vkgateway.io/tenant": "alpha"}},
    "spec": {"containers": [{"name": "main"}]},
}
EXEC = "/exec/alpha--default/web/main"
LOGS = "/containerLogs/alpha--default/web/main"


class FakeCommand:
    """A command that prints its arguments, echoes its input, and exits at the input's end."""

    started: ClassVar[list[FakeCommand]] = []
    refusal: ClassVar[str] = ""

    def __init__(self, wanted: CommandSpec) -> None:
        self.wanted = wanted
        self.outputs = {"stdout": asyncio.StreamReader(), "stderr": asyncio.StreamReader()}
        self.stdin = None
        self.killed = asyncio.Event()
        self.outputs["stdout"].feed_data(" ".join(wanted.argv).encode())
        self.outputs["stderr"].feed_eof()
        if wanted.argv == ("true",):
            self.outputs["stdout"].feed_eof()

    @classmethod
    async def start(cls, wanted: CommandSpec) -> FakeCommand:
        if cls.refusal:
            raise UnavailableError(cls.refusal)
        cls.started.append(cls(wanted))
        return cls.started[-1]

    async def read(self, name: str) -> bytes:
        return await self.outputs[name].read(100)

    async def wait(self) -> int:
        return 3

    async def kill(self) -> None:
        self.killed.set()


@dataclass
class World:
    """A hollow kubelet and its caller."""

    server: FakeApiServer
    authority: Authority
    port: int
    sessions: list[aiohttp.ClientSession] = field(default_factory=list)

    def caller(self, name: str = CALLER, *, authority: Authority | None = None) -> aiohttp.ClientSession:
        context = ssl.create_default_context(cadata=self.authority.cert_pem.decode())
        pair = (authority or self.authority).issue(name, client=True)
        load_identity(context, cert=pair.cert_pem, key=pair.key_pem)
        made = aiohttp.ClientSession(f"https://127.0.0.1:{self.port}", connector=aiohttp.TCPConnector(ssl=context))
        self.sessions.append(made)
        return made


def set_phase(server: FakeApiServer, phase: str) -> None:
    pod = copy.deepcopy(server.store.get(PODS, "web", "alpha--default"))
    changed = pod | {"status": {"phase": phase}}
    server.store.update(PODS, changed, name="web", namespace="alpha--default", status=True)


@asynccontextmanager
async def _cgroups() -> AsyncIterator[TenantCgroups]:
    with TemporaryDirectory() as folder:
        (Path(folder) / "cpu").mkdir()
        async with TenantCgroups(Path("/data"), root=Path(folder)) as cgroups:
            yield cgroups


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    authority = Authority.create("compute")
    pair = authority.issue("kwok", ips=("127.0.0.1",), server=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_verify_locations(cadata=authority.cert_pem.decode())
    load_identity(tls, cert=pair.cert_pem, key=pair.key_pem)
    async with FakeApiServer() as server, server.client() as client, _cgroups() as cgroups:
        server.store.create(PODS, POD)
        set_phase(server, "Running")
        listener = HttpListener(Endpoint(client, caller=CALLER, cgroups=cgroups).answer, name="hollow kubelet", tls=tls)
        async with listener:
            made = World(server, authority, await listener.listen_tcp("127.0.0.1", 0))
            try:
                yield made
            finally:
                for session in made.sessions:
                    await session.close()


@pytest.fixture(autouse=True)
def commands(monkeypatch: pytest.MonkeyPatch) -> type[FakeCommand]:
    monkeypatch.setattr(endpoint, "Command", FakeCommand)
    monkeypatch.setattr(FakeCommand, "started", [])
    monkeypatch.setattr(FakeCommand, "refusal", "")
    return FakeCommand


def connect(session: aiohttp.ClientSession, *command: str) -> Any:
    params = [("output", "1"), ("error", "1"), *(("command", word) for word in command)]
    return session.ws_connect(EXEC, params=params, protocols=("v4.channel.k8s.io",))


async def messages(socket: aiohttp.ClientWebSocketResponse) -> list[bytes]:
    return [message.data async for message in socket]


async def test_only_the_compute_api_server_is_served() -> None:
    async with world() as made:
        for path in (LOGS, EXEC, "/healthz"):
            async with made.caller("vkgateway").get(path) as answer:
                assert answer.status == 403
            with pytest.raises(aiohttp.ClientError):
                await made.caller(authority=Authority.create("tenant")).get(path)
        async with made.caller().get("/healthz") as answer:
            assert answer.status == 200


@pytest.mark.parametrize(
    ("query", "lines"),
    [("", 2), ("?tailLines=1", 1), ("?limitBytes=4", 1), ("?sinceSeconds=5", 0), ("?tailLines=0", 0)],
)
async def test_log_follows_the_query_options(query: str, lines: int) -> None:
    async with world() as made, made.caller().get(LOGS + query) as answer:
        assert len((await answer.text()).splitlines()) == lines


async def test_followed_log_ends_with_the_pod() -> None:
    async with world() as made, made.caller().get(f"{LOGS}?follow=true") as answer:
        assert b"hollow node" in await answer.content.readline()
        made.server.store.delete(PODS, "web", namespace="alpha--default")
        async with asyncio.timeout(patience(10)):
            await answer.read()


async def test_command_returns_output_and_exit_code(commands: type[FakeCommand]) -> None:
    async with world() as made, connect(made.caller(), "true") as socket:
        received = await messages(socket)
    assert received[0] == b"\x01true"
    status = msgspec.json.decode(received[1][1:])
    assert (received[1][0], status["details"]["causes"][0]["message"]) == (3, "3")
    assert commands.started[0].killed.is_set()
    assert commands.started[0].wanted.hostname == "web"
    assert commands.started[0].wanted.cgroup.endswith("/tenant-alpha/cgroup.procs")


async def test_command_is_killed_when_the_pod_ends(commands: type[FakeCommand]) -> None:
    async with world() as made, connect(made.caller(), "sleep", "1000") as socket:
        assert (await socket.receive()).data == b"\x01sleep 1000"
        made.server.store.delete(PODS, "web", namespace="alpha--default")
        async with asyncio.timeout(patience(10)):
            received = await messages(socket)
    assert b"pod web has ended" in received[0]
    assert commands.started[0].killed.is_set()


async def test_command_is_killed_when_the_client_disconnects(commands: type[FakeCommand]) -> None:
    async with world() as made:
        async with connect(made.caller(), "sleep", "1000") as socket:
            await socket.receive()
        async with asyncio.timeout(patience(10)):
            await commands.started[0].killed.wait()


async def test_concurrent_commands_per_tenant_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "COMMANDS_OF_A_TENANT", 1)
    async with world() as made, connect(made.caller(), "sleep", "1000") as socket:
        await socket.receive()
        with pytest.raises(aiohttp.WSServerHandshakeError, match="429"):
            await connect(made.caller(), "true")


@pytest.mark.parametrize(
    ("phase", "path", "status", "message"),
    [
        ("Succeeded", EXEC, 400, "does not run"),
        ("", EXEC.replace("main", "other"), 404, "container not found"),
        ("", EXEC.replace("web", "gone"), 404, "does not exist"),
        ("", EXEC.replace("exec", "portForward"), 400, "no ports"),
        ("", EXEC.replace("exec", "run"), 404, "not served"),
        ("", EXEC, 400, "at least 1 command"),
        ("", f"{EXEC}?command=id", 400, "upgrade"),
    ],
)
async def test_invalid_requests_are_refused(phase: str, path: str, status: int, message: str) -> None:
    async with world() as made:
        if phase:
            set_phase(made.server, phase)
        async with made.caller().post(path) as answer:
            assert (answer.status, message in await answer.text()) == (status, True)


async def test_machine_without_isolation_refuses_with_the_reason(commands: type[FakeCommand]) -> None:
    commands.refusal = "exec on hollow nodes cannot be isolated on this machine: no namespaces"
    async with world() as made, made.caller().post(f"{EXEC}?command=id") as answer:
        assert (answer.status, await answer.text()) == (400, f"{commands.refusal}\n")
