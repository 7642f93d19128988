"""The page of a reader who may see some namespaces of a tenant."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.ui import documents
from tests.ui.conftest import Visits
from tests.ui.gateway import Gateway


def of_namespaces(document: documents.Document, namespaces: tuple[str, ...]) -> documents.Document:
    """Return what the gateway sends to a reader of these namespaces."""
    rows = {
        name: {key: row for key, row in document[name].items() if row["namespace"] in namespaces}
        for name in ("gangs", "timeline")
    }
    return {**{name: document[name] for name in ("scope", "time", "leading")}, **rows}


@pytest.mark.parametrize("namespaces", [("ml",), ("ml", "research")])
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_views_show_what_belongs_to_namespaces(
    visit: Visits,
    gateways: Callable[..., Gateway],
    now: float,
    namespaces: tuple[str, ...],
    scheme: str,
    width: int,
) -> None:
    document = of_namespaces(documents.tenant(now), namespaces)
    gateway = gateways({**document, "tenants": {}}, tenant="alpha", namespaces=namespaces)
    seen = visit("tenant", gateway=gateway, scheme=scheme, width=width)
    page = seen.open("overview")
    expect(page.locator("nav.views a")).to_have_count(3)
    for name in namespaces:
        expect(page.locator(".note").first).to_contain_text(name)
    expect(page.locator("#capacity-title")).to_have_count(0)
    seen.take_picture(f"tenant-namespaces-{len(namespaces)}-{scheme}")
    seen.check_access()
    for view in ("gangs", "timeline", "usage"):
        seen.open(view)
        seen.check_access()
    assert not [each for each in gateway.requests if each.endswith(("history", "usage"))]
