"""`vkgateway image`: container images on the embedded platform's real node."""

from __future__ import annotations

from pathlib import Path

import click

from vkgateway.cli.options import data_dir_option, run_async
from vkgateway.cli.output import Column, output_option, print_objects
from vkgateway.cli.progress import Progress

COLUMNS: tuple[Column[str], ...] = (Column("image", str),)


@click.group(short_help="Manage images on the real node.", epilog="\b\nExample: vkgateway image load web.tar")
def image() -> None:
    """Load container images into the embedded platform's real node, and list them.

    Use it for images without a registry. The node pulls all other images.
    """


@image.command(epilog="\b\nExample: docker save web:1 -o web.tar; vkgateway image load web.tar")
@click.argument(
    "archives",
    nargs=-1,
    required=True,
    metavar="FILE...",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    callback=lambda _ctx, _param, paths: tuple(path.absolute() for path in paths),
)
@data_dir_option
@run_async
async def load(*, archives: tuple[Path, ...], data_dir: Path) -> None:
    """Load images from `docker save` archives or OCI archives, and print their names.

    Pods use the images by these names, with an imagePullPolicy other than Always.
    """
    from vkgateway_platform.embedded import images

    with Progress() as progress:
        for archive in archives:
            progress(f"loading {archive.name}")
            for name in await images.load_images(data_dir, archive, report=progress):
                click.echo(name)


@image.command(
    "load-control-planes", epilog="\b\nExample: vkgateway image load-control-planes --kubernetes-version 1.35.8"
)
@click.option(
    "--kubernetes-version",
    "versions",
    metavar="X.Y.Z",
    multiple=True,
    help="Kubernetes version of control planes; repeatable. [default: see `vkgateway version`]",
)
@data_dir_option
@run_async
async def load_control_planes(*, versions: tuple[str, ...], data_dir: Path) -> None:
    """Load images of Kubernetes control planes, etcd and CoreDNS that are made from programs of this machine.

    They have the names of the official images, so control planes run as pods without a registry.
    """
    import tempfile

    from vkgateway.api.types import DEFAULT_KUBERNETES_VERSION
    from vkgateway_platform.embedded import images
    from vkgateway_platform.embedded.control_plane_images import write_control_plane_images

    with Progress() as progress, tempfile.TemporaryDirectory() as folder:
        await images.find_containerd(data_dir, report=progress)
        archive = Path(folder) / "control-planes.tar"
        for version in versions or (DEFAULT_KUBERNETES_VERSION,):
            progress(f"writing images of Kubernetes {version}")
            await write_control_plane_images(archive, report=progress, kubernetes_version=version)
            progress(f"loading images of Kubernetes {version}")
            for name in await images.load_images(data_dir, archive, report=progress):
                click.echo(name)


@image.command("list", epilog="\b\nExample: vkgateway image list -o json")
@output_option
@data_dir_option
@run_async
async def list_images(*, output: str, data_dir: Path) -> None:
    """List the images on the real node."""
    from vkgateway_platform.embedded import images

    with Progress() as progress:
        found = await images.list_images(data_dir, report=progress)
    print_objects(found, output=output, columns=COLUMNS, name=str, empty="There are no images on the real node.")
