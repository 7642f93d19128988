"""Where and of what something is measured: machine, versions, and how busy others keep it."""

from __future__ import annotations

import asyncio
import os
import platform as python_platform
import subprocess
from pathlib import Path
from typing import Final

from bench.outcome import Machine
from bench.procfs import busy_seconds
from bench.timeline import now
from vkgateway.local.record import PlatformRecord
from vkgateway.version import __version__

_LOOK: Final = 3.0
_GIB: Final = 2**30


async def machine() -> Machine:
    """Look at the machine for a few seconds."""
    cores = len(os.sched_getaffinity(0))
    busy, started = busy_seconds(), now()
    await asyncio.sleep(_LOOK)
    share = (busy_seconds() - busy) / (now() - started) / cores
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
    return Machine(cores=cores, memory_gib=round(memory, 1), kernel=python_platform.release(), busy=round(share, 2))


def versions(record: PlatformRecord | None) -> dict[str, str]:
    """What was measured, by name; without a platform only what there is of our own."""
    from vkgateway.programs.binaries.catalogue import DEFAULT_VERSIONS

    own = {"vkgateway": f"{__version__} ({_commit()})", "Python": python_platform.python_version()}
    if record is None:
        return own
    return {
        **own,
        "Kubernetes": record.kubernetes_version,
        **{name: DEFAULT_VERSIONS[name] for name in ("etcd", "kwok")},
    }


def _commit() -> str:
    """The commit that is checked out, marked where files differ from it."""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "no checkout"
    return done.stdout.strip()
