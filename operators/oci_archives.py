"""OCI archives: digest and platforms of an image, and one image for several platforms from an archive for each.

The layout is that of https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md, as a tar file.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

from vkgateway_platform.embedded.realnode.images import ImageEntry, tar_header

Descriptor: TypeAlias = dict[str, Any]
"""Media type, digest and size of a blob, by the names of the specification."""

_INDEX = "application/vnd.oci.image.index.v1+json"
_NAME = "org.opencontainers.image.ref.name"
_BLOBS = "blobs/sha256/"
_LAYOUT = b'{"imageLayoutVersion":"1.0.0"}'


def read_digest(archive: Path) -> str:
    """Return the digest of the image in an archive: `sha256:...`."""
    with tarfile.open(archive) as tar:
        return str(_read_image(tar)["digest"])


def read_platforms(archive: Path) -> list[str]:
    """Return the platforms of the image in an archive, from its configurations: `linux/amd64`."""
    with tarfile.open(archive) as tar:
        return ["{os}/{architecture}".format_map(_read_platform(tar, one)) for one in _find_manifests(tar)]


def merge_archives(archives: Sequence[Path], target: Path, *, name: str) -> None:
    """Write an archive of one image `name` for all platforms of `archives`; equal archives give equal bytes.

    The archive is written under a temporary name and renamed, so an existing archive is complete.
    """
    new = target.with_suffix(".new")
    with ExitStack() as stack:
        sources = [stack.enter_context(tarfile.open(archive)) for archive in archives]
        manifests = [one | {"platform": _read_platform(tar, one)} for tar in sources for one in _find_manifests(tar)]
        index = _encode({"schemaVersion": 2, "mediaType": _INDEX, "manifests": manifests})
        digest = hashlib.sha256(index).hexdigest()
        image = {"mediaType": _INDEX, "digest": f"sha256:{digest}", "size": len(index), "annotations": {_NAME: name}}
        small = {
            "oci-layout": _LAYOUT,
            "index.json": _encode({"schemaVersion": 2, "manifests": [image]}),
            f"{_BLOBS}{digest}": index,
        }
        _write(stack.enter_context(tarfile.open(new, "w", format=tarfile.PAX_FORMAT)), small, sources)
    new.replace(target)


def _write(target: tarfile.TarFile, small: Mapping[str, bytes], sources: Sequence[tarfile.TarFile]) -> None:
    """Write files from memory, then each blob of the source archives once."""
    for path, data in small.items():
        target.addfile(tar_header(ImageEntry(path, 0o644, data)), io.BytesIO(data))
    written = set(small)
    for source in sources:
        for member in sorted(source, key=lambda member: member.name):
            if member.isfile() and member.name.startswith(_BLOBS) and member.name not in written:
                written.add(member.name)
                header = tar_header(ImageEntry(member.name, 0o644, b""))
                header.size = member.size
                target.addfile(header, source.extractfile(member))


def _find_manifests(tar: tarfile.TarFile) -> Iterator[Descriptor]:
    """Return the descriptor of the image's manifest for each platform, without annotations."""
    image = _read_image(tar)
    for one in _read(tar, _blob(image["digest"])).get("manifests", [image]):
        yield {key: one[key] for key in ("mediaType", "digest", "size")}


def _read_platform(tar: tarfile.TarFile, manifest: Descriptor) -> dict[str, str]:
    config = _read(tar, _blob(_read(tar, _blob(manifest["digest"]))["config"]["digest"]))
    return {key: config[key] for key in ("architecture", "os", "variant") if key in config}


def _read_image(tar: tarfile.TarFile) -> Descriptor:
    (image,) = _read(tar, "index.json")["manifests"]
    return dict(image)


def _blob(digest: str) -> str:
    return _BLOBS + digest.removeprefix("sha256:")


def _read(tar: tarfile.TarFile, path: str) -> dict[str, Any]:
    file = tar.extractfile(path)
    assert file is not None
    return dict(json.load(file))


def _encode(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
