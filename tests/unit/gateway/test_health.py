"""Health and metrics as their callers see them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket

import aiohttp
import pytest
from prometheus_client import REGISTRY, Gauge

from vkgateway.gateway.health import HealthServer
from vkgateway.model.errors import UnavailableError


async def test_each_path_tells_its_own() -> None:
    refreshed: list[bool] = []
    trouble = {"compute-clusters": ""}
    health = HealthServer(
        address="127.0.0.1",
        port=0,
        checks={"tenants": lambda: "", "compute-clusters": lambda: trouble["compute-clusters"]},
        refresh=lambda: refreshed.append(True),
    )
    async with health, aiohttp.ClientSession(f"http://127.0.0.1:{health.port}") as session:

        async def get(path: str) -> tuple[int, str]:
            async with session.get(path) as answer:
                return answer.status, await answer.text()

        assert await get("/healthz") == (200, "ok\n")
        assert await get("/readyz") == (200, "[+]tenants ok\n[+]compute-clusters ok\n")
        trouble["compute-clusters"] = "they are being listed"
        assert await get("/readyz") == (503, "[+]tenants ok\n[-]compute-clusters: they are being listed\n")
        status, text = await get("/metrics")
        assert status == 200
        assert "# HELP" in text
        assert refreshed == [True]
        assert (await get("/else"))[0] == 404
        async with session.post("/healthz") as answer:
            assert answer.status == 405


async def test_what_is_measured_for_a_while_is_waited_for() -> None:
    done: list[bool] = []

    async def measure() -> None:
        await asyncio.sleep(0)
        done.append(True)

    health = HealthServer(address="127.0.0.1", port=0, checks={}, refresh=measure)
    async with health, aiohttp.ClientSession() as session:
        answer = await session.get(f"http://127.0.0.1:{health.port}/metrics")
        assert (answer.status, done) == (200, [True])


async def test_two_who_ask_at_once_do_not_see_each_others_halves() -> None:
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

    health = HealthServer(address="127.0.0.1", port=0, checks={}, refresh=measure)
    async with health, aiohttp.ClientSession(f"http://127.0.0.1:{health.port}") as session:

        async def ask() -> str:
            async with session.get("/metrics") as answer:
                return await answer.text()

        try:
            for told in await asyncio.gather(ask(), ask()):
                assert 'vkgateway_test_figure{part="a"} 1.0' in told
        finally:
            REGISTRY.unregister(figure)


async def test_the_state_is_told_as_json_where_there_is_one() -> None:
    seen = [b'{"time":1.0}', b'{"time":2.0}']
    health = HealthServer(address="127.0.0.1", port=0, checks={}, state=lambda: seen.pop(0))
    async with health, aiohttp.ClientSession(f"http://127.0.0.1:{health.port}") as session:
        for time in (1.0, 2.0):
            async with session.get("/arbiter/state") as answer:
                assert (answer.status, await answer.json()) == (200, {"time": time})
        async with session.get("/arbiter") as answer:
            assert answer.status == 404
    bare = HealthServer(address="127.0.0.1", port=0, checks={})
    async with bare, aiohttp.ClientSession() as session:
        answer = await session.get(f"http://127.0.0.1:{bare.port}/arbiter/state")
        assert (answer.status, await answer.text()) == (
            404,
            "known here: /healthz, /readyz, /metrics, /arbiter/state\n",
        )


async def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UnavailableError, match=f"127.0.0.1:{port}"):
            async with HealthServer(address="127.0.0.1", port=port, checks={}):
                pass


async def test_what_is_no_request_is_refused() -> None:
    async with HealthServer(address="127.0.0.1", port=0, checks={}) as health:
        with socket.create_connection(("127.0.0.1", health.port)) as raw:
            raw.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(raw, b"nonsense\r\n\r\n")
            assert (await loop.sock_recv(raw, 100)).startswith(b"HTTP/1.1 400")
