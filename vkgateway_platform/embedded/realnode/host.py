"""Runs of the machine's tools, and changes outside the node's namespaces that are reverted later."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from vkgateway.api.errors import VkgatewayError
from vkgateway.planes.atomic_files import write_file

TOOL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Directories of system tools: `sbin` is not on every user's PATH, in some shells not even on root's."""

_TIMEOUT = 60.0
_STATE_DIR = Path("/run/vkgateway")


class ToolError(VkgatewayError):
    """A system tool failed."""


def run_command(*command: str, stdin: str = "", timeout: float = _TIMEOUT) -> str:
    """Run a command and return its output. Raises ToolError with the command and the end of its output."""
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=timeout, check=False, env={"PATH": TOOL_PATH}
        )
    except FileNotFoundError as error:
        raise ToolError(f"{command[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise ToolError(f"`{' '.join(command)}` did not end within {timeout:.0f} s") from error
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise ToolError(f"`{' '.join(command)}` failed: {words[-1] if words else f'exit {done.returncode}'}")
    return done.stdout


def command_succeeds(*command: str) -> bool:
    """Return whether a command succeeds; its output is discarded."""
    try:
        run_command(*command)
    except ToolError:
        return False
    return True


class _Record(msgspec.Struct):
    """Changes to the machine, and the platforms that need them."""

    users: set[str | int] = msgspec.field(default_factory=set)
    """Directories of the platforms. Numbers are reused, so they would not identify a platform. (Older records contain
    numbers.)
    """
    settings: dict[str, str] = msgspec.field(default_factory=dict)
    """Original value of each path below /proc/sys."""
    directories: list[str] = msgspec.field(default_factory=list)
    """Directories that were created, parents first."""


class HostChanges:
    """Changes to the machine that several platforms share: the first platform makes them, the last one reverts them.

    Directories that are mount points must stay while another platform lives: Linux detaches a mount in every namespace
    when its mount point is removed.
    """

    def __init__(self, directory: Path = _STATE_DIR) -> None:
        self._directory = directory

    def apply_changes(self, user: str, *, settings: Mapping[str, str], directories: Sequence[str]) -> None:
        """Write each file of `settings` and create each of `directories`; record the previous state."""
        with self._open_record() as record:
            record.users.add(user)
            for path, value in settings.items():
                self._set_value(record, path, value)
            for path in directories:
                self._make_directory(record, Path(path))

    def release_changes(self, user: str) -> None:
        """Release the changes for a platform; the last one reverts them. Repeatable."""
        with self._open_record() as record:
            record.users.discard(user)
            if not record.users:
                self._restore_values(record)

    @staticmethod
    def _set_value(record: _Record, path: str, value: str) -> None:
        old = Path(path).read_text().strip()
        if old != value:
            record.settings.setdefault(path, old)
            Path(path).write_text(value)

    @staticmethod
    def _make_directory(record: _Record, path: Path) -> None:
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(mode=0o755)
            record.directories.append(str(folder))

    @staticmethod
    def _restore_values(record: _Record) -> None:
        for path, value in record.settings.items():
            if Path(path).exists():  # the file of an interface may be gone
                Path(path).write_text(value)
        for folder in reversed(record.directories):
            with contextlib.suppress(OSError):  # another program has put something there
                Path(folder).rmdir()
        record.settings.clear()
        record.directories.clear()

    @contextlib.contextmanager
    def _exclusive_lock(self) -> Iterator[None]:
        # Lock the parent directory, since a lock on a file that is removed protects nothing.
        descriptor = os.open(self._directory.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _open_record(self) -> Iterator[_Record]:
        path = self._directory / "claims.json"
        with self._exclusive_lock():
            record = msgspec.json.decode(path.read_bytes(), type=_Record) if path.exists() else _Record()
            try:
                yield record
            finally:
                self._save_record(record, path)

    def _save_record(self, record: _Record, path: Path) -> None:
        if record.users:
            self._directory.mkdir(mode=0o755, exist_ok=True)
            write_file(path, msgspec.json.encode(record))
            return
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # missing, or not empty
            self._directory.rmdir()
