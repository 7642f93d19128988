"""idle: the gateway alone with up to 1,000 idle tenants, whose API servers are simulated."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from bench import procfs
from bench.failures import describe_failure
from bench.gatewayalone import SOCKET
from bench.growthtable import GROWTH_NOTE, Figure, build_columns, build_rows
from bench.idlemeter import (
    GATEWAY,
    CordonFigures,
    GatewayProcess,
    IdleFigures,
    measure_cordons,
    measure_idle,
    read_page,
)
from bench.load import for_each
from bench.outcome import Outcome
from bench.platform import POOL
from bench.residents import PODS_EACH
from bench.settings import Settings
from bench.simulatedservers import FILE, Servers
from bench.timeline import now
from vkgateway.api.errors import UnavailableError, VkgatewayError
from vkgateway.api.types import Tenant
from vkgateway.cli.progress import Progress
from vkgateway.kube.client import Client
from vkgateway.kube.resources import TENANTS
from vkgateway_platform.embedded.hollow.nodes import POOL_LABEL

TITLE: Final = "The gateway alone, with mostly idle tenants whose API servers are simulated"
SIZES: Final = (100, 250, 500, 1000)
_SHARED: Final = ("management", "compute")
_WITHIN: Final = 600.0
"""Seconds in which all tenants must be Ready."""
_SETTLE: Final = 30.0
_TENANTS_A_SECOND: Final = 60.0
"""Virtual nodes that the simulated servers update in a second, with a reserve."""
_decode_tenant = msgspec.json.Decoder(Tenant).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class AloneFigures:
    """Figures at one number of tenants. `start_cpu` and `start_seconds` describe a restart until all tenants are
    served: CPU of the gateway, and elapsed time.
    """

    tenants: int
    idle: IdleFigures
    cordons: CordonFigures
    start_cpu: float
    start_seconds: float


FIGURES: Final[tuple[Figure[AloneFigures], ...]] = (
    Figure("PSS, MiB", 0, True, lambda size: size.idle.pss[GATEWAY]),
    Figure("CPU, % of a core", 2, True, lambda size: size.idle.cpu[GATEWAY]),
    Figure("requests/s to the management and compute cluster", 2, True, lambda size: size.idle.requests_to(*_SHARED)),
    Figure("requests/s to tenants", 2, True, lambda size: size.idle.requests_to("tenant")),
    Figure("watches of tenants", 0, True, lambda size: size.idle.watches_of("tenant")),
    Figure("TCP connections", 0, True, lambda size: size.idle.connections),
    Figure("cordoned node: CPU, ms", 0, True, lambda size: size.cordons.cpu_ms),
    Figure("cordoned node: requests to tenants", 0, True, lambda size: size.cordons.requests),
    Figure("restart: CPU until all tenants are served, s", 2, True, lambda size: size.start_cpu),
    Figure("restart: time until all tenants are served, s", 1, True, lambda size: size.start_seconds),
)


async def run(settings: Settings) -> Outcome:
    """Add tenants up to each size, and measure there. A failure after the first size keeps the figures before it."""
    sizes = settings.sizes or SIZES
    found: list[AloneFigures] = []
    problem = ""
    with Progress() as report, tempfile.TemporaryDirectory(prefix="vkgateway-idle-") as folder:
        async with _start_servers(Path(folder), sizes[-1]) as servers, Client(servers.management) as management:
            for size in sizes:
                report(f"{size} tenants")
                try:
                    await _add_tenants(management, size)
                    found.append(await _measure_size(Path(folder), management, size, seconds=settings.seconds))
                except (VkgatewayError, BaseExceptionGroup) as error:
                    problem = describe_failure(error, tenants=size)
                    if not found:
                        raise UnavailableError(problem) from error
                    report.done(problem)
                    break
                report.done(f"{size} tenants: {found[-1].idle.pss[GATEWAY]:.0f} MiB")
    outcome = _build_outcome(found, seconds=settings.seconds)
    outcome.notes += [problem] if problem else []
    return outcome


@contextlib.asynccontextmanager
async def _start_servers(folder: Path, count: int) -> AsyncIterator[Servers]:
    async with _run_module("bench.simulatedservers", str(folder), str(count)):
        deadline = now() + _WITHIN
        while not (folder / FILE).exists():
            if now() > deadline:
                raise UnavailableError(f"the simulated API servers do not start within {_WITHIN:.0f} s")
            await asyncio.sleep(0.1)
        yield msgspec.json.decode((folder / FILE).read_bytes(), type=Servers)


@contextlib.asynccontextmanager
async def _start_gateway(folder: Path) -> AsyncIterator[GatewayProcess]:
    async with _run_module("bench.gatewayalone", str(folder)) as pid:
        yield GatewayProcess(pid=pid, socket=folder / SOCKET)


@contextlib.asynccontextmanager
async def _run_module(name: str, *arguments: str) -> AsyncIterator[int]:
    """Run a module of the benchmarks until the block ends, and yield its process ID.

    Cancels the block and raises UnavailableError, in a group, if the process ends before that.
    """
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", name, *arguments)
    try:
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(_fail_at_end(process, name))
            yield process.pid
            watch.cancel()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _fail_at_end(process: asyncio.subprocess.Process, name: str) -> None:
    raise UnavailableError(f"{name} ended with status {await process.wait()}")


async def _add_tenants(management: Client, size: int) -> None:
    known = len((await management.list_all(TENANTS)).items)

    async def create(number: int) -> None:
        manifest = {
            "apiVersion": TENANTS.api_version,
            "kind": TENANTS.kind,
            "metadata": {"name": f"bench-{number:04d}"},
            "spec": {"pools": [{"name": POOL}]},
        }
        await management.create(TENANTS, manifest)

    await for_each(range(known, size), create)


async def _measure_size(folder: Path, management: Client, size: int, *, seconds: float) -> AloneFigures:
    async with _start_gateway(folder) as gateway:
        await _wait_ready(management)
        await asyncio.sleep(_SETTLE)
        watches = (await read_page(gateway.socket)).watches["tenant"]
    gateway.socket.unlink()
    started = now()
    async with _start_gateway(folder) as gateway:
        await _wait_watching(gateway, watches)
        start_seconds, start_cpu = now() - started, procfs.cpu_seconds(gateway.pid)
        await asyncio.sleep(_SETTLE)
        idle = await measure_idle(gateway, {GATEWAY: [gateway.pid]}, seconds=seconds)
        cordons = await measure_cordons(
            gateway,
            management,
            selector=f"{POOL_LABEL}={POOL}",
            idle=idle,
            interval=max(4.0, size / _TENANTS_A_SECOND),
        )
    return AloneFigures(tenants=size, idle=idle, cordons=cordons, start_cpu=start_cpu, start_seconds=start_seconds)


async def _wait_ready(management: Client) -> None:
    """Wait until all tenants are Ready."""
    deadline = now() + _WITHIN
    while True:
        tenants = [_decode_tenant(bytes(item)) for item in (await management.list_all(TENANTS)).items]
        late = [tenant.metadata.name for tenant in tenants if tenant.status.phase != "Ready"]
        if not late:
            return
        if now() > deadline:
            raise UnavailableError(f"{len(late)} tenants are not Ready after {_WITHIN:.0f} s, such as {late[0]}")
        await asyncio.sleep(1.0)


async def _wait_watching(gateway: GatewayProcess, watches: float) -> None:
    """Wait until the gateway has this number of watches of tenants."""
    deadline = now() + _WITHIN
    while not gateway.socket.exists() or (await read_page(gateway.socket)).watches.get("tenant", 0.0) < watches:
        if now() > deadline:
            raise UnavailableError(f"the gateway has fewer than {watches:.0f} watches after {_WITHIN:.0f} s")
        await asyncio.sleep(0.25)


def _build_outcome(sizes: Sequence[AloneFigures], *, seconds: float) -> Outcome:
    return Outcome(
        columns=build_columns(sizes),
        rows=build_rows(FIGURES, sizes),
        notes=[
            f"Each tenant has {PODS_EACH} running pods. Simulated API servers on the same machine answer the gateway: "
            "those of tenants over TLS, with a bookmark a minute on each watch. They end no watch, so the figures "
            f"include no renewals. Nothing else happens for {seconds:.0f} s of memory, CPU and requests.",
            "cordoned node: a node of the tenants' pool becomes unusable or usable again, so all virtual nodes change.",
            "restart: from the start of the process until it watches all tenants. Simulated servers are slower than "
            "real ones and share the machine, so compare the CPU of the gateway, not the time.",
            GROWTH_NOTE,
        ],
    )
