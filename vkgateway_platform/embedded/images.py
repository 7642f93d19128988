"""Images on the real node that are in no registry: loaded from archives, and listed."""

from __future__ import annotations

import asyncio
import tarfile
from pathlib import Path

from vkgateway.api.errors import InputError, NotFoundError, UnavailableError
from vkgateway_platform.binaries.resolver import Resolver
from vkgateway_platform.embedded import real_node_steps
from vkgateway_platform.embedded import record as records
from vkgateway_platform.embedded.paths import PlatformPaths
from vkgateway_platform.embedded.realnode.containerd import Containerd
from vkgateway_platform.embedded.realnode.host import ToolError
from vkgateway_platform.embedded.realnode.images import image_names
from vkgateway_platform.embedded.steps import Report


async def load_images(data_dir: Path, archive: Path, *, report: Report) -> list[str]:
    """Load the images of an archive (an absolute path) into the real node; return their names.

    An existing image of the same name is replaced.

    Raises:
        NotFoundError: there is no platform in `data_dir`.
        UnavailableError: the platform has no real node, or the node does not run.
        InputError: the file is not an archive.
        ToolError: containerd does not answer, or rejects the archive.
    """
    containerd = await find_containerd(data_dir, report=report)
    try:
        await asyncio.to_thread(containerd.load_archive, archive)
    except ToolError as error:
        # Checked afterwards: containerd supports compressions that this program does not know.
        if await asyncio.to_thread(tarfile.is_tarfile, archive):
            raise
        raise InputError(
            f"{archive} is not an image archive", hint=f"`docker save IMAGE -o {archive.name}` writes one."
        ) from error
    return await asyncio.to_thread(image_names, archive)


async def list_images(data_dir: Path, *, report: Report) -> list[str]:
    """Return the names of the images on the real node.

    Raises: see `load_images`.
    """
    containerd = await find_containerd(data_dir, report=report)
    return sorted(await asyncio.to_thread(containerd.list_images))


async def find_containerd(data_dir: Path, *, report: Report) -> Containerd:
    """Return the containerd of the platform's real node. Raises: see `load_images`."""
    paths = PlatformPaths(data_dir)
    record = records.load_record(paths.record_path)
    if record is None:
        raise NotFoundError(f"there is no platform in {data_dir}", hint="Start one with `vkgateway up`.")
    if record.real_node_why_not:
        raise UnavailableError(
            f"the platform has no real node: {record.real_node_why_not}",
            hint="Hollow nodes need no images and accept any name.",
        )
    if not real_node_steps.is_running(paths.node_dir, number=record.number):
        raise UnavailableError("the real node does not run", hint="Start the platform with `vkgateway up`.")
    folders = [Path(folder) for folder in record.program_dirs]
    ctr = (await Resolver(report=report.done, program_dirs=folders).resolve("ctr"))["ctr"]
    return real_node_steps.running_containerd(paths.node_dir, number=record.number, ctr=ctr)
