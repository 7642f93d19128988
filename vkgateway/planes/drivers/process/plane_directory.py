"""Directories of control planes on this machine, one per tenant."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import shutil
from pathlib import Path

from vkgateway.api.errors import UnavailableError
from vkgateway.kube.clock import Clock
from vkgateway.planes.atomic_files import PUBLIC_MODE, SECRET_MODE, write_file
from vkgateway.planes.credentials import Credentials
from vkgateway.planes.plane import ControlPlaneSpec
from vkgateway.planes.plane_files import Authorities, PlaneFiles, is_secret, render_plane_files


def read_plane_files(directory: Path) -> PlaneFiles:
    """Return the files in a directory; none if it does not exist."""
    contents = {}
    for path in sorted(directory.glob("[!.]*")):  # a hidden file is one that is being written
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            contents[path.name] = path.read_bytes()
    return PlaneFiles(directory, contents)


def write_plane_files(
    directory: Path,
    *,
    plane: ControlPlaneSpec,
    credentials: Credentials,
    authorities: Authorities,
    now: datetime.datetime,
) -> PlaneFiles:
    """Bring a directory up to date and return its files; a file that fits is not written. Raises OSError."""
    files = render_plane_files(
        plane, credentials=credentials, authorities=authorities, current=read_plane_files(directory), now=now
    )
    for name, content in files.contents.items():
        write_file(directory / name, content, mode=SECRET_MODE if is_secret(name) else PUBLIC_MODE)
    return files


class PlaneDirectories:
    """Directories of tenants' control planes, each with the tenant's name below `root`."""

    def __init__(self, root: Path, *, authorities: Authorities, clock: Clock) -> None:
        self._root = root
        self._authorities = authorities
        self._clock = clock
        self._pending_writes: dict[str, asyncio.Task[PlaneFiles]] = {}
        """Writes by tenant; the thread of a write continues after its caller is cancelled."""

    async def list_tenants(self) -> list[str]:
        """Return the tenants that have a directory."""
        return await asyncio.to_thread(lambda: sorted(path.parent.name for path in self._root.glob("*/ca.crt")))

    async def read_files(self, tenant: str) -> PlaneFiles:
        """Return the files of a tenant's control plane; none before the first `write_files`."""
        return await asyncio.to_thread(read_plane_files, self._root / tenant)

    async def write_files(self, plane: ControlPlaneSpec, credentials: Credentials) -> PlaneFiles:
        """Bring the files of a control plane up to date and return them. Raises UnavailableError."""

        def end(task: asyncio.Task[PlaneFiles]) -> None:
            if self._pending_writes.get(tenant) is task:
                del self._pending_writes[tenant]
            if not task.cancelled():
                task.exception()  # its caller may have been cancelled

        tenant = plane.cluster
        work = asyncio.to_thread(self._write_files, plane, credentials)
        task = self._pending_writes[tenant] = asyncio.create_task(work, name=f"tenant/{tenant}/files")
        task.add_done_callback(end)
        return await asyncio.shield(task)

    async def remove(self, tenant: str) -> None:
        """Delete a tenant's directory, after a pending write."""
        if tenant in self._pending_writes:
            await asyncio.wait([self._pending_writes[tenant]])
        await asyncio.to_thread(self._remove_directory, tenant)

    def _write_files(self, plane: ControlPlaneSpec, credentials: Credentials) -> PlaneFiles:
        directory = self._root / plane.cluster
        try:
            return write_plane_files(
                directory, plane=plane, credentials=credentials, authorities=self._authorities, now=self._clock.now()
            )
        except OSError as error:
            raise UnavailableError(
                f"the files of tenant {plane.cluster!r} cannot be written to {directory}: {error.strerror}"
            ) from error

    def _remove_directory(self, tenant: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._root / tenant)
