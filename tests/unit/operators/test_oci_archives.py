"""OCI archives: digest and platforms of an image, and one image for several platforms."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

from operators.oci_archives import merge_archives, read_digest, read_platforms
from vkgateway_platform.embedded.realnode.images import image_names

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
NAME = "registry.example.com/gateway:1"


class Blobs(dict[str, bytes]):
    """Files of an OCI archive by path."""

    def add(self, data: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        self[f"blobs/sha256/{digest}"] = data
        return {"digest": f"sha256:{digest}", "size": len(data)}

    def add_document(self, document: object) -> dict[str, Any]:
        return self.add(json.dumps(document).encode())


def write_image(path: Path, architecture: str, *layers: bytes) -> str:
    """Write an archive as buildah does, and return the digest of the manifest."""
    blobs = Blobs()
    config = blobs.add_document({"os": "linux", "architecture": architecture})
    manifest = blobs.add_document({"config": config, "layers": [blobs.add(layer) for layer in layers]})
    named = manifest | {"mediaType": MANIFEST, "annotations": {"org.opencontainers.image.ref.name": "other"}}
    blobs["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [named]}).encode()
    with tarfile.open(path, "w") as archive:
        for name, data in blobs.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return str(manifest["digest"])


def read_files(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        files = {member.name: tar.extractfile(member) for member in tar}
        return {name: file.read() for name, file in files.items() if file}


def test_the_platform_is_that_of_the_configuration(tmp_path: Path) -> None:
    archive = tmp_path / "image.tar"
    digest = write_image(archive, "arm64", b"layer")
    assert read_platforms(archive) == ["linux/arm64"]
    assert read_digest(archive) == digest


def test_a_merged_image_has_the_manifest_of_each_platform(tmp_path: Path) -> None:
    digests = [write_image(tmp_path / f"{one}.tar", one, b"shared", one.encode()) for one in ("amd64", "arm64")]
    merged = tmp_path / "merged.tar"
    merge_archives([tmp_path / "amd64.tar", tmp_path / "arm64.tar"], merged, name=NAME)
    assert read_platforms(merged) == ["linux/amd64", "linux/arm64"]
    assert image_names(merged) == [NAME]
    files = read_files(merged)
    index = json.loads(files[f"blobs/sha256/{read_digest(merged).removeprefix('sha256:')}"])
    assert [(one["digest"], one["platform"]["architecture"]) for one in index["manifests"]] == [
        (digests[0], "amd64"),
        (digests[1], "arm64"),
    ]
    blobs = {name: data for name, data in files.items() if name.startswith("blobs/")}
    assert all(hashlib.sha256(data).hexdigest() == name.rpartition("/")[2] for name, data in blobs.items())
    assert sorted(data for data in blobs.values() if not data.startswith(b"{")) == [b"amd64", b"arm64", b"shared"]
    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}


def test_equal_images_give_an_equal_archive(tmp_path: Path) -> None:
    write_image(tmp_path / "a.tar", "amd64", b"1")
    write_image(tmp_path / "b.tar", "arm64", b"2")
    for name in ("first.tar", "second.tar"):
        merge_archives([tmp_path / "a.tar", tmp_path / "b.tar"], tmp_path / name, name=NAME)
    assert (tmp_path / "first.tar").read_bytes() == (tmp_path / "second.tar").read_bytes()
