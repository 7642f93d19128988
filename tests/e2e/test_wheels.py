"""Both wheels, installed outside of a checkout: the gateway alone, and then with the embedded platform."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from wheels import build_wheels

from tests.e2e.cluster import Cluster, CommandResult, new_data_dir, run_program
from tests.support.machine import patience_option
from vkgateway.version import __version__


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build_wheels(tmp_path_factory.mktemp("wheels"))


class Installation:
    """An environment with the locked libraries, and with none of the two packages until `install`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._bin = folder / "venv/bin"
        venv.create(folder / "venv")
        libraries = folder / "venv" / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix) / "libraries.pth"
        # A `.pth` file in that folder isn't read, so the checkout, which one of them names, can't be imported.
        libraries.write_text(sysconfig.get_path("purelib"))
        self.data_dir = new_data_dir()

    def install(self, *wheels: Path) -> None:
        pip = [sys.executable, "-m", "pip", "--python", str(self._bin / "python"), "install", "-q"]
        subprocess.run([*pip, "--no-index", "--no-deps", "--ignore-installed", *map(str, wheels)], check=True)

    def run(self, *args: str, timeout: float = 60) -> CommandResult:
        environment = os.environ | {"VKGATEWAY_DATA_DIR": str(self.data_dir)}
        return run_program(str(self._bin / "vkgateway"), *args, env=environment, timeout=timeout)

    def python(self, code: str) -> CommandResult:
        return run_program(str(self._bin / "python"), "-c", code)


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installation]:
    monkeypatch.chdir(tmp_path)
    installation = Installation(tmp_path)
    yield installation
    down = CommandResult(0, "", "")
    if (installation.data_dir / "platform.json").exists():
        down = installation.run("down", "--purge", "--yes", timeout=120)
    shutil.rmtree(installation.data_dir, ignore_errors=True)
    assert down.code == 0, str(down)


def test_the_gateway_alone_says_how_to_get_the_platform(installation: Installation, wheels: list[Path]) -> None:
    installation.install(wheels[0])
    assert "vkgateway_platform" not in str(installation.python("import vkgateway; print(vkgateway.__file__)"))
    shown = installation.run("--help")
    assert shown.code == 0, str(shown)
    assert "  tenant " in shown.out
    assert "  up " not in shown.out
    for command in (("serve", "--help"), ("tenant", "create", "--help"), ("ui", "--help"), ("version",)):
        assert (found := installation.run(*command)).code == 0, str(found)
    refused = installation.run("up")
    assert refused.code == 5, str(refused)
    assert f"pip install vkgateway-platform=={__version__}" in refused.err


def test_both_wheels_start_a_platform_outside_of_the_checkout(installation: Installation, wheels: list[Path]) -> None:
    installation.install(*wheels)
    imported = installation.python("import vkgateway, vkgateway_platform as p; print(vkgateway.__file__, p.__file__)")
    assert imported.out.count(str(installation.folder)) == 2, str(imported)
    up = installation.run("up", "--real-node", "no", timeout=300)
    assert up.code == 0, str(up)
    created = installation.run("tenant", "create", "alpha", "--pool", "a100", timeout=300)
    assert created.code == 0, str(created)
    kubeconfig = installation.folder / "alpha.kubeconfig"
    assert installation.run("tenant", "kubeconfig", "alpha", "-f", str(kubeconfig)).code == 0
    tenant = Cluster(installation.run("binaries", "path", "kubectl").out.strip(), kubeconfig)
    tenant.kubectl("run", "pod", "--image=busybox", "--restart=Never", "--", "sleep", "1000")
    tenant.kubectl("wait", "pod/pod", "--for=condition=Ready", patience_option(60))
