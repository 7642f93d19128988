"""Building programs from the Go module proxy: a go.mod of our own, one `go build`, progress while it runs."""

import asyncio
import contextlib
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec

from vkgateway.programs.binaries import errors
from vkgateway.programs.binaries.catalogue import Unit, minor_of
from vkgateway.programs.binaries.golang import Go
from vkgateway.programs.binaries.run import run

_NEEDED_BYTES = 1_000_000_000
_MAINS = Path(__file__).with_name("mains")
_STAGING = re.compile(r"^\s*(?:replace\s+)?(\S+)\s+=>\s+\./staging/src/\S+\s*$", re.MULTILINE)
_REPLACED = re.compile(r"^\s*(?:replace\s+)?(\S+\s+=>\s+\S+\s+v\S+)\s*$", re.MULTILINE)
_SETTINGS = re.compile(r"^(?:go|godebug)\s+[^(\s].*$", re.MULTILINE)


class _Module(msgspec.Struct, rename="pascal"):
    go_mod: str
    go_version: str = "1.21"


class Progress:
    """Tells how far a build is, once in `every` seconds; `clock` is in seconds."""

    def __init__(
        self, what: str, *, report: Callable[[str], None], every: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._what = what
        self._report = report
        self._every = every
        self._clock = clock
        self._start = clock()
        self.downloads = 0
        self.packages = 0

    def line(self, line: str) -> None:
        """Take note of a line of go's output."""
        if line.startswith("go: downloading "):
            self.downloads += 1
        elif line and " " not in line:
            self.packages += 1

    def tell(self) -> None:
        """Report where it stands."""
        doing = "reading the cache"
        if self.downloads:
            doing = f"modules downloaded: {self.downloads}"
        if self.packages:
            doing = f"packages compiled: {self.packages}"
        self._report(f"{self._what}: {doing}, {elapsed(self._clock() - self._start)}")

    @contextlib.asynccontextmanager
    async def ticking(self) -> AsyncIterator[None]:
        """Report regularly while the block runs."""

        async def tick() -> None:
            while True:
                await asyncio.sleep(self._every)
                self.tell()

        task = asyncio.create_task(tick(), name="build progress")
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def build(
    unit: Unit,
    version: str,
    *,
    go: Go,
    folder: Path,
    log: Path,
    report: Callable[[str], None],
    tell_every: float = 10.0,
) -> dict[str, Path]:
    """Build every program of `unit` in `folder` and return where each is.

    Raises:
        UnknownVersionError, NoNetworkError, DiskFullError, ChecksumError, BuildError.
    """
    if shutil.disk_usage(folder).free < _NEEDED_BYTES:
        raise errors.disk_full(folder)
    what = f"{unit.project} {version}"
    _start_log(log)
    temporary = folder / "tmp"
    temporary.mkdir()
    env = {**go.env, "GOTMPDIR": str(temporary)}
    main = await _describe(unit, version, go=go, env=env, folder=folder, log=log)
    (folder / "go.mod").write_text(go_mod(unit, version, go_version=main.go_version, upstream=_upstream(main)))
    for package in unit.packages.values():
        if package.startswith("./"):
            shutil.copytree(_MAINS / package, folder / package)
    output = folder / "out"
    progress = Progress(f"building {what}", report=report, every=tell_every)
    async with progress.ticking():
        for argv in commands(unit, version, output=output):
            code, lines = await run([str(go.command), *argv], env=env, cwd=folder, on_line=progress.line, log=log)
            if code != 0:
                raise errors.from_output(lines, what=what, folder=folder, log=log)
    return {
        program: output / file_name(package, test=program in unit.tests) for program, package in unit.packages.items()
    }


def commands(unit: Unit, version: str, *, output: Path) -> list[list[str]]:
    """What Go is asked for: to build the programs, then those that are test packages, which it need not vet."""
    flags = ["-v", "-trimpath", f"-p={os.cpu_count() or 1}", "-ldflags", link_flags(unit, version), "-o", f"{output}/"]
    tests = [package for program, package in unit.packages.items() if program in unit.tests]
    plain = [package for program, package in unit.packages.items() if program not in unit.tests]
    wanted = ((["build"], plain), (["test", "-c", "-vet=off"], tests))
    return [[*command, *flags, *packages] for command, packages in wanted if packages]


def _start_log(log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("")


async def _describe(unit: Unit, version: str, *, go: Go, env: dict[str, str], folder: Path, log: Path) -> _Module:
    """Ask for the main module first: a version that does not exist is told apart here, before anything is built."""
    module = f"{unit.modules[0]}@v{version}"
    code, lines = await run([str(go.command), "list", "-m", "-json", module], env=env, cwd=folder, log=log)
    if code != 0:
        raise errors.from_output(lines, what=f"{unit.project} {version}", folder=folder, log=log)
    text = "\n".join(lines)
    return msgspec.json.decode(text[text.index("{") : text.rindex("}") + 1], type=_Module)


def _upstream(module: _Module) -> str:
    return Path(module.go_mod).read_text(encoding="utf-8")


def go_mod(unit: Unit, version: str, *, go_version: str, upstream: str) -> str:
    """A go.mod that requires the unit's modules at `version`.

    Modules that upstream keeps in its own tree (k8s.io/api and so on, `./staging/src`, required there as
    v0.0.0) are published as v0.MINOR.PATCH and replaced by that. They are not required here: Go would then
    have to read all of them, and some were never published. `upstream` is the text of the first module's
    go.mod; its Go version and GODEBUG settings are kept.
    """
    settings = _SETTINGS.findall(upstream) if unit.staging else []
    lines = ["module build", *(settings or [f"go {go_version}"])]
    lines += [f"require {module} v{version}" for module in unit.modules]
    if unit.staging:
        staged = f"v0.{version.partition('.')[2]}"
        replaced = dict.fromkeys(_STAGING.findall(upstream))
        lines += [f"replace {module} => {module} {staged}" for module in replaced]
    if unit.replacements is not None:
        lines += [f"replace {line}" for line in _REPLACED.findall(upstream)]
        lines += [f"replace {module} => {module} v{own}" for module, own in unit.replacements.items()]
    return "\n".join(lines) + "\n"


def link_flags(unit: Unit, version: str) -> str:
    """What the linker is told: no symbols, and the version for the program to tell."""
    major, minor = minor_of(version)
    values = (variable.format(version=version, major=major, minor=minor) for variable in unit.variables)
    return " ".join(["-s", "-w", *(f"-X {value}" for value in values)])


def file_name(package: str, *, test: bool = False) -> str:
    """The name that Go gives the program of a package: its last part that is no major version."""
    parts: Iterator[str] = reversed(package.split("/"))
    name = next(part for part in parts if not re.fullmatch(r"v\d+", part))
    return f"{name}.test" if test else name


def elapsed(seconds: float) -> str:
    """`12 s`, `3 min 05 s`."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
