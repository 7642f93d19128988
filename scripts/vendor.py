"""Check or fetch the foreign files of the page: the published files of npm packages, with recorded hashes."""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "vkgateway" / "page" / "static" / "vendor"
PAGE = FOLDER / "README.md"
START, END = "<!-- files -->\n", "<!-- /files -->\n"


@dataclass(frozen=True, slots=True)
class Package:
    """npm package, and the files of it that the page uses: path in the package, and path here."""

    name: str
    version: str
    licence: str
    folder: str
    files: tuple[tuple[str, str], ...]


PACKAGES = (
    Package(
        "lit-html",
        "3.3.3",
        "BSD-3-Clause",
        "lit-html",
        tuple(
            (path, path)
            for path in (
                "LICENSE",
                "lit-html.js",
                "directive.js",
                "directive-helpers.js",
                "directives/guard.js",
                "directives/live.js",
                "directives/repeat.js",
            )
        ),
    ),
    Package(
        "uplot",
        "1.6.32",
        "MIT",
        "uplot",
        (
            ("LICENSE", "LICENSE"),
            ("dist/uPlot.iife.min.js", "uPlot.iife.min.js"),
            ("dist/uPlot.min.css", "uPlot.min.css"),
        ),
    ),
)


def main() -> None:
    """Check the hashes, or with --fetch, get the files of the versions above and record their hashes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fetch", action="store_true", help="download the packages with npm and record the hashes")
    if parser.parse_args().fetch:
        for package in PACKAGES:
            fetch(package)
        before, rest = PAGE.read_text().split(START)
        PAGE.write_text(before + START + table() + END + rest.split(END)[1])
    found = differences()
    for line in found:
        print(line, file=sys.stderr)
    sys.exit(1 if found else 0)


def fetch(package: Package) -> None:
    """Download a package with npm, which checks it against its registry, and copy its files."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", "--pack-destination", folder, f"{package.name}@{package.version}"]
        subprocess.run(command, check=True, cwd=folder)
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as content:
            for path, here in package.files:
                member = content.extractfile(f"package/{path}")
                if member is None:
                    raise FileNotFoundError(f"{package.name} {package.version} has no file {path}")
                target = FOLDER / package.folder / here
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(member.read())


def table() -> str:
    """Return the table of packages and files with their hashes."""
    rows = ["| package | version | licence | file | SHA-256 |", "|---|---|---|---|---|"]
    for package in PACKAGES:
        for _, here in package.files:
            path = f"{package.folder}/{here}"
            rows.append(
                f"| {package.name} | {package.version} | {package.licence} | `{path}` | `{hash_of(FOLDER / path)}` |"
            )
    return "\n".join(rows) + "\n"


def hash_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def differences() -> list[str]:
    """Return what differs from the record: missing, changed and additional files."""
    return list(_differences())


def _differences() -> Iterator[str]:
    known = {PAGE} | {FOLDER / package.folder / here for package in PACKAGES for _, here in package.files}
    for path in sorted(known):
        if not path.exists():
            yield f"{path} is missing; fetch it with scripts/vendor.py --fetch"
    for path in sorted(FOLDER.rglob("*")):
        if path.is_file() and path not in known:
            yield f"{path} belongs to no package of scripts/vendor.py"
    if all(path.exists() for path in known) and table() != PAGE.read_text().split(START)[1].split(END)[0]:
        yield f"the hashes in {PAGE} are not those of the files"


if __name__ == "__main__":
    main()
