"""streams: delay that the gateway adds to exec, attach, port-forward and cp, and memory of many log followers."""

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

from bench.echo import Echo, ServerAccess, forward_port, measure_turns
from bench.outcome import Cell, Outcome, Target
from bench.platform import Platform
from bench.procfs import memory_mib
from bench.session import Session
from bench.timeline import now
from bench.watching import decode
from vkgateway.api.errors import UnavailableError
from vkgateway.kube.resources import PODS

TITLE: Final = "Streams into a pod on the real node, through the tenant and directly"
COLUMNS: Final = ["what", "through the tenant", "direct", "unit"]
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
"""Commands that send their input back, by subresource."""


async def run(session: Session) -> Outcome:
    """Measure one pod in each of two tenants, and delete the tenants."""
    platform = session.platform
    async with platform.temporary_tenants({name: {"name": REAL_POOL} for name in _TENANTS}) as places:
        for place in places:
            await place.client.create(PODS, _echo_pod(), namespace=place.namespace)
        for name in _TENANTS:
            await _wait_ready(platform, name)
        paths = _access_paths(platform, _TENANTS[0], kubectl=await platform.kubectl_path())
        session.report("round trips of messages")
        delays = {what: await _median_delays(paths, what) for what in (*_COMMANDS, "port-forward")}
        session.report(f"copying {_COPIED_MIB} MiB in both directions")
        rates = await _copy_rates(paths)
        session.report(f"{_FOLLOWERS} log followers")
        memory = await _follower_memory(platform)
    return _build_outcome(delays, rates, memory)


def _echo_pod() -> dict[str, object]:
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


async def _wait_ready(platform: Platform, tenant: str) -> None:
    deadline = now() + _READY_WITHIN
    while now() < deadline:
        if decode(await platform.tenants[tenant].get(PODS, _POD, namespace="default")).is_ready:
            return
        await asyncio.sleep(0.2)
    raise UnavailableError(f"the pod of tenant {tenant} is not ready after {_READY_WITHIN:.0f} s")


@dataclass(frozen=True, slots=True)
class _AccessPath:
    """Access to a pod: kubeconfig and namespace."""

    kubeconfig: Path
    namespace: str
    kubectl: Path

    def kubectl_argv(self, *words: str) -> tuple[str, ...]:
        return str(self.kubectl), "--kubeconfig", str(self.kubeconfig), "--namespace", self.namespace, *words

    @contextlib.asynccontextmanager
    async def open_echo(self, what: str) -> AsyncIterator[Echo]:
        if what == "port-forward":
            async with forward_port(*self.kubectl_argv("port-forward", f"pod/{_POD}", f":{_PORT}")) as port:
                yield port
        else:
            async with (
                ServerAccess(self.kubeconfig, self.namespace) as door,
                door.open_echo(_POD, what, _COMMANDS[what]) as stream,
            ):
                yield stream


def _access_paths(platform: Platform, tenant: str, *, kubectl: Path) -> tuple[_AccessPath, _AccessPath]:
    """Return the paths to a pod through the tenant and through the compute cluster."""
    return (
        _AccessPath(platform.admin_kubeconfig(tenant), "default", kubectl),
        _AccessPath(platform.paths.admin_kubeconfig, f"{tenant}--default", kubectl),
    )


async def _median_delays(paths: tuple[_AccessPath, _AccessPath], what: str) -> tuple[float, float]:
    """Return the median round-trip time of a message in ms for each path. The paths take turns."""
    found: tuple[list[float], list[float]] = [], []
    for _ in range(_ROUNDS):
        for way, times in zip(paths, found, strict=True):
            async with way.open_echo(what) as echo:
                times.extend(await measure_turns(echo, _TURNS))
    return 1000 * median(found[0]), 1000 * median(found[1])


async def _copy_rates(paths: tuple[_AccessPath, _AccessPath]) -> dict[str, tuple[float, float]]:
    """Return MiB per second of `kubectl cp` in both directions, the better of two runs."""
    best: dict[str, list[float]] = {"kubectl cp to the pod": [0.0, 0.0], "kubectl cp from the pod": [0.0, 0.0]}
    with tempfile.TemporaryDirectory(prefix="vkgateway-bench-") as folder:
        file = Path(folder, "there")
        await asyncio.to_thread(_fill_file, file)
        for _ in range(2):
            for at, way in enumerate(paths):
                copied = f"{_POD}:/tmp/copied"
                for what, words in {
                    "kubectl cp to the pod": (str(file), copied),
                    "kubectl cp from the pod": (copied, str(Path(folder, "back"))),
                }.items():
                    rate = _COPIED_MIB / await _time_command(*way.kubectl_argv("cp", "--container", "main", *words))
                    best[what][at] = max(best[what][at], rate)
    return {what: (rates[0], rates[1]) for what, rates in best.items()}


def _fill_file(file: Path) -> None:
    with file.open("wb") as out:
        for _ in range(_COPIED_MIB):
            out.write(os.urandom(1 << 20))


async def _time_command(*argv: str) -> float:
    started = now()
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    if process.returncode != 0:
        raise UnavailableError(f"{' '.join(argv)}: {said.decode(errors='replace').strip()}")
    return now() - started


async def _follower_memory(platform: Platform) -> tuple[float, float]:
    """Return the gateway's MiB before and with all followers, which are distributed over the tenants."""
    pid = await platform.gateway_pid()
    before = memory_mib(pid)["VmRSS"]
    async with contextlib.AsyncExitStack() as stack:
        doors = [
            await stack.enter_async_context(ServerAccess(platform.admin_kubeconfig(name), "default"))
            for name in _TENANTS
        ]
        for number in range(_FOLLOWERS):
            await stack.enter_async_context(doors[number % len(doors)].follow_log(_POD, "main"))
        await asyncio.sleep(5)
        return before, memory_mib(pid)["VmRSS"]


def _build_outcome(
    delays: Mapping[str, tuple[float, float]], rates: Mapping[str, tuple[float, float]], memory: tuple[float, float]
) -> Outcome:
    rows: list[list[Cell]] = []
    targets: list[Target] = []
    for what, (tenant, straight) in delays.items():
        rows.append([f"{what}, round trip of a message, p50", round(tenant, 2), round(straight, 2), "ms"])
        added = round(tenant - straight, 2)
        targets.append(Target(what=f"added to {what}, p50", seen=added, limit=_ADDED_MS, unit="ms"))
    for what, (tenant, straight) in rates.items():
        rows.append([f"{what}, {_COPIED_MIB} MiB", round(tenant, 1), round(straight, 1), "MiB/s"])
        part = round(tenant / straight, 2)
        targets.append(Target(what=f"{what}, share of the direct rate", seen=part, limit=_RATE, at_least=True))
    rows.append([f"memory of the gateway with {_FOLLOWERS} followers", round(memory[1], 1), None, "MiB"])
    rows.append(["memory of the gateway without", round(memory[0], 1), None, "MiB"])
    seen = round(memory[1], 1)
    target = Target(what=f"memory with {_FOLLOWERS} followers", seen=seen, limit=_FOLLOWERS_MIB, unit="MiB")
    notes = [f"Messages of 64 bytes, one by one, {_ROUNDS * _TURNS} for each path, alternating between both paths."]
    return Outcome(columns=list(COLUMNS), rows=rows, targets=[*targets, target], notes=notes)
