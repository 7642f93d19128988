"""Container images made from the machine's busybox, as archives for `ctr images import`."""

from __future__ import annotations

import hashlib
import io
import os
import platform
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from vkgateway.planes.atomic_files import write_file
from vkgateway_platform.embedded.realnode.busybox import WGET_WITH_TIMEOUT, Busybox

T = TypeVar("T")

BUSYBOX = Path("/bin/busybox")
"""From the Debian package `busybox-static`."""
DYNAMIC_BUSYBOX = Path("/usr/local/lib/vkgateway/busybox")
"""From the Debian package `busybox`, which conflicts with the other: `make setup` unpacks it there."""
PING = Path("/bin/ping")
"""From the Debian package `iputils-ping`: it needs no capability if `net.ipv4.ping_group_range` lets a pod ping."""
PAUSE_IMAGE = "vkgateway.local/pause:1"
BUSYBOX_IMAGE = "vkgateway.local/busybox:1"
IMAGE_NAMES = (PAUSE_IMAGE, BUSYBOX_IMAGE)

# 68 years, since a sandbox only has to exist. Its first process ignores SIGTERM; containerd kills sandboxes with
# SIGKILL.
_PAUSE_COMMAND = ("/bin/busybox", "sleep", "2147483647")
_NAME = "org.opencontainers.image.ref.name"
"""Annotation with the name of an image in an OCI archive."""
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_PATH = "PATH=/bin:/usr/bin:/sbin:/usr/sbin"


@dataclass(frozen=True, slots=True)
class ImageEntry:
    """One file of an image: a regular file (data), a link (target) or a directory (neither)."""

    path: str
    mode: int = 0o755
    data: bytes | None = None
    target: str | None = None


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image of one layer."""

    name: str
    """Reference with tag: `vkgateway.local/busybox:1`."""
    entries: Sequence[ImageEntry]
    command: Sequence[str]
    environment: Sequence[str] = field(default=(_PATH,))

    def to_archive(self, *, architecture: str) -> bytes:
        """Return the docker-archive bytes; equal images have equal bytes."""
        layer = _build_tar(self.entries)
        digest = hashlib.sha256(layer).hexdigest()
        config = msgspec.json.encode(
            {
                "architecture": architecture,
                "os": "linux",
                "config": {"Cmd": list(self.command), "Env": list(self.environment), "WorkingDir": "/"},
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
                "history": [{"created_by": "vkgateway"}],
            }
        )
        config_name = f"{hashlib.sha256(config).hexdigest()}.json"
        layer_name = f"{digest}.tar"
        manifest = [{"Config": config_name, "RepoTags": [self.name], "Layers": [layer_name]}]
        return _build_tar(
            [
                ImageEntry("manifest.json", 0o644, msgspec.json.encode(manifest)),
                ImageEntry(config_name, 0o644, config),
                ImageEntry(layer_name, 0o644, layer),
            ]
        )


class _ManifestEntry(msgspec.Struct):
    """An entry of an archive's list of images."""

    names: list[str] | None = msgspec.field(default=None, name="RepoTags")


class _IndexEntry(msgspec.Struct):
    """An image of an OCI archive."""

    annotations: dict[str, str] = {}


class _Index(msgspec.Struct):
    """The list of images of an OCI archive."""

    manifests: list[_IndexEntry] = []


def pause_image(busybox: Busybox) -> Image:
    """Return the image of pod sandboxes: one command that sleeps."""
    return Image(name=PAUSE_IMAGE, entries=_base_entries(busybox), command=_PAUSE_COMMAND)


