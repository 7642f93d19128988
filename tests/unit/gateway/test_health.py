"""Tests of health and metrics endpoints."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client import REGISTRY, Gauge
from yarl import URL

from vkgateway.api.errors import UnavailableError
from vkgateway.serve.health import HealthServer


@contextlib.asynccontextmanager
async def asked(health: HealthServer, path: Path) -> AsyncIterator[aiohttp.ClientSession]:
    """Return a session over the Unix socket."""
    async with health, aiohttp.ClientSession("http://gateway", connector=aiohttp.UnixConnector(str(path))) as session:
        yield session


def server(path: Path | None, **given: Any) -> HealthServer:
    settings: dict[str, Any] = {"address": "127.0.0.1", "port": 0, "checks": {}, "socket": path}
    return HealthServer(**settings | given)


async def test_each_path_has_its_answer(tmp_path: Path) -> None:
    refreshed: list[bool] = []
    trouble = {"compute-clusters": ""}
    socket_path = tmp_path / "run" / "gateway.sock"
    health = server(
        socket_path,
        checks={"tenants": lambda: "", "compute-clusters": lambda: trouble["compute-clusters"]},
        refresh=lambda: refreshed.append(True),
    )
    async with asked(health, socket_path) as private, aiohttp.ClientSession() as public:
        for session, base in ((private, "http://gateway"), (public, f"http://127.0.0.1:{health.port}")):

            async def get(path: str, session: aiohttp.ClientSession = session, base: str = base) -> tuple[int, str]:
                async with session.get(base + path) as answer:
                    return answer.status, await answer.text()

            trouble["compute-clusters"] = ""
            assert await get("/healthz") == (200, "ok\n")
            assert await get("/readyz") == (200, "[+]tenants ok\n[+]compute-clusters ok\n")
            trouble["compute-clusters"] = "they are being listed"
            assert await get("/readyz") == (503, "[+]tenants ok\n[-]compute-clusters: they are being listed\n")
            assert (await get("/else"))[0] == 404
            async with session.post(f"{base}/healthz") as answer:
                assert answer.status == 405
        async with private.get("/metrics") as answer:
            assert (answer.status, "# HELP" in await answer.text()) == (200, True)
        assert refreshed == [True]


@pytest.mark.parametrize(
    "path",
    [
        "/metrics",
        "/arbiter/state",
        "/arbiter/what-if",
        "/arbiter/usage",
        "//metrics",
        "/./metrics",
        "/healthz/../metrics",
        "/%6detrics",
    ],
)
async def test_plain_http_serves_no_tenant_data(path: str) -> None:
    health = server(None, state=lambda: b"{}", what_if=lambda _: (200, b"{}"))
    async with health, aiohttp.ClientSession() as session:
        url = URL(f"http://127.0.0.1:{health.port}{path}", encoded=True)
        async with session.get(url) as answer:
            assert answer.status == 404


async def test_socket_is_private_to_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "run" / "gateway.sock"
    async with server(path):
        assert path.stat().st_mode & 0o777 == 0o600
    assert not path.exists()


async def test_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / ("long" * 30) / "gateway.sock"
    path.parent.mkdir()
    path.touch()
    async with server(path):
        assert path.is_socket()


async def test_metrics_wait_for_refresh(tmp_path: Path) -> None:
    done: list[bool] = []

    async def measure() -> None:
        await asyncio.sleep(0)
        done.append(True)

    path = tmp_path / "socket"
    async with asked(server(path, refresh=measure), path) as session, session.get("/metrics") as answer:
        assert (answer.status, done) == (200, [True])


async def test_concurrent_readers_see_complete_metrics(tmp_path: Path) -> None:
    figure = Gauge("vkgateway_test_figure", "A figure that is made anew each time.", ["part"])
    emptied = asyncio.Event()
    turns = itertools.count()

    async def measure() -> None:
        if next(turns):
            figure.clear()
            emptied.set()
            await asyncio.sleep(0.2)
        figure.labels("a").set(1)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(emptied.wait(), 0.2)

    path = tmp_path / "socket"
    async with asked(server(path, refresh=measure), path) as session:

        async def fetch_metrics() -> str:
            async with session.get("/metrics") as answer:
                return await answer.text()

        try:
            for page in await asyncio.gather(fetch_metrics(), fetch_metrics()):
                assert 'vkgateway_test_figure{part="a"} 1.0' in page
        finally:
            REGISTRY.unregister(figure)


async def test_state_is_served_as_json(tmp_path: Path) -> None:
    seen = [b'{"time":1.0}', b'{"time":2.0}']
    path = tmp_path / "socket"
    async with asked(server(path, state=lambda: seen.pop(0)), path) as session:
        for time in (1.0, 2.0):
            async with session.get("/arbiter/state") as answer:
                assert (answer.status, await answer.json()) == (200, {"time": time})
        async with session.get("/arbiter") as answer:
            assert (answer.status, await answer.text()) == (
                404,
                "not found; available: /healthz, /livez, /readyz, /metrics, /arbiter/state, /arbiter/what-if, "
                "/arbiter/usage\n",
            )
    async with asked(server(path), path) as session, session.get("/arbiter/state") as answer:
        assert answer.status == 503
        assert (await answer.text()).startswith("only the leading gateway knows")


async def test_usage_is_served_by_days_and_tenant(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    usage = lambda tenant, days: f'["{tenant}",{days}]'.encode()  # noqa: E731
    async with asked(server(path, usage=usage), path) as session:
        async with session.get("/arbiter/usage", params={"days": "7", "tenant": "alpha"}) as answer:
            assert (answer.status, await answer.json()) == (200, ["alpha", 7])
        for wrong in ({}, {"days": "x"}, {"days": "²"}):
            async with session.get("/arbiter/usage", params=wrong) as answer:
                assert await answer.json() == ["", 31]
    async with asked(server(path), path) as session, session.get("/arbiter/usage") as answer:
        assert answer.status == 503


async def test_questions_are_answered_one_at_a_time(tmp_path: Path) -> None:
    begun, go_on = threading.Semaphore(0), threading.Semaphore(0)
    thinking: list[bytes] = []

    def what_if(question: bytes) -> tuple[int, bytes]:
        thinking.append(question)
        begun.release()
        go_on.acquire()
        return 422, question

    path = tmp_path / "socket"
    async with asked(server(path, state=lambda: b"{}", what_if=what_if), path) as session:

        async def ask_what_if(question: str) -> tuple[int, str]:
            async with session.get("/arbiter/what-if", params={"question": question}) as answer:
                return answer.status, await answer.text()

        first = asyncio.create_task(ask_what_if('{"a": 1}'))
        await asyncio.to_thread(begun.acquire)
        second = asyncio.create_task(ask_what_if("b&c"))
        async with session.get("/healthz") as answer:
            assert answer.status == 200
        assert thinking == [b'{"a": 1}']
        go_on.release()
        assert await first == (422, '{"a": 1}')
        go_on.release()
        assert await second == (422, "b&c")
        async with session.post("/arbiter/what-if") as answer:
            assert answer.status == 405


async def test_occupied_port_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UnavailableError, match=f"127.0.0.1:{port}"):
            async with HealthServer(address="127.0.0.1", port=port, checks={}):
                pass


async def test_malformed_request_is_refused() -> None:
    async with HealthServer(address="127.0.0.1", port=0, checks={}) as health:
        with socket.create_connection(("127.0.0.1", health.port)) as raw:
            raw.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(raw, b"nonsense\r\n\r\n")
            assert (await loop.sock_recv(raw, 100)).startswith(b"HTTP/1.1 400")
