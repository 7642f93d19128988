"""A real browser, and gateways with given documents. Every test fails on errors in the console and refused content."""

from __future__ import annotations

import faulthandler
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.ui import documents
from tests.ui.gateway import Gateway, shorten_waits

try:
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
except ImportError as error:  # pragma: no cover
    raise pytest.UsageError("The tests of the page need the extra `ui` and chromium: run make test-ui.") from error

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PICTURES = Path(__file__).parents[2] / "build" / "ui"
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
TIMEOUT_MS = 30_000
_HANGS_AFTER = 300.0
"""Seconds."""
_CHARTED = ("", "overview", "pools")
"""Views with a chart."""


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    """End the process with a traceback if a test hangs: the browser may answer a request never."""
    faulthandler.dump_traceback_later(_HANGS_AFTER, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if not Path(CHROMIUM).exists():
        pytest.fail(f"{CHROMIUM} does not exist. As root on Debian, make test-ui installs it.")
    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def now() -> float:
    """Time of all documents of a run, in seconds since the epoch."""
    return float(int(time.time()))


@dataclass
class Visit:
    """Page of a gateway in a browser, and what went wrong there."""

    page: Page
    gateway: Gateway
    errors: list[str] = field(default_factory=list)
    allowed: tuple[str, ...] = ()
    """Texts of console messages that the test provokes."""

    def open(self, view: str = "", *, ready: bool = True) -> Page:
        """Load the page with a view, and wait for its content, also for what the view fetches."""
        # An address that differs after `#` only changes the view of the loaded page, which shows the former one until
        # the next frame.
        self.page.goto("about:blank")
        self.page.goto(f"{self.gateway.url}#/{view}")
        if ready:
            self.page.wait_for_selector(".connection.live")
            self.page.wait_for_selector("#title")
            self.page.wait_for_selector(".skeleton", state="detached")
            if view in _CHARTED and self.gateway.history.content["times"]:
                self.page.wait_for_selector(".chart canvas")
        return self.page

    def wait_until(self, expression: str) -> None:
        """Wait until an expression is true. The page's policy forbids `wait_for_function`, which evaluates text."""
        deadline = time.monotonic() + TIMEOUT_MS / 1000
        while not self.page.evaluate(expression):
            assert time.monotonic() < deadline, f"still not: {expression}"
            self.page.wait_for_timeout(25)

    def check(self) -> None:
        """Fail on errors of the page."""
        left = [error for error in self.errors if not any(text in error for text in self.allowed)]
        assert not left, left

    def check_access(self) -> None:
        """Fail on violations of the accessibility rules in the current state."""
        found = Axe().run(self.page, options={"runOnly": {"type": "tag", "values": WCAG}})
        assert found.violations_count == 0, found.generate_report()

    def take_picture(self, name: str, *, whole: bool = True) -> None:
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=PICTURES / f"{name}.png", full_page=whole, animations="disabled")


Visits = Callable[..., Visit]


@pytest.fixture
def gateways(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Gateway]]:
    """Start gateways that end with the test."""
    shorten_waits(monkeypatch)
    started: list[Gateway] = []

    def start(document: documents.Document, **options: Any) -> Gateway:
        started.append(Gateway(document, **options))
        return started[-1]

    yield start
    for gateway in started:
        gateway.close()


@pytest.fixture
def visit(browser: Browser, gateways: Callable[..., Gateway], now: float) -> Iterator[Visits]:
    """Open the page of a new gateway: `scope`, `document`, and options of the browser's context."""
    contexts: list[BrowserContext] = []
    visits: list[Visit] = []

    def make(
        scope: str = "platform",
        document: documents.Document | None = None,
        *,
        gateway: Gateway | None = None,
        signed_in: bool = True,
        scheme: str = "light",
        width: int = 1280,
        height: int = 800,
        **options: Any,
    ) -> Visit:
        if gateway is None:
            made = documents.platform(now) if scope == "platform" else documents.tenant(now)
            shown = document or made
            gateway = gateways(shown, tenant="" if scope == "platform" else "alpha")
            if shown["tenants"]:
                gateway.history.content = documents.history(shown, now)
                gateway.usage = documents.usage(shown)
                gateway.starts = documents.starts()
        # Untyped, because mypy runs with and without playwright.
        settings: dict[str, Any] = {"viewport": {"width": width, "height": height}, "color_scheme": scheme, **options}
        cookies: list[Any] = []
        if signed_in:
            cookie, settings["storage_state"] = gateway.session()
            cookies.append(cookie)
        context = browser.new_context(timezone_id="Europe/Berlin", locale="en-GB", **settings)
        contexts.append(context)
        context.add_cookies(cookies)
        page = context.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        made_visit = Visit(page, gateway)
        visits.append(made_visit)
        page.on("console", lambda message: note_message(made_visit, message.type, message.text))
        page.on("pageerror", lambda error: made_visit.errors.append(f"exception: {error}"))
        return made_visit

    yield make
    try:
        for each in visits:
            each.check()
    finally:
        for context in contexts:
            context.close()


def note_message(visit: Visit, kind: str, text: str) -> None:
    if kind in ("error", "warning"):
        visit.errors.append(f"{kind}: {text}")
