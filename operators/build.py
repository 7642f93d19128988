"""Build of a kit: programs, layers and archives, each built once and stored in the cache."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from operators import archives, layers, published
from operators.published import PublishedPrograms
from operators.recipes import Kit, Recipe
from vkgateway_platform.binaries.cache import Cache
from vkgateway_platform.embedded.realnode.images import image_architecture
from vkgateway_platform.embedded.steps import Report


async def build_kit(kit: Kit, folder: Path, *, report: Report, cache: Cache | None = None) -> None:
    """Build the missing parts of a kit, and write it to `folder`: links to image archives, and copies of manifests.

    Raises:
        VkgatewayError: a build fails, or a tool is missing. Finished parts stay in the cache.
    """
    cache = cache or Cache(Cache.default_root())
    archives = await asyncio.gather(*(build_image(recipe, report=report, cache=cache) for recipe in kit.images))
    links = {recipe.file_name: archive for recipe, archive in zip(kit.images, archives, strict=True)}
    manifests = {
        name: await published.provide_programs(program, report=report.done, cache=cache) / kept
        for name, (program, kept) in kit.manifests.items()
    }
    await asyncio.to_thread(_copy_files, folder, links=links, manifests=manifests)


async def build_image(recipe: Recipe, *, report: Report, cache: Cache) -> Path:
    """Return the archive of an image, built if it does not exist."""
    folder = cache.root / "images"
    target = folder / f"{recipe.digest}-{recipe.file_name}"
    async with cache.locks.hold(f"image-{recipe.file_name}", report=report.done):
        if not target.exists():
            programs = await _build_programs(
                (program for program, _ in recipe.programs.values()), report=report, cache=cache
            )
            report.done(f"building image {recipe.name}")
            folder.mkdir(parents=True, exist_ok=True)
            with _work_dir(folder / f"{recipe.file_name}.work") as work:
                found = {path: programs[program.name] / name for path, (program, name) in recipe.programs.items()}
                stack = await _build_layers(recipe, found, work=work)
                await asyncio.to_thread(_write_image, target, recipe, stack)
    return target


@contextlib.contextmanager
def _work_dir(folder: Path) -> Iterator[Path]:
    """Yield an empty directory that exists until the block ends, and delete what a killed build left there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _build_programs(wanted: Iterable[PublishedPrograms], *, report: Report, cache: Cache) -> dict[str, Path]:
    return {one.name: await published.provide_programs(one, report=report.done, cache=cache) for one in wanted}


async def _build_layers(recipe: Recipe, programs: dict[str, Path], *, work: Path) -> list[Path]:
    stack: list[Path] = []
    if recipe.root:
        stack.append(work / "root.tar")
        await layers.build_root(stack[-1], recipe.root)
    if recipe.root and recipe.compiled:
        stack.append(work / "compiled.tar")
        await layers.compile_packages(stack[-1], recipe.root, recipe.compiled, folder=work)
    if recipe.libraries or recipe.sources:
        stack.append(work / "libraries.tar")
        await layers.install_packages(stack[-1], recipe, folder=work / "libraries")
    if programs or recipe.files:
        stack.append(work / "files.tar")
        await asyncio.to_thread(layers.pack_files, stack[-1], programs, recipe.files, empty=recipe.root is None)
    return stack


def _write_image(target: Path, recipe: Recipe, stack: Sequence[Path]) -> None:
    """Write the archive under a temporary name and rename it, so that an existing archive is complete."""
    new = target.with_suffix(".new")
    archives.write_archive(new, recipe, stack, architecture=image_architecture())
    new.replace(target)


def _copy_files(folder: Path, *, links: Mapping[str, Path], manifests: Mapping[str, Path]) -> None:
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
