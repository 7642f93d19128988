"""The page of a real platform in a real browser: links of `vkgateway ui`, each view, and a restart of the gateway."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.e2e.cluster import Cluster, Document, Platform, eventually
from tests.e2e.conftest import start_platform
from tests.ui.conftest import PICTURES, TIMEOUT_MS, WCAG

VIEWS = {
    "": ["pools", "queue", "gangs", "tenants", "timeline", "clusters", "what-if", "starts", "usage"],
    "alpha": ["overview", "gangs", "nodes", "usage", "timeline"],
}
"""Views of the platform's page and of a tenant's."""


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    """Yield a platform whose tenants run, borrow and wait."""
    with start_platform() as platform:
        pool = ("--pool", "a100:guarantee=nvidia.com/gpu=16")
        for tenant in ("alpha", "beta"):
            platform.vkgateway("tenant", "create", tenant, *pool)
        alpha, beta = platform.tenant("alpha"), platform.tenant("beta")
        beta.apply(job("pretrain", pods=3))
        eventually(lambda: running_pods(beta, "pretrain") == 3, what="a borrowing gang runs")
        beta.apply(job("sweep", pods=4))
        alpha.apply(job("train", pods=2), job("evaluate", pods=2))
        eventually(lambda: running_pods(alpha, "train") == 2, what="a gang inside the guarantee runs")
        yield platform


def job(name: str, *, pods: int) -> Document:
    """Return a job whose pods use a whole node each and start together."""
    container = {
        "name": "main",
        "image": "vkgateway.local/busybox:1",
        "command": ["sleep", "3600"],
        "resources": {"limits": {"nvidia.com/gpu": "8"}},
    }
    marks = {"vkgateway.io/gang": name, "vkgateway.io/gang-size": str(pods)}
    spec = {
        "containers": [container],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "nodeSelector": {"vkgateway.io/pool": "a100"},
        "tolerations": [{"operator": "Exists"}],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "backoffLimit": 100,
            "template": {"metadata": {"annotations": marks}, "spec": spec},
        },
    }


def running_pods(cluster: Cluster, name: str) -> int:
    """Return the number of running pods of a job."""
    found = cluster.kubectl(
        "get", "pods", "-l", f"job-name={name}", "--field-selector=status.phase=Running", "-o", "name"
    )
    return len(found.split())


def open_page(platform: Platform, browser: Browser, tenant: str, **options: Any) -> tuple[Page, list[str]]:
    """Open the link of `vkgateway ui`, and return the page, and what its console reports."""
    given = ("--tenant", tenant) if tenant else ()
    link = platform.vkgateway("ui", "--no-open", *given).strip()
    page = browser.new_context(viewport={"width": 1280, "height": 800}, **options).new_page()
    page.set_default_timeout(TIMEOUT_MS)
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(link)
    page.wait_for_selector(".connection.live")
    expect(page).not_to_have_url(re.compile("token"))
    return page, errors


def show(page: Page, view: str) -> None:
    """Go to another view, and wait for its content: until the next frame, the page shows the view before."""
    page.goto(f"{page.url.partition('#')[0]}#/{view}")
    page.wait_for_selector(f'nav.views a[href="#/{view}"][aria-current=page]')
    page.wait_for_selector(".skeleton", state="detached")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("tenant", list(VIEWS))
def test_every_view_shows_the_platform(platform: Platform, browser: Browser, tenant: str, scheme: str) -> None:
    page, errors = open_page(platform, browser, tenant, color_scheme=scheme)
    PICTURES.mkdir(parents=True, exist_ok=True)
    for view in VIEWS[tenant]:
        show(page, view)
        found = Axe().run(page, options={"runOnly": {"type": "tag", "values": WCAG}})
        assert found.violations_count == 0, f"{view}: {found.generate_report()}"
        page.screenshot(path=PICTURES / f"real-{tenant or 'platform'}-{view}-{scheme}.png", full_page=True)
        text = page.inner_text("body")
        assert "beta" not in text or not tenant, f"{view} names another tenant"
    assert not errors
    page.context.close()


def test_the_queue_says_who_waits_and_why(platform: Platform, browser: Browser) -> None:
    page, errors = open_page(platform, browser, "")
    show(page, "queue")
    row = page.locator("tr", has_text="sweep")
    expect(row).to_contain_text("beta")
    assert not errors
    page.context.close()


def test_an_open_page_heals_after_a_restart(platform: Platform, browser: Browser) -> None:
    page, _ = open_page(platform, browser, "alpha")
    with (
        page.expect_response(lambda answer: answer.url.endswith("/api/stream") and answer.ok, timeout=90_000),
        ThreadPoolExecutor() as threads,  # the browser's event loop runs in this one
    ):
        threads.submit(platform.kill_gateway).result()
    page.wait_for_selector(".connection.live")
    show(page, "gangs")
    page.locator("tr", has_text="train").first.wait_for(timeout=90_000)
    page.context.close()
