"""Public programs that we are measured against: built once from the Go module proxy, and kept with their manifests."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from vkgateway.local.steps import Report
from vkgateway.programs.binaries import errors
from vkgateway.programs.binaries.cache import Cache
from vkgateway.programs.binaries.catalogue import Unit
from vkgateway.programs.binaries.gobuild import build, elapsed
from vkgateway.programs.binaries.golang import Go, find_go
from vkgateway.programs.binaries.run import run


@dataclass(frozen=True, slots=True)
class Rival:
    """What is built, of which version, and what is kept beside it."""

    unit: Unit
    version: str
    manifests: Mapping[str, str]
    """Path in the first module's tree (a file or a folder) to the name that it is kept by."""


class _Download(msgspec.Struct, rename="pascal"):
    dir: str


async def provide(rival: Rival, *, report: Report, cache: Cache | None = None) -> Path:
    """The folder with a rival's programs and manifests, built where there is none: `rivals/NAME-VERSION` in the cache.

    Raises: see `vkgateway.programs.binaries.gobuild.build`.
    """
    cache = cache or Cache(Cache.default_root())
    name = f"{rival.unit.name}-{rival.version}"
    folder = cache.root / "rivals" / name
    async with cache.lock(f"rival-{name}", report=report):
        if not all((folder / part).exists() for part in [*rival.unit.packages, *rival.manifests.values()]):
            report.done(f"building {name}; on two cores that takes about {elapsed(rival.unit.seconds)}")
            await _make(rival, folder, cache=cache, report=report)
    return folder


async def _make(rival: Rival, folder: Path, *, cache: Cache, report: Report) -> None:
    """Everything is put together aside and moved in whole, so what is there is complete."""
    unit, version = rival.unit, rival.version
    go = await find_go(cache, report=report)
    work, log = cache.building(unit, version), cache.log(unit, version)
    try:
        built = await build(unit, version, go=go, folder=work, log=log, report=report)
        source = await _source(unit, version, go=go, folder=work, log=log)
        finished = work / "finished"
        await asyncio.to_thread(_collect, built, source, rival.manifests, finished)
        folder.parent.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        finished.replace(folder)
    finally:
        await asyncio.to_thread(shutil.rmtree, work, ignore_errors=True)


async def _source(unit: Unit, version: str, *, go: Go, folder: Path, log: Path) -> Path:
    """The tree of the first module, which the build has downloaded."""
    argv = [str(go.command), "mod", "download", "-json", f"{unit.modules[0]}@v{version}"]
    code, lines = await run(argv, env=go.env, cwd=folder, log=log)
    if code != 0:
        raise errors.from_output(lines, what=f"{unit.project} {version}", folder=folder, log=log)
    text = "\n".join(lines)
    return Path(msgspec.json.decode(text[text.index("{") : text.rindex("}") + 1], type=_Download).dir)


def _collect(built: Mapping[str, Path], source: Path, manifests: Mapping[str, str], target: Path) -> None:
    """Programs and manifests side by side; files of the module cache are read-only, copies are not."""
    target.mkdir()
    for program, binary in built.items():
        shutil.copyfile(binary, target / program)
        (target / program).chmod(0o755)
    for path, name in manifests.items():
        if (source / path).is_dir():
            (target / name).mkdir()
            for file in (source / path).iterdir():
                shutil.copyfile(file, target / name / file.name)
        else:
            shutil.copyfile(source / path, target / name)
