"""Images that share layers, in one archive; no layer is held in memory."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from vkgateway_platform.embedded.realnode.images import ImageEntry, tar_header

_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer on disk: an uncompressed tar file, with its SHA-256."""

    path: Path
    digest: str

    @classmethod
    def from_file(cls, path: Path) -> Layer:
        with path.open("rb") as file:
            return cls(path, hashlib.file_digest(file, "sha256").hexdigest())


@dataclass(frozen=True, slots=True, kw_only=True)
class LayeredImage:
    """An image: its name, its layers from the lowest on, and its command."""

    name: str
    layers: Sequence[Layer]
    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    user: str = ""

    def build_config(self, *, architecture: str) -> bytes:
        """Return the image's configuration for its archive."""
        settings = {
            "Entrypoint": list(self.entrypoint) or None,
            "Cmd": list(self.command) or None,
            "Env": [_PATH],
            "User": self.user,
            "WorkingDir": "/",
        }
        return msgspec.json.encode(
            {
                "architecture": architecture,
                "os": "linux",
                "config": settings,
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.digest}" for layer in self.layers]},
                "history": [{"created_by": "vkgateway"} for _ in self.layers],
            }
        )


def write_layer(path: Path, entries: Sequence[ImageEntry | tuple[ImageEntry, Path]]) -> Layer:
    """Write a layer of small entries and of files of this machine."""
    with tarfile.open(path, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry in entries:
            if isinstance(entry, ImageEntry):
                archive.addfile(tar_header(entry), io.BytesIO(entry.data or b""))
            else:
                header = tar_header(ImageEntry(entry[0].path, entry[0].mode, b""))
                header.size = entry[1].stat().st_size
                with entry[1].open("rb") as file:
                    archive.addfile(header, file)
    return Layer.from_file(path)


def write_archive(path: Path, images: Sequence[LayeredImage], *, architecture: str) -> None:
    """Write all images into one docker-archive; shared layers are written once."""
    manifest, configs = [], {}
    for image in images:
        config = image.build_config(architecture=architecture)
        name = f"{hashlib.sha256(config).hexdigest()}.json"
        configs[name] = config
        layers = [f"{layer.digest}.tar" for layer in image.layers]
        manifest.append({"Config": name, "RepoTags": [image.name], "Layers": layers})
    small = {"manifest.json": msgspec.json.encode(manifest), **configs}
    large = {f"{layer.digest}.tar": layer.path for image in images for layer in image.layers}
    unfinished = path.with_suffix(".unfinished.tar")
    write_layer(
        unfinished,
        [
            *(ImageEntry(name, 0o644, data) for name, data in small.items()),
            *((ImageEntry(name, 0o644), file) for name, file in large.items()),
        ],
    )
    unfinished.replace(path)
