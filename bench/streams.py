"""streams: what the gateway adds to exec, attach, port-forward and cp, and what many followers of logs cost it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from bench.echo import Door, Echo, forwarded, turns
from bench.outcome import Cell, Outcome, Target
from bench.platform import Platform
from bench.procfs import memory_mib
from bench.session import Session
from bench.timeline import now
from bench.watching import decode
from vkgateway.kube.resources import PODS
from vkgateway.model.errors import UnavailableError

TITLE: Final = "Streams into a pod on the real node, through a tenant and straight"
COLUMNS: Final = ["what", "through the tenant", "straight", "unit"]
REAL_POOL: Final = "real"
_TENANTS: Final = ("streams-0", "streams-1")
_POD: Final = "streams"
_PORT: Final = 7777
_TURNS, _ROUNDS = 300, 3
_COPIED_MIB: Final = 1024
_FOLLOWERS: Final = 200
_ADDED_MS, _RATE, _FOLLOWERS_MIB = 2.0, 0.7, 150.0
_READY_WITHIN: Final = 120.0

_COMMANDS: Final[Mapping[str, dict[str, object]]] = {
    "exec": {"command": ["cat"], "stdin": "true", "stdout": "true", "container": "main"},
    "attach": {"stdin": "true", "stdout": "true", "container": "echo"},
}
"""What sends everything back, by the name of the subresource."""


async def run(session: Session) -> Outcome:
    """One pod in each of two tenants; they are removed again."""
    platform = session.platform
    async with platform.tenants_with({name: {"name": REAL_POOL} for name in _TENANTS}) as places:
        for place in places:
            await place.client.create(PODS, _pod(), namespace=place.namespace)
        for name in _TENANTS:
            await _until_ready(platform, name)
        ways = _ways(platform, _TENANTS[0], kubectl=await platform.kubectl())
        session.report("messages to and fro")
        delays = {what: await _delays(ways, what) for what in (*_COMMANDS, "port-forward")}
        session.report(f"copying {_COPIED_MIB} MiB to and fro")
        rates = await _rates(ways)
        session.report(f"{_FOLLOWERS} followers of logs")
        memory = await _followed(platform)
    return _tell(delays, rates, memory)


def _pod() -> dict[str, object]:
    containers: list[dict[str, object]] = [
        {"name": "main", "command": ["sh", "-c", "while true; do echo line; sleep 0.2; done"]},
        {"name": "echo", "command": ["cat"], "stdin": True},
        {"name": "port", "command": ["nc", "-ll", "-p", str(_PORT), "-e", "cat"]},
    ]
    return {
        "metadata": {"name": _POD},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{"image": "vkgateway.local/busybox:1", **container} for container in containers],
        },
    }


async def _until_ready(platform: Platform, tenant: str) -> None:
    deadline = now() + _READY_WITHIN
    while now() < deadline:
        if decode(await platform.tenants[tenant].get(PODS, _POD, namespace="default")).ready:
            return
        await asyncio.sleep(0.2)
    raise UnavailableError(f"the pod of tenant {tenant} is not ready after {_READY_WITHIN:.0f} s")


@dataclass(frozen=True, slots=True)
class _Way:
    """How the same pod is reached: with which kubeconfig, in which namespace."""

    kubeconfig: Path
    namespace: str
    kubectl: Path

    def argv(self, *words: str) -> tuple[str, ...]:
        return str(self.kubectl), "--kubeconfig", str(self.kubeconfig), "--namespace", self.namespace, *words

    @contextlib.asynccontextmanager
    async def echo(self, what: str) -> AsyncIterator[Echo]:
        if what == "port-forward":
            async with forwarded(*self.argv("port-forward", f"pod/{_POD}", f":{_PORT}")) as port:
                yield port
        else:
            async with Door(self.kubeconfig, self.namespace) as door, door.echo(_POD, what, _COMMANDS[what]) as stream:
                yield stream


def _ways(platform: Platform, tenant: str, *, kubectl: Path) -> tuple[_Way, _Way]:
    """Through the tenant, and straight."""
    return (
        _Way(platform.admin_kubeconfig(tenant), "default", kubectl),
        _Way(platform.paths.admin_kubeconfig, f"{tenant}--default", kubectl),
    )


async def _delays(ways: tuple[_Way, _Way], what: str) -> tuple[float, float]:
    """The median of a message's way there and back, in ms; the ways take turns."""
    found: tuple[list[float], list[float]] = [], []
    for _ in range(_ROUNDS):
        for way, times in zip(ways, found, strict=True):
            async with way.echo(what) as echo:
                times.extend(await turns(echo, _TURNS))
    return 1000 * median(found[0]), 1000 * median(found[1])


