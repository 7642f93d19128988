"""Change of the leader: a standby gateway runs, and the leader is killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from bench import load, procfs
from bench.flows import constant_place, warm_up
from bench.light import pod_tenant
from bench.load import Place
from bench.platform import Platform
from bench.pods import PodKind
from bench.startmetrics import fetch_metrics
from bench.timeline import Key, Timeline, now
from bench.watching import watch_pods
from vkgateway.api.errors import UnavailableError
from vkgateway.settings import config
from vkgateway.settings import file as settingsfile
from vkgateway_platform.embedded import gateway_process

_STANDBY: Final = "vkgateway_leader 0.0"
_ELECTION: Final = config.LeaderElection()
"""The defaults, which are shorter than those of an embedded platform."""
_WITHIN: Final = 60.0
_POD: Final = "takeover"


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeoverFigures:
    """Seconds from the kill of the leader to the first and the last of the tenants' new compute pods.

    `standby_pss` is the memory of the standby before, in MiB.
    """

    first: float
    last: float
    standby_pss: float


async def measure_takeover(platform: Platform, places: list[Place]) -> TakeoverFigures:
    """Kill the leader while a standby runs, and create a pod in each place. Then restart the platform's gateway."""
    kind = PodKind(run=_POD)
    keys: list[Key] = [(place.name, _POD) for place in places]
    tenants, compute = Timeline(), Timeline()
    watches = [(place.client, constant_place(place.name)) for place in places]
    await platform.start_gateway(election=_ELECTION)
    await platform.wait_gateway_ready()
    async with (
        _start_standby(platform) as standby,
        watch_pods(watches, run=kind.run, timeline=tenants),
        watch_pods([(platform.compute, pod_tenant)], run=kind.run, timeline=compute),
    ):
        await warm_up(places, kind, timeline=tenants)
        memory = procfs.pss_mib(standby)
        leader = await platform.gateway_pid()
        killed = now()
        os.kill(leader, signal.SIGKILL)
        stopping = asyncio.create_task(platform.stop_gateway())  # so that the supervisor does not restart it
        await load.create_all(places, [(index, _POD) for index in range(len(places))], kind, timeline=tenants)
        await stopping
        await compute.wait_for("seen", keys)
        await tenants.wait_for("ready", keys)
        await load.delete_all(places, keys)
        await tenants.wait_for("gone", keys)
    await platform.start_gateway()
    await platform.wait_gateway_ready()
    seen = compute.times_of("seen")
    return TakeoverFigures(
        first=min(seen[key] for key in keys) - killed,
        last=max(seen[key] for key in keys) - killed,
        standby_pss=memory,
    )


@contextlib.asynccontextmanager
async def _start_standby(platform: Platform) -> AsyncIterator[int]:
    """Run a standby until the block ends, and yield its process ID."""
    folder = platform.paths.data_dir / "standby"
    file = _write_settings(platform, folder)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "vkgateway", "serve", "--config", str(file), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        await _wait_standing_by(folder / "run/gateway.sock")
        yield process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _write_settings(platform: Platform, folder: Path) -> Path:
    """Write the settings of a standby, which advertises the leader's port so that virtual nodes stay unchanged."""
    leader = gateway_process.gateway_settings(platform.paths, record=platform.record)
    standby = msgspec.structs.replace(
        leader,
        data_dir=str(folder),
        leader_election=_ELECTION,
        kubelet=config.Kubelet(port=0, advertise_port=leader.kubelet.port),
        arbiter=msgspec.structs.replace(leader.arbiter, decision_log="", usage_log=""),
        observability=msgspec.structs.replace(leader.observability, port=0, secure_port=0),
    )
    folder.mkdir(mode=0o700)
    # Without the files of the control planes, a new leader would provision them again, and restart their API servers.
    (folder / "tenants").symlink_to(platform.paths.data_dir / "tenants")
    file = folder / "gateway.yaml"
    file.touch(mode=0o600)
    file.write_text(settingsfile.render_settings(standby))
    return file


async def _wait_standing_by(socket: Path) -> None:
    deadline = now() + _WITHIN
    while now() < deadline:
        with contextlib.suppress(aiohttp.ClientError):  # it does not listen yet
            if _STANDBY in await fetch_metrics(socket):
                return
        await asyncio.sleep(0.2)
    raise UnavailableError(f"no standby gateway after {_WITHIN:.0f} s")
