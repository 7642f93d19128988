"""What README and docs point to is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\[[^\]]*\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def anchor(heading: str) -> str:
    """The name by which a heading is linked to, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {anchor(heading) for heading in HEADING.findall(page.read_text())}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, fragment in LINK.findall(page.read_text()):
        file = (page.parent / target) if target else page
        assert file.exists(), f"{target} does not exist"
        if fragment:
            assert fragment in anchors(file), f"{target or page.name} has no heading #{fragment}"


def test_the_readme_names_every_page() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [page.name for page in ROOT.glob("docs/*.md") if f"docs/{page.name}" not in readme] == []


def test_make_targets_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"(?:^|`)make ([a-z-]*[a-z])", page.read_text(), re.MULTILINE))
        assert named <= targets, f"{page.name} names {named - targets}"
