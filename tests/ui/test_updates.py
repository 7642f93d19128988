"""Changes under an open page: applied completely, in place, and without a change under the reader's pointer."""

from __future__ import annotations

import random
import time

import pytest
from playwright.sync_api import Page, expect

from tests.ui import documents
from tests.ui.conftest import TIMEOUT_MS, Visit, Visits
from tests.ui.test_views import VIEWS

CONTENT = """() => {
  const copy = document.getElementById('main').cloneNode(true);
  copy.querySelectorAll('.chart').forEach(chart => chart.replaceChildren());
  return copy.outerHTML.replace(/<!--.*?-->/gs, '').replace(/\\s+/g, ' ');
}"""


def shuffled(document: documents.Document, now: float, seed: int) -> documents.Document:
    """Return another document: objects of another seed, some removed, some changed."""
    chance = random.Random(seed)
    other = documents.platform(now, seed=seed)
    for section in ("gangs", "nodes", "timeline", "tenants"):
        for key in chance.sample(sorted(other[section]), len(other[section]) // 4):
            del other[section][key]
    for made in other["gangs"].values():
        if chance.random() < 0.2:
            made["place"], made["message"] = chance.randrange(1, 90), "changed"
    if document["scope"] == "tenant":
        other = {**other, "scope": "tenant", "pools": {}, "clusters": {}}
        for section in ("gangs", "tenants", "timeline"):
            other[section] = {key: item for key, item in other[section].items() if item["tenant"] == "alpha"}
        other["nodes"], other["controlPlanes"] = document["nodes"], {}
    return other


def content(page: Page) -> str:
    page.wait_for_timeout(80)  # two frames: redraws are joined
    text: str = page.evaluate(CONTENT)
    return text


def freeze(seen: Visit, now: float) -> None:
    """Stop the clock of the page, so that relative times are comparable."""
    seen.page.clock.set_fixed_time(now * 1000)


@pytest.mark.parametrize(("scope", "view"), [(scope, view) for scope, views in VIEWS.items() for view in views])
def test_page_after_deltas_equals_the_page_of_a_fresh_state(visit: Visits, now: float, scope: str, view: str) -> None:
    seen = visit(scope)
    freeze(seen, now)
    page = seen.open(view)
    document = seen.gateway.document
    for seed in (21, 22, 23):
        seen.gateway.publish(shuffled(document, now, seed))
    final = shuffled(document, now, 24)
    seen.gateway.publish(final)
    page.mouse.move(0, 0)
    fresh = visit(gateway=seen.gateway)
    freeze(fresh, now)
    expected = content(fresh.open(view))
    deadline = time.monotonic() + TIMEOUT_MS / 1000
    while content(page) != expected and time.monotonic() < deadline:
        pass  # the changes are on their way
    assert content(page) == expected


def test_filters_focus_scroll_and_open_parts_survive_updates(visit: Visits, now: float) -> None:
    seen = visit("tenant")
    page = seen.open("overview")
    page.locator(".wait details summary").first.click()
    page.evaluate("scrollTo(0, 200)")
    page.locator(".wait a").nth(1).focus()
    before = page.evaluate("[document.activeElement.textContent, scrollY]")
    first = page.locator(".wait-name").first.text_content()
    document = seen.gateway.document
    changed = {key: {**made, "message": f"{made['message']} (changed)"} for key, made in document["gangs"].items()}
    seen.gateway.publish({**document, "gangs": changed})
    page.locator(".wait-why", has_text="(changed)").first.wait_for()
    assert page.evaluate("[document.activeElement.textContent, scrollY]") == before
    expect(page.locator(".wait details").first).to_have_attribute("open", "")
    expect(page.locator(".wait-name").first).to_have_text(first or "")


def test_rows_stay_under_the_pointer(visit: Visits) -> None:
    seen = visit()
    page = seen.open("gangs?state=waiting")
    rows = page.locator("tbody tr")
    third = rows.nth(2)
    name = third.locator(".gang-link").text_content()
    third.hover()
    document = seen.gateway.document
    gangs = dict(document["gangs"])
    for made in [made for made in gangs.values() if made["place"]][:2]:
        del gangs[made["id"]]
    newer = documents.gang("alpha", "ml", "first", place=1, code="WaitingForRoom", message="new", since=1.0)
    seen.gateway.publish({**document, "gangs": {newer["id"]: newer, **gangs}})
    page.wait_for_selector(".held")
    expect(rows.nth(2).locator(".gang-link")).to_have_text(name or "")
    expect(page.locator("tr.ended")).to_have_count(2)
    page.mouse.move(0, 0)
    page.wait_for_selector(".held", state="detached")
    expect(page.locator("tr.ended")).to_have_count(0)
    page.wait_for_selector("text=ml/first")


def test_rows_of_a_left_view_are_not_held(visit: Visits) -> None:
    """A click changes the address at once; the former view may be drawn once more before the page learns of it."""
    seen = visit()
    page = seen.open("tenants")
    page.get_by_role("link", name="beta").first.hover()
    # As the page's clock or a change of the document may do between a click and the event.
    page.evaluate(
        """async () => {
          const main = document.querySelector("script[src$='js/main.js']").src;
          const { redraw } = await import(new URL("core/draw.js", main));
          location.hash = "#/tenants?tenant=beta";
          redraw.now();
        }"""
    )
    page.get_by_role("heading", name="beta", level=1).wait_for()
    gangs = [gang for gang in seen.gateway.document["gangs"].values() if gang["tenant"] == "beta"]
    expect(page.locator("tbody tr")).to_have_count(len(gangs))


def test_sorting_and_pages_are_kept_in_the_address(visit: Visits, now: float) -> None:
    seen = visit(document=documents.large(now, gangs=500, nodes=10))
    page = seen.open("gangs")
    page.get_by_role("button", name="Next").click()
    page.wait_for_selector("text=/51.100 of 500/")
    page.get_by_role("button", name="Gang", exact=True).click()
    page.wait_for_selector("th[aria-sort=ascending]")
    page.reload()
    page.wait_for_selector("th[aria-sort=ascending]")
    expect(page.locator("tbody .gang-link").first).to_have_text("ml/gang-0")
