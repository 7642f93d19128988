"""Certificates, an endpoint and its clients."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.unit.kubelet.compute import FakeCompute, answer
from vkgateway.api.errors import NotFoundError
from vkgateway.api.names import compute_namespace
from vkgateway.kube.tls import client_context
from vkgateway.nodes.identity import CN_PREFIX, server_context
from vkgateway.nodes.server import KubeletServer
from vkgateway.nodes.target import PodTarget
from vkgateway.planes.pki import Authority, KeyPair

Open = Callable[..., Awaitable["Caller"]]


@dataclass(frozen=True)
class Caller:
    """Client of the endpoint, like a tenant's API server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def request(self, method: str, target: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Send a request without a body. Return status, headers and the body if its length is known."""
        return await self.send(method, target, b"", **headers)

    async def send(self, method: str, target: str, body: bytes, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Send a request with a body. Return status, headers and body."""
        lines = [f"{method} {target} HTTP/1.1", "Host: node"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        lines += [f"Content-Length: {len(body)}"] if body else []
        self.writer.write("\r\n".join((*lines, "", "")).encode() + body)
        return await self.answer()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        response_headers = {line.split(": ")[0].lower(): line.split(": ", 1)[1] for line in head[1:] if line}
        body = await self.reader.readexactly(int(response_headers.get("content-length", "0")))
        return int(head[0].split(" ")[1]), response_headers, body


@dataclass
class Endpoint:
    """The endpoint under test, its compute API server, the authority of both, and the names of ended pods."""

    server: KubeletServer
    compute: FakeCompute
    authority: Authority
    ended: set[str]
    callers: list[Caller] = field(default_factory=list)

    def issue(self, cn: str) -> KeyPair:
        return self.authority.issue(cn, client=True)

    async def call(self, tenant: str = "alpha", *, keys: KeyPair | None = None) -> Caller:
        """Connect as a tenant, or with a given certificate."""
        keys = keys or self.issue(f"{CN_PREFIX}{tenant}")
        return await self.connect(client_context(ca=self.authority.cert_pem, cert=keys.cert_pem, key=keys.key_pem))

    async def connect(self, context: ssl.SSLContext) -> Caller:
        caller = Caller(*await asyncio.open_connection("127.0.0.1", self.server.port, ssl=context))
        self.callers.append(caller)
        return caller


async def _close(callers: list[Caller]) -> None:
    for caller in callers:
        caller.writer.transport.abort()
    for caller in callers:
        await asyncio.gather(caller.writer.wait_closed(), return_exceptions=True)


@pytest.fixture(scope="session")
def authority() -> Authority:
    return Authority.create("vkgateway")


@pytest.fixture
async def make(authority: Authority) -> AsyncIterator[Callable[..., Awaitable[Endpoint]]]:
    """Factory of endpoints with settings. No state may remain at the end."""
    before = asyncio.all_tasks()
    made: list[Endpoint] = []

    async def make(**settings: Any) -> Endpoint:
        compute = await FakeCompute(answer(404, b"")).__aenter__()
        ended: set[str] = set()

        def find_pod(tenant: str, namespace: str, pod: str) -> PodTarget:
            if pod == "held":
                raise NotFoundError('pod "held" is waiting to be admitted')
            return PodTarget(
                compute,
                compute_namespace(tenant, namespace),
                pod,
                "uid-below",
                tenant_uid="uid-above",
                is_alive=lambda: pod not in ended,
            )

        keys = authority.issue("kubelet", server=True, ips=["127.0.0.1"])
        tls = server_context(ca=authority.cert_pem, cert=keys.cert_pem, key=keys.key_pem)
        defaults: dict[str, Any] = {"address": "127.0.0.1", "port": 0, "tls": tls, "pod_locator": find_pod}
        server = KubeletServer(**(defaults | settings))
        await server.start()
        server.admit_tenant("alpha")
        made.append(Endpoint(server, compute, authority, ended))
        return made[-1]

    yield make
    for endpoint in made:
        await _close(endpoint.callers)
        await endpoint.server.close()
        assert endpoint.server.stream_limiter.total_count() == 0
        assert endpoint.server._memory_limiter.total_bytes() == 0
        assert list(endpoint.server._connections) == []
        await endpoint.compute.__aexit__(None, None, None)
    left = {task for task in asyncio.all_tasks() - before - {asyncio.current_task()} if not task.done()}
    assert not left, f"tasks left behind: {left}"


@pytest.fixture
async def endpoint(make: Callable[..., Awaitable[Endpoint]]) -> Endpoint:
    return await make()
