"""Kits of the pages: recipes that name existing files, and archives that containerd reads."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from operators import archives, build, layers, published
from operators.__main__ import main
from operators.catalogue import KITS, OPENMPI
from operators.published import PublishedPrograms
from operators.recipes import Compiled, File, Kit, Recipe
from tests.fakes.report import Silent
from vkgateway_platform.binaries.cache import Cache
from vkgateway_platform.embedded.realnode import images

ROOT = Path(__file__).parents[3]
RECIPES = {recipe.name: recipe for kit in KITS.values() for recipe in kit.images}


COMPILED = [
    Compiled(packages=(package,), tools=(tool,), environment={"FAST": fast})
    for package, tool, fast in [("kopf==1", "g++", "1"), ("kopf==2", "g++", "1"), ("kopf==1", "gcc", "1")]
]


def content(archive: Path, name: str) -> bytes:
    with tarfile.open(archive) as opened:
        file = opened.extractfile(name)
        assert file is not None
        return file.read()


@pytest.mark.parametrize("kit", KITS.values(), ids=KITS)
def test_recipes_name_programs_and_manifests_that_are_built(kit: Kit) -> None:
    for recipe in kit.images:
        assert all(name in program.unit.packages for program, name in recipe.programs.values())
    assert all(kept in program.manifests.values() for program, kept in kit.manifests.values())


def test_no_two_images_share_an_archive() -> None:
    assert len({recipe.file_name for recipe in RECIPES.values()}) == len(RECIPES)


def test_any_change_of_a_recipe_changes_the_digest() -> None:
    changed = [
        dataclasses.replace(OPENMPI, name="other:1"),
        dataclasses.replace(OPENMPI, user=""),
        dataclasses.replace(OPENMPI, libraries=("kopf==1",)),
        dataclasses.replace(OPENMPI, files={**OPENMPI.files, "etc/motd": File("hello")}),
        dataclasses.replace(OPENMPI, root=None),
        *(dataclasses.replace(OPENMPI, compiled=compiled) for compiled in COMPILED),
    ]
    assert len({recipe.digest for recipe in [OPENMPI, *changed]}) == len(changed) + 1


def test_an_archive_describes_its_layers_by_digest(tmp_path: Path) -> None:
    recipe = Recipe(name="vkgateway.local/tool:1", entrypoint=("/tool",), user="1000", environment={"A": "b"})
    stack = [tmp_path / "low.tar", tmp_path / "high.tar"]
    for number, layer in enumerate(stack):
        layers.pack_files(layer, {}, {"file": File(f"layer {number}")}, empty=number == 0)
    archives.write_archive(tmp_path / "image.tar", recipe, stack, architecture="amd64")

    (manifest,) = json.loads(content(tmp_path / "image.tar", "manifest.json"))
    config = json.loads(content(tmp_path / "image.tar", manifest["Config"]))
    held = [hashlib.sha256(content(tmp_path / "image.tar", name)).hexdigest() for name in manifest["Layers"]]
    assert manifest["RepoTags"] == ["vkgateway.local/tool:1"]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{digest}" for digest in held]
    assert held == [hashlib.sha256(layer.read_bytes()).hexdigest() for layer in stack]
    assert config["config"]["Entrypoint"] == ["/tool"]
    assert config["config"]["User"] == "1000"
    assert "A=b" in config["config"]["Env"]


def test_image_without_root_has_folders_and_users(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "tool").chmod(0o755)
    layers.pack_files(tmp_path / "layer.tar", {"opt/tool": tmp_path / "tool"}, {}, empty=True)
    with tarfile.open(tmp_path / "layer.tar") as layer:
        assert layer.getmember("tmp").mode == 0o1777
        assert layer.getmember("opt/tool").mode & 0o111
        assert layer.getmember("opt/tool").uid == 0
    assert b"app:x:1000" in content(tmp_path / "layer.tar", "etc/passwd")


async def test_kit_is_built_once_and_written_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "mpi-operator").write_text("program")
    (kept / "mpi-operator.yaml").write_text("kind: List")
    provided: list[str] = []

    async def provide(wanted: PublishedPrograms, **_: object) -> Path:
        provided.append(wanted.name)
        return kept

    monkeypatch.setattr(published, "provide_programs", provide)
    kit = KITS["mpi-old"]
    killed = tmp_path / "cache" / "images" / "mpi-operator-0.6.0.tar.work"
    killed.mkdir(parents=True)
    (killed / "files.tar").write_text("half of it")
    for _ in range(2):
        await build.build_kit(kit, tmp_path / "laid", report=Silent(), cache=Cache(tmp_path / "cache"))
        (tmp_path / "laid" / "mpi-operator.yaml").write_text("changed by hand")
    assert provided == ["mpi-operator-0.6.0"] * 3  # for the image once, for its manifest each time
    archive = tmp_path / "laid" / "mpi-operator-0.6.0.tar"
    assert json.loads(content(archive, "manifest.json"))[0]["RepoTags"] == ["vkgateway.local/mpi-operator:0.6.0"]
    assert [path.name for path in (tmp_path / "cache" / "images").iterdir()] == [archive.resolve().name]


def test_build_with_edits_uses_an_edited_copy_of_the_module(tmp_path: Path) -> None:
    source, folder = tmp_path / "module", tmp_path / "build"
    source.mkdir()
    folder.mkdir()
    (source / "wait.go").write_text("const patience = 1\n")
    (source / "wait.go").chmod(0o444)
    (folder / "go.mod").write_text("module main\n")
    published.edit_module("example.org/a", {"wait.go": ("= 1", "= 10")}, source=source, folder=folder)
    assert "replace example.org/a => ./edited" in (folder / "go.mod").read_text().splitlines()
    assert (folder / "edited" / "wait.go").read_text() == "const patience = 10\n"
    assert (source / "wait.go").read_text() == "const patience = 1\n"
    with pytest.raises(ValueError, match=r"wait.go of example.org/a: found 0 times, expected once: 'absent'"):
        published.edit_module("example.org/a", {"wait.go": ("absent", "")}, source=source, folder=folder)


def test_unknown_kit_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mpi", "nonsense"]) == 2
    assert "mpi, mpi-old, kopf" in capsys.readouterr().err


def test_pages_name_the_built_images() -> None:
    for page in ROOT.glob("docs/operators/*.md"):
        named = {word.rstrip("`.,;") for word in page.read_text().split() if word.startswith("vkgateway.local/")}
        named = {name.split("`")[0] for name in named if ":" in name}
        assert named <= {*RECIPES, images.BUSYBOX_IMAGE}, page.name


@pytest.mark.parametrize("name", ["kueue", "volcano"])
def test_kit_of_a_scheduler_has_its_chart_and_says_how_to_use_it(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = KITS[name]
    assert "chart" in kit.manifests
    built: list[Kit] = []

    async def build_kit(kit: Kit, _folder: Path, **_: object) -> None:
        built.append(kit)

    monkeypatch.setattr("operators.__main__.build_kit", build_kit)
    assert main([name]) == 0
    assert built == [kit]
    told = capsys.readouterr().err
    assert f"operator {name}: {ROOT}/.operators/{name}" in told
    (page,) = (word.rstrip(".") for word in kit.usage.split() if word.startswith("docs/"))
    assert page in told
    assert f"make operator-{name}" in (ROOT / page.rstrip(",")).read_text()
