"""What README and docs point to is there."""

from __future__ import annotations

import re
import runpy
import subprocess
from pathlib import Path

import pytest

from bench.__main__ import BENCHMARKS
from operators.catalogue import KITS
from vkgateway.arbiter.decisions import HoldCode
from vkgateway.model.names import ADMISSION_GATE, EVICTION_DEADLINE_ANNOTATION, GANG_ANNOTATIONS
from vkgateway.sync.admission.verdicts import PREEMPTED
from vkgateway.translate.conditions import ADMITTED_CONDITION
from vkgateway.translate.gangs import WAYS

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


def test_the_readme_names_every_section() -> None:
    """Whether each page can be reached from its section is checked when the site is built."""
    readme = (ROOT / "README.md").read_text()
    assert [
        page.parent.name for page in ROOT.glob("docs/*/index.md") if f"docs/{page.parent.name}/" not in readme
    ] == []


def test_generated_reference_is_current() -> None:
    """`make reference` writes it."""
    reference = runpy.run_path(str(ROOT / "scripts" / "reference.py"))
    changed = [page.name for page in reference["pages"]() if reference["render_page"](text := page.read_text()) != text]
    assert changed == [], "run `make reference`"


def test_make_targets_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"(?:^|`)make ([a-z0-9-]*[a-z0-9])", page.read_text(), re.MULTILINE))
        named -= {f"bench-{name}" for name in BENCHMARKS} | {f"operator-{name}" for name in KITS} | {"operator"}
        assert named <= targets, f"{page.name} names {named - targets}"


def test_make_help_lists_every_target() -> None:
    """Those of a pattern (bench-%) have lines of their own."""
    told = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    listed = re.findall(r"^  make (\S+) +\S", told, re.MULTILINE)
    targets = re.findall(r"^([^\s:.]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(target.replace("%", "NAME") for target in targets)


def test_the_pages_about_scheduling_name_every_reason_way_and_mark() -> None:
    page = "".join(page.read_text() for page in ROOT.glob("docs/concepts/*.md"))
    assert [code for code in HoldCode if f"| `{code}` |" not in page] == []
    assert [way.title for way in WAYS if f"| {way.title} |" not in page and f"| `{way.title}` |" not in page] == []
    marks = {*GANG_ANNOTATIONS, EVICTION_DEADLINE_ANNOTATION, ADMISSION_GATE, ADMITTED_CONDITION, PREEMPTED}
    assert [mark for mark in sorted(marks) if mark not in page] == []
