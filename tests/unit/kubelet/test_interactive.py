"""exec, attach and port-forward: the handshake and all bytes are forwarded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from tests.unit.kubelet.compute import Asked, Reader, Writer, answer
from tests.unit.kubelet.conftest import Caller, Endpoint
from vkgateway.nodes import interactive
from vkgateway.nodes.call import Rejected
from vkgateway.nodes.http import Request
from vkgateway.nodes.interactive import stream_params

Make = Callable[..., Awaitable[Endpoint]]
EXEC = "/exec/default/web/main?command=sh&command=-c&command=echo+%22a+b%22&input=1&output=1&tty=1"
SPDY = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1", "X_Stream_Protocol_Version": "v4.channel.k8s.io"}
WEBSOCKET = {
    "Connection": "keep-alive, Upgrade",
    "Upgrade": "websocket",
    "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec_WebSocket_Version": "13",
    "Sec_WebSocket_Protocol": "v5.channel.k8s.io",
}


async def _echo(asked: Asked, reader: Reader, writer: Writer) -> None:
    """Accept the upgrade and echo the bytes until the word `bye`."""
    protocol = asked.headers["upgrade"]
    head = f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n"
    head += "X-Stream-Protocol-Version: v4.channel.k8s.io\r\nSet-Cookie: secret\r\n\r\nearly"
    writer.write(head.encode())
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
        if data.endswith(b"bye"):
            return


@pytest.mark.parametrize(
    ("query", "passed"),
    [
        ([("input", "1"), ("output", "1")], ["stdin", "stdout"]),
        ([("output", "1"), ("error", "true")], ["stdout", "stderr"]),
        ([("error", "1"), ("output", "1"), ("tty", "1")], ["stdout", "tty"]),
        ([("output", "1"), ("stdin", "1"), ("input", "0")], ["stdout"]),
    ],
)
def test_stream_parameters_are_translated(query: list[tuple[str, str]], passed: list[str]) -> None:
    assert stream_params(Request("POST", (), tuple(query))) == [(name, "true") for name in passed]


def test_request_without_streams_is_refused() -> None:
    with pytest.raises(Rejected, match="at least 1 of stdin"):
        stream_params(Request("POST", (), (("tty", "1"),)))


@pytest.mark.parametrize("handshake", [SPDY, WEBSOCKET])
async def test_exec_is_tunnelled(endpoint: Endpoint, handshake: dict[str, str]) -> None:
    endpoint.compute.script = _echo
    caller = await endpoint.call()
    status, headers, _ = await caller.request("POST", EXEC, Authorization="Bearer stolen", **handshake)
    assert (status, headers["upgrade"]) == (101, handshake["Upgrade"])
    assert headers["x-stream-protocol-version"] == "v4.channel.k8s.io"
    assert "set-cookie" not in headers
    assert await caller.reader.readexactly(5) == b"early"
    data = bytes(range(256)) * 4096
    caller.writer.write(data)
    assert await caller.reader.readexactly(len(data)) == data
    caller.writer.write(b"bye")
    assert await caller.reader.read() == b"bye"
    asked = endpoint.compute.asked[0]
    assert (asked.method, asked.path) == ("POST", "/api/v1/namespaces/alpha--default/pods/web/exec")
    assert asked.query == [
        ("container", "main"),
        ("stdin", "true"),
        ("stdout", "true"),
        ("tty", "true"),
        ("command", "sh"),
        ("command", "-c"),
        ("command", 'echo "a b"'),
    ]
    assert asked.headers["authorization"] == "Bearer of-the-gateway"
    for name, value in handshake.items():
        if name != "Connection":
            assert asked.headers[name.replace("_", "-").lower()] == value


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/attach/default/web/main?output=1", "attach", [("container", "main"), ("stdout", "true")]),
        ("/portForward/default/web", "portforward", []),
        ("/portForward/default/web?port=80,81", "portforward", [("ports", "80,81")]),
    ],
)
async def test_attach_and_port_forward_are_tunnelled(
    endpoint: Endpoint, target: str, path: str, query: list[tuple[str, str]]
) -> None:
    endpoint.compute.script = _echo
    caller = await endpoint.call()
    assert (await caller.request("POST", target, **SPDY))[0] == 101
    asked = endpoint.compute.asked[0]
    assert asked.path == f"/api/v1/namespaces/alpha--default/pods/web/{path}"
    assert asked.query == query


@pytest.mark.parametrize(
    ("message", "status", "text"),
    [
        ('unable to upgrade connection: container not found ("main")', 404, 'container not found ("main")'),
        ("container main not found in pod web_alpha--default", 404, "container main not found in pod web_default\n"),
        ("error dialing backend: dial tcp 10.9.8.7:10250: refused", 500, "exec of pod default/web cannot be reached"),
    ],
)
async def test_refusal_is_translated(endpoint: Endpoint, message: str, status: int, text: str) -> None:
    body = json.dumps({"kind": "Status", "message": message}).encode()
    endpoint.compute.script = answer(500, body)
    caller = await endpoint.call()
    found, headers, body_text = await caller.request("POST", EXEC, **SPDY)
    assert (found, headers["connection"]) == (status, "close")
    assert body_text.decode().startswith(text)


@pytest.mark.parametrize("missing", ["command=a&", "output=1&"])
async def test_missing_parameter_is_refused(endpoint: Endpoint, missing: str) -> None:
    target = "/exec/default/web/main?command=a&output=1&".replace(missing, "")
    status, _, body = await (await endpoint.call()).request("POST", target, **SPDY)
    assert status == 400
    assert b"you must specify at least 1" in body
    assert endpoint.compute.asked == []


async def test_pod_without_compute_pod_is_explained(endpoint: Endpoint) -> None:
    target = EXEC.replace("web", "held")
    status, _, body = await (await endpoint.call()).request("POST", target, **SPDY)
    assert (status, body) == (404, b'pod "held" is waiting to be admitted\n')


async def test_disconnecting_client_ends_exec(endpoint: Endpoint) -> None:
    endpoint.compute.script = _echo
    caller = await endpoint.call()
    await caller.request("POST", EXEC, **SPDY)
    caller.writer.transport.abort()
    await endpoint.compute.ended.wait()


async def test_revocation_aborts_exec(endpoint: Endpoint) -> None:
    endpoint.compute.script = _echo
    caller = await endpoint.call()
    await caller.request("POST", EXEC, **SPDY)
    endpoint.server.revoke_tenant("alpha")
    await _end(caller)
    await endpoint.compute.ended.wait()


async def test_idle_exec_is_ended(make: Make) -> None:
    endpoint = await make(idle_timeout=0.05)
    endpoint.compute.script = _echo
    caller = await endpoint.call()
    assert (await caller.request("POST", EXEC, **SPDY))[0] == 101
    assert await caller.reader.read() == b"early"
    await endpoint.compute.ended.wait()


@pytest.mark.parametrize(
    "target", [EXEC.replace("/main", "/uid-above/main"), "/attach/default/web/uid-above/main?output=1"]
)
async def test_pod_may_be_selected_by_uid(endpoint: Endpoint, target: str) -> None:
    endpoint.compute.script = _echo
    assert (await (await endpoint.call()).request("POST", target, **SPDY))[0] == 101
    assert ("container", "main") in endpoint.compute.asked[0].query


@pytest.mark.parametrize(
    "target",
    [
        "/exec/default/web/uid-below/main?command=a&output=1",
        "/attach/default/web/x/main?output=1",
        "/portForward/default/web/x",
        "/run/default/web/x/main?cmd=a",
    ],
)
async def test_pod_with_another_uid_is_not_found(endpoint: Endpoint, target: str) -> None:
    status, _, body = await (await endpoint.call()).request("POST", target, **SPDY)
    assert (status, b"another UID" in body) == (404, True)
    assert endpoint.compute.asked == []


async def test_port_forward_over_websocket(endpoint: Endpoint) -> None:
    endpoint.compute.script = _echo
    handshake = WEBSOCKET | {"Sec_WebSocket_Protocol": "SPDY/3.1+portforward.k8s.io"}
    caller = await endpoint.call()
    assert (await caller.request("GET", "/portForward/default/web", **handshake))[0] == 101
    assert endpoint.compute.asked[0].headers["sec-websocket-protocol"] == "SPDY/3.1+portforward.k8s.io"


async def test_stream_ends_with_its_pod(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interactive, "QUIET_SECONDS", 0.05)
    endpoint.compute.script = _echo
    caller = await endpoint.call()
    await caller.request("POST", "/portForward/default/web", **SPDY)
    assert await caller.reader.readexactly(5) == b"early"
    other = await endpoint.call()
    await other.request("POST", "/portForward/default/other", **SPDY)
    endpoint.ended.add("web")
    assert await caller.reader.read() == b""
    other.writer.write(b"still there")
    assert await other.reader.readexactly(16) == b"earlystill there"


async def test_slow_reader_gets_all_output_of_command(endpoint: Endpoint) -> None:
    total, written = 32 * 1024 * 1024, 0

    async def script(asked: Asked, reader: Reader, writer: Writer) -> None:
        nonlocal written
        writer.write(b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
        while written < total:
            writer.write(bytes(65536))
            await writer.drain()
            written += 65536

    endpoint.compute.script = script
    caller = await endpoint.call()
    assert (await caller.request("POST", EXEC, **SPDY))[0] == 101
    before = -1
    while before != written:
        before = written
        await asyncio.sleep(0.2)
    assert written < total
    assert len(await caller.reader.read()) == total


async def _end(caller: Caller) -> None:
    try:
        await caller.reader.read()
    except ConnectionError:
        await asyncio.sleep(0)
