"""Logs: forwarded requests, passed bytes, and the end of both sides."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from tests.support.waiting import wait_until
from tests.unit.kubelet.compute import Asked, Reader, Writer, answer
from tests.unit.kubelet.conftest import Caller, Endpoint
from vkgateway.nodes.absentpod import AbsentPod
from vkgateway.nodes.http import Request
from vkgateway.nodes.logs import log_options
from vkgateway.nodes.target import NoComputePodError, PodTarget

Make = Callable[..., Awaitable[Endpoint]]
URL = "/containerLogs/default/web/main"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\nAudit-Id: 1\r\n\r\n"


def _status(code: int, message: str) -> bytes:
    return json.dumps({"kind": "Status", "code": code, "message": message}).encode()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def _read_head(caller: Caller) -> bytes:
    return await caller.reader.readuntil(b"\r\n\r\n")


async def _ask(caller: Caller, target: str = URL) -> None:
    caller.writer.write(f"GET {target} HTTP/1.1\r\nHost: node\r\n\r\n".encode())


@pytest.mark.parametrize(
    ("query", "passed"),
    [
        ([], []),
        ([("follow", "true"), ("tailLines", "3")], [("follow", "true"), ("tailLines", "3")]),
        ([("sinceTime", "2026-01-01T00:00:00Z")], [("sinceTime", "2026-01-01T00:00:00Z")]),
        ([("container", "other"), ("insecureSkipTLSVerifyBackend", "true")], []),
        ([("tailLines", "3"), ("tail", "5")], [("tailLines", "5")]),
        ([("tailLines", "3"), ("tail", "all")], []),
    ],
)
def test_log_options_are_forwarded(query: list[tuple[str, str]], passed: list[tuple[str, str]]) -> None:
    assert log_options(Request("GET", (), tuple(query))) == passed


async def test_log_passes_unchanged_from_compute_cluster(endpoint: Endpoint) -> None:
    async def script(_: Asked, __: Reader, writer: Writer) -> None:
        writer.write(HEAD + _chunk(b"one\n") + _chunk(b"two\n") + b"0\r\n\r\n")

    endpoint.compute.script = script
    caller = await endpoint.call()
    await _ask(caller, f"{URL}?follow=true&timestamps=true&container=else")
    head = await _read_head(caller)
    assert b"transfer-encoding: chunked" in head
    assert b"content-type: text/plain" in head
    assert b"audit-id" not in head.lower()
    assert await caller.reader.read() == _chunk(b"one\n") + _chunk(b"two\n") + b"0\r\n\r\n"
    asked = endpoint.compute.asked[0]
    assert asked.path == "/api/v1/namespaces/alpha--default/pods/web/log"
    assert asked.query == [("container", "main"), ("follow", "true"), ("timestamps", "true")]
    assert asked.headers["authorization"] == "Bearer of-the-gateway"


async def test_lines_arrive_immediately(endpoint: Endpoint) -> None:
    lines: asyncio.Queue[bytes] = asyncio.Queue()

    async def script(_: Asked, __: Reader, writer: Writer) -> None:
        writer.write(HEAD)
        while line := await lines.get():
            writer.write(_chunk(line))

    endpoint.compute.script = script
    caller = await endpoint.call()
    await _ask(caller)
    await _read_head(caller)
    for number in range(3):
        line = b"line %d\n" % number
        lines.put_nowait(line)
        assert await caller.reader.readexactly(len(_chunk(line))) == _chunk(line)
    lines.put_nowait(b"")
    assert await caller.reader.read() == b""  # no last chunk: it was cut off below, and that shows


@pytest.mark.parametrize("answered", [True, False])
async def test_disconnecting_client_ends_compute_log(endpoint: Endpoint, answered: bool) -> None:
    asked = asyncio.Event()

    async def script(_: Asked, reader: Reader, writer: Writer) -> None:
        if answered:
            writer.write(HEAD)
        asked.set()
        assert await reader.read() == b""

    endpoint.compute.script = script
    caller = await endpoint.call()
    await _ask(caller)
    await asked.wait()
    if answered:
        await _read_head(caller)
    caller.writer.close()
    await endpoint.compute.ended.wait()


async def test_slow_reader_gets_whole_log(endpoint: Endpoint) -> None:
    total, written = 32 * 1024 * 1024, 0
    full = asyncio.Event()

    async def script(_: Asked, __: Reader, writer: Writer) -> None:
        nonlocal written
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {total}\r\n\r\n".encode())
        while written < total:
            writer.write(bytes(65536))
            written += 65536
            try:
                async with asyncio.timeout(0.3):
                    await writer.drain()
            except TimeoutError:
                full.set()
                await writer.drain()

    endpoint.compute.script = script
    caller = await endpoint.call()
    await _ask(caller)
    await _read_head(caller)
    await full.wait()
    assert written < total
    assert len(await caller.reader.read()) == total


@pytest.mark.parametrize(
    ("status", "message", "expected_status", "text"),
    [
        (400, 'container "main" in pod "web" is waiting to start: PodInitializing', 400, "waiting to start"),
        (404, 'pods "web" not found', 400, 'pods "web" not found'),
        (400, 'container main is not valid for pod web in "alpha--default"', 400, 'in "default"'),
        (404, 'nodes "gpu-host-7" not found', 500, "logs of pod default/web cannot be reached"),
        (400, "failed to open /var/log/pods/alpha--default_web_uid/main/0.log", 500, "cannot be reached"),
        (500, 'Get "https://10.9.8.7:10250/containerLogs": dial tcp: refused', 500, "cannot be reached"),
        (403, 'User "vkgateway" cannot get resource "pods/log"', 500, "cannot be reached"),
        (429, "slow down", 429, "too many requests"),
    ],
)
async def test_refusal_hides_machine_details(
    endpoint: Endpoint, status: int, message: str, expected_status: int, text: str
) -> None:
    endpoint.compute.script = answer(status, _status(status, message))
    caller = await endpoint.call()
    found, _, body = await caller.request("GET", URL)
    assert (found, text in body.decode()) == (expected_status, True), body
    for secret in (b"alpha--", b"gpu-host", b"10.9.8.7", b"/var/", b"vkgateway"):
        assert secret not in body
    assert (await caller.request("GET", "/healthz"))[0] == 200


async def test_a_pod_without_one_below_is_explained(endpoint: Endpoint) -> None:
    caller = await endpoint.call()
    status, _, body = await caller.request("GET", "/containerLogs/default/held/main")
    assert (status, body) == (400, b'pod "held" is waiting to be admitted\n')


async def test_unreachable_compute_cluster_hides_address(endpoint: Endpoint) -> None:
    endpoint.compute.server = "http://127.0.0.1:1"
    caller = await endpoint.call()
    status, _, body = await caller.request("GET", URL)
    assert (status, body) == (500, b"logs of pod default/web cannot be reached at the moment, try again\n")


async def test_streams_are_limited_per_tenant(make: Make) -> None:
    endpoint = await make(streams_per_tenant=1)
    endpoint.server.admit_tenant("beta")
    endpoint.compute.script = _silent
    first = await endpoint.call()
    await _ask(first)
    await _read_head(first)
    status, _, body = await (await endpoint.call()).request("GET", URL)
    assert status == 429
    assert b"1 logs, exec, attach and port-forward streams are open already" in body
    other = await endpoint.call("beta")
    await _ask(other)
    assert (await _read_head(other)).startswith(b"HTTP/1.1 200")
    first.writer.close()
    await endpoint.compute.ended.wait()
    await wait_until(lambda: endpoint.server.stream_limiter.total_count() == 1)
    again = await endpoint.call()
    await _ask(again)
    assert (await _read_head(again)).startswith(b"HTTP/1.1 200")


async def _silent(_: Asked, reader: Reader, writer: Writer) -> None:
    writer.write(HEAD)
    await reader.read()


def _nothing_below(_tenant: str, _namespace: str, pod: str) -> PodTarget:
    ended = {"name": "main", "state": {"terminated": {"finishedAt": "2026-01-02T03:04:05Z", "message": "step 42"}}}
    evicted = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByVkgateway", "message": "m"}
    status = {"phase": "Failed", "containerStatuses": [ended], "conditions": [evicted]} if pod == "evicted" else {}
    raise NoComputePodError(AbsentPod(f"default/{pod}", status))


async def test_log_of_evicted_pod_explains_eviction(make: Make) -> None:
    caller = await (await make(pod_locator=_nothing_below)).call()
    status, _, body = await caller.request("GET", "/containerLogs/default/evicted/main?follow=true")
    assert (status, body.decode().splitlines()[-1]) == (200, "step 42")
    assert b"ran and was evicted at 2026-01-02T03:04:05Z" in body
    status, _, body = await caller.request("GET", "/containerLogs/default/evicted/main?previous=true")
    assert (status, body) == (400, b'previous terminated container "main" in pod "default/evicted" not found\n')


async def test_log_of_waiting_pod_explains_reason(make: Make) -> None:
    caller = await (await make(pod_locator=_nothing_below)).call()
    status, _, body = await caller.request("GET", "/containerLogs/default/waiting/main")
    assert (status, body) == (400, b"container main of pod default/waiting has not been started yet\n")


@pytest.mark.parametrize("what", ["exec", "attach", "portForward", "run"])
async def test_stream_to_evicted_pod_is_refused_with_reason(make: Make, what: str) -> None:
    caller = await (await make(pod_locator=_nothing_below)).call()
    target = f"/{what}/default/evicted" + ("" if what == "portForward" else "/main?command=true&cmd=true&output=1")
    upgrade = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1"}
    status, _, body = await caller.request("POST", target, **upgrade)
    assert (status, body.decode()) == (
        404,
        "pod default/evicted ran and was evicted at 2026-01-02T03:04:05Z (PreemptionByVkgateway: m)\n",
    )
