"""Tests of port forwarding through an API server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from tests.fakes.forwarding import ForwardingApiServer
from tests.support.machine import patience
from vkgateway.kube.client import Client
from vkgateway.kube.port_forward import PortForward


@pytest.fixture
async def echo() -> AsyncIterator[int]:
    """Port of a server that returns every byte until its client ends, then `bye`."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(4096):
            writer.write(piece)
            await writer.drain()
            if piece.endswith(b"."):
                break
        writer.write(b"bye")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


async def _exchange(port: int, sent: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    async with asyncio.timeout(patience(10)):
        answer = await reader.read()
    writer.close()
    return answer


async def test_bytes_pass_both_ways_on_each_connection(echo: int) -> None:
    sent = bytes(range(256)) * 1000 + b"."
    async with ForwardingApiServer(pods={"a": {9632: echo}}) as server, server.client() as client:
        forward = PortForward(client, "a", namespace="n", port=9632)
        async with forward.listen() as port:
            answers = await asyncio.gather(*(_exchange(port, sent) for _ in range(3)))
    assert answers == [sent + b"bye"] * 3
    assert server.forwarded == ["n/a:9632"] * 3
    assert forward.problem == ""


@pytest.mark.parametrize(
    ("pod", "problem"),
    [
        ("a", "the kubelet of pod a reports: failed to connect to localhost:1: connection refused"),
        ("b", "the API server refuses to forward to pod b: HTTP status 404"),
    ],
)
async def test_failure_is_reported(pod: str, problem: str) -> None:
    async with ForwardingApiServer(pods={"a": {}}) as server, server.client() as client:
        forward = PortForward(client, pod, namespace="n", port=1)
        async with forward.listen() as port:
            assert await _exchange(port, b".") == b""
    assert forward.problem == problem


async def test_unreachable_server_is_reported() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        async with Client(f"http://127.0.0.1:{taken.getsockname()[1]}") as client:
            forward = PortForward(client, "a", namespace="n", port=1)
            async with forward.listen() as port:
                assert await _exchange(port, b".") == b""
    assert forward.problem.startswith("cannot forward to pod a: ")
