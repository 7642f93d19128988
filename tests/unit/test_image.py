"""Build of the gateway's image: the locked packages, and the files that the collector selects."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import runpy
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from operators.emulation import check_runnable
from tests.fakes.report import Silent
from vkgateway.api.errors import UnavailableError
from vkgateway.version import __version__
from vkgateway_platform.embedded.realnode.images import image_architecture

ROOT = Path(__file__).parents[2]
IMAGE = ROOT / "deploy/image"
MACHINE = f"{os.uname().machine}-linux-gnu"
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
FOREIGN = "amd64" if image_architecture() == "arm64" else "arm64"


@pytest.fixture(scope="module")
def collector() -> dict[str, Any]:
    return runpy.run_path(str(IMAGE / "collect_files.py"))


@pytest.fixture(scope="module")
def builder() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts/image.py"))


def lock_entries(lock: Path) -> dict[str, set[str]]:
    """Hashes of each entry of a lock file, by its version and marker."""
    text = lock.read_text()
    entries = re.findall(r"^([a-z0-9][^\\\n]*?) *\\\n((?: +--hash=\S+(?: \\)?\n)+)", text, re.MULTILINE)
    return {first: set(re.findall(r"sha256:[0-9a-f]{64}", hashes)) for first, hashes in entries}


def names(lock: Path) -> set[str]:
    return {canonicalize_name(Requirement(entry).name) for entry in lock_entries(lock)}


@pytest.mark.parametrize("lock", ["requirements.lock", "build.lock"])
def test_a_lock_of_the_image_is_part_of_the_projects_lock(lock: str) -> None:
    """Markers may differ: without the tools, another set of packages determines them."""
    versions = {entry.partition(" ;")[0]: hashes for entry, hashes in lock_entries(ROOT / "requirements.lock").items()}
    entries = lock_entries(IMAGE / lock)
    assert entries
    assert {e: h for e, h in entries.items() if versions.get(e.partition(" ;")[0]) != h} == {}


def test_the_lock_has_every_dependency_and_no_tool() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = names(IMAGE / "requirements.lock")
    assert {canonicalize_name(Requirement(line).name) for line in project["dependencies"]} - locked == set()
    assert locked & {"pytest", "mypy", "ruff", "sphinx", "setuptools"} == set()
    assert names(IMAGE / "build.lock") == {"setuptools"}


def test_the_image_has_the_version_of_the_package() -> None:
    assert f"ARG VERSION={__version__}\n" in (IMAGE / "Containerfile").read_text()


def test_the_builder_sees_every_file_that_is_copied() -> None:
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", (IMAGE / "Containerfile").read_text(), re.MULTILINE)
    wanted = {name.rstrip("/") for line in copied for name in line.split()}
    visible = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert wanted == visible


def test_an_interpreter_is_copied_with_its_loader_and_libraries(collector: dict[str, Any], tmp_path: Path) -> None:
    interpreter = os.path.realpath(sys.executable)
    root = collector["RootCopy"](Path("/"), tmp_path, machine=MACHINE)
    root.copy_file(interpreter)
    elf = collector["read_elf"](Path(interpreter))
    assert "libc.so.6" in elf.needed
    assert root.missing_libraries == set()
    assert (tmp_path / interpreter.lstrip("/")).stat().st_mode & 0o111
    copied = {path.name for path in tmp_path.rglob("*") if path.exists()}
    assert {*elf.needed, Path(elf.interpreter).name} <= copied


def test_links_are_copied_with_their_destinations(collector: dict[str, Any], tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "usr/lib").mkdir(parents=True)
    (source / "usr/lib/data-1").write_text("data")
    (source / "usr/lib/data").symlink_to("data-1")
    (source / "lib").symlink_to("usr/lib")
    (source / "etc").mkdir()
    (source / "etc/data").symlink_to("/lib/data")
    root = collector["RootCopy"](source, target, machine=MACHINE)
    root.copy_file("etc/data")
    root.copy_if_present("etc/absent")
    assert root.copied == {"usr/lib/data-1"}
    links = {str(path.relative_to(target)): os.readlink(path) for path in target.rglob("*") if path.is_symlink()}
    assert links == {"etc/data": "/lib/data", "lib": "usr/lib", "usr/lib/data": "data-1"}


def test_a_missing_library_is_reported(collector: dict[str, Any], tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "bin").mkdir(parents=True)
    (source / "bin/python").write_bytes(Path(os.path.realpath(sys.executable)).read_bytes())
    root = collector["RootCopy"](source, tmp_path / "target", machine=MACHINE)
    elf = collector["read_elf"](source / "bin/python")
    write_tree(source, elf.interpreter.lstrip("/"))
    root.copy_file("bin/python")
    assert root.missing_libraries == {f"bin/python: {name}" for name in elf.needed}


def write_tree(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()


def test_tests_and_headers_of_packages_are_left_out(collector: dict[str, Any], tmp_path: Path) -> None:
    kept = {
        "tool/core.py",
        "tool/data.json",
        "numpy/testing/__init__.py",
        "vkgateway/tests/a.go",
        "tool.dist-info/RECORD",
    }
    left_out = {"tool/tests/test_core.py", "tool/include/tool.h", "tool/core.pyi", "vkgateway/__pycache__/a.pyc"}
    write_tree(tmp_path, *kept, *left_out)
    assert {str(path.relative_to(tmp_path)) for path in collector["find_package_files"](tmp_path)} == kept


def test_tests_of_the_standard_library_are_left_out(collector: dict[str, Any], tmp_path: Path) -> None:
    kept = {"asyncio/tasks.py", "os.py", "lib-dynload/_ssl.so"}
    left_out = {"test/test_os.py", "unittest/test/case.py", "site-packages/pip.py", "lib-dynload/_tkinter.so"}
    write_tree(tmp_path, *kept, *left_out)
    assert {str(path.relative_to(tmp_path)) for path in collector["find_stdlib_files"](tmp_path)} == kept


def test_packages_of_the_copied_files_are_recorded(collector: dict[str, Any], tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    info = "var/lib/dpkg/info"
    write_tree(
        source, "usr/lib/libz.so.1", "usr/share/doc/zlib1g/copyright", f"{info}/zlib1g:amd64.list", f"{info}/apt.list"
    )
    (source / info / "zlib1g:amd64.list").write_text("/lib/libz.so.1\n")
    (source / info / "apt.list").write_text("/usr/bin/apt\n")
    zlib = "Package: zlib1g\nArchitecture: amd64\nVersion: 1.2\n"
    (source / "var/lib/dpkg/status").write_text(f"Package: apt\nVersion: 2\n\n{zlib}Description: zlib\n more\n")
    root = collector["RootCopy"](source, target, machine=MACHINE)
    root.copy_file("usr/lib/libz.so.1")
    collector["record_packages"](root)
    records = {path.name: path.read_text() for path in (target / "var/lib/dpkg/status.d").iterdir()}
    assert records == {"zlib1g": zlib}
    assert (target / "usr/share/doc/zlib1g/copyright").exists()


def test_markers_count_for_the_python_of_the_image(builder: dict[str, Any]) -> None:
    lock = """\
