"""The page by keyboard alone."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.ui.conftest import Visits

FOCUSED = """() => {
  const element = document.activeElement;
  const style = getComputedStyle(element);
  return {
    text: (element.getAttribute('aria-label') || element.textContent || element.tagName).trim().replace(/\\s+/g, ' '),
    tag: element.tagName, id: element.id, visible: style.outlineStyle !== 'none' || element.id === 'title',
  };
}"""


def expect_focus_on_node(page: Page, name: str, message: str | None = None) -> None:
    expect(page.locator(".node:focus"), message).to_have_attribute("aria-label", re.compile(f"^{name}:"))


def press_until(page: Page, text: str, *, key: str = "Tab", most: int = 80) -> None:
    """Press a key until the focus is on an element whose text starts so; each stop on the way shows its focus."""
    for _ in range(most):
        page.keyboard.press(key)
        focused = page.evaluate(FOCUSED)
        assert focused["visible"], f"the focus is invisible on {focused}"
        if focused["text"].startswith(text):
            return
    raise AssertionError(f"no element {text!r} within {most} presses of {key}")


def test_tenant_reads_why_a_gang_waits_by_keyboard_alone(visit: Visits) -> None:
    seen = visit("tenant")
    page = seen.open("overview")
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to the content")
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    page.reload()
    page.wait_for_selector(".connection.live")
    press_until(page, "Gangs")
    page.keyboard.press("Enter")
    seen.wait_until("document.activeElement.id === 'title'")
    press_until(page, "all states")
    page.keyboard.press("ArrowDown")
    seen.wait_until("location.hash.includes('state=waiting')")
    page.locator(".filter-result", has_text=" of ").wait_for()
    name = page.locator("tbody .gang-link").first.text_content() or ""
    press_until(page, name)
    page.keyboard.press("Enter")
    seen.wait_until("document.activeElement.id === 'detail-title'")
    press_until(page, "Close the details")
    page.keyboard.press("Enter")
    page.wait_for_selector(".details", state="detached")
    expect(page.locator(":focus"), "the focus returns to the link of the details").to_have_text(name)


def test_map_is_one_stop_and_arrows_move_in_it(visit: Visits) -> None:
    seen = visit()
    page = seen.open("pools")
    press_until(page, "a100-01")
    page.keyboard.press("ArrowRight")
    expect_focus_on_node(page, "a100-02")
    page.keyboard.press("End")
    expect_focus_on_node(page, "a100-24")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Home")
    expect_focus_on_node(page, "a100-01")
    page.keyboard.press("Enter")
    expect(page.locator(".node-content")).to_contain_text("a100-01")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Tab")
    expect(page.locator(".node-content button"), "the next stop is after the map").to_be_focused()
    page.keyboard.press("Shift+Tab")
    expect_focus_on_node(page, "a100-02", "the map remembers its node")


def test_no_view_traps_the_focus(visit: Visits) -> None:
    seen = visit()
    for view in ("queue", "tenants", "clusters", "what-if"):
        page = seen.open(view)
        page.evaluate("document.activeElement.blur()")
        stops = 0
        while stops < 300:
            page.keyboard.press("Tab")
            stops += 1
            if page.evaluate("document.activeElement === document.body"):
                break
        assert stops < 300, f"{view} does not let the focus out"
