"""Names, messages and reasons that try to be markup, to turn the text around, or to break the layout."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.ui import documents
from tests.ui.conftest import Visits
from tests.ui.test_views import VIEWS


@pytest.mark.parametrize("width", [1280, 320])
@pytest.mark.parametrize("view", VIEWS["platform"])
def test_hostile_names_stay_text(visit: Visits, now: float, view: str, width: int) -> None:
    seen = visit(document=documents.hostile(now), width=width)
    page = seen.open(view)
    page.wait_for_timeout(200)
    assert page.evaluate("window.hacked") is None
    expect(page.locator("main img, main script")).to_have_count(0)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    seen.take_picture(f"hostile-{view}-{width}")


@pytest.mark.parametrize("kind", documents.HOSTILE)
def test_details_of_a_hostile_gang(visit: Visits, now: float, kind: str) -> None:
    seen = visit(document=documents.hostile(now))
    text = documents.HOSTILE[kind]
    page = seen.open("gangs")
    page.evaluate(
        "key => { location.hash = '#/gangs?' + new URLSearchParams({gang: key}) }", f"{text}/{text}/Job/{text}"
    )
    page.wait_for_selector(".details .answer")
    expect(page.locator("#detail-title")).to_contain_text(shown(text))
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    seen.check_access()
    seen.take_picture(f"hostile-details-{kind}", whole=False)


def shown(text: str) -> str:
    """Return a name as the page shows it: marks of writing direction are visible."""
    return re.sub("[\u202a-\u202e\u2066-\u2069]", "\ufffd", text)


@pytest.mark.parametrize("view", VIEWS["platform"])
def test_names_do_not_turn_the_text_around_them(visit: Visits, now: float, view: str) -> None:
    seen = visit(document=documents.hostile(now))
    page = seen.open(view)
    text = shown(documents.HOSTILE["bidirectional"])
    assert page.evaluate("!/[\u202a-\u202e\u2066-\u2067\u2069]/.test(document.body.innerText)")
    lonely = page.evaluate(
        """text => {
          const walker = document.createTreeWalker(document.getElementById('main'), NodeFilter.SHOW_TEXT);
          const found = [];
          while (walker.nextNode()) {
            const parent = walker.currentNode.parentElement;
            const isolated = parent.closest('bdi, option, code');
            if (walker.currentNode.data.includes(text) && !isolated) found.push(parent.outerHTML);
          }
          return found;
        }""",
        text,
    )
    assert lonely == []
