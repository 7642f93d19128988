"""Control planes as processes of this machine, kept alive by the supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from vkgateway.controlplane.components import PROGRAMS, component
from vkgateway.controlplane.credentials import Credentials
from vkgateway.controlplane.layout import Authorities, PlaneFiles, write_files
from vkgateway.controlplane.plane import COMPONENTS, Plane
from vkgateway.controlplane.ports import bindable, require_free
from vkgateway.model.errors import UnavailableError
from vkgateway.programs.supervisor.spec import ProcessSpec, ProcessState, SupervisorPaths

# The starts that a client of the API server is granted while that is not there yet.
_PATIENCE = 3


class Supervisor(Protocol):
    """The part of `SupervisorClient` that is used here."""

    async def ensure(self, spec: ProcessSpec) -> ProcessState:
        """Keep a process running."""

    async def remove_group(self, prefix: str) -> None:
        """Stop and forget the processes below a name."""

    async def list(self, prefix: str = "") -> list[ProcessState]:
        """Tell the processes below a name."""


class Programs(Protocol):
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
        programs: Callable[[str], Programs],
        authorities: Authorities,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
        can_bind: Callable[[str, int], bool] = bindable,
    ) -> None:
        self._data_dir = data_dir
        self._supervisor = supervisor
        self._programs = programs
        self._authorities = authorities
        self._now = now
        self._can_bind = can_bind
        self._writing: dict[str, asyncio.Task[PlaneFiles]] = {}
        """Tenants whose files are being written: a thread goes on where its caller is cancelled."""

    async def prepare(self, version: str) -> None:
        """Find or build the three programs of that version."""
        await self._resolve(version)

    async def start(self, plane: Plane, *, credentials: Credentials, version: str) -> frozenset[str]:
        """Write the files and ask for all three processes at once; the two clients wait for the API server."""
        programs = await self._resolve(version)
        await self._check_port(plane)
        files = await self._written(plane, credentials)
        for name in COMPONENTS:
            spec = component(name, plane=plane, files=files, programs=programs)
            await self._supervisor.ensure(spec)
        return files.kubelet_clients()

    def kubelet_clients(self, tenant: str) -> frozenset[str]:
        """Read them from the certificates there are."""
        return PlaneFiles(self._directory(tenant)).kubelet_clients()

    async def trouble(self, plane: Plane) -> str:
        """Tell the first process that waits for its next start, and why it ended.

        A client of the API server may end once or twice because that takes long to start.
        """
        for state in await self._supervisor.list(plane.group):
            own_fault = state.name == f"{plane.group}/apiserver" or state.restarts >= _PATIENCE
            if state.state == "backoff" and own_fault:
                return f"{state.name} does not stay up: {state.reason}"
        return ""

    async def remove(self, tenant: str) -> None:
        """Stop the processes, then remove files and logs."""
        await self._supervisor.remove_group(_group(tenant))
        if tenant in self._writing:
            await asyncio.wait([self._writing[tenant]])
        await asyncio.to_thread(self._remove_files, tenant)

    async def _resolve(self, version: str) -> Mapping[str, Path]:
        return await self._programs(version).resolve(*PROGRAMS.values())

    async def _check_port(self, plane: Plane) -> None:
        """Refuse a port on which another program listens; our own API server may well do so."""
        states = await self._supervisor.list(f"{plane.group}/apiserver")
        if not any(_listens(state.argv, plane.port) and state.pid for state in states):
            require_free(plane.cluster, address=plane.address, port=plane.port, can_bind=self._can_bind)

    async def _written(self, plane: Plane, credentials: Credentials) -> PlaneFiles:
        def end(task: asyncio.Task[PlaneFiles]) -> None:
            if self._writing.get(tenant) is task:
                del self._writing[tenant]
            if not task.cancelled():
                task.exception()  # nobody may wait for it any more

        tenant = plane.cluster
        work = asyncio.to_thread(self._write, plane, credentials)
        task = self._writing[tenant] = asyncio.create_task(work, name=f"tenant/{tenant}/files")
        task.add_done_callback(end)
        return await asyncio.shield(task)

    def _write(self, plane: Plane, credentials: Credentials) -> PlaneFiles:
        directory = self._directory(plane.cluster)
        try:
            return write_files(
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

    def _directory(self, tenant: str) -> Path:
        return self._data_dir / "tenants" / tenant

    def _remove_files(self, tenant: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._directory(tenant))
        for name in COMPONENTS:
            log = SupervisorPaths(self._data_dir).log(f"{_group(tenant)}/{name}")
            for file in log.parent.glob(f"{log.name}*"):
                file.unlink(missing_ok=True)
        names = SupervisorPaths(self._data_dir).log(f"{_group(tenant)}/names")
        for file in names.parent.glob(f"{names.stem}-*"):
            file.unlink(missing_ok=True)


def _group(tenant: str) -> str:
    return f"tenant/{tenant}"


def _listens(argv: Sequence[str], port: int) -> bool:
    return f"--secure-port={port}" in argv
