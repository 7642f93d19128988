"""Image archives are what containerd reads, and the same input gives the same bytes."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from vkgateway.local.realnode import images


def opened(data: bytes) -> tarfile.TarFile:
    return tarfile.open(fileobj=io.BytesIO(data))


def content(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


def test_archive_describes_its_one_layer_by_digest() -> None:
    archive = opened(images.pause_image(b"busybox").archive(architecture="amd64"))
    (manifest,) = json.loads(content(archive, "manifest.json"))
    config = content(archive, manifest["Config"])
    layer = content(archive, manifest["Layers"][0])
    assert manifest["RepoTags"] == ["vkgateway.local/pause:1"]
    assert manifest["Config"] == f"{hashlib.sha256(config).hexdigest()}.json"
    assert json.loads(config)["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    assert json.loads(config)["architecture"] == "amd64"


def test_layer_holds_busybox_and_a_link_for_each_applet() -> None:
    image = images.busybox_image(b"the program", applets=["busybox", "sh", "wget"])
    archive = opened(image.archive(architecture="amd64"))
    (manifest,) = json.loads(content(archive, "manifest.json"))
    layer = opened(content(archive, manifest["Layers"][0]))
    assert content(layer, "bin/busybox") == b"the program"
    assert layer.getmember("bin/busybox").mode == 0o755
    assert [layer.getmember(f"bin/{name}").linkname for name in ("sh", "wget")] == ["busybox", "busybox"]
    assert layer.getmember("tmp").mode == 0o1777
    assert len(layer.getnames()) == len(set(layer.getnames()))


def test_equal_images_give_equal_bytes() -> None:
    def make() -> bytes:
        return images.busybox_image(b"x", applets=["sh"]).archive(architecture="arm64")

    assert make() == make()


def test_unchanged_archives_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busybox = tmp_path / "busybox"
    busybox.write_bytes(b"one")
    monkeypatch.setattr(images, "BUSYBOX", busybox)
    written = images.write_images(tmp_path / "images", applets=["sh"])
    before = {path: path.stat().st_ino for path in written.values()}
    assert sorted(path.name for path in before) == ["busybox-1.tar", "pause-1.tar"]
    images.write_images(tmp_path / "images", applets=["sh"])
    assert {path: path.stat().st_ino for path in before} == before
    busybox.write_bytes(b"two")
    images.write_images(tmp_path / "images", applets=["sh"])
    assert all(path.stat().st_ino != inode for path, inode in before.items())


def test_every_name_has_its_archive(tmp_path: Path) -> None:
    assert len({images.archive_path(tmp_path, name) for name in images.NAMES}) == len(images.NAMES)


def test_an_archive_tells_its_names(tmp_path: Path) -> None:
    archive = tmp_path / "image.tar"
    archive.write_bytes(images.pause_image(b"busybox").archive(architecture="amd64"))
    assert images.names(archive) == [images.PAUSE_IMAGE]


@pytest.mark.parametrize("content", [b"no archive", b'[{"RepoTags": null}]', b"[7]"])
def test_an_archive_that_tells_no_names_has_none(tmp_path: Path, content: bytes) -> None:
    archive = tmp_path / "image.tar"
    archive.write_bytes(content)
    assert images.names(archive) == []
    with tarfile.open(archive, "w") as opened:
        member = tarfile.TarInfo("manifest.json")
        member.size = len(content)
        opened.addfile(member, io.BytesIO(content))
    assert images.names(archive) == []
