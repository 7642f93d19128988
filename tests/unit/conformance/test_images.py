"""The suite's images: which are built, and their content."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from vkgateway_platform.conformance import images
from vkgateway_platform.embedded.realnode import debian


@pytest.mark.parametrize(
    ("image", "made"),
    [
        ("example.org/e2e-test-images/agnhost:2.63.0", True),
        ("example.org/e2e-test-images/agnhost:2.55", True),
        ("example.org/pause:3.10.2", True),
        ("example.org/k8s-authenticated-test/agnhost:2.6", False),
        ("example.org/sig-storage/nfs-provisioner:v4.0.8", False),
        ("example.org/e2e-test-images/volume/nfs:1.6.0", False),
    ],
)
def test_buildable_images_are_selected(image: str, made: bool) -> None:
    assert bool(images.buildable_images([image])) is made


def test_all_images_are_in_one_archive(tmp_path: Path) -> None:
    root = tmp_path / "root.tar"
    with tarfile.open(root, "w") as tar:
        tar.addfile(tarfile.TarInfo("etc"))
    programs = {}
    for name in images.PROGRAMS:
        programs[name] = tmp_path / name
        programs[name].write_bytes(name.encode())
    wanted = ["example.org/agnhost:1", "example.org/kitten:1"]
    archive = tmp_path / "made" / "images.tar"
    images.build_images(archive, wanted, programs=programs, root=root)
    with tarfile.open(archive) as tar:
        file = tar.extractfile("manifest.json")
        assert file is not None
        agnhost, kitten = json.loads(file.read())
    assert (agnhost["RepoTags"], kitten["RepoTags"]) == ([wanted[0]], [wanted[1]])
    assert kitten["Layers"][:2] == agnhost["Layers"]
    assert len(kitten["Layers"]) == 3
    assert sorted(archive.parent.iterdir()) == [archive]


def test_root_archive_is_shared_until_its_content_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "release_name", lambda: "bookworm")
    before = images.root_archive(tmp_path)
    assert before == images.root_archive(tmp_path)
    assert before.parent == tmp_path / "images"
    monkeypatch.setattr(images, "PACKAGES", (*images.PACKAGES, "hello"))
    assert images.root_archive(tmp_path) != before
    monkeypatch.undo()
    monkeypatch.setattr(debian, "release_name", lambda: "trixie")
    assert images.root_archive(tmp_path) != before
