"""Builds from the Go module proxy: a generated go.mod, one `go build`, and progress reports."""

import asyncio
import contextlib
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway_platform.binaries import errors
from vkgateway_platform.binaries.catalogue import DEFAULT_VERSIONS, MAINS_FOLDER, BuildUnit, major_minor, unit_named
from vkgateway_platform.binaries.go_mod import LibraryVersions, modules_in_graph, render_go_mod
from vkgateway_platform.binaries.go_toolchain import GoToolchain
from vkgateway_platform.binaries.subprocesses import run_program

_NEEDED_BYTES = 1_000_000_000


_FLAGS = ("-trimpath", "-gcflags=all=-dwarf=false", f"-p={os.cpu_count() or 1}")
"""Flags for all compilations. Debug information costs a tenth of the compiler's CPU time, and `link_flags` drops it."""
_NOTHING = '{{""}}'
_LIBRARY = (
    "archive/...",
    "database/sql",
    "encoding/...",
    "expvar",
    "go/parser",
    "html/template",
    "log/slog",
    "net/http/httputil",
    "net/http/pprof",
    "net/mail",
    "plugin",
    "time/tzdata",
)
"""Packages of Go's standard library that import nearly all of it that the programs use."""


class _Module(msgspec.Struct, rename="pascal"):
    go_mod: str
    go_version: str = "1.21"

    def read_go_mod(self) -> str:
        return Path(self.go_mod).read_text(encoding="utf-8")


