"""Image archives of several layers, written as a stream: the format of `docker save`, which containerd reads."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from operators.recipes import Recipe

_CHUNK = 1 << 20
_SYSTEM_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def write_archive(path: Path, recipe: Recipe, layers: Sequence[Path], *, architecture: str) -> None:
    """Write the archive of an image with these layers (tar files), the lowest first."""
    digests = [_file_digest(layer) for layer in layers]
    config = msgspec.json.encode(_image_config(recipe, digests, architecture=architecture))
    names = [f"{digest}.tar" for digest in digests]
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = msgspec.json.encode([{"Config": config_name, "RepoTags": [recipe.name], "Layers": names}])
    with tarfile.open(path, "w") as archive:
        _add_member(archive, "manifest.json", manifest)
        _add_member(archive, config_name, config)
        for name, layer in zip(names, layers, strict=True):
            member = tarfile.TarInfo(name)
            member.size = layer.stat().st_size
            with layer.open("rb") as file:
                archive.addfile(member, file)


def _image_config(recipe: Recipe, digests: Sequence[str], *, architecture: str) -> dict[str, object]:
    runs: dict[str, object] = {
        "Env": [_SYSTEM_PATH, *(f"{name}={value}" for name, value in recipe.environment.items())],
        "WorkingDir": "/",
        "User": recipe.user,
    }
    runs |= {"Entrypoint": list(recipe.entrypoint)} if recipe.entrypoint else {}
    runs |= {"Cmd": list(recipe.command)} if recipe.command else {}
    return {
        "architecture": architecture,
        "os": "linux",
        "config": runs,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
        "history": [{"created_by": "vkgateway"} for _ in digests],
    }


def _add_member(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def _file_digest(layer: Path) -> str:
    digest = hashlib.sha256()
    with layer.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
