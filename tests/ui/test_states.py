"""States of the page: signing in, loading, empty, stale, failing, ended, standby, and a restart under the page."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.ui import documents
from tests.ui.conftest import Visit, Visits
from tests.ui.gateway import TOKEN, USER, serve_version
from tests.ui.test_views import VIEWS

REFUSED = "Failed to load resource"
SCHEMES = pytest.mark.parametrize("scheme", ["light", "dark"])


def empty(scope: str, now: float) -> documents.Document:
    sections = ("pools", "tenants", "gangs", "nodes", "timeline", "clusters", "controlPlanes")
    return {"scope": scope, "time": now, "leading": True, **{name: {} for name in sections}}


def seen_in_both(seen: Visit, name: str, scheme: str) -> None:
    seen.take_picture(f"state-{name}-{scheme}", whole=False)
    seen.check_access()


@SCHEMES
def test_signing_in(visit: Visits, scheme: str) -> None:
    seen = visit(signed_in=False, scheme=scheme)
    seen.allowed = (REFUSED,)
    page = seen.open(ready=False)
    page.wait_for_selector("form")
    seen_in_both(seen, "sign-in", scheme)
    page.fill("[name=token]", "wrong")
    page.keyboard.press("Enter")
    expect(page.locator(".problem")).to_contain_text("does not know this token")
    expect(page.locator("[name=token]")).to_have_value("")
    seen_in_both(seen, "sign-in-refused", scheme)
    page.fill("[name=token]", TOKEN)
    page.keyboard.press("Enter")
    page.wait_for_selector(".connection.live")
    expect(page.locator("#title")).to_have_text("Pools")


@pytest.mark.parametrize("address", [f"#token={TOKEN}&tenant=alpha", f"#tenant=alpha&token={TOKEN}"])
def test_signing_in_by_the_address_removes_the_token_from_it(visit: Visits, address: str) -> None:
    seen = visit("tenant", signed_in=False)
    page = seen.page
    page.goto(f"{seen.gateway.url}{address}")
    page.wait_for_selector(".connection.live")
    expect(page).to_have_url(seen.gateway.url)
    page.get_by_role("link", name="Gangs", exact=True).click()
    page.fill("input[type=search]", "train")
    expect(page).to_have_url(f"{seen.gateway.url}#/gangs?q=train")
    page.go_back()
    page.wait_for_selector("text=Capacity")
    expect(page).to_have_url(seen.gateway.url)
    with page.expect_response(lambda answer: answer.request.method == "POST") as signed_in:
        page.evaluate("location.hash = '#tenant=alpha&token=good-token'")
    assert signed_in.value.ok
    assert "token" not in page.evaluate("location.hash")
    page.wait_for_selector(".connection.live")


def test_reader_has_the_name_that_the_address_gives(visit: Visits) -> None:
    seen = visit("tenant", signed_in=False)
    page = seen.page
    page.goto(f"{seen.gateway.url}#tenant=alpha&reader=admin&token={TOKEN}")
    expect(page.locator(".user")).to_have_text("admin")
    page.reload()
    expect(page.locator(".user")).to_have_text("admin")
    page.evaluate(f"location.hash = '#tenant=alpha&token={TOKEN}'")
    expect(page.locator(".user")).to_have_text(USER)


def test_signing_out(visit: Visits) -> None:
    seen = visit()
    page = seen.open()
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_selector("form")
    assert not page.context.cookies()
    expect(page.locator("body")).not_to_contain_text("a100")


@SCHEMES
def test_loading_shows_shapes_only_after_a_while(visit: Visits, now: float, scheme: str) -> None:
    seen = visit(scheme=scheme)
    page = seen.page
    page.clock.install(time=now - 60)
    page.clock.pause_at(now)
    seen.gateway.hold()
    seen.open(ready=False)
    page.clock.run_for(200)
    expect(page.locator(".boot")).to_have_count(0)
    expect(page.locator(".skeleton")).to_have_count(0)
    page.clock.run_for(300)
    expect(page.locator(".skeleton")).to_have_count(1)
    page.clock.resume()
    seen_in_both(seen, "loading", scheme)
    seen.gateway.release()
    page.wait_for_selector(".connection.live")


@pytest.mark.parametrize(("scope", "view"), [(scope, view) for scope, views in VIEWS.items() for view in views])
def test_empty_view_says_what_would_appear(visit: Visits, now: float, scope: str, view: str) -> None:
    seen = visit(scope, empty(scope, now))
    page = seen.open(view)
    page.wait_for_selector(".empty")
    seen.take_picture(f"state-empty-{scope}-{view}", whole=False)
    seen.check_access()


@SCHEMES
def test_restart_under_an_open_page_heals(visit: Visits, now: float, scheme: str) -> None:
    seen = visit(scheme=scheme)
    seen.allowed = ("net::ERR_", REFUSED)
    page = seen.open("queue")
    page.fill("input[type=search]", "train")
    seen.gateway.stop()
    page.wait_for_selector(".banner.warn")
    expect(page.locator("tbody tr")).not_to_have_count(0)
    seen_in_both(seen, "stale", scheme)
    changed = documents.platform(now, seed=8)
    seen.gateway.document = changed
    seen.gateway.start()
    page.wait_for_selector(".connection.live")
    expect(page.locator(".banner")).to_have_count(0)
    expect(page.locator("input[type=search]")).to_have_value("train")
    page.fill("input[type=search]", "")
    name = next(gang["name"] for gang in changed["gangs"].values() if gang["place"] == 1)
    page.wait_for_selector(f"text={name}")


def test_restart_with_another_version_offers_a_reload(visit: Visits, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = visit()
    seen.allowed = ("net::ERR_", REFUSED)
    page = seen.open()
    seen.gateway.stop()
    serve_version(monkeypatch, "9.9.9")
    seen.gateway.start()
    page.get_by_role("button", name="Reload the page").wait_for()


@SCHEMES
def test_failing_gateway(visit: Visits, scheme: str) -> None:
    seen = visit(scheme=scheme)
    seen.allowed = (REFUSED,)
    seen.gateway.refuse = (500, "The gateway failed to read the session.", "See the log of the gateway.")
    page = seen.open(ready=False)
    expect(page.locator(".problem")).to_contain_text("See the log of the gateway.")
    seen_in_both(seen, "failing", scheme)
    seen.gateway.refuse = None
    page.wait_for_selector(".connection.live")


@SCHEMES
def test_end_of_the_session(visit: Visits, now: float, scheme: str) -> None:
    seen = visit("tenant", scheme=scheme)
    page = seen.open("timeline")
    seen.gateway.forget_token()
    page.wait_for_timeout(200)
    seen.gateway.publish({**seen.gateway.document, "gangs": {}})
    page.wait_for_selector("form")
    expect(page.locator("main")).to_contain_text("The session has ended.")
    expect(page.locator("main")).to_contain_text("does not know this token")
    seen_in_both(seen, "ended", scheme)
    requests = len(seen.gateway.requests)
    page.wait_for_timeout(1500)
    assert len(seen.gateway.requests) == requests, "a session that ended is not retried"
    seen.gateway.know_token()
    page.fill("[name=token]", TOKEN)
    page.fill("[name=tenant]", "alpha")
    page.keyboard.press("Enter")
    page.wait_for_selector(".connection.live")
    expect(page.locator("#title")).to_have_text("Timeline")


def test_session_that_is_unknown_after_a_restart(visit: Visits) -> None:
    seen = visit()
    seen.allowed = ("net::ERR_", REFUSED)
    page = seen.open()
    seen.gateway.stop()
    seen.gateway.forget_token()
    seen.gateway.start()
    page.wait_for_selector("form")


@SCHEMES
def test_standby(visit: Visits, now: float, scheme: str) -> None:
    seen = visit(document={**empty("platform", now), "leading": False}, scheme=scheme)
    seen.allowed = (REFUSED,)
    page = seen.open(ready=False)
    page.wait_for_selector("text=This gateway is a standby.")
    seen_in_both(seen, "standby", scheme)
    seen.gateway.publish({**documents.platform(now), "leading": True})
    page.wait_for_selector(".map")
    seen.gateway.publish({**empty("platform", now), "leading": False})
    page.wait_for_selector("text=This gateway is a standby.")


ANSWER: dict[str, Any] = {
    "time": 0,
    "seen": 0,
    "gangs": [],
    "evictions": [],
    "effects": [],
    "moreEffects": 0,
    "cells": [],
    "guarantees": [],
    "pools": [],
    "notes": [],
}


def name_of(gang: documents.Item) -> documents.Item:
    return {key: gang[key] for key in ("id", "tenant", "namespace", "way", "name")}


@SCHEMES
def test_what_if_answer(visit: Visits, now: float, scheme: str) -> None:
    seen = visit(scheme=scheme)
    gangs = list(seen.gateway.document["gangs"].values())
    pool = seen.gateway.document["pools"][f"a100.local/{documents.GPU}"]

    def answer(question: documents.Item) -> documents.Item:
        assert question == {
            "kind": "gang",
            "tenant": "beta",
            "pods": 2,
            "requests": {"nvidia.com/gpu": "8", "cpu": "4"},
            "band": "guaranteed",
            "runLimit": 5400,
        }
        placements = [{"pool": "a100.local", "node": f"a100-0{number}", "pods": 1} for number in (1, 2)]
        outcome = {
            "gang": {"id": "beta/x/Job/asked", "tenant": "beta", "namespace": "x", "way": "Job", "name": "asked"},
            "verdict": "StartsAfterEviction",
            "pods": 2,
            "starting": 2,
            "running": 0,
            "placements": placements,
            "borrowed": False,
            "code": "WaitingForEviction",
            "message": "2 pods on its nodes get their notice",
            "pool": "a100.local",
            "place": 0,
            "earliest": None,
            "likely": None,
            "expected": "in about 2 min",
            "behind": "",
        }
        evicted = {"pods": 1, "of": 2, "whole": False, "inside": False, "nodes": ["a100-01"], "makesRoomFor": "x"}
        times = {"notice": 30, "deadline": now + 30, "grace": 30, "lost": 9000.0}
        return {
            **ANSWER,
            "question": question,
            "time": now,
            "seen": now - 1,
            "verdict": "StartsAfterEviction",
            "summary": "It starts in about 2 min, when 2 gangs have been evicted.",
            "gangs": [outcome],
            "evictions": [{"gang": name_of(gang), **evicted, **times} for gang in gangs[:2]],
            "effects": [
                {"gang": name_of(gangs[4]), "what": "Later", "pods": 1, "before": "in 5 min", "after": "in 20 min"}
            ],
            "pools": [{"before": pool, "after": {**pool, "used": pool["used"] + 16, "free": pool["free"] - 2}}],
            "notes": ["No other gang is affected."],
        }

    seen.gateway.source.answer = answer
    page = seen.open("what-if")
    page.get_by_role("button", name="Ask the arbiter").click()
    expect(page.locator("select[name=tenant]")).to_be_focused()
    page.wait_for_selector("#tenant-wrong")
    seen.check_access()
    page.get_by_label("Tenant").select_option("beta")
    page.get_by_label("Pods", exact=True).fill("2")
    page.get_by_text("More", exact=True).click()
    page.get_by_label("Other requests of each pod").fill("cpu=4")
    page.get_by_label("Run limit").fill("1h30m")
    page.get_by_role("button", name="Ask the arbiter").click()
    expect(page.locator("#verdict-title")).to_have_text("Starts after evictions")
    expect(page.locator(".verdict")).to_contain_text("vkgateway whatif gang --tenant beta --pods 2")
    seen.take_picture(f"platform-what-if-answer-{scheme}")
    seen.check_access()


def test_what_if_that_the_gateway_refuses(visit: Visits) -> None:
    seen = visit()
    seen.allowed = (REFUSED,)
    seen.gateway.source.answer = lambda question: {
        "message": "Pool 'x' does not exist.",
        "hint": "Available pools: a100.",
    }
    page = seen.open("what-if")
    page.get_by_text("Drain nodes").click()
    page.fill("[name=nodes]", "a100-01")
    page.get_by_role("button", name="Ask the arbiter").click()
    answered = re.compile("Pool 'x' does not exist.*Available pools", re.DOTALL)
    expect(page.locator(".problem")).to_have_text(answered)