def busybox_image(busybox: Busybox) -> Image:
    """Return a small userland: busybox with a link for each applet (`sh`, `date`, `wget`, ...)."""
    files = {applet: ImageEntry(f"bin/{applet}", 0o777, target="busybox") for applet in busybox.applets}
    if "wget" in files and not busybox.wget_has_timeout:
        files["wget"] = ImageEntry("bin/wget", 0o755, WGET_WITH_TIMEOUT.encode())
    if busybox.ping:
        files["ping"] = ImageEntry("bin/ping", 0o755, busybox.ping)
        files["ping6"] = ImageEntry("bin/ping6", 0o777, target="ping")
    files.pop("busybox", None)
    return Image(name=BUSYBOX_IMAGE, entries=[*_base_entries(busybox), *files.values()], command=("sh",))


def write_images(directory: Path) -> dict[str, Path]:
    """Write both archives into `directory` and return their paths by image name. Unchanged files are not written.

    The shell of a static busybox runs its own applets, whatever PATH is, and never the script for wget.

    Raises:
        ToolError: busybox does not run here.
    """
    pause = Busybox.from_file(BUSYBOX)
    program = DYNAMIC_BUSYBOX if DYNAMIC_BUSYBOX.exists() else BUSYBOX
    shell = Busybox.from_file(program, ping=PING if PING.exists() else None)
    images = (pause_image(pause), busybox_image(shell))
    written = {}
    for image in images:
        path = archive_path(directory, image.name)
        write_file(path, image.to_archive(architecture=image_architecture()))
        written[image.name] = path
    return written


def image_names(archive: Path) -> list[str]:
    """Return the names of the images in a docker or OCI archive; empty if the archive has none."""
    try:
        with tarfile.open(archive) as opened:
            members = opened.getnames()
            if "manifest.json" in members:
                manifest = _read_document(opened, "manifest.json", list[_ManifestEntry])
                return [name for image in manifest for name in image.names or []]
            images = _read_document(opened, "index.json", _Index).manifests
            return [image.annotations[_NAME] for image in images if _NAME in image.annotations]
    except (KeyError, tarfile.TarError, msgspec.DecodeError):
        return []


def _read_document(archive: tarfile.TarFile, name: str, kind: type[T]) -> T:
    """Return a JSON document of an archive. Raises KeyError if it does not exist, DecodeError."""
    with archive.extractfile(name) or io.BytesIO() as file:
        return msgspec.json.decode(file.read(), type=kind)


def archive_path(directory: Path, name: str) -> Path:
    """Return the path of an image's archive."""
    return directory / f"{name.partition('/')[2].replace(':', '-')}.tar"


def image_architecture() -> str:
    """Return this machine's architecture as images name it."""
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


def _base_entries(busybox: Busybox) -> list[ImageEntry]:
    libraries = [ImageEntry(path.lstrip("/"), 0o755, content) for path, content in busybox.libraries]
    folders = {"bin", "dev", "etc", "proc", "root", "sys", "usr", "usr/bin", "var"}
    folders |= {str(parent) for entry in libraries for parent in Path(entry.path).parents} - {"."}
    return [
        *(ImageEntry(name) for name in sorted(folders)),
        ImageEntry("tmp", 0o1777),
        ImageEntry("bin/busybox", 0o755, busybox.program),
        *libraries,
        ImageEntry("etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"),
        ImageEntry("etc/group", 0o644, b"root:x:0:\nnogroup:x:65534:\n"),
        ImageEntry("etc/nsswitch.conf", 0o644, b"hosts: files dns\n"),
    ]


def _build_tar(entries: Sequence[ImageEntry]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry in entries:
            archive.addfile(tar_header(entry), io.BytesIO(entry.data or b""))
    return buffer.getvalue()


def tar_header(entry: ImageEntry) -> tarfile.TarInfo:
    """Return a tar header without time or owner, so that equal files have equal bytes."""
    member = tarfile.TarInfo(os.fspath(entry.path))
    member.mode = entry.mode
    if entry.target is not None:
        member.type, member.linkname = tarfile.SYMTYPE, entry.target
    elif entry.data is None:
        member.type = tarfile.DIRTYPE
    else:
        member.size = len(entry.data)
    return member
