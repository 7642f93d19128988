"""What the process driver needs of the supervisor and of the program cache, as interfaces."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from vkgateway.planes.supervisor.spec import ProcessSpec, ProcessState


class Supervisor(Protocol):
    """The subset of `SupervisorClient` that the driver uses."""

    async def ensure_process(self, spec: ProcessSpec) -> ProcessState:
        """Start a process, or restart it if its spec has changed, and keep it running."""

    async def remove_group(self, prefix: str) -> None:
        """Stop and forget all processes whose names start with `prefix`."""

    async def list_processes(self, prefix: str = "") -> list[ProcessState]:
        """Return the state of all processes whose names start with `prefix`."""


class ProgramResolver(Protocol):
    """The subset of `binaries.Resolver` that the driver uses."""

    async def resolve(self, *names: str) -> Mapping[str, Path]:
        """Return the path of each program; find or build it first."""
