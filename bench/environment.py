"""Environment of a measurement: machine, versions, and load by other programs."""

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
from vkgateway.version import __version__
from vkgateway_platform.embedded.record import PlatformRecord

_SAMPLE_SECONDS: Final = 3.0
_GIB: Final = 2**30


async def measure_machine() -> Machine:
    """Observe the machine for a few seconds."""
    cores = len(os.sched_getaffinity(0))
    busy, started = busy_seconds(), now()
    await asyncio.sleep(_SAMPLE_SECONDS)
    share = (busy_seconds() - busy) / (now() - started) / cores
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
    return Machine(cores=cores, memory_gib=round(memory, 1), kernel=python_platform.release(), busy=round(share, 2))


def component_versions(record: PlatformRecord | None) -> dict[str, str]:
    """Return versions by name, without those of the platform if there is none."""
    from vkgateway_platform.binaries.catalogue import DEFAULT_VERSIONS

    own = {"vkgateway": f"{__version__} ({_checked_out_commit()})", "Python": python_platform.python_version()}
    if record is None:
        return own
    return {
        **own,
        "Kubernetes": record.kubernetes_version,
        **{name: DEFAULT_VERSIONS[name] for name in ("etcd", "kwok")},
    }


def _checked_out_commit() -> str:
    """Return the checked-out commit, marked if files differ from it."""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "no checkout"
    return done.stdout.strip()
