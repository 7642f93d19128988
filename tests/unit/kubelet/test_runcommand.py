"""/run: the output of a command, read from an exec in the compute cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from tests.support.machine import patience
from tests.unit.kubelet.compute import Asked, Reader, Script, Writer, answer
from tests.unit.kubelet.conftest import Endpoint
from vkgateway.nodes import runcommand

URL = "/run/default/web/main?cmd=echo+a++b"
DONE = b'\x03{"metadata":{},"status":"Success"}'


def frame(payload: bytes, opcode: int = 0x82) -> bytes:
    head = bytes((opcode, len(payload))) if len(payload) < 126 else bytes((opcode, 126)) + len(payload).to_bytes(2)
    return head + payload


def saying(*frames: bytes, close: bytes = frame(b"\x03\xe8", 0x88)) -> Script:
    async def script(_: Asked, __: Reader, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        for one in (*frames, close):
            for byte in (one[:1], one[1:]):
                writer.write(byte)
                await writer.drain()

    return script


def failure(message: str) -> bytes:
    return b"\x03" + json.dumps({"status": "Failure", "message": message}).encode()


async def test_output_is_the_reply(endpoint: Endpoint) -> None:
    long = b"\x01" + b"x" * 500
    endpoint.compute.script = saying(frame(b"\x01out "), frame(b"\x02err"), frame(b"", 0x89), frame(long), frame(DONE))
    caller = await endpoint.call()
    status, headers, body = await caller.request("POST", URL)
    assert (status, headers["content-type"], body) == (200, "application/json", b"out " + long[1:] + b"err")
    asked = endpoint.compute.asked[0]
    assert (asked.method, asked.path) == ("GET", "/api/v1/namespaces/alpha--default/pods/web/exec")
    assert asked.query == [
        ("container", "main"),
        ("stdout", "true"),
        ("stderr", "true"),
        ("command", "echo"),
        ("command", "a"),
        ("command", ""),
        ("command", "b"),
    ]
    assert asked.headers["sec-websocket-protocol"] == "v4.channel.k8s.io"
    assert (await caller.request("GET", "/healthz"))[0] == 200
    assert endpoint.server.stream_limiter.total_count() == 0


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ([frame(b"\x01x"), frame(failure("command terminated with exit code 7"))], b"exit code 7"),
        ([frame(failure("no such thing in alpha--default"))], b"no such thing in default"),
        ([frame(failure("dial tcp 10.9.8.7:10250: refused"))], b"cannot be reached"),
        ([frame(b"\x03no json")], b"no json"),
        ([frame(b"\x01half")], b"cannot be reached"),
        ([bytes((0x82, 127)) + (2**40).to_bytes(8)], b"cannot be reached"),
    ],
)
async def test_failure_is_translated(endpoint: Endpoint, frames: list[bytes], text: bytes) -> None:
    endpoint.compute.script = saying(*frames)
    status, _, body = await (await endpoint.call()).request("POST", URL)
    assert (status, text in body) == (500, True), body


async def test_command_with_too_much_output_is_ended(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runcommand, "MAX_OUTPUT_BYTES", 1000)
    endpoint.compute.script = saying(*(frame(b"\x01" + b"x" * 400) for _ in range(4)), frame(DONE))
    status, _, body = await (await endpoint.call()).request("POST", URL)
    assert (status, b"exceeds 1000 bytes" in body) == (500, True)


async def test_output_in_memory_is_limited_per_tenant(make: Callable[..., Awaitable[Endpoint]]) -> None:
    output = frame(b"\x01" + b"x" * 599)

    async def unfinished(_: Asked, reader: Reader, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n" + output)
        await reader.read()

    endpoint = await make(memory_max=1000)
    endpoint.server.admit_tenant("beta")
    endpoint.compute.script = unfinished
    first = await endpoint.call()
    first.writer.write(f"POST {URL} HTTP/1.1\r\nHost: node\r\n\r\n".encode())
    async with asyncio.timeout(patience(10)):
        while endpoint.server._memory_limiter.total_bytes() < 600:
            await endpoint.call()
    endpoint.compute.script = saying(output, frame(DONE))
    status, _, body = await (await endpoint.call()).request("POST", URL)
    assert (status, b"in memory" in body) == (429, True)
    assert (await (await endpoint.call("beta")).request("POST", URL))[0] == 200


async def test_command_that_never_ends_times_out(make: Callable[..., Awaitable[Endpoint]]) -> None:
    async def script(_: Asked, reader: Reader, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        await reader.read()

    endpoint = await make(idle_timeout=0.1)
    endpoint.compute.script = script
    assert (await (await endpoint.call()).request("POST", URL))[0] == 500
    await endpoint.compute.ended.wait()


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", URL, 405),
        ("POST", "/run/default/web/main", 400),
        ("POST", "/run/default/web/main?cmd=+", 400),
        ("POST", "/run/default/held/main?cmd=a", 404),
        ("POST", "/run/default/web?cmd=a", 404),
        ("POST", "/run/default/web/m%20n?cmd=a", 400),
    ],
)
async def test_invalid_request_is_not_forwarded(endpoint: Endpoint, method: str, target: str, status: int) -> None:
    assert (await (await endpoint.call()).request(method, target))[0] == status
    assert endpoint.compute.asked == []


async def test_missing_container_is_not_found(endpoint: Endpoint) -> None:
    body = json.dumps({"kind": "Status", "message": 'container not found ("main")'}).encode()
    endpoint.compute.script = answer(500, body)
    assert (await (await endpoint.call()).request("POST", URL))[::2] == (404, b'container not found ("main")\n')
