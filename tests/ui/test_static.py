"""The static files: their size, the origin of foreign code, and what the content security policy forbids."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import vendor

from tests.ui.gateway import STATIC
from vkgateway.page.static_files import load_files

MOST_BYTES = 100 * 1024


def files(*suffixes: str) -> list[Path]:
    return sorted(path for path in STATIC.rglob("*") if path.is_file() and (not suffixes or path.suffix in suffixes))


def test_size_of_what_the_browser_loads() -> None:
    sent = {path: file for path, file in load_files().items() if "immutable" not in file.caching and path}
    assert {STATIC / path for path in sent} == set(files(".html", ".js", ".css", ".svg"))
    size = sum(len(file.zipped) for file in sent.values())
    assert size < MOST_BYTES, f"{size} bytes gzipped"


def test_foreign_files_are_those_of_their_packages() -> None:
    assert vendor.differences() == []


def test_each_foreign_package_has_its_licence() -> None:
    for package in vendor.PACKAGES:
        assert (STATIC / "vendor" / package.folder / "LICENSE").read_text().strip()


def test_nothing_is_inline_or_from_elsewhere() -> None:
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", page)
    for path in files(".html", ".js", ".css"):
        if "vendor" in path.parts:
            continue
        text = path.read_text()
        assert not re.search(r"""(?:src|href)=["'](?:https?:)?//""", text), path
        assert not re.search(r"\sstyle=|unsafeHTML|innerHTML|\beval\(|new Function", text), path


def test_scripts_start_with_their_job_and_are_short() -> None:
    for path in files(".js"):
        if "vendor" in path.parts:
            continue
        lines = path.read_text().splitlines()
        assert lines[0].startswith("// "), path
        assert len(lines) <= 400, path


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_scripts_have_valid_syntax(tmp_path: Path) -> None:
    for path in files(".js"):
        if "vendor" in path.parts:
            continue
        copy = tmp_path / f"{path.stem}.mjs"
        copy.write_bytes(path.read_bytes())
        subprocess.run(["node", "--check", copy], check=True, capture_output=True)


def test_page_preloads_all_its_modules() -> None:
    """Without it, each level of imports costs a round trip."""
    named = set(re.findall(r'"modulepreload" href="([^"]+)"', (STATIC / "index.html").read_text()))
    modules = {path.relative_to(STATIC).as_posix() for path in files(".js")} - {"js/main.js", "js/ahead.js"}
    assert named == {path for path in modules if not path.endswith(".iife.min.js")}
