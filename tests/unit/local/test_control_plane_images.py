"""Images of control planes: names of the official images, and one program in each."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path

import pytest

from tests.fakes.report import Silent
from vkgateway.api.types import DEFAULT_KUBERNETES_VERSION
from vkgateway.cli.check import IMAGE as CHECK_IMAGE
from vkgateway.planes.drivers.kubernetes.parameters import Parameters
from vkgateway.planes.plane import COMPONENTS
from vkgateway_platform.binaries.catalogue import DEFAULT_VERSIONS
from vkgateway_platform.embedded import control_plane_images
from vkgateway_platform.embedded.control_plane_images import image_names, write_control_plane_images
from vkgateway_platform.embedded.realnode.images import image_names as names_in_archive

VERSIONS = {"kubernetes": "1.35.8", "etcd": "3.6.8", "coredns": "1.15.0"}


def test_names_are_those_that_the_driver_uses_by_default() -> None:
    names, parameters = set(image_names(VERSIONS).values()), Parameters()
    assert {parameters.component_image(name, "1.35.8") for name in COMPONENTS} < names
    assert parameters.name_server_image in names


async def test_each_image_has_its_program_and_no_root_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class FakeResolver:
        versions = VERSIONS

        def __init__(self, **_: object) -> None:
            pass

        async def resolve(self, *names: str) -> dict[str, Path]:
            for name in names:
                (tmp_path / name).write_bytes(name.encode())
            return {name: tmp_path / name for name in names}

    monkeypatch.setattr(control_plane_images, "Resolver", FakeResolver)
    archive = tmp_path / "images.tar"
    await write_control_plane_images(archive, report=Silent())
    assert names_in_archive(archive) == list(image_names(VERSIONS).values())
    with tarfile.open(archive) as tar:
        for image in json.loads(read_member(tar, "manifest.json")):
            config = json.loads(read_member(tar, image["Config"]))["config"]
            (layer,) = image["Layers"]
            (tmp_path / "layer.tar").write_bytes(read_member(tar, layer))
            with tarfile.open(tmp_path / "layer.tar") as content:
                program = content.getmember(config["Entrypoint"][0].lstrip("/"))
                assert program.mode == 0o755
                assert program.name.rpartition("/")[2] in image["RepoTags"][0]
            assert config["User"] == "65532:65532"


def read_member(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    assert file is not None
    return file.read()


def test_guide_copies_all_images_to_a_mirror() -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/install-on-a-cluster.md").read_text()
    copied = re.search(r"for image in (.*?); do", page, re.DOTALL)
    assert copied is not None
    names = {f"registry.k8s.io/{name}" for name in copied[1].replace("\\", "").split()}
    versions = {**DEFAULT_VERSIONS, "kubernetes": DEFAULT_KUBERNETES_VERSION}
    assert names == {*image_names(versions).values(), CHECK_IMAGE}
