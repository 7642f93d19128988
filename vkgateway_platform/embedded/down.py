"""Removal of a platform in any state: all processes, mounts and interfaces; the data on request."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from vkgateway.api.errors import ConflictError, InputError, NotFoundError, VkgatewayError
from vkgateway.planes.supervisor.client import SupervisorClient, SupervisorUnavailable, stop_leftovers
from vkgateway.planes.supervisor.spec import SupervisorPaths
from vkgateway_platform.embedded import network, real_node_steps
from vkgateway_platform.embedded import record as records
from vkgateway_platform.embedded.disk import disk_errors
from vkgateway_platform.embedded.lock import check_idle, work_lock
from vkgateway_platform.embedded.paths import PlatformPaths
from vkgateway_platform.embedded.realnode.namespaces import mount_points
from vkgateway_platform.embedded.record import PlatformRecord
from vkgateway_platform.embedded.steps import Report

_MOUNTS = Path("/proc/self/mountinfo")


async def down(data_dir: Path, *, purge: bool, report: Report) -> None:
    """Stop the platform in `data_dir` and remove all that it created on the machine; with `purge` its data too.

    Works with a dead supervisor and a damaged record.

    Raises:
        NotFoundError: there is no platform.
        ConflictError: another command works on it.
    """
    paths = PlatformPaths(data_dir)
    if not _holds_platform(paths):
        check_idle(paths.lock_path)  # the first `up` fetches programs before it creates anything; a build takes minutes
        raise NotFoundError(f"there is no platform in {data_dir}", hint="Set another directory with --data-dir DIR.")
    with disk_errors(data_dir), work_lock(paths.lock_path, command="down"):
        record = _read_record(paths)
        await _stop_processes(data_dir, report=report)
        await asyncio.to_thread(_clean_machine, paths, record, report)
        if purge:
            await asyncio.to_thread(_remove_data, paths)
            report.done("data: removed")


def _holds_platform(paths: PlatformPaths) -> bool:
    """Return whether the directory is a platform's; other software has directories `run` and `logs` too."""
    if SupervisorPaths(paths.data_dir).lock_path.exists():
        return True
    try:
        return records.load_record(paths.record_path) is not None
    except ConflictError:  # the record is from a newer vkgateway
        return True
    except InputError:
        return False


async def _stop_processes(data_dir: Path, *, report: Report) -> None:
    report("stopping processes")
    stopped: list[str] = []
    with contextlib.suppress(SupervisorUnavailable):
        client = SupervisorClient.for_data_dir(data_dir)
        stopped = [state.name for state in await client.list_processes()]
        await client.shutdown()
    leftovers = await asyncio.to_thread(stop_leftovers, data_dir)
    names = sorted({*stopped, *leftovers})
    report.done(f"processes: {len(names)} stopped" if names else "processes: none ran")


def _clean_machine(paths: PlatformPaths, record: PlatformRecord | None, report: Report) -> None:
    owner = network.interface_alias(paths.data_dir)
    numbers = (
        {record.number}
        if record
        else {
            int(name.removeprefix("vkg"))
            for name in network.owned_interfaces(owner)
            if name.removeprefix("vkg").isdigit()
        }
    )
    for number in numbers:
        real_node_steps.teardown_node(paths.node_dir, number=number)
    if removed := network.remove_interfaces(owner):
        report.done(f"network interface {', '.join(removed)}: removed")


def _read_record(paths: PlatformPaths) -> PlatformRecord | None:
    """Return the record; None if it is missing or unusable, since running processes are found without it."""
    try:
        return records.load_record(paths.record_path)
    except (InputError, ConflictError):
        return None


def _remove_data(paths: PlatformPaths) -> None:
    """Delete the platform's files in the data directory, and the directory if nothing else is in it."""
    if mounted := list(_mounts_inside(paths.data_dir)):
        raise VkgatewayError(
            f"{mounted[0]} is still mounted, so nothing was deleted",
            hint=f"Unmount it with `umount {mounted[0]}`, then run `vkgateway down --purge` again.",
        )
    for path in paths.list_all():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        paths.data_dir.rmdir()


def _mounts_inside(directory: Path, *, table: Path = _MOUNTS) -> Iterator[str]:
    """Yield the mount points inside `directory`."""
    start = f"{directory.resolve()}/"
    yield from (point for point in mount_points(table) if point.startswith(start))
