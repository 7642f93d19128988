"""From a kit to files: programs, layers and archives, each made once and kept in the cache."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from operators import archives, layers
from operators.recipes import Kit, Recipe
from vkgateway.local.realnode.images import image_architecture
from vkgateway.local.steps import Report
from vkgateway.programs.binaries import published
from vkgateway.programs.binaries.cache import Cache
from vkgateway.programs.binaries.published import PublishedPrograms


async def lay(kit: Kit, folder: Path, *, report: Report, cache: Cache | None = None) -> None:
    """Make what is missing of a kit, and lay all of it in `folder`: images' archives, and manifests to change at will.

    Raises:
        VkgatewayError: a build fails, or a tool is missing; what was made so far is kept.
    """
    cache = cache or Cache(Cache.default_root())
    made = await asyncio.gather(*(image(recipe, report=report, cache=cache) for recipe in kit.images))
    links = {recipe.file_name: archive for recipe, archive in zip(kit.images, made, strict=True)}
    manifests = {
        name: await published.provide_programs(program, report=report.done, cache=cache) / kept
        for name, (program, kept) in kit.manifests.items()
    }
    await asyncio.to_thread(_lay, folder, links=links, manifests=manifests)


async def image(recipe: Recipe, *, report: Report, cache: Cache) -> Path:
    """The archive of an image, made where there is none."""
    folder = cache.root / "images"
    target = folder / f"{recipe.digest}-{recipe.file_name}"
    async with cache.lock(f"image-{recipe.file_name}", report=report.done):
        if not target.exists():
            programs = await _programs((program for program, _ in recipe.programs.values()), report=report, cache=cache)
            report.done(f"making image {recipe.name}")
            folder.mkdir(parents=True, exist_ok=True)
            with _workplace(folder / f"{recipe.file_name}.work") as work:
                found = {path: programs[program.name] / name for path, (program, name) in recipe.programs.items()}
                stack = await _layers(recipe, found, work=work)
                await asyncio.to_thread(_write, target, recipe, stack)
    return target


@contextlib.contextmanager
def _workplace(folder: Path) -> Iterator[Path]:
    """An empty folder for as long as the block lasts; what a build that was killed left there goes, too."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _programs(wanted: Iterable[PublishedPrograms], *, report: Report, cache: Cache) -> dict[str, Path]:
    return {one.name: await published.provide_programs(one, report=report.done, cache=cache) for one in wanted}


async def _layers(recipe: Recipe, programs: dict[str, Path], *, work: Path) -> list[Path]:
    stack: list[Path] = []
    if recipe.root:
        stack.append(work / "root.tar")
        await layers.root(stack[-1], recipe.root)
    if recipe.root and recipe.compiled:
        stack.append(work / "compiled.tar")
        await layers.compiled(stack[-1], recipe.root, recipe.compiled, folder=work)
    if recipe.libraries or recipe.sources:
        stack.append(work / "libraries.tar")
        await layers.libraries(stack[-1], recipe, folder=work / "libraries")
    if programs or recipe.files:
        stack.append(work / "files.tar")
        await asyncio.to_thread(layers.bare, stack[-1], programs, recipe.files, empty=recipe.root is None)
    return stack


def _write(target: Path, recipe: Recipe, stack: Sequence[Path]) -> None:
    """Archives are moved in whole, so what is there is complete."""
    new = target.with_suffix(".new")
    archives.write(new, recipe, stack, architecture=image_architecture())
    new.replace(target)


def _lay(folder: Path, *, links: Mapping[str, Path], manifests: Mapping[str, Path]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, archive in links.items():
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(archive)
    for name, source in manifests.items():
        if source.is_dir():
            shutil.rmtree(folder / name, ignore_errors=True)
            shutil.copytree(source, folder / name)
        else:
            shutil.copyfile(source, folder / name)
