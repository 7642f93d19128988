"""Tests of `make setup`: it uses the default interpreter, unless another is much faster or selected."""

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.support.machine import patience

ROOT = Path(__file__).parents[2]

# Stands for an interpreter: only its pace and its place are made up.
STAND_IN = """#!/bin/sh
case "$*" in
    scripts/pace.py) echo {pace} ;;
    *realpath*) echo "$0" ;;
    *) exec {python} "$@" ;;
esac
"""


def stand_in(folder: Path, name: str, pace: int) -> Path:
    """An interpreter called ``name`` that takes ``pace`` milliseconds for the piece of work."""
    path = folder / name
    path.write_text(STAND_IN.format(pace=pace, python=sys.executable))
    path.chmod(0o755)
    return path


def taken(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """What the script says that it would take, with ``folder`` alone to look in for interpreters."""
    return run([ROOT / "scripts/setup.sh", "python"], folder=folder, **environment)


def run(command: list[Path | str], *, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    for tool in ("awk", "dirname", "sha256sum", "cat", "cut", "tr"):
        (tools / tool).unlink(missing_ok=True)
        (tools / tool).symlink_to(next(path for path in (Path("/usr/bin", tool), Path("/bin", tool)) if path.exists()))
    return subprocess.run(
        ["/bin/sh", *command],
        env={"PATH": f"{folder}{os.pathsep}{tools}", **environment},
        capture_output=True,
        text=True,
        timeout=patience(60),
        check=False,
    )


@pytest.mark.parametrize("pace", [95, 90, 120])
def test_the_usual_interpreter_is_taken_where_others_are_about_as_fast(tmp_path: Path, pace: int) -> None:
    usual = stand_in(tmp_path, "python3", 100)
    stand_in(tmp_path, "python3.11", pace)
    found = taken(tmp_path)
    assert found.stdout.strip() == str(usual), found
    assert not found.stderr


def test_a_much_faster_interpreter_is_taken_and_said(tmp_path: Path) -> None:
    usual = stand_in(tmp_path, "python3", 100)
    stand_in(tmp_path, "python3.13", 70)
    fastest = stand_in(tmp_path, "python3.12", 50)
    stand_in(tmp_path, "python3.11", 60)
    found = taken(tmp_path)
    assert found.stdout.strip() == str(fastest), found
    assert f"using {fastest}, which is much faster than {usual}" in found.stderr
    assert f"set PYTHON={usual}" in found.stderr


def test_an_interpreter_asked_for_is_taken_as_it_is(tmp_path: Path) -> None:
    stand_in(tmp_path, "python3", 10)
    slow = stand_in(tmp_path, "slow", 100)
    found = taken(tmp_path, PYTHON=str(slow))
    assert found.stdout.strip() == str(slow), found


def test_where_none_fits_it_says_how_to_get_one(tmp_path: Path) -> None:
    found = taken(tmp_path)
    assert found.returncode == 1
    assert "found no python3." in found.stderr
    assert "apt install python3 python3-venv" in found.stderr


def set_up(checkout: Path) -> Path:
    """A checkout with an environment that was made by the script as it is; its stamp."""
    parts = ("requirements.lock", "pyproject.toml", "vkgateway_platform/pyproject.toml", "scripts/setup.sh")
    for part in parts:
        (checkout / part).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / part, checkout / part)
    venv.create(checkout / ".venv")
    digest = hashlib.sha256(b"".join((checkout / part).read_bytes() for part in parts)).hexdigest()
    stamp = checkout / f".venv/.setup-{digest[:16]}"
    stamp.touch()
    return stamp


def test_packages_that_were_left_for_root_are_installed_once_root_comes(tmp_path: Path) -> None:
    stamp = set_up(tmp_path / "checkout")
    script = tmp_path / "checkout/scripts/setup.sh"
    for tool, does in {
        "id": f"cat {tmp_path}/user",
        "dpkg-query": "exit 1",
        "apt-get": f'echo "$*" >> {tmp_path}/apt',
        "grep": "exit 1",
        "rm": 'exec /bin/rm "$@"',
    }.items():
        (tmp_path / tool).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / tool).chmod(0o755)

    pip = next((tmp_path / "checkout/.venv/lib").glob("python3.*")) / "site-packages/pip"
    pip.mkdir()
    (pip / "__main__.py").touch()
    stamp.unlink()
    (tmp_path / "user").write_text("1000\n")
    assert "a real node needs root and these packages" in run([script], folder=tmp_path).stderr
    assert " runc" in stamp.read_text()
    assert run([script], folder=tmp_path).stderr == "", "it was said once"
    (tmp_path / "user").write_text("0\n")
    found = run([script], folder=tmp_path)
    assert "installing Debian packages for the real node: runc " in found.stderr, found
    assert (tmp_path / "apt").read_text().startswith("install ")
    assert stamp.read_text() == ""
    assert run([script], folder=tmp_path).stderr == ""


def test_a_checkout_that_was_moved_gets_an_environment_anew(tmp_path: Path) -> None:
    """Its scripts name the interpreter by its old path, and the package is installed from there."""
    checkout = tmp_path / "here it was"
    set_up(checkout)

    found = run([checkout / "scripts/setup.sh"], folder=tmp_path)
    assert (found.returncode, found.stderr) == (0, "")
    moved = checkout.rename(tmp_path / "moved")
    found = run([moved / "scripts/setup.sh"], folder=tmp_path)
    assert "vkgateway needs Python" in found.stderr, found
