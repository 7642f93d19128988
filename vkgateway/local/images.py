"""Images on the real node that no registry holds: loaded from archives, and listed."""

from __future__ import annotations

import asyncio
import tarfile
from pathlib import Path

from vkgateway.local import real_node_steps
from vkgateway.local import record as records
from vkgateway.local.paths import PlatformPaths
from vkgateway.local.realnode.host import ToolError
from vkgateway.local.realnode.images import image_names
from vkgateway.local.realnode.node import RealNode
from vkgateway.local.steps import Report
from vkgateway.model.errors import InputError, NotFoundError, UnavailableError
from vkgateway.programs.binaries.resolver import Resolver


async def load_images(data_dir: Path, archive: Path, *, report: Report) -> list[str]:
    """Hand the images of an archive (an absolute path) to the real node; their names.

    What bears such a name already is replaced.

    Raises:
        NotFoundError: there is no platform in `data_dir`.
        UnavailableError: it has no real node, or that does not run.
        InputError: the file is no archive.
        ToolError: containerd does not answer, or does not take the archive.
    """
    node = await _running_node(data_dir, report=report)
    try:
        await asyncio.to_thread(node.load_archive, archive)
    except ToolError as error:
        # Afterwards: containerd takes archives that were compressed in ways which are unknown here.
        if await asyncio.to_thread(tarfile.is_tarfile, archive):
            raise
        raise InputError(
            f"{archive} is no archive of images", hint=f"`docker save IMAGE -o {archive.name}` writes one."
        ) from error
    return await asyncio.to_thread(image_names, archive)


async def list_images(data_dir: Path, *, report: Report) -> list[str]:
    """The names of the images on the real node.

    Raises: as `load_images` does.
    """
    node = await _running_node(data_dir, report=report)
    return sorted(await asyncio.to_thread(node.list_images))


async def _running_node(data_dir: Path, *, report: Report) -> RealNode:
    paths = PlatformPaths(data_dir)
    record = records.load_record(paths.record_path)
    if record is None:
        raise NotFoundError(f"there is no platform in {data_dir}", hint="Start one with `vkgateway up`.")
    if record.real_node_why_not:
        raise UnavailableError(
            f"the platform has no real node: {record.real_node_why_not}",
            hint="Hollow nodes need no images: any name will do there.",
        )
    if not real_node_steps.is_running(paths.node_dir, number=record.number):
        raise UnavailableError("the real node does not run", hint="Start the platform with `vkgateway up`.")
    folders = [Path(folder) for folder in record.program_dirs]
    ctr = (await Resolver(report=report.done, program_dirs=folders).resolve("ctr"))["ctr"]
    return real_node_steps.running_node(paths.node_dir, number=record.number, ctr=ctr)
