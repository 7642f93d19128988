"""Public programs other than Kubernetes', built once from the Go module proxy and stored with their manifests."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from vkgateway_platform.binaries import errors
from vkgateway_platform.binaries.cache import Cache
from vkgateway_platform.binaries.catalogue import BuildUnit
from vkgateway_platform.binaries.go_build import GoBuild, format_elapsed
from vkgateway_platform.binaries.go_toolchain import GoToolchain, find_go
from vkgateway_platform.binaries.subprocesses import run_program


@dataclass(frozen=True, slots=True)
class PublishedPrograms:
    """Programs to build at a version, and the manifests to store with them."""

    unit: BuildUnit
    version: str
    manifests: Mapping[str, str]
    """Name under which each manifest is stored, by its path (a file or a directory) in the first module's tree."""
    edits: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Text that occurs once in a source file, and its replacement, by the file's path in the first module's tree."""

    @property
    def name(self) -> str:
        """Unique name, `NAME-VERSION`."""
        return f"{self.unit.name}-{self.version}"


class _Download(msgspec.Struct, rename="pascal"):
    dir: str


async def provide_programs(
    wanted: PublishedPrograms, *, report: Callable[[str], None], cache: Cache | None = None
) -> Path:
    """Return the directory with programs and manifests, `published/NAME-VERSION` in the cache; build it if it is
    missing.

    Raises: see `vkgateway_platform.binaries.go_build.GoBuild`.
    """
    cache = cache or Cache(Cache.default_root())
    folder = cache.root / "published" / wanted.name
    async with cache.locks.hold(f"published-{wanted.name}", report=report):
        if not all((folder / part).exists() for part in [*wanted.unit.packages, *wanted.manifests.values()]):
            report(f"building {wanted.name}; on two cores that takes about {format_elapsed(wanted.unit.seconds)}")
            await _build_programs(wanted, folder, cache=cache, report=report)
    return folder


async def _build_programs(
    wanted: PublishedPrograms, folder: Path, *, cache: Cache, report: Callable[[str], None]
) -> None:
    """Build in a temporary directory and move it in atomically, so that an existing one is complete."""
    unit, version = wanted.unit, wanted.version
    go = await find_go(cache, report=report)
    work, log = cache.make_build_dir(unit, version), cache.log_path(unit, version)
    try:
        build = GoBuild(unit, version, go=go, folder=work, log=log, report=report)
        await build.resolve_module()
        await build.download_modules()
        source = await _module_source(unit, version, go=go, folder=work, log=log)
        if wanted.edits:
            await asyncio.to_thread(edit_module, unit.modules[0], wanted.edits, source=source, folder=work)
        built = await build.compile_programs()
        finished = work / "finished"
        await asyncio.to_thread(_collect_files, built, source, wanted.manifests, finished)
        folder.parent.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        finished.replace(folder)
    finally:
        await asyncio.to_thread(shutil.rmtree, work, ignore_errors=True)


async def _module_source(unit: BuildUnit, version: str, *, go: GoToolchain, folder: Path, log: Path) -> Path:
    """Return the tree of the first module, which the build has downloaded."""
    argv = [str(go.command), "mod", "download", "-json", f"{unit.modules[0]}@v{version}"]
    code, lines = await run_program(argv, env=go.env, cwd=folder, log=log)
    if code != 0:
        raise errors.error_from_output(lines, what=f"{unit.project} {version}", folder=folder, log=log)
    text = "\n".join(lines)
    return Path(msgspec.json.decode(text[text.index("{") : text.rindex("}") + 1], type=_Download).dir)


def edit_module(module: str, edits: Mapping[str, tuple[str, str]], *, source: Path, folder: Path) -> None:
    """Make the build in `folder` use an edited copy of the module's tree."""
    copy = folder / "edited"
    _copy_tree(source, copy)
    for path, (old, new) in edits.items():
        text = (copy / path).read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise ValueError(f"{path} of {module}: found {text.count(old)} times, expected once: {old!r}")
        (copy / path).write_text(text.replace(old, new), encoding="utf-8")
    with (folder / "go.mod").open("a", encoding="utf-8") as go_mod:
        go_mod.write(f"\nreplace {module} => ./{copy.name}\n")


def _collect_files(built: Mapping[str, Path], source: Path, manifests: Mapping[str, str], target: Path) -> None:
    """Copy programs and manifests into one directory; files of the module cache are read-only, the copies are not."""
    target.mkdir()
    for program, binary in built.items():
        shutil.copyfile(binary, target / program)
        (target / program).chmod(0o755)
    for path, name in manifests.items():
        if (source / path).is_dir():
            _copy_tree(source / path, target / name)
        else:
            shutil.copyfile(source / path, target / name)


def _copy_tree(source: Path, target: Path) -> None:
    for file in source.rglob("*"):
        if file.is_file():
            copy = target / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
