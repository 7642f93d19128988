"""API server of the compute cluster with all cores of the machine, for systems that put all their load on it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec

from bench.platform import Platform
from bench.timeline import now
from vkgateway.api.errors import UnavailableError
from vkgateway.kube.errors import ApiError
from vkgateway.planes.supervisor.spec import ProcessSpec

API_SERVER: Final = "compute/apiserver"
_CORES: Final = "GOMAXPROCS"
_READY_WITHIN: Final = 60.0


@contextlib.asynccontextmanager
async def all_cores(platform: Platform) -> AsyncIterator[None]:
    """Restart the API server of the compute cluster with all cores, and with its former limit after the block.

    The platform limits it to half of the cores, because many API servers share its machine.
    """
    limited = read_spec((await platform.process_ids())[API_SERVER])
    unlimited = msgspec.structs.replace(limited, env=limited.env | {_CORES: str(len(os.sched_getaffinity(0)))})
    await _restart(platform, unlimited)
    try:
        yield
    finally:
        await _restart(platform, limited)


def read_spec(pid: int, *, root: Path = Path("/proc")) -> ProcessSpec:
    """Return the spec with which the API server was started, from its process."""
    argv, env = (_read_texts(root / str(pid) / name) for name in ("cmdline", "environ"))
    return ProcessSpec(name=API_SERVER, argv=tuple(argv), env=dict(text.split("=", 1) for text in env), batch=True)


def _read_texts(file: Path) -> list[str]:
    return file.read_bytes().decode().rstrip("\0").split("\0")


async def _restart(platform: Platform, spec: ProcessSpec) -> None:
    await platform.supervisor.ensure_process(spec)
    deadline = now() + _READY_WITHIN
    while True:
        with contextlib.suppress(ApiError):
            await platform.compute.request("GET", "/readyz", timeout=5)
            return
        if now() > deadline:
            raise UnavailableError(f"the API server of the compute cluster is not ready after {_READY_WITHIN:.0f} s")
        await asyncio.sleep(0.2)
