"""Resolution of a program's name to an executable file, from the first source that has it."""

import asyncio
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vkgateway_platform.binaries import errors
from vkgateway_platform.binaries.build_scheduler import BuildScheduler, run_together
from vkgateway_platform.binaries.cache import BUILT_PREFIX, Cache, CacheEntry, running_programs
from vkgateway_platform.binaries.catalogue import (
    DEFAULT_VERSIONS,
    BuildUnit,
    check_version,
    reports_version,
    unit_of,
    version_args,
)
from vkgateway_platform.binaries.go_build import GoBuild, format_elapsed
from vkgateway_platform.binaries.go_toolchain import find_go
from vkgateway_platform.binaries.release import Downloader, NoReleaseError
from vkgateway_platform.binaries.subprocesses import read_version_output

_VERSION_PATTERN = re.compile(r"\bv?(\d+\.\d+\.\d+(?:-(?:alpha|beta|rc)\.?\d+)?)")

_BUILDS_AT_ONCE = 2
"""Concurrent builds: one downloads or links while the other compiles. More would compete for the same cores and memory.
"""

PROGRAM_DIR_VARIABLE = "VKGATEWAY_PROGRAM_DIR"
"""Variable with directories of ready programs, separated as in PATH."""


@dataclass(frozen=True, slots=True)
class LocatedProgram:
    """A program that was found: its file, and its source."""

    path: Path
    source: str