# comment
numpy==1.0 ; python_full_version < '3.12' \\
    --hash=sha256:aa \\
    --hash=sha256:bb
    # via vkgateway
numpy==2.0 ; python_full_version >= '3.12' \\
    --hash=sha256:cc
"""
    assert builder["select_requirements"](lock, "3.13") == "numpy==2.0 \\\n    --hash=sha256:cc\n"
    assert builder["select_requirements"](lock, "3.11").startswith("numpy==1.0 \\\n    --hash=sha256:aa \\\n")


def test_the_digest_changes_with_a_file_the_name_and_the_architecture(builder: dict[str, Any], tmp_path: Path) -> None:
    options, source = builder["Options"], builder["Source"]("abc", "1")
    write_tree(tmp_path, "LICENSE", "README.md", "pyproject.toml", "scripts/image.py", "vkgateway/__init__.py")
    digest = builder["digest_inputs"]
    first = digest(tmp_path, options(), source)
    write_tree(tmp_path, "vkgateway/__pycache__/a.pyc", "docs/page.md")
    assert digest(tmp_path, options(), source) == first
    assert digest(tmp_path, options(name="other:1"), source) != first
    assert digest(tmp_path, options(architectures=("other",)), source) != first
    (tmp_path / "vkgateway/__init__.py").write_text("changed")
    assert digest(tmp_path, options(), source) != first


def test_the_latest_archives_of_each_choice_of_architectures_stay(builder: dict[str, Any], tmp_path: Path) -> None:
    for number in range(5):
        for name in (f"{number}-a-amd64.tar", f"{number}-a-arm64.tar"):
            write_tree(tmp_path, name)
            os.utime(tmp_path / name, (number, number))
    write_tree(tmp_path, "0-a-amd64+arm64.tar")
    builder["remove_old_archives"](tmp_path)
    kept = {f"{number}-a-{architecture}.tar" for number in (2, 3, 4) for architecture in ("amd64", "arm64")}
    assert {path.name for path in tmp_path.iterdir()} == {*kept, "0-a-amd64+arm64.tar"}


def test_the_archives_name_has_the_architectures(builder: dict[str, Any]) -> None:
    options, source = builder["Options"], builder["Source"]("abc", "1")
    name = builder["archive_name"](
        options(name="registry:5000/team/gateway:2", architectures=("amd64", "arm64")), source
    )
    assert re.fullmatch(r"[0-9a-f]{12}-gateway-2-amd64\+arm64\.tar", name)
    assert builder["archive_name"](options(), source).endswith(f"-{image_architecture()}.tar")


def test_the_option_names_known_architectures(builder: dict[str, Any]) -> None:
    parse = builder["parse_architectures"]
    assert parse("arm64") == ("arm64",)
    assert parse("arm64,amd64,arm64") == ("amd64", "arm64")
    with pytest.raises(argparse.ArgumentTypeError, match="unknown architecture 'x86_64'; known: amd64, arm64"):
        parse("amd64,x86_64")


class RecordedBuild:
    """The builder with recorded commands that succeed without effect, for the emulators of a machine."""

    def __init__(self, builder: dict[str, Any], monkeypatch: pytest.MonkeyPatch, *, has_emulator: bool) -> None:
        self.commands: list[tuple[str, ...]] = []
        names = builder["build_image"].__globals__
        for name, stub in {
            "_install_tools": self._install_tools,
            "run_mmdebstrap": self._run_mmdebstrap,
            "run_checked": self._run_checked,
            "check_runnable": check_runnable if not has_emulator else lambda architecture: None,
            "merge_archives": lambda archives, target, *, name: target.touch(),
        }.items():
            monkeypatch.setitem(names, name, stub)
        monkeypatch.setattr(builder["Buildah"], "run", self._run_buildah)

    def only(self, program: str) -> tuple[str, ...]:
        """Return the arguments of the only command of a program or a step of buildah."""
        (found,) = (command[1:] for command in self.commands if command[0] == program)
        return found

    async def _install_tools(self, tools: tuple[str, ...], *, report: object) -> None:
        self.commands.append(("install", *tools))

    async def _run_mmdebstrap(self, target: str, packages: object, *, options: tuple[str, ...]) -> None:
        self.commands.append(("mmdebstrap", *options))

    async def _run_checked(self, *argv: str, what: str) -> None:
        self.commands.append((what, *argv))
        (folder,) = (Path(part.removeprefix("--dest=")) for part in argv if part.startswith("--dest="))
        folder.mkdir()

    async def _run_buildah(self, *arguments: str) -> list[str]:
        self.commands.append(arguments)
        if arguments[0] == "push":
            await asyncio.to_thread(Path(arguments[-1].split(":")[1]).touch)
        return ["container"]


async def test_the_steps_for_another_architecture_name_it(
    builder: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = RecordedBuild(builder, monkeypatch, has_emulator=True)
    options = builder["Options"](architectures=(FOREIGN,))
    archive = await builder["build_image"](options, report=Silent(), cache=builder["Cache"](tmp_path))
    assert archive.exists()
    assert "arch-test" in build.only("install")
    assert f"--architectures={FOREIGN}" in build.only("mmdebstrap")
    assert f"--platform=manylinux_2_28_{MACHINES[FOREIGN]}" in build.only("pip")
    assert build.only("from")[:2] == build.only("build")[:2] == ("--arch", FOREIGN)


async def test_the_steps_for_the_machine_need_no_emulator(
    builder: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = RecordedBuild(builder, monkeypatch, has_emulator=False)
    await builder["build_image"](builder["Options"](), report=Silent(), cache=builder["Cache"](tmp_path))
    assert build.only("install") == ("buildah", "mmdebstrap")
    assert [part for part in build.only("mmdebstrap") if part.startswith("--arch")] == []


async def test_several_architectures_are_built_once_each_and_merged(
    builder: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = RecordedBuild(builder, monkeypatch, has_emulator=True)
    cache = builder["Cache"](tmp_path)
    await builder["build_image"](builder["Options"](architectures=("amd64",)), report=Silent(), cache=cache)
    both = builder["Options"](architectures=("amd64", "arm64"))
    archive = await builder["build_image"](both, report=Silent(), cache=cache)
    assert archive.name.endswith("-amd64+arm64.tar")
    assert archive.exists()
    assert [command[2] for command in build.commands if command[0] == "build"] == ["amd64", "arm64"]


async def test_without_an_emulator_nothing_is_built(
    builder: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = RecordedBuild(builder, monkeypatch, has_emulator=False)
    monkeypatch.setattr("operators.emulation._REGISTERED", tmp_path)
    options = builder["Options"](architectures=("amd64", "arm64"))
    with pytest.raises(UnavailableError, match=f"cannot run programs for {FOREIGN}") as caught:
        await builder["build_image"](options, report=Silent(), cache=builder["Cache"](tmp_path))
    assert "apt install qemu-user-static" in caught.value.hint
    assert build.commands == []


async def test_without_root_the_error_names_the_other_builders(
    builder: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UnavailableError, match="needs root") as caught:
        await builder["build_image"](builder["Options"](), report=Silent(), cache=builder["Cache"](tmp_path))
    assert "docs/how-to/build-an-image.md" in caught.value.hint
