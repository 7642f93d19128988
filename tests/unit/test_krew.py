"""The archive of the kubectl plugin for krew, and its manifest."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import krew
import pytest
import yaml

from vkgateway.version import __version__

ROOT = Path(__file__).parents[2]
URI = "https://example.com/a.tar.gz"
LAUNCHER = ROOT / "deploy/krew/kubectl-vkgateway"


def test_manifest_names_archive_and_version() -> None:
    manifest = yaml.safe_load(krew.render_manifest(uri=URI, homepage="https://example.com/", archive=b"content"))
    spec = manifest["spec"]
    assert (manifest["metadata"]["name"], spec["version"]) == ("vkgateway", f"v{__version__}")
    (platform,) = spec["platforms"]
    assert platform["uri"] == URI
    assert platform["sha256"] == hashlib.sha256(b"content").hexdigest()
    assert platform["bin"] == LAUNCHER.name
    assert len(spec["shortDescription"]) <= 80
    assert not spec["shortDescription"].endswith(".")


def test_archive_has_the_files_of_the_manifest(tmp_path: Path) -> None:
    wheel = tmp_path / f"vkgateway-{__version__}-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    data = krew.pack([*krew.plugin_files(), wheel])
    assert data == krew.pack([wheel, *krew.plugin_files()])
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        modes = {member.name: member.mode for member in archive.getmembers()}
    assert modes.pop(LAUNCHER.name) == 0o755
    manifest = yaml.safe_load((krew.FOLDER / "vkgateway.yaml").read_text())
    patterns = [file["from"] for file in manifest["spec"]["platforms"][0]["files"]]
    assert all(any(Path(name).match(pattern) for pattern in patterns) for name in modes)


def test_programs_of_the_package_have_the_names_that_kubectl_looks_for() -> None:
    programs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert programs["kubectl-vkgateway"] == "vkgateway.cli.plugin.main:main"
    assert programs["kubectl_complete-vkgateway"] == "vkgateway.cli.plugin.completion:main"


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    """Return an unpacked archive, whose virtual environment has a Python that prints its arguments."""
    folder = tmp_path / "unpacked"
    folder.mkdir()
    (folder / LAUNCHER.name).write_bytes(LAUNCHER.read_bytes())
    (folder / LAUNCHER.name).chmod(0o755)
    (folder / f"vkgateway-{__version__}-py3-none-any.whl").touch()
    tag = f"{sys.version_info[0]}.{sys.version_info[1]}"
    programs = tmp_path / "cache/vkgateway/kubectl-plugin" / f"{__version__}-{tag}" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").write_text('#!/bin/sh\necho "$@"\n')
    (programs / "python").chmod(0o755)
    return folder


def launch(program: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, "VKGATEWAY_PYTHON": sys.executable, **environment}
    return subprocess.run([program, *arguments], env=given, capture_output=True, text=True, check=False)


def code(module: str) -> str:
    return f"-c from vkgateway.cli.plugin.{module} import main; main()"


def test_launcher_runs_the_program_of_its_name(tmp_path: Path, unpacked: Path) -> None:
    cache = str(tmp_path / "cache")
    link = tmp_path / "kubectl-vkgateway"
    link.symlink_to(unpacked / LAUNCHER.name)
    assert launch(link, "queue", "-A", XDG_CACHE_HOME=cache).stdout == f"{code('main')} queue -A\n"
    completer = tmp_path / "kubectl_complete-vkgateway"
    completer.symlink_to(unpacked / LAUNCHER.name)
    assert launch(completer, "qu", XDG_CACHE_HOME=cache).stdout == f"{code('completion')} qu\n"


def test_launcher_says_what_it_needs(tmp_path: Path, unpacked: Path) -> None:
    done = launch(unpacked / LAUNCHER.name, VKGATEWAY_PYTHON="/bin/false")
    assert (done.returncode, "needs Python 3.11 to 3.14" in done.stderr) == (5, True)
    completer = tmp_path / "kubectl_complete-vkgateway"
    completer.symlink_to(unpacked / LAUNCHER.name)
    done = launch(completer, "qu", XDG_CACHE_HOME=str(tmp_path / "empty"))
    assert (done.returncode, done.stdout, (tmp_path / "empty").exists()) == (0, "", False)
