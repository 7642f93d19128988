"""Chromium that opens the page and reports, from inside the page, when it is usable and when changes are drawn."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from vkgateway.api.errors import UnavailableError
from vkgateway.page.cookies import COOKIE
from vkgateway.page.local_host import LOCAL_HOST

CHROMIUM: Final = "/usr/bin/chromium"
_ARGUMENTS: Final = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
_WAIT_SECONDS: Final = 60.0
_STEP_SECONDS: Final = 0.005
_PROBE: Final = """
(() => {
  const seen = (window.seen = { answered: 0, drawn: 0, received: 0 });
  const note = (name) => setTimeout(() => (seen[name] = performance.now()));
  const frame = window.requestAnimationFrame;
  window.requestAnimationFrame = (draw) => frame((time) => (draw(time), note("drawn")));
  addEventListener("keydown", () => frame(() => note("answered")));
  const decode = TextDecoder.prototype.decode;
  TextDecoder.prototype.decode = function (bytes, options) {
    if (bytes && bytes.length > 500 && !seen.received) seen.received = performance.now();
    return decode.call(this, bytes, options);
  };
})();
"""
"""Notes the times of the first received data, of the last drawing and of the last answered key, after their frames."""


class Reader:
    """Page of one reader. `page` is Playwright's."""

    def __init__(self, page: Any, url: str) -> None:
        self.page = page
        self._url = url

    async def open(self, view: str, *, shows: str) -> float:
        """Open a view, press a key when an element exists, and return milliseconds until the key is answered."""
        await self.page.goto("about:blank")
        await self.page.goto(f"{self._url}#/{view}", wait_until="commit")
        await self._wait(f"document.querySelector({shows!r}) !== null")
        await self.page.keyboard.press("Tab")
        await self._wait("seen.answered > 0")
        answered: float = await self.page.evaluate("seen.answered")
        return answered

    async def forget(self) -> None:
        """Forget the data and changes so far."""
        await self.page.evaluate("Object.assign(seen, { received: 0, drawn: 0 })")

    async def change_drawn(self) -> float:
        """Return milliseconds from the first data of a change until it is on the screen."""
        await self._wait("seen.received > 0 && seen.drawn > seen.received")
        drawn: float = await self.page.evaluate("seen.drawn - seen.received")
        return drawn

    async def metrics(self) -> dict[str, float]:
        """Return Chromium's durations of the page so far, in milliseconds, and its number of elements."""
        session = await self.page.context.new_cdp_session(self.page)
        await session.send("Performance.enable")
        found = (await session.send("Performance.getMetrics"))["metrics"]
        await session.detach()
        return {each["name"]: each["value"] for each in found}

    async def _wait(self, expression: str) -> None:
        deadline = time.monotonic() + _WAIT_SECONDS
        while not await self.page.evaluate(expression):
            if time.monotonic() > deadline:
                raise UnavailableError(f"the page did not reach this state within {_WAIT_SECONDS:.0f} s: {expression}")
            await asyncio.sleep(_STEP_SECONDS)


class Browser:
    """A running Chromium."""

    def __init__(self, browser: Any) -> None:
        self._browser = browser

    @property
    def version(self) -> str:
        """Version of Chromium."""
        return str(self._browser.version)

    @contextlib.asynccontextmanager
    async def reader(self, port: int, session: tuple[str, str]) -> AsyncIterator[Reader]:
        """Yield the page of a reader with this cookie and key, in a context of its own."""
        value, key = session
        stored = [{"name": COOKIE, "value": key}]
        origins = [{"origin": f"http://{LOCAL_HOST}:{port}", "localStorage": stored}]
        context = await self._browser.new_context(
            viewport={"width": 1280, "height": 800}, storage_state={"cookies": [], "origins": origins}
        )
        await context.add_cookies([{"name": COOKIE, "value": value, "domain": LOCAL_HOST, "path": "/"}])
        page = await context.new_page()
        await page.add_init_script(_PROBE)
        try:
            yield Reader(page, f"http://{LOCAL_HOST}:{port}/ui/")
        finally:
            await context.close()


@contextlib.asynccontextmanager
async def start_browser() -> AsyncIterator[Browser]:
    """Yield a running Chromium. Raises UnavailableError if it or Playwright is not installed."""
    try:
        from playwright.async_api import async_playwright
    except ImportError as error:
        raise UnavailableError("Playwright is not installed. Run `make test-ui` once, which installs it.") from error
    if not await asyncio.to_thread(Path(CHROMIUM).exists):
        raise UnavailableError(f"{CHROMIUM} does not exist. As root on Debian, `make test-ui` installs it.")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=list(_ARGUMENTS))
        yield Browser(browser)
        await browser.close()
