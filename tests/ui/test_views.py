"""Each view of both scopes: its content, pictures in both schemes, accessibility, and narrow pages."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.ui import documents
from tests.ui.conftest import Visits

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
    expect(page.locator("#title")).to_have_text(TITLES.get(view, view.capitalize()))
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
    expect(details).to_contain_text(waiting["message"])
    expect(details).to_contain_text(waiting["help"])
    expect(details).to_contain_text(f"{waiting['place'] - 1} gang")
    expect(page.locator("#detail-title")).to_be_focused()
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
    expect(countdown).not_to_have_text(countdown.text_content() or "")
    seen.wait_until("document.getElementById('announcements').textContent.includes('Eviction:')")
    seen.take_picture("tenant-overview-eviction", whole=False)


def test_tenant_has_an_address_of_its_own(visit: Visits) -> None:
    seen = visit()
    page = seen.open("tenants")
    page.get_by_role("link", name="beta").first.click()
    page.get_by_role("heading", name="beta", level=1).wait_for()
    expect(page).to_have_url(f"{seen.gateway.url}#/tenants?tenant=beta")
    gangs = [gang for gang in seen.gateway.document["gangs"].values() if gang["tenant"] == "beta"]
    expect(page.locator("tbody tr")).to_have_count(min(len(gangs), 50))
    expect(page.locator("tbody tr", has_text="beta")).to_have_count(min(len(gangs), 50))
    seen.take_picture("platform-tenant")
    seen.check_access()
    page.get_by_role("link", name="Usage").last.click()
    page.get_by_role("heading", name="Usage", level=1).wait_for()


def test_documentation_is_linked(visit: Visits) -> None:
    page = visit().open()
    link = page.get_by_role("contentinfo").get_by_role("link", name="documentation")
    expect(link).to_have_attribute("href", "https://docs.example.com/vkgateway/")


def test_single_pods_of_a_controller_are_one_row(visit: Visits, now: float) -> None:
    document = documents.platform(now)
    pods = [gang for gang in document["gangs"].values() if gang["tenant"] == "alpha"][:3]
    for number, gang in enumerate(pods):
        gang |= {"controller": "Job/sweep", "namespace": "ml", "name": f"sweep-{number}", "way": ""}
    seen = visit(document=document)
    page = seen.open("gangs")
    page.fill("input[type=search]", "sweep-")
    row = page.locator("tbody tr", has_text="3 single pods")
    expect(row).to_have_count(1)
    expect(row.locator("td[data-title=GPUs]")).to_have_text(str(sum(gang["units"] for gang in pods)))
    seen.take_picture("platform-gangs-together", whole=False)
    row.get_by_role("link").click()
    expect(page.locator("tbody tr")).to_have_count(3)
    seen.check_access()
    page.get_by_role("link", name="Show all gangs").click()
    expect(page.locator("tbody tr")).to_have_count(min(len(document["gangs"]) - 2, 50))


def test_timeline_shows_runs_as_bars(visit: Visits, now: float) -> None:
    document = documents.platform(now)
    running = next(gang for gang in document["gangs"].values() if gang["state"] == "running")
    of = {name: running[name] for name in ("tenant", "namespace", "pool", "units", "pods")}
    common = {**of, "borrowed": False, "reason": "", "reclaim": False, "for": "", "since": None}
    document["timeline"] = {
        "1": {**common, "kind": "start", "gang": running["id"], "name": running["name"], "time": now - 4000}
        | {"borrowed": True},
        "2": {**common, "kind": "promote", "gang": running["id"], "name": running["name"], "time": now - 1000},
        "3": {**common, "kind": "end", "gang": "x/y/Job/gone", "name": "gone", "time": now - 2000, "since": now - 3000},
    }
    seen = visit(document=document)
    page = seen.open("timeline")
    rows = page.locator("table tbody tr")
    expect(rows).to_have_count(2)
    going, ended = (rows.filter(has_text=name).locator("svg.bar") for name in (running["name"], "gone"))
    for bar, counts in ((going, {"borrowed": 1, "used": 1, "gap": 0}), (ended, {"borrowed": 0, "used": 1, "gap": 1})):
        for look, count in counts.items():
            expect(bar.locator(f".bar-{look}")).to_have_count(count)
    widths = [
        float((going.locator(f".bar-{look}").get_attribute("width") or "").strip("%")) for look in ("borrowed", "used")
    ]
    assert widths == pytest.approx([75, 25], abs=1)
    expect(going).to_have_attribute("aria-label", re.compile("until now"))
    page.fill("input[type=search]", "gone")
    expect(rows).to_have_count(1)
    seen.take_picture("platform-timeline-runs", whole=False)
    seen.check_access()


def test_tenants_of_one_name_have_usage_of_their_own(visit: Visits) -> None:
    seen = visit()
    first, second = seen.gateway.usage["days"][0], seen.gateway.usage["days"][3]
    seen.gateway.usage = {
        "days": [
            {**first, "tenantUid": "0a1b-1", "hours": 8.0},
            {**second, "tenant": first["tenant"], "tenantUid": "0c2d-1"},
        ],
        "budgets": [],
    }
    page = seen.open("usage")
    table = page.get_by_role("table", name="Usage by tenant")
    most_first = [re.compile(r"\(0c2d\)\s*$"), re.compile(r"\(0a1b\)\s*$")]
    expect(table.locator("tbody th")).to_have_text(most_first)


def test_node_of_the_map_shows_what_runs_on_it(visit: Visits) -> None:
    seen = visit()
    page = seen.open("pools")
    page.locator(".map .node").nth(3).click()
    expect(page.locator(".node-content")).to_contain_text("free")
    seen.take_picture("platform-pools-node", whole=False)
    seen.check_access()
