"""Two gateway processes on one platform, to stop the one that leads."""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from bench.platform import Platform
from bench.timeline import now
from vkgateway.api.errors import UnavailableError
from vkgateway.settings import config
from vkgateway.settings import file as settingsfile
from vkgateway_platform.embedded import gateway_process

_READY_WITHIN: Final = 60.0


class Replica:
    """One gateway process with a data directory of its own. The tenants' files are those of the platform."""

    def __init__(self, folder: Path, settings: config.Config) -> None:
        self.folder = folder
        self.settings = settings
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the process, and return when its role is known."""
        file = self.folder / "gateway.yaml"
        file.write_text(settingsfile.render_settings(self.settings))
        with (self.folder / "gateway.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "vkgateway",
                "serve",
                "--config",
                str(file),
                stdout=log,
                stderr=log,
            )
        await self.wait_for("leadership ok: ")

    async def wait_for(self, line: str) -> None:
        """Wait until a line of /readyz starts with `[+]` and this text, and no check fails."""
        deadline = now() + _READY_WITHIN
        while (answer := await self._readyz()) is None or f"[+]{line}" not in answer or "[-]" in answer:
            if now() > deadline or (self.process is not None and self.process.returncode is not None):
                raise UnavailableError(f"the gateway in {self.folder} is not ready: {answer}")
            await asyncio.sleep(0.05)

    def send_signal(self, number: int) -> None:
        """Send a signal to the process."""
        assert self.process is not None
        self.process.send_signal(number)

    async def wait_ended(self) -> int:
        """Wait until the process has ended, and return its exit code."""
        assert self.process is not None
        return await self.process.wait()

    async def stop(self) -> None:
        """Kill the process if it runs."""
        if self.process is not None and self.process.returncode is None:
            self.send_signal(signal.SIGKILL)
            await self.wait_ended()

    async def _readyz(self) -> str | None:
        connector = aiohttp.UnixConnector(str(self.folder / "run" / "gateway.sock"))
        try:
            async with (
                aiohttp.ClientSession("http://gateway", connector=connector) as session,
                session.get("/readyz") as answer,
            ):
                return await answer.text()
        except aiohttp.ClientError:
            return None


@asynccontextmanager
async def start_replicas(platform: Platform) -> AsyncIterator[tuple[Replica, Replica]]:
    """Stop the platform's gateway, and yield two replicas that have not started, until the block ends."""
    await platform.stop_gateway()
    with tempfile.TemporaryDirectory(prefix="vkgateway-bench-") as one, tempfile.TemporaryDirectory() as two:
        replicas = _make_replica(platform, Path(one)), _make_replica(platform, Path(two))
        try:
            yield replicas
        finally:
            for replica in replicas:
                await replica.stop()
            await platform.start_gateway()


def _make_replica(platform: Platform, folder: Path) -> Replica:
    (folder / "tenants").symlink_to(platform.paths.data_dir / "tenants")
    usual = gateway_process.gateway_settings(platform.paths, record=platform.record)
    settings = msgspec.structs.replace(
        usual,
        data_dir=str(folder),
        leader_election=config.LeaderElection(),
        kubelet=msgspec.structs.replace(usual.kubelet, port=0, advertise_port=usual.kubelet.port),
        observability=msgspec.structs.replace(usual.observability, port=0, secure_port=0),
    )
    return Replica(folder, settings)