class BuildProgress:
    """Reports the progress of a build every `every` seconds."""

    def __init__(self, what: str, *, report: Callable[[str], None], every: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._what = what
        self._report = report
        self._every = every
        self._clock = clock
        self._start = clock.monotonic()
        self.downloads = 0
        self.packages = 0

    def count_line(self, line: str) -> None:
        """Count a line of go's output."""
        if line.startswith("go: downloading "):
            self.downloads += 1
        elif line and " " not in line:
            self.packages += 1

    def report_state(self) -> None:
        """Report the current state."""
        doing = "reading the cache"
        if self.downloads:
            doing = f"modules downloaded: {self.downloads}"
        if self.packages:
            doing = f"packages compiled: {self.packages}"
        self._report(f"{self._what}: {doing}, {format_elapsed(self._clock.monotonic() - self._start)}")

    @contextlib.asynccontextmanager
    async def report_regularly(self) -> AsyncIterator[None]:
        """Report the state regularly within the block."""

        async def tick() -> None:
            while True:
                await asyncio.sleep(self._every)
                self.report_state()

        task = asyncio.create_task(tick(), name="build progress")
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


class GoBuild:
    """One build of a unit in an empty `folder`.

    The order of calls is `resolve_module`, then `compile_library` and `download_modules`, then `compile_programs`. All
    but `compile_library` raise UnknownVersionError, NoNetworkError, DiskFullError, ChecksumError or BuildError.
    """

    def __init__(
        self,
        unit: BuildUnit,
        version: str,
        *,
        go: GoToolchain,
        folder: Path,
        log: Path,
        report: Callable[[str], None],
        tell_every: float = 10.0,
    ) -> None:
        self.unit = unit
        self.version = version
        self._go = go
        self._folder = folder
        self._log = log
        self._report = report
        self._tell_every = tell_every
        self._env = {**go.env, "GOTMPDIR": str(folder / "tmp")}
        self._main = _Module(go_mod="")

    async def resolve_module(self) -> None:
        """Resolve the main module, so that a version that does not exist fails before the build."""
        if shutil.disk_usage(self._folder).free < _NEEDED_BYTES:
            raise errors.disk_full_error(self._folder)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._log.write_text("")
        (self._folder / "tmp").mkdir()
        self._main = await self._query_module(self.unit.modules[0], self.version)

    async def compile_library(self) -> None:
        """Compile the standard library packages of nearly every program.

        This uses the time in which modules are downloaded. Concurrent builds would each compile them. A failure is
        ignored: the build compiles what is missing.
        """
        folder = self._folder / "library"
        folder.mkdir()
        (folder / "go.mod").write_text(f"module library\ngo {self._main.go_version}\n")
        await run_program(
            [str(self._go.command), "build", *_FLAGS, *_LIBRARY], env=self._env, cwd=folder, log=self._log
        )

    async def download_modules(self) -> None:
        """Write the go.mod and download all required modules."""
        libraries = await self._shared_libraries() if self.unit.shares_versions else None
        self._write_go_mod(libraries)
        for package in self.unit.packages.values():
            if package.startswith("./"):
                shutil.copytree(MAINS_FOLDER / package, self._folder / package)
        progress = BuildProgress(f"preparing {self._project_version}", report=self._report, every=self._tell_every)
        async with progress.report_regularly():
            if libraries is not None:
                graph: list[str] = []
                await self._run_go("mod", "graph", on_line=graph.append)
                self._write_go_mod(libraries, seen=modules_in_graph(graph))
            for argv in listing_commands(self.unit):
                await self._run_go(*argv, on_line=progress.count_line)

    async def compile_programs(self) -> dict[str, Path]:
        """Build all programs and return their paths."""
        output = self._folder / "out"
        progress = BuildProgress(f"building {self._project_version}", report=self._report, every=self._tell_every)
        async with progress.report_regularly():
            for argv in build_commands(self.unit, self.version, output=output):
                await self._run_go(*argv, on_line=progress.count_line)
        return {
            program: output / file_name(package, test=program in self.unit.tests)
            for program, package in self.unit.packages.items()
        }

    @property
    def _project_version(self) -> str:
        return f"{self.unit.project} {self.version}"

    async def _shared_libraries(self) -> LibraryVersions | None:
        """Return the library versions of the unit in `after`; None for releases that were not tested with them."""
        if self.version != DEFAULT_VERSIONS[self.unit.project]:
            return None
        model = unit_named(self.unit.after)
        version = DEFAULT_VERSIONS[model.project]
        module = await self._query_module(model.modules[0], version)
        return LibraryVersions.from_go_mod(module.read_go_mod(), version)

    def _write_go_mod(self, libraries: LibraryVersions | None, *, seen: Iterable[tuple[str, str]] = ()) -> None:
        text = render_go_mod(
            self.unit,
            self.version,
            go_version=self._main.go_version,
            upstream=self._main.read_go_mod(),
            libraries=libraries,
            seen=seen,
        )
        (self._folder / "go.mod").write_text(text)

    async def _query_module(self, module: str, version: str) -> _Module:
        text = "\n".join(await self._run_go("list", "-m", "-json", f"{module}@v{version}"))
        return msgspec.json.decode(text[text.index("{") : text.rindex("}") + 1], type=_Module)

    async def _run_go(self, *arguments: str, on_line: Callable[[str], None] = lambda _: None) -> list[str]:
        argv = [str(self._go.command), *arguments]
        code, lines = await run_program(argv, env=self._env, cwd=self._folder, on_line=on_line, log=self._log)
        if code != 0:
            raise errors.error_from_output(lines, what=self._project_version, folder=self._folder, log=self._log)
        return lines


def listing_commands(unit: BuildUnit) -> list[list[str]]:
    """Return the commands that list all packages of the programs, which makes Go download their modules."""
    return [
        ["list", "-deps", *options, "-f", _NOTHING, *packages]
        for options, packages in _group_packages(unit, [], ["-test"])
    ]


def build_commands(unit: BuildUnit, version: str, *, output: Path) -> list[list[str]]:
    """Return the commands that build the programs, and test packages without vet."""
    flags = ["-v", *_FLAGS, "-ldflags", link_flags(unit, version), "-o", f"{output}/"]
    return [
        [*command, *flags, *packages]
        for command, packages in _group_packages(unit, ["build"], ["test", "-c", "-vet=off"])
    ]


def _group_packages(unit: BuildUnit, plain: list[str], test: list[str]) -> list[tuple[list[str], list[str]]]:
    """Return the arguments for programs and for test packages, each with its packages if there are any."""
    tests = [package for program, package in unit.packages.items() if program in unit.tests]
    others = [package for program, package in unit.packages.items() if program not in unit.tests]
    return [(words, packages) for words, packages in ((plain, others), (test, tests)) if packages]


def link_flags(unit: BuildUnit, version: str) -> str:
    """Return the linker flags: no symbols, and the version that the program prints."""
    major, minor = major_minor(version)
    values = (variable.format(version=version, major=major, minor=minor) for variable in unit.variables)
    return " ".join(["-s", "-w", *(f"-X {value}" for value in values)])


def file_name(package: str, *, test: bool = False) -> str:
    """Return the name that Go gives a package's program: the last part that is not a major version."""
    parts: Iterator[str] = reversed(package.split("/"))
    name = next(part for part in parts if not re.fullmatch(r"v\d+", part))
    return f"{name}.test" if test else name


def format_elapsed(seconds: float) -> str:
    """Return a duration as `12 s` or `3 min 05 s`."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
