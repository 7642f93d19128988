"""page: how soon the page of 10,000 gangs and 1,000 nodes is usable in Chromium, and what it costs the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import msgspec

from bench.outcome import Cell, Outcome, Target
from bench.pagebrowser import Browser, start_browser
from bench.pageserver import TENANT
from bench.session import Session
from vkgateway.page.cookies import COOKIE, KEY_HEADER

TITLE: Final = "The page of 10,000 gangs and 1,000 nodes in Chromium"
COLUMNS: Final = ["what", "value", "unit", "relative to the baseline"]
_GANGS, _NODES = 10_000, 1_000
_TURNS: Final = 5
_CHANGED: Final = 100
"""Gangs that end, and gangs that are submitted, in a change."""
_READERS: Final = 20
_SECONDS: Final = 10
_USABLE_MS: Final = 1000.0

_VIEWS: Final = {
    "a tenant's list of gangs": (TENANT, "gangs", "tbody tr .gang-link"),
    "a tenant's timeline": (TENANT, "timeline", ".event"),
    "the operators' map of nodes": ("", "pools", ".map .node .part"),
    "the operators' queue": ("", "queue", "tbody tr .gang-link"),
    "the operators' timeline": ("", "timeline", ".event"),
}
"""Reader, address, and the element that shows that a view is drawn."""
_BASELINE: Final = ("", "pools", "#title")


@dataclass
class ServerProcess:
    """Gateway in a process of its own."""

    process: asyncio.subprocess.Process
    port: int
    sessions: dict[str, tuple[str, str]]

    async def ask(self, **command: object) -> dict[str, float]:
        """Send a command, and return the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(command) + b"\n")
        return await _read_answer(self.process)


async def run(session: Session | None) -> Outcome:
    """Measure without a platform. The session is not needed."""
    del session
    async with start_server(_GANGS, _NODES) as full, start_server(0, 0) as empty, start_browser() as browser:
        await _open_all(browser, full, empty)  # the first pages warm caches of both processes
        opened = [await _open_all(browser, full, empty) for _ in range(_TURNS)]
        usable = {name: median(each[name] for each in opened) for name in opened[0]}
        drawn, rows = await _draw_change(browser, full)
        costs = {tenant: await full.ask(costs=tenant) for tenant in ("", TENANT)}
        cpu = await _reader_cpu(full)
        version = browser.version
    return _build_outcome(usable, drawn, rows, costs, cpu, version)


@contextlib.asynccontextmanager
async def start_server(gangs: int, nodes: int) -> AsyncIterator[ServerProcess]:
    """Yield a gateway with the page."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.pageserver", str(gangs), str(nodes)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        ready: dict[str, Any] = await _read_answer(process)
        yield ServerProcess(process, ready["port"], ready["sessions"])
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _read_answer(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    answer: dict[str, Any] = msgspec.json.decode(await process.stdout.readline())
    return answer


async def _open_all(browser: Browser, full: ServerProcess, empty: ServerProcess) -> dict[str, float]:
    """Return milliseconds until each view is usable, and until the page without gangs and nodes is."""
    found: dict[str, float] = {}
    for name, (tenant, view, shows) in {"": _BASELINE, **_VIEWS}.items():
        server = full if name else empty
        async with browser.reader(server.port, server.sessions[tenant]) as reader:
            # The browser knows the files, and asks whether they are current.
            await reader.open(view, shows=shows)
            found[name] = await reader.open(view, shows=shows)
    return found


async def _draw_change(browser: Browser, server: ServerProcess) -> tuple[dict[str, float], int]:
    """Return milliseconds until a change is drawn in each view, and the number of rows that change."""
    found: dict[str, float] = {}
    rows = 0
    for name, (tenant, view, shows) in _VIEWS.items():
        async with browser.reader(server.port, server.sessions[tenant]) as reader:
            await reader.open(view, shows=shows)
            await asyncio.sleep(1)
            await reader.forget()
            rows = int(sum((await server.ask(change=_CHANGED)).values()))
            found[name] = await reader.change_drawn()
    return found, rows


async def _reader_cpu(server: ServerProcess) -> float:
    """Return milliseconds of CPU of the gateway in a second for a further reader, while changes arrive."""
    one, many = [await _changing_cpu(server, readers) for readers in (1, _READERS)]
    return 1000 * (many - one) / (_READERS - 1) / _SECONDS


async def _changing_cpu(server: ServerProcess, readers: int) -> float:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(readers):
            await stack.enter_async_context(_follow(server))
        before = await server.ask(cpu=0)
        for _ in range(_SECONDS):
            await server.ask(change=_CHANGED)
            await asyncio.sleep(1)
        after = await server.ask(cpu=0)
    return after["cpu"] - before["cpu"]


@contextlib.asynccontextmanager
async def _follow(server: ServerProcess) -> AsyncIterator[None]:
    """Follow the platform's changes within the block."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    cookie, key = server.sessions[""]
    writer.write(
        "GET /ui/api/stream HTTP/1.1\r\nHost: vkgateway.localhost\r\nAccept-Encoding: gzip\r\n"
        f"Cookie: {COOKIE}={cookie}\r\n{KEY_HEADER}: {key}\r\n\r\n".encode()
    )
    await reader.read(1)

    async def drain() -> None:
        while await reader.read(1 << 16):
            pass

    draining = asyncio.create_task(drain())
    await asyncio.sleep(0.3)
    yield
    draining.cancel()
    writer.close()


def _build_outcome(
    usable: dict[str, float],
    drawn: dict[str, float],
    rows: int,
    costs: dict[str, dict[str, float]],
    cpu: float,
    version: str,
) -> Outcome:
    baseline = usable[""]
    table: list[list[Cell]] = [["usable: the page without gangs and nodes, the baseline", round(baseline), "ms", 1.0]]
    table += [[f"usable: {name}", round(usable[name]), "ms", round(usable[name] / baseline, 2)] for name in _VIEWS]
    table += [[f"{rows:,} changed rows drawn: {name}", round(drawn[name]), "ms", None] for name in _VIEWS]
    for tenant, steps in costs.items():
        whose = "the tenant's document" if tenant else "the operators' document"
        table += [
            [f"{whose}: {what}", round(steps[step], 1), "ms of CPU", None]
            for step, what in (
                ("facts", "facts from a cycle"),
                ("document", "rows"),
                ("encode", "encoded"),
                ("compress", "compressed"),
                ("compare", "built again and compared"),
            )
        ]
        table.append([f"{whose}: size, compressed", round(steps["zipped"] / 1024), "KiB", None])
    table.append(["a further reader, while changes arrive", round(cpu, 1), "ms of CPU each second", None])
    return Outcome(
        columns=list(COLUMNS),
        rows=table,
        targets=[
            Target(what=f"usable: {name}", seen=round(usable[name]), limit=_USABLE_MS, unit="ms") for name in _VIEWS
        ],
        notes=[
            f"Chromium {version}. Usable: from the start of the navigation until a key, pressed when the first rows are"
            f" in the page, is answered on the screen. Medians of {_TURNS} turns in a warm browser and a warm gateway.",
        ],
    )
