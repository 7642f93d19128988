"""10,000 gangs on 1,000 nodes: the page stays small and answers. Times are printed, not asserted."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.ui import documents
from tests.ui.conftest import Visit, Visits

ELEMENTS = "document.querySelectorAll('*').length"


@pytest.fixture
def large(visit: Visits, now: float) -> Visit:
    return visit(document=documents.large(now))


def timed(what: str, *steps: Callable[[], object]) -> None:
    start = time.perf_counter()
    for step in steps:
        step()
    sys.stderr.write(f"{what}: {1000 * (time.perf_counter() - start):.0f} ms\n")


def test_opening_and_searching(large: Visit, capsys: pytest.CaptureFixture[str]) -> None:
    page = large.page
    sort = page.get_by_role("button", name="Gang", exact=True)
    last = page.get_by_role("button", name="Last")

    def search(text: str, found: str) -> None:
        page.fill("input[type=search]", text)
        page.wait_for_selector(f"text=/^{found} gangs/")

    with capsys.disabled():
        timed("10,000 gangs: open the page", lambda: large.open("gangs"))
        assert page.evaluate(ELEMENTS) < 4000
        timed("search", lambda: search("gang-777", "11"))
        timed("clear", lambda: search("", "10,000"))
        timed("sort", sort.click, lambda: page.wait_for_selector("th[aria-sort]"))
        timed("last page", last.click, lambda: page.wait_for_selector("text=/9,951.10,000 of 10,000/"))


def test_queue_of_2_000_gangs(large: Visit, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        timed("2,000 waiting gangs: open the queue", lambda: large.open("queue"))
    assert large.page.evaluate(ELEMENTS) < 4000


def test_map_of_1_000_nodes(large: Visit, capsys: pytest.CaptureFixture[str]) -> None:
    page, document = large.page, large.gateway.document
    changed = {
        key: {**node, "parts": [], "free": 8, "name": f"{node['name']}x"}
        for key, node in list(document["nodes"].items())[:50]
    }
    newer = {**document, "nodes": {**document["nodes"], **changed}}
    with capsys.disabled():
        timed("1,000 nodes: open the map", lambda: large.open("pools"))
        expect(page.locator(".node")).to_have_count(1000)
        page.wait_for_selector(".node .part")
        assert page.evaluate(ELEMENTS) < 14_000
        large.take_picture("large-pools")
        timed(
            "change 50 nodes",
            lambda: large.gateway.publish(newer),
            lambda: page.wait_for_selector("text=gpu-0049x"),
        )
        timed("show a node", page.locator(".node").nth(500).click, lambda: page.wait_for_selector(".node-content"))


def test_map_draws_the_nodes_that_come_near(large: Visit) -> None:
    page = large.open("pools")
    page.wait_for_selector(".node .part")
    last = page.locator(".node").last
    expect(last.locator(".part")).to_have_count(0)
    expect(last, "the text of a node does not depend on its place").to_have_attribute("aria-label", re.compile("free"))
    page.locator(".node").first.focus()
    page.keyboard.press("End")
    last.locator(".part").first.wait_for()
