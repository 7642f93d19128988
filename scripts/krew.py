"""Builds the archive of the kubectl plugin for krew, and the manifest that names it.

    .venv/bin/python scripts/krew.py --uri https://HOST/vkgateway-plugin.tar.gz --homepage https://HOST/ build/krew

The same sources give the same archive. `kubectl krew install --manifest FILE --archive FILE` tries it.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from vkgateway.version import __version__

CHECKOUT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = CHECKOUT / "deploy/krew"
ARCHIVE: Final = "vkgateway-plugin.tar.gz"
_EPOCH: Final = 1_767_225_600
"""Time of all files: a constant makes the archive reproducible."""


def main(argv: list[str] | None = None) -> int:
    """Write archive and manifest into a folder, and print their paths."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uri", required=True, help="where the archive will be downloaded from")
    parser.add_argument("--homepage", required=True, help="page of the project")
    parser.add_argument("folder", type=Path)
    given = parser.parse_args(argv)
    given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        archive = pack([*plugin_files(), build_wheel(Path(folder))])
    (given.folder / ARCHIVE).write_bytes(archive)
    manifest = render_manifest(uri=given.uri, homepage=given.homepage, archive=archive)
    (given.folder / "vkgateway.yaml").write_text(manifest)
    print(given.folder / ARCHIVE)
    print(given.folder / "vkgateway.yaml")
    return 0


def plugin_files() -> list[Path]:
    """Return the files of the archive except the wheel."""
    return [FOLDER / "kubectl-vkgateway", CHECKOUT / "deploy/image/requirements.lock", CHECKOUT / "LICENSE"]


def build_wheel(folder: Path) -> Path:
    """Build the package's wheel in a folder, and return its path."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(CHECKOUT)]
    subprocess.run(command, check=True, env={**os.environ, "SOURCE_DATE_EPOCH": str(_EPOCH)})
    (wheel,) = folder.glob("*.whl")
    return wheel


def pack(files: list[Path]) -> bytes:
    """Return the gzipped tar archive of files."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=_EPOCH) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for file in sorted(files, key=lambda path: path.name):
            data = file.read_bytes()
            member = tarfile.TarInfo(file.name)
            member.size, member.mtime = len(data), _EPOCH
            member.mode = 0o755 if os.access(file, os.X_OK) else 0o644
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def render_manifest(*, uri: str, homepage: str, archive: bytes) -> str:
    """Return the manifest of an archive."""
    text = (FOLDER / "vkgateway.yaml").read_text()
    _, separator, body = text.partition("apiVersion:")
    values = {"VERSION": __version__, "URI": uri, "HOMEPAGE": homepage, "SHA256": hashlib.sha256(archive).hexdigest()}
    for name, value in values.items():
        body = body.replace(name, value)
    return separator + body


if __name__ == "__main__":
    sys.exit(main())
