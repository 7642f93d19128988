"""Images of control planes, made from programs of this machine under the names of the official images."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from vkgateway.api.types import DEFAULT_KUBERNETES_VERSION
from vkgateway.planes.components import PROGRAMS
from vkgateway.planes.drivers.kubernetes.parameters import Parameters
from vkgateway.planes.plane import COMPONENTS
from vkgateway_platform.binaries.resolver import Resolver
from vkgateway_platform.embedded.realnode.images import ImageEntry, image_architecture
from vkgateway_platform.embedded.realnode.layers import LayeredImage, write_archive, write_layer
from vkgateway_platform.embedded.steps import Report

_USER: Final = "65532:65532"


async def write_control_plane_images(
    archive: Path, *, report: Report, kubernetes_version: str = DEFAULT_KUBERNETES_VERSION
) -> None:
    """Write an archive with images of API server, controller-manager, scheduler, etcd and CoreDNS.

    Missing programs are fetched. Each image has one program and nothing else.

    Raises:
        VkgatewayError: a program cannot be fetched.
    """
    resolver = Resolver(report=report, kubernetes_version=kubernetes_version)
    names = image_names(resolver.versions)
    programs = await resolver.resolve(*names)
    await asyncio.to_thread(_write_images, archive, {names[name]: path for name, path in programs.items()})


def image_names(versions: Mapping[str, str]) -> dict[str, str]:
    """Return the reference of each program's official image; `versions` is by project, without `v`."""
    official = Parameters()
    components = {PROGRAMS[name]: official.component_image(name, versions["kubernetes"]) for name in COMPONENTS}
    return components | {
        "etcd": f"{official.registry}/etcd:{versions['etcd']}-0",
        "coredns": f"{official.registry}/coredns/coredns:v{versions['coredns']}",
    }


def _write_images(archive: Path, programs: Mapping[str, Path]) -> None:
    """Write an archive with an image for each name."""
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        images = []
        for name, program in programs.items():
            # The official image of CoreDNS has its program in the root directory.
            target = "coredns" if program.name == "coredns" else f"usr/local/bin/{program.name}"
            folders = [*_directories(target), ImageEntry("tmp", 0o1777)]
            layer = write_layer(Path(folder) / f"{program.name}.tar", [*folders, (ImageEntry(target, 0o755), program)])
            images.append(LayeredImage(name=name, layers=[layer], entrypoint=[f"/{target}"], user=_USER))
        write_archive(archive, images, architecture=image_architecture())


def _directories(target: str) -> Iterator[ImageEntry]:
    for parent in reversed(Path(target).parents[:-1]):
        yield ImageEntry(str(parent))
