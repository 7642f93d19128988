"""Tests of the proxies of tenants' API servers, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import structlog

from vkgateway.planes.drivers.base import ServerEndpoint
from vkgateway.planes.drivers.process import egress
from vkgateway.planes.drivers.process.egress import ApiServerEgress, socket_name, webhook_socket_name
from vkgateway.planes.webhook_ranges import parse_webhook_range


@contextlib.asynccontextmanager
async def echo(address: str = "127.0.0.1") -> AsyncIterator[int]:
    """Yield the port of a server that sends back what it receives."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, address, 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()


class Caller:
    """An API server that connects through its proxy; `data_dir` is its working directory."""

    def __init__(self, data_dir: Path, tenant: str = "alpha", *, by_url: bool = False) -> None:
        self._path = os.path.relpath(data_dir / (webhook_socket_name if by_url else socket_name)(tenant))
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self, target: str) -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the status line and the connection."""
        return await self.send(f"CONNECT {target} HTTP/1.1\r\nHost: localhost\r\n\r\n")

    async def send(self, request: str) -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_unix_connection(self._path)
        self.writers.append(writer)
        writer.write(request.encode())
        status = await reader.readline()
        while await reader.readline() != b"\r\n":
            continue
        return status.strip(), reader, writer


@contextlib.asynccontextmanager
async def proxied(
    data_dir: Path, gateway: ServerEndpoint, *, by_url: bool = False, ranges: Sequence[str] = ()
) -> AsyncIterator[tuple[ApiServerEgress, Caller]]:
    """Yield the proxies and a caller at the socket for Services, nodes and pods, or for webhooks by URL."""
    proxies = ApiServerEgress(data_dir, gateway=gateway, webhook_ranges=[parse_webhook_range(text) for text in ranges])
    await proxies.listen("alpha")
    caller = Caller(data_dir, by_url=by_url)
    try:
        yield proxies, caller
    finally:
        for writer in caller.writers:
            writer.close()
            await writer.wait_closed()
        proxies.close()


async def test_data_passes_in_both_directions(tmp_path: Path) -> None:
    async with echo() as port, proxied(tmp_path, ServerEndpoint("127.0.0.1", port)) as (_, caller):
        status, reader, writer = await caller.connect(f"127.0.0.1:{port}")
        assert status == b"HTTP/1.1 200 OK"
        sent = os.urandom(3_000_000)
        writer.write(sent)
        writer.write_eof()
        assert await reader.read() == sent


async def test_only_pods_of_the_tenant_and_the_gateway_are_reached(tmp_path: Path) -> None:
    async with (
        echo() as other,
        echo("127.0.0.2") as pod,
        proxied(tmp_path, ServerEndpoint("127.0.0.1", 1)) as (proxies, caller),
    ):
        proxies.owns_address = lambda tenant, address: (tenant, address) == ("alpha", "127.0.0.2")
        targets = (f"127.0.0.1:{other}", f"localhost:{other}", "169.254.169.254:80", "[::1]:443", f"127.0.0.2:{pod}")
        found = []
        for target in targets:
            status, *_ = await caller.connect(target)
            found.append(status.split(b" ", 2)[1])
        assert found == [b"403", b"403", b"403", b"403", b"200"]


async def test_refusals_do_not_fill_the_log(tmp_path: Path) -> None:
    async with proxied(tmp_path, ServerEndpoint("127.0.0.1", 1)) as (_, caller):
        with structlog.testing.capture_logs() as lines:
            for number in range(5):
                await caller.connect(f"10.0.0.{number}:443")
    assert len(lines) == 1
    assert (lines[0]["tenant"], "10.0.0.0:443" in lines[0]["why"]) == ("alpha", True)


async def test_port_of_the_gateway_that_does_not_answer(tmp_path: Path) -> None:
    async with proxied(tmp_path, ServerEndpoint("127.0.0.1", 0)) as (_, caller):
        async with echo() as port:
            pass
        status, reader, _ = await caller.connect(f"127.0.0.1:{port}")
        assert status == b"HTTP/1.1 502 Bad Gateway: does not answer: connection refused"
        assert await reader.read() == b""


@pytest.mark.parametrize("request_line", ["GET / HTTP/1.1", "CONNECT 10.0.0.1 HTTP/1.1", "CONNECT :80 HTTP/1.1"])
async def test_other_requests_are_refused(tmp_path: Path, request_line: str) -> None:
    async with proxied(tmp_path, ServerEndpoint("127.0.0.1", 1)) as (_, caller):
        status, *_ = await caller.send(f"{request_line}\r\n\r\n")
        assert status.startswith(b"HTTP/1.1 400 Bad Request: ")


async def test_connections_of_one_api_server_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress, "MOST_CONNECTIONS", 2)
    async with echo() as port, proxied(tmp_path, ServerEndpoint("127.0.0.1", port)) as (_, caller):
        opened = [await caller.connect(f"127.0.0.1:{port}") for _ in range(3)]
        assert [status.split(b" ", 2)[1] for status, *_ in opened] == [b"200", b"200", b"503"]


async def test_many_connections_of_all_leave_each_tenant_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(egress, "MOST_OF_ALL", 8)
    async with echo() as port, proxied(tmp_path, ServerEndpoint("127.0.0.1", port)) as (proxies, greedy):
        await proxies.listen("beta")
        opened = [await greedy.connect(f"127.0.0.1:{port}") for _ in range(6)]
        assert [status.split(b" ", 2)[1] for status, *_ in opened] == [*[b"200"] * 4, b"503", b"503"]
        other = Caller(tmp_path, "beta")
        status, _, writer = await other.connect(f"127.0.0.1:{port}")
        assert status == b"HTTP/1.1 200 OK"
        writer.close()


async def test_slow_lookups_of_a_tenant_delay_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()

    def look_up(name: str, *_: object) -> list[tuple[object, ...]]:
        if name.startswith("slow"):
            answer.wait(30)
        return [(0, 0, 0, "", ("127.0.0.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    async with echo() as port, proxied(tmp_path, ServerEndpoint("127.0.0.1", port)) as (proxies, caller):
        await proxies.listen("beta")
        waiting = [asyncio.create_task(caller.connect(f"slow{number}:{port}")) for number in range(20)]
        other = Caller(tmp_path, "beta")
        status, _, writer = await other.connect(f"fast:{port}")
        assert status == b"HTTP/1.1 200 OK"
        assert not any(each.done() for each in waiting)
        answer.set()
        assert {(await each)[0] for each in waiting} == {b"HTTP/1.1 200 OK"}
        writer.close()


async def test_a_new_gateway_takes_over_the_socket_and_a_long_path_is_no_obstacle(tmp_path: Path) -> None:
    folder = tmp_path / ("long-" * 30)
    async with echo() as port:
        for _ in range(2):
            async with proxied(folder, ServerEndpoint("127.0.0.1", port)) as (proxies, _):
                await proxies.listen("alpha")
                assert (folder / socket_name("alpha")).is_socket()
        await proxies.stop("alpha")
        assert not (folder / socket_name("alpha")).exists()


NOWHERE = ServerEndpoint("192.0.2.1", 1)
"""An address of the gateway that no test calls."""


async def reached(caller: Caller, *targets: str) -> list[str]:
    """Return the codes of the answers."""
    return [(await caller.connect(target))[0].split(b" ", 2)[1].decode() for target in targets]


async def test_webhook_by_url_at_the_gateway_is_reached_by_address_and_by_name(tmp_path: Path) -> None:
    async with echo() as port, echo() as other:
        for address in ("127.0.0.1", "localhost"):
            gateway = ServerEndpoint(address, port)
            async with proxied(tmp_path, gateway, by_url=True) as (_, caller):
                assert await reached(caller, f"{address}:{port}", f"{address}:{other}") == ["200", "403"]


async def test_gateway_without_a_fixed_port_is_no_webhook(tmp_path: Path) -> None:
    async with echo() as port, proxied(tmp_path, ServerEndpoint("127.0.0.1", 0), by_url=True) as (_, caller):
        assert await reached(caller, f"127.0.0.1:{port}") == ["403"]


async def test_next_address_of_a_name_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(0, 0, 0, "", (address, 0)) for address in ("127.0.0.6", "127.0.0.7")]
    async with (
        echo("127.0.0.7") as port,
        proxied(tmp_path, NOWHERE, by_url=True, ranges=["127.0.0.6/32", "127.0.0.7/32"]) as (_, caller),
    ):
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)
        assert await reached(caller, f"twice.example.org:{port}") == ["200"]


async def test_range_opens_webhooks_by_url_and_no_other_connection(tmp_path: Path) -> None:
    async with (
        echo("127.0.0.3") as port,
        proxied(tmp_path, NOWHERE, by_url=True, ranges=["127.0.0.3/32"]) as (_, webhooks),
    ):
        services = Caller(tmp_path)
        assert await reached(webhooks, f"127.0.0.3:{port}", f"[::ffff:127.0.0.3]:{port}") == ["200", "200"]
        assert await reached(webhooks, f"127.0.0.1:{port}", "10.0.0.1:443", "169.254.169.254:80") == ["403"] * 3
        status, _, writer = await services.connect(f"127.0.0.3:{port}")
        assert status.startswith(b"HTTP/1.1 403 ")
        assert b"webhookRanges" not in status
        writer.close()


async def test_refusal_of_a_webhook_names_the_setting_and_hides_what_the_name_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [(0, 0, 0, "", ("10.1.2.3", 0))])
    async with proxied(tmp_path, NOWHERE, by_url=True) as (_, caller):
        with structlog.testing.capture_logs() as lines:
            status, *_ = await caller.connect("intern.example.org:443")
    assert b"controlPlanes.webhookRanges" in status
    assert b"10.1.2.3" not in status
    assert lines[0]["why"].startswith("intern.example.org:443 is neither")


async def test_pod_of_another_tenant_is_refused_in_an_open_range(tmp_path: Path) -> None:
    async with (
        echo("127.0.0.4") as port,
        proxied(tmp_path, NOWHERE, by_url=True, ranges=["127.0.0.4/32"]) as (proxies, caller),
    ):
        proxies.is_of_other_tenant = lambda tenant, address: (tenant, address) == ("alpha", "127.0.0.4")
        assert await reached(caller, f"127.0.0.4:{port}") == ["403"]
        proxies.owns_address = lambda tenant, address: (tenant, address) == ("alpha", "127.0.0.4")
        assert await reached(caller, f"127.0.0.4:{port}") == ["200"]


async def test_a_name_is_resolved_once_and_the_checked_address_is_dialled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter((["10.9.9.9", "127.0.0.5"], ["127.0.0.1"]))

    def look_up(*_: object) -> list[tuple[object, ...]]:
        return [(0, 0, 0, "", (address, 0)) for address in next(answers)]

    async with (
        echo("127.0.0.5") as port,
        proxied(tmp_path, NOWHERE, by_url=True, ranges=["127.0.0.5/32"]) as (_, caller),
    ):
        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        assert await reached(caller, f"rebinds.example.org:{port}") == ["200"]
        assert await reached(caller, f"rebinds.example.org:{port}") == ["403"]
