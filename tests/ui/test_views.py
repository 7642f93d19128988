"""Each view of both scopes: its content, pictures in both schemes, accessibility, and narrow pages."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.ui.conftest import TIMEOUT_MS, Visits

VIEWS = {
    "tenant": ("overview", "gangs", "nodes", "usage", "timeline"),
    "platform": ("pools", "queue", "gangs", "tenants", "timeline", "clusters", "what-if", "starts", "usage"),
}
EACH = [(scope, view) for scope, views in VIEWS.items() for view in views]
TITLES = {"clusters": "Clusters and control planes", "what-if": "What-if"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("scope", "view"), EACH)
def test_view(visit: Visits, scope: str, view: str, scheme: str) -> None:
    seen = visit(scope, scheme=scheme)
    page = seen.open(view)
    assert page.text_content("#title") == TITLES.get(view, view.capitalize())
    seen.take_picture(f"{scope}-{view}-{scheme}")
    seen.check_access()


@pytest.mark.parametrize(("scope", "view"), EACH)
def test_view_on_a_narrow_page_scrolls_in_one_direction(visit: Visits, scope: str, view: str) -> None:
    """320 pixels are a page of 1280 pixels at 400 % zoom. Only tables and commands may be wider, in their frames."""
    seen = visit(scope, width=320, height=640)
    page = seen.open(view)
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    seen.take_picture(f"{scope}-{view}-narrow")
    seen.check_access()


@pytest.mark.parametrize(("scope", "view"), EACH)
def test_view_on_a_phone(visit: Visits, scope: str, view: str) -> None:
    seen = visit(scope, width=390, height=844, scheme="dark", has_touch=True, is_mobile=True)
    page = seen.open(view)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    seen.take_picture(f"{scope}-{view}-phone")


def test_view_with_forced_colors_and_reduced_motion(visit: Visits) -> None:
    seen = visit(forced_colors="active", reduced_motion="reduce")
    seen.open("pools")
    seen.take_picture("platform-pools-forced")
    seen.check_access()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("scope", "view"), [("tenant", "gangs"), ("platform", "queue")])
def test_details_of_a_waiting_gang_say_why_it_waits_what_is_before_it_and_when_it_starts(
    visit: Visits, scope: str, view: str, scheme: str
) -> None:
    seen = visit(scope, scheme=scheme)
    document = seen.gateway.document
    waiting = max(
        (gang for gang in document["gangs"].values() if gang["place"] and gang["pool"] == "a100.local"),
        key=lambda gang: int(gang["place"]),
    )
    page = seen.open(view)
    if scope == "tenant":
        page.fill("input[type=search]", waiting["name"])
    page.get_by_role("link", name=f"{waiting['namespace']}/{waiting['name']}").first.click()
    details = page.locator(".details")
    assert waiting["message"] in (details.text_content() or "")
    assert waiting["help"] in (details.text_content() or "")
    assert f"{waiting['place'] - 1} gang" in (details.text_content() or "")
    assert page.evaluate("document.activeElement.id") == "detail-title"
    seen.take_picture(f"{scope}-{view}-details-{scheme}")
    seen.check_access()
    page.keyboard.press("Escape")
    details.wait_for(state="detached")


def test_overview_counts_down_to_evictions(visit: Visits, now: float) -> None:
    seen = visit("tenant")
    document = seen.gateway.document
    running = next(gang for gang in document["gangs"].values() if gang["state"] == "running")
    changed = {**running, "state": "leaving", "deadline": now + 300, "message": "a guarantee reclaims its capacity"}
    page = seen.open("overview")
    seen.gateway.publish({**document, "gangs": {**document["gangs"], running["id"]: changed}})
    row = page.locator(".evictions li", has_text=f"/{running['name']}")
    countdown = row.locator(".countdown")
    expect(countdown).not_to_have_text(countdown.text_content() or "", timeout=TIMEOUT_MS)
    seen.wait_until("document.getElementById('announcements').textContent.includes('Eviction:')")
    seen.take_picture("tenant-overview-eviction", whole=False)


def test_node_of_the_map_shows_what_runs_on_it(visit: Visits) -> None:
    seen = visit()
    page = seen.open("pools")
    page.locator(".map .node").nth(3).click()
    assert "free" in (page.locator(".node-content").text_content() or "")
    seen.take_picture("platform-pools-node", whole=False)
    seen.check_access()
