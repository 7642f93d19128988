"""Images of several layers: the content of their archive, which has shared layers once."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path

from vkgateway_platform.embedded.realnode.images import ImageEntry
from vkgateway_platform.embedded.realnode.layers import Layer, LayeredImage, write_archive, write_layer


def test_layer_includes_files_of_the_machine_with_the_given_mode(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF")
    layer = write_layer(
        tmp_path / "layer.tar",
        [
            (ImageEntry("usr/bin/nnp", 0o6755), program),
            ImageEntry("nnp", 0o777, target="usr/bin/nnp"),
            ImageEntry("uploads"),
        ],
    )
    assert layer.digest == hashlib.sha256(layer.path.read_bytes()).hexdigest()
    with tarfile.open(layer.path) as tar:
        nnp = tar.getmember("usr/bin/nnp")
        assert (nnp.mode, nnp.size, nnp.uid, nnp.mtime) == (0o6755, 4, 0, 0)
        assert tar.getmember("nnp").linkname == "usr/bin/nnp"
        assert tar.getmember("uploads").isdir()


def test_images_share_layers_in_one_archive(tmp_path: Path) -> None:
    base = write_layer(tmp_path / "base.tar", [ImageEntry("bin")])
    own = write_layer(tmp_path / "own.tar", [ImageEntry("data.json", 0o644, b"{}")])
    plain = LayeredImage(name="example.org/a:1", layers=[base], command=["sh"], user="1234")
    more = LayeredImage(name="example.org/b:2", layers=[base, own], entrypoint=["/b"])
    archive = tmp_path / "images.tar"
    write_archive(archive, [plain, more], architecture="amd64")
    with tarfile.open(archive) as tar:
        names = tar.getnames()
        assert sorted(names) == sorted(set(names))
        manifest = json.loads(read(tar, "manifest.json"))
        assert [(one["RepoTags"], one["Layers"]) for one in manifest] == [
            (["example.org/a:1"], [f"{base.digest}.tar"]),
            (["example.org/b:2"], [f"{base.digest}.tar", f"{own.digest}.tar"]),
        ]
        config = json.loads(read(tar, manifest[0]["Config"]))
        assert config["rootfs"]["diff_ids"] == [f"sha256:{base.digest}"]
        assert (config["config"]["User"], config["config"]["Cmd"], config["config"]["Entrypoint"]) == (
            "1234",
            ["sh"],
            None,
        )
        assert read(tar, f"{own.digest}.tar") == own.path.read_bytes()
    assert Layer.from_file(base.path) == base


def read(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    assert file is not None
    return file.read()