async def _rates(ways: tuple[_Way, _Way]) -> dict[str, tuple[float, float]]:
    """MiB a second of `kubectl cp`, there and back; the better of two."""
    best: dict[str, list[float]] = {"kubectl cp there": [0.0, 0.0], "kubectl cp back": [0.0, 0.0]}
    with tempfile.TemporaryDirectory(prefix="vkgateway-bench-") as folder:
        file = Path(folder, "there")
        await asyncio.to_thread(_fill, file)
        for _ in range(2):
            for at, way in enumerate(ways):
                copied = f"{_POD}:/tmp/copied"
                for what, words in {
                    "kubectl cp there": (str(file), copied),
                    "kubectl cp back": (copied, str(Path(folder, "back"))),
                }.items():
                    rate = _COPIED_MIB / await _timed(*way.argv("cp", "--container", "main", *words))
                    best[what][at] = max(best[what][at], rate)
    return {what: (rates[0], rates[1]) for what, rates in best.items()}


def _fill(file: Path) -> None:
    with file.open("wb") as out:
        for _ in range(_COPIED_MIB):
            out.write(os.urandom(1 << 20))


async def _timed(*argv: str) -> float:
    started = now()
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    if process.returncode != 0:
        raise UnavailableError(f"{' '.join(argv)}: {said.decode(errors='replace').strip()}")
    return now() - started


async def _followed(platform: Platform) -> tuple[float, float]:
    """MiB of the gateway before and with all followers, spread over the tenants."""
    pid = await platform.gateway_pid()
    before = memory_mib(pid)["VmRSS"]
    async with contextlib.AsyncExitStack() as stack:
        doors = [await stack.enter_async_context(Door(platform.admin_kubeconfig(name), "default")) for name in _TENANTS]
        for number in range(_FOLLOWERS):
            await stack.enter_async_context(doors[number % len(doors)].follow(_POD, "main"))
        await asyncio.sleep(5)
        return before, memory_mib(pid)["VmRSS"]


def _tell(
    delays: Mapping[str, tuple[float, float]], rates: Mapping[str, tuple[float, float]], memory: tuple[float, float]
) -> Outcome:
    rows: list[list[Cell]] = []
    targets: list[Target] = []
    for what, (tenant, straight) in delays.items():
        rows.append([f"{what}, a message there and back, p50", round(tenant, 2), round(straight, 2), "ms"])
        added = round(tenant - straight, 2)
        targets.append(Target(what=f"added to {what}, p50", seen=added, limit=_ADDED_MS, unit="ms"))
    for what, (tenant, straight) in rates.items():
        rows.append([f"{what}, {_COPIED_MIB} MiB", round(tenant, 1), round(straight, 1), "MiB/s"])
        part = round(tenant / straight, 2)
        targets.append(Target(what=f"{what}, of the straight rate", seen=part, limit=_RATE, at_least=True))
    rows.append([f"memory of the gateway with {_FOLLOWERS} followers", round(memory[1], 1), None, "MiB"])
    rows.append(["memory of the gateway without", round(memory[0], 1), None, "MiB"])
    seen = round(memory[1], 1)
    target = Target(what=f"memory with {_FOLLOWERS} followers", seen=seen, limit=_FOLLOWERS_MIB, unit="MiB")
    notes = [f"Messages of 64 bytes, one by one, {_ROUNDS * _TURNS} for each path, alternating between both paths."]
    return Outcome(columns=list(COLUMNS), rows=rows, targets=[*targets, target], notes=notes)
