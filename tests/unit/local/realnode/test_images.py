"""containerd can read the image archives, and equal input gives equal bytes."""

import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from vkgateway_platform.embedded.realnode import images
from vkgateway_platform.embedded.realnode.busybox import Busybox
from vkgateway_platform.embedded.realnode.layers import write_layer


def opened(data: bytes) -> tarfile.TarFile:
    return tarfile.open(fileobj=io.BytesIO(data))


def content(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


def test_archive_describes_its_one_layer_by_digest() -> None:
    archive = opened(images.pause_image(Busybox(program=b"busybox")).to_archive(architecture="amd64"))
    (manifest,) = json.loads(content(archive, "manifest.json"))
    config = content(archive, manifest["Config"])
    layer = content(archive, manifest["Layers"][0])
    assert manifest["RepoTags"] == ["vkgateway.local/pause:1"]
    assert manifest["Config"] == f"{hashlib.sha256(config).hexdigest()}.json"
    assert json.loads(config)["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    assert json.loads(config)["architecture"] == "amd64"


def test_layer_has_busybox_and_a_link_for_each_applet() -> None:
    image = images.busybox_image(Busybox(program=b"the program", applets=["busybox", "sh", "wget"]))
    archive = opened(image.to_archive(architecture="amd64"))
    (manifest,) = json.loads(content(archive, "manifest.json"))
    layer = opened(content(archive, manifest["Layers"][0]))
    assert content(layer, "bin/busybox") == b"the program"
    assert layer.getmember("bin/busybox").mode == 0o755
    assert [layer.getmember(f"bin/{name}").linkname for name in ("sh", "wget")] == ["busybox", "busybox"]
    assert layer.getmember("tmp").mode == 0o1777
    assert len(layer.getnames()) == len(set(layer.getnames()))


def test_equal_images_give_equal_bytes() -> None:
    def make() -> bytes:
        return images.busybox_image(Busybox(program=b"x", applets=["sh"])).to_archive(architecture="arm64")

    assert make() == make()


def layer(image: images.Image) -> tarfile.TarFile:
    archive = opened(image.to_archive(architecture="amd64"))
    (manifest,) = json.loads(content(archive, "manifest.json"))
    return opened(content(archive, manifest["Layers"][0]))


@pytest.mark.parametrize("make", [images.pause_image, images.busybox_image])
def test_libraries_of_busybox_are_where_its_loader_searches(make: Callable[[Busybox], images.Image]) -> None:
    libraries = [("/lib/some-machine/libc.so.6", b"libc"), ("/lib64/ld.so", b"loader")]
    files = layer(make(Busybox(program=b"busybox", libraries=libraries)))
    assert content(files, "lib/some-machine/libc.so.6") == b"libc"
    assert content(files, "lib64/ld.so") == b"loader"
    assert files.getmember("lib64/ld.so").mode == 0o755
    assert files.getmember("lib/some-machine").isdir()
    names = files.getnames()
    assert names.index("lib") < names.index("lib/some-machine") < names.index("lib/some-machine/libc.so.6")


@pytest.mark.parametrize("has_timeout", [True, False])
def test_wget_is_a_script_where_busybox_has_no_timeout_for_it(has_timeout: bool) -> None:
    busybox = Busybox(program=b"busybox", applets=["sh", "wget"], wget_has_timeout=has_timeout)
    files = layer(images.busybox_image(busybox))
    assert files.getmember("bin/wget").issym() is has_timeout
    assert files.getnames().count("bin/wget") == 1


def read(program: Path, *, ping: Path | None = None) -> Busybox:
    return Busybox(program=program.read_bytes(), applets=["sh", "ping"], ping=ping.read_bytes() if ping else b"")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose programs cannot run; its busybox has fake content."""
    monkeypatch.setattr(images, "BUSYBOX", tmp_path / "static")
    monkeypatch.setattr(images, "DYNAMIC_BUSYBOX", tmp_path / "dynamic")
    monkeypatch.setattr(images, "PING", tmp_path / "ping")
    monkeypatch.setattr(Busybox, "from_file", read)
    (tmp_path / "static").write_bytes(b"static")
    return tmp_path


def test_unchanged_archives_are_left_alone(machine: Path) -> None:
    written = images.write_images(machine / "images")
    before = {path: path.stat().st_ino for path in written.values()}
    assert sorted(path.name for path in before) == ["busybox-1.tar", "pause-1.tar"]
    images.write_images(machine / "images")
    assert {path: path.stat().st_ino for path in before} == before
    (machine / "static").write_bytes(b"another")
    images.write_images(machine / "images")
    assert all(path.stat().st_ino != inode for path, inode in before.items())


def test_image_with_a_shell_has_the_dynamic_busybox_and_ping(machine: Path) -> None:
    (machine / "dynamic").write_bytes(b"dynamic")
    (machine / "ping").write_bytes(b"echo request")
    written = images.write_images(machine / "images")
    assert b"dynamic" in written[images.BUSYBOX_IMAGE].read_bytes()
    assert b"echo request" in written[images.BUSYBOX_IMAGE].read_bytes()
    assert b"static" in written[images.PAUSE_IMAGE].read_bytes()


def test_every_name_has_its_archive(tmp_path: Path) -> None:
    assert len({images.archive_path(tmp_path, name) for name in images.IMAGE_NAMES}) == len(images.IMAGE_NAMES)


def test_image_names_are_read_from_an_oci_archive(tmp_path: Path) -> None:
    named = {"digest": "sha256:0", "annotations": {"org.opencontainers.image.ref.name": "example.org/web:1"}}
    index = json.dumps({"schemaVersion": 2, "manifests": [named, {"digest": "sha256:1"}]}).encode()
    write_layer(tmp_path / "image.tar", [images.ImageEntry("index.json", 0o644, index)])
    assert images.image_names(tmp_path / "image.tar") == ["example.org/web:1"]


def test_image_names_are_read_from_an_archive(tmp_path: Path) -> None:
    archive = tmp_path / "image.tar"
    archive.write_bytes(images.pause_image(Busybox(program=b"busybox")).to_archive(architecture="amd64"))
    assert images.image_names(archive) == [images.PAUSE_IMAGE]


@pytest.mark.parametrize("content", [b"no archive", b'[{"RepoTags": null}]', b"[7]"])
def test_archive_without_names_has_none(tmp_path: Path, content: bytes) -> None:
    archive = tmp_path / "image.tar"
    archive.write_bytes(content)
    assert images.image_names(archive) == []
    with tarfile.open(archive, "w") as opened:
        member = tarfile.TarInfo("manifest.json")
        member.size = len(content)
        opened.addfile(member, io.BytesIO(content))
    assert images.image_names(archive) == []
