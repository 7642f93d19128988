"""Tests of the page's files: the start page is asked for again, and all others are kept by their version."""

from __future__ import annotations

import re
from importlib import resources
from typing import Any

import pytest

from vkgateway.nodes.http import Request
from vkgateway.page.static_files import StaticFile, find_file, load_files, reply_file


@pytest.fixture(scope="module")
def files() -> dict[str, StaticFile]:
    return load_files()


def caching(file: StaticFile) -> str:
    request = Request("GET", ())
    return dict(reply_file(file, request).headers)["cache-control"]


def test_start_page_names_files_that_browsers_keep(files: dict[str, StaticFile]) -> None:
    start = files[""].plain.decode()
    named = re.findall(r'\b(?:href|src)="([^"]+)"', start)
    assert len(named) > 50
    for path in named:
        assert "immutable" in caching(files[path]), path
    assert caching(files[""]) == "no-cache"


def test_a_file_of_another_version_is_the_current_one_and_not_kept(files: dict[str, StaticFile]) -> None:
    found: Any = find_file(files, ("0123456789abcdef", "js", "main.js"))
    assert found.plain == files["js/main.js"].plain
    assert caching(found) == "no-cache"
    assert find_file(files, ("0123456789abcdef",)) is None
    assert find_file(files, ("0123456789abcdef", "js", "else.js")) is None
    assert find_file(files, ("else", "js", "main.js")) is None


def test_scripts_are_sent_without_comments_and_with_their_lines(files: dict[str, StaticFile]) -> None:
    folder = resources.files("vkgateway.page") / "static"
    for path, file in files.items():
        if not path.startswith("js/"):
            continue
        lines = file.plain.decode().split("\n")
        written = (folder / path).read_text().split("\n")
        assert len(lines) == len(written), path
        changed = [before for after, before in zip(lines, written, strict=True) if after != before]
        assert all(re.match(r" *(//|/\*\*|\*)", line) for line in changed), path
        assert not any(re.match(r" *(//|/\*\*)", line) for line in lines), path
    licence = files["vendor/lit-html/lit-html.js"].plain
    assert licence == (folder / "vendor/lit-html/lit-html.js").read_bytes(), "foreign files are sent as they are"