class Resolver:
    """Finds and fetches programs.

    The sources are, in this order: the directories named by the user, PATH (if the version fits), the cache, the
    official release, a build from the Go module proxy. `report` receives each step as a sentence. `progress` receives
    the state of a long step every 10 seconds; by default it is `report`.

    Raises (the constructor):
        UnknownVersionError: a version is malformed or too old.
    """

    def __init__(
        self,
        *,
        report: Callable[[str], None],
        cache_dir: Path | None = None,
        program_dirs: Sequence[Path] = (),
        kubernetes_version: str = DEFAULT_VERSIONS["kubernetes"],
        versions: Mapping[str, str] | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        wanted = {**DEFAULT_VERSIONS, "kubernetes": kubernetes_version, **(versions or {})}
        self.versions = {project: check_version(project, version) for project, version in wanted.items()}
        self.cache = Cache(cache_dir or Cache.default_root())
        named = os.environ.get(PROGRAM_DIR_VARIABLE, "")
        folders = [*program_dirs, *(Path(part) for part in named.split(os.pathsep) if part)]
        self._program_dirs = [folder.expanduser().absolute() for folder in folders]
        self._report = report
        self._progress = progress
        self._downloader = Downloader(report=report)

    async def resolve(self, *names: str) -> dict[str, Path]:
        """Return the file of each program; fetch those that do not exist.

        Raises:
            InputError: a program does not exist in the catalogue (checked first).
            UnknownVersionError, NoToolchainError, NoNetworkError, DiskFullError, CacheError, ChecksumError, BuildError.
        """
        units = {name: unit_of(name) for name in names}
        found = {name: located.path for name in names if (located := await self.locate(name)) is not None}
        fetched = await self._fetch_all({unit for name, unit in units.items() if name not in found})
        return {name: found.get(name) or fetched[name] for name in names}

    async def locate(self, name: str) -> LocatedProgram | None:
        """Return where a program exists, without fetching it; None if it does not."""
        version = self.version_of(name)
        for folder in self._program_dirs:
            path = folder / name
            if os.access(path, os.X_OK) and await self._is_right_version(path, name, named=True):
                return LocatedProgram(path, "named folder")
        on_path = shutil.which(name)
        if (
            on_path is not None
            and reports_version(name)
            and await self._is_right_version(Path(on_path), name, named=False)
        ):
            return LocatedProgram(Path(on_path), "PATH")
        if self.cache.has_program(name, version):
            return LocatedProgram(self.cache.program_path(name, version), "cache")
        return None

    async def has_programs(self, *names: str) -> bool:
        """Return whether all these programs exist, without fetching any."""
        return all([await self.locate(name) is not None for name in names])

    def version_of(self, name: str) -> str:
        """Return the configured version of a program."""
        return self.versions[unit_of(name).project]

    def prune(self, *, everything: bool = False, dry_run: bool = False) -> list[CacheEntry]:
        """Delete other versions than this resolver's and unfinished builds from the cache.

        `everything` also deletes the current versions and the Go toolchain. What running processes or builds use stays.
        Return what was deleted, or would be with `dry_run`.
        """
        used = running_programs()
        removed = [
            entry
            for entry in self.cache.list_entries()
            if (everything or self.versions.get(entry.project) != entry.version)
            and os.path.realpath(entry.path) not in used
        ]
        if not dry_run:
            self._remove_entries(removed, everything=everything)
        return removed

    def _remove_entries(self, entries: Iterable[CacheEntry], *, everything: bool) -> None:
        for entry in entries:
            path = Path(entry.path)
            path.unlink(missing_ok=True)
            path.with_name(f".{path.name}.json").unlink(missing_ok=True)
            for folder in (path.parent, path.parent.parent):
                if not any(folder.iterdir()):
                    folder.rmdir()
        self.cache.remove_unfinished()
        if everything and not self.cache.remove_toolchain():
            self._report("the Go toolchain is in use by a build and was not deleted")

    async def _is_right_version(self, path: Path, name: str, *, named: bool) -> bool:
        """Return whether a program outside the cache has the right version.

        A program without a version (a private build) is accepted from a directory that the user named.
        """
        wanted = self.version_of(name)
        if not reports_version(name):
            self._report(f"{path} is used as {wanted}, since you named its directory")
            return True
        version_match = _VERSION_PATTERN.search(await read_version_output(path, version_args(name)))
        if version_match is not None and version_match[1] == wanted:
            return True
        if version_match is None and named:
            self._report(f"{path} prints no version and is used as {wanted}, since you named its directory")
            return True
        found = f"is version {version_match[1]}" if version_match is not None else "prints no version"
        self._report(f"{path} {found}, but {wanted} is required; skipping it")
        return False

    async def _fetch_all(self, units: Iterable[BuildUnit]) -> dict[str, Path]:
        """Fetch every program of the units, several units concurrently; the first failure cancels the rest.

        The longest build starts first. Units that wait for others come last.
        """
        ordered = sorted(units, key=lambda unit: (bool(unit.after), -unit.seconds, unit.name))
        scheduler = BuildScheduler(ordered, at_once=_BUILDS_AT_ONCE)
        fetched = await run_together(*(self._fetch_unit(unit, scheduler) for unit in ordered))
        return {program: path for found in fetched for program, path in found.items()}

    async def _fetch_unit(self, unit: BuildUnit, scheduler: BuildScheduler) -> dict[str, Path]:
        """Download or build every program of a unit; only once if several processes request it."""
        version = self.versions[unit.project]
        try:
            async with self.cache.locks.hold(f"{unit.name}-{version}", report=self._report):
                if not all(self.cache.has_program(program, version) for program in unit.packages):
                    await self._fetch_locked(unit, version, scheduler)
        except OSError as error:
            if errors.is_disk_full(error):
                raise errors.disk_full_error(self.cache.root) from error
            if error.errno in errors.REFUSALS:
                raise errors.cache_refused_error(self.cache.root) from error
            raise
        scheduler.mark_done(unit)
        return {program: self.cache.program_path(program, version) for program in unit.packages}

    async def _fetch_locked(self, unit: BuildUnit, version: str, scheduler: BuildScheduler) -> None:
        folder = self.cache.make_build_dir(unit, version)
        try:
            built, source = await self._download_or_build(unit, version, scheduler, folder=folder)
            for program, path in built.items():
                path.chmod(0o755)
                await self._verify_version(path, program, version)
            for program, path in built.items():
                await asyncio.to_thread(self.cache.install_program, path, program, version, source=source)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    async def _download_or_build(
        self, unit: BuildUnit, version: str, scheduler: BuildScheduler, *, folder: Path
    ) -> tuple[dict[str, Path], str]:
        try:
            async with scheduler.download_slot():
                return await self._downloader.fetch_unit(unit, version, folder=folder), "official release"
        except NoReleaseError as why:
            self._report(f"{unit.project} {version}: no official release is available: {why}; building it")
        go = await find_go(self.cache, report=self._report)
        names = ", ".join(unit.packages)
        about = format_elapsed(unit.seconds)
        self._report(f"building {names} {version} with {go.version}; a single build takes about {about}")
        build = GoBuild(
            unit,
            version,
            go=go,
            folder=folder,
            log=self.cache.log_path(unit, version),
            report=self._progress or self._report,
            tell_every=1.0 if self._progress else 10.0,
        )
        return await self._run_build(build, scheduler), f"{BUILT_PREFIX} {go.version}"

    async def _run_build(self, build: GoBuild, scheduler: BuildScheduler) -> dict[str, Path]:
        """Build; modules are downloaded while other units compile."""

        async def prepare() -> None:
            async with scheduler.download_slot():
                await build.download_modules()

        await build.resolve_module()
        await run_together(prepare(), scheduler.compile_library_once(build.compile_library))
        async with (
            scheduler.compile_slot(build.unit),
            self.cache.locks.hold_slot("go-build", slots=_BUILDS_AT_ONCE, report=self._report),
        ):
            return await build.compile_programs()

    async def _verify_version(self, path: Path, program: str, version: str) -> None:
        if not reports_version(program):
            return
        version_match = _VERSION_PATTERN.search(await read_version_output(path, version_args(program)))
        if version_match is None or version_match[1] != version:
            found = f"version {version_match[1]}" if version_match else "no version"
            raise errors.BuildError(
                f"{program} was fetched as {version} but reports {found}", hint=errors.OWN_PROGRAMS_HINT
            )
