"""Builds the wheels of both packages, `vkgateway` and `vkgateway-platform`: `python scripts/wheels.py FOLDER`.

It builds from a copy, because files of an earlier build in the checkout would get into the wheels.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_FILES = ("LICENSE", "README.md", "pyproject.toml")
_PACKAGES = ("vkgateway", "vkgateway_platform")


def build_wheels(target: Path) -> list[Path]:
    """Build both wheels into a folder, and return their paths: the gateway, then the platform."""
    with tempfile.TemporaryDirectory() as name:
        checkout, built = Path(name) / "checkout", Path(name) / "wheels"
        for package in _PACKAGES:
            ignored = shutil.ignore_patterns("__pycache__", "build")
            shutil.copytree(ROOT / package, checkout / package, ignore=ignored)
        for file in _FILES:
            shutil.copy(ROOT / file, checkout / file)
        pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(built)]
        subprocess.run([*pip, str(checkout), str(checkout / "vkgateway_platform")], check=True)
        target.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.copy(wheel, target)) for wheel in sorted(built.iterdir())]


if __name__ == "__main__":
    for wheel in build_wheels(Path(sys.argv[1])):
        print(wheel)
