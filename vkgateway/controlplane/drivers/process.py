"""Control planes as processes of this machine, kept alive by the supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from vkgateway.controlplane.components import PROGRAMS, component_spec
from vkgateway.controlplane.credentials import Credentials
from vkgateway.controlplane.plane import COMPONENTS, ControlPlaneSpec
from vkgateway.controlplane.plane_files import Authorities, PlaneFiles, write_plane_files
from vkgateway.controlplane.ports import is_port_free, require_free
from vkgateway.model.errors import UnavailableError
from vkgateway.programs.supervisor.spec import ProcessSpec, ProcessState, SupervisorPaths

# The starts that a client of the API server is granted while that is not there yet.
_ALLOWED_RESTARTS = 3


class Supervisor(Protocol):
    """The part of `SupervisorClient` that is used here."""

    async def ensure_process(self, spec: ProcessSpec) -> ProcessState:
        """Keep a process running."""

    async def remove_group(self, prefix: str) -> None:
        """Stop and forget the processes below a name."""

    async def list_processes(self, prefix: str = "") -> list[ProcessState]:
        """Tell the processes below a name."""


class ProgramResolver(Protocol):
    """The part of `binaries.Resolver` that is used here."""

    async def resolve(self, *names: str) -> Mapping[str, Path]:
        """Find or build programs."""


class ProcessDriver:
    """Keeps each tenant's files in `data_dir/tenants/NAME`, and its processes below `tenant/NAME`.

    `programs` gives the resolver for a Kubernetes version.
    """

    def __init__(
        self,
        *,
        data_dir: Path,
        supervisor: Supervisor,
        programs: Callable[[str], ProgramResolver],
        authorities: Authorities,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
        can_bind: Callable[[str, int], bool] = is_port_free,
    ) -> None:
        self._data_dir = data_dir
        self._supervisor = supervisor
        self._programs = programs
        self._authorities = authorities
        self._now = now
        self._can_bind = can_bind
        self._pending_writes: dict[str, asyncio.Task[PlaneFiles]] = {}
        """Tenants whose files are being written: a thread goes on where its caller is cancelled."""

    async def prepare(self, version: str) -> None:
        """Find or build the three programs of that version."""
        await self._resolve_programs(version)

    async def start(self, plane: ControlPlaneSpec, *, credentials: Credentials, version: str) -> frozenset[str]:
        """Write the files and ask for all three processes at once; the two clients wait for the API server."""
        programs = await self._resolve_programs(version)
        await self._check_port(plane)
        files = await self._write_shielded(plane, credentials)
        for name in COMPONENTS:
            spec = component_spec(name, plane=plane, files=files, programs=programs)
            await self._supervisor.ensure_process(spec)
        return files.kubelet_clients()

    def kubelet_clients(self, tenant: str) -> frozenset[str]:
        """Read them from the certificates there are."""
        return PlaneFiles(self._tenant_dir(tenant)).kubelet_clients()

    async def failure_reason(self, plane: ControlPlaneSpec) -> str:
        """Tell the first process that waits for its next start, and why it ended.

        A client of the API server may end once or twice because that takes long to start.
        """
        for state in await self._supervisor.list_processes(plane.group):
            own_fault = state.name == f"{plane.group}/apiserver" or state.restarts >= _ALLOWED_RESTARTS
            if state.state == "backoff" and own_fault:
                return f"{state.name} does not stay up: {state.reason}"
        return ""

    async def remove(self, tenant: str) -> None:
        """Stop the processes, then remove files and logs."""
        await self._supervisor.remove_group(_process_prefix(tenant))
        if tenant in self._pending_writes:
            await asyncio.wait([self._pending_writes[tenant]])
        await asyncio.to_thread(self._remove_files, tenant)

    async def _resolve_programs(self, version: str) -> Mapping[str, Path]:
        return await self._programs(version).resolve(*PROGRAMS.values())

    async def _check_port(self, plane: ControlPlaneSpec) -> None:
        """Refuse a port on which another program listens; our own API server may well do so."""
        states = await self._supervisor.list_processes(f"{plane.group}/apiserver")
        if not any(_has_port_flag(state.argv, plane.port) and state.pid for state in states):
            require_free(plane.cluster, address=plane.address, port=plane.port, can_bind=self._can_bind)

    async def _write_shielded(self, plane: ControlPlaneSpec, credentials: Credentials) -> PlaneFiles:
        def end(task: asyncio.Task[PlaneFiles]) -> None:
            if self._pending_writes.get(tenant) is task:
                del self._pending_writes[tenant]
            if not task.cancelled():
                task.exception()  # nobody may wait for it any more

        tenant = plane.cluster
        work = asyncio.to_thread(self._write_files, plane, credentials)
        task = self._pending_writes[tenant] = asyncio.create_task(work, name=f"tenant/{tenant}/files")
        task.add_done_callback(end)
        return await asyncio.shield(task)

    def _write_files(self, plane: ControlPlaneSpec, credentials: Credentials) -> PlaneFiles:
        directory = self._tenant_dir(plane.cluster)
        try:
            return write_plane_files(
                directory,
                plane=plane,
                credentials=credentials,
                authorities=self._authorities,
                now=self._now(),
            )
        except OSError as error:
            raise UnavailableError(
                f"the files of tenant {plane.cluster!r} cannot be written to {directory}: {error.strerror}"
            ) from error

    def _tenant_dir(self, tenant: str) -> Path:
        return self._data_dir / "tenants" / tenant

    def _remove_files(self, tenant: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._tenant_dir(tenant))
        for name in COMPONENTS:
            log = SupervisorPaths(self._data_dir).log_path(f"{_process_prefix(tenant)}/{name}")
            for file in log.parent.glob(f"{log.name}*"):
                file.unlink(missing_ok=True)
        names = SupervisorPaths(self._data_dir).log_path(f"{_process_prefix(tenant)}/names")
        for file in names.parent.glob(f"{names.stem}-*"):
            file.unlink(missing_ok=True)


def _process_prefix(tenant: str) -> str:
    return f"tenant/{tenant}"


def _has_port_flag(argv: Sequence[str], port: int) -> bool:
    return f"--secure-port={port}" in argv
