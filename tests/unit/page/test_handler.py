"""Tests of the page's requests over HTTP, with the real arbiter and reviews of tokens by a simulated API server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec
import pytest
from yarl import URL

from tests.fakes.page_gateway import FakeGateway, make_gang, make_tenant, small_gateway
from tests.support.machine import patience
from tests.support.waiting import let_pass, wait_until
from vkgateway.api.errors import NotFoundError
from vkgateway.kube import errors
from vkgateway.nodes.listener import HttpListener
from vkgateway.nodes.token_reviewer import TokenReviewer
from vkgateway.page import hub as hubs
from vkgateway.page import streams
from vkgateway.page.access import PageAccess
from vkgateway.page.cookies import KEY_HEADER, CookieSealer
from vkgateway.page.handler import PageHandler
from vkgateway.page.hub import PageHub
from vkgateway.page.local_host import LOCAL_HOST
from vkgateway.page.static_files import StaticFile

RIGHTS = {"operator": "platform", "alice": "tenant", "bob": "tenant", "nobody": "", "carol": "", "dave": ""}
"""Users by token, and the name of the page that they may get."""
NAMESPACES = {"carol": {"prod"}, "dave": {"prod", "team"}}
"""Namespaces in which users may get the page of the tenant."""
TENANTS = {"": {"operator", "nobody"}, "alpha": {"alice", "nobody", "carol", "dave"}, "beta": {"bob"}}
"""Tokens that each API server knows."""


@dataclass
class ApiServer:
    """API server of a tenant, or the management cluster, which knows some tokens."""

    tokens: set[str]
    rights: dict[str, str]
    namespaces: dict[str, set[str]] = field(default_factory=dict)
    name: str = "server"
    away: bool = False
    release: asyncio.Event | None = None
    """Reviews of invalid tokens wait for it."""
    asked: list[dict[str, Any]] = field(default_factory=list)

    async def request(self, method: str, path: str, **given: Any) -> bytes:
        if self.away:
            raise errors.Unreachable("connection refused")
        if method == "GET":
            assert path == "/api/v1/namespaces"
            return msgspec.json.encode(
                {"items": [{"metadata": {"name": each}} for each in ("prod", "research", "team")]}
            )
        spec = msgspec.json.decode(given["body"])["spec"]
        if path.endswith("tokenreviews"):
            known = spec["token"] in self.tokens
            if not known and self.release is not None:
                await self.release.wait()
            user = {"username": spec["token"]} if known else {}
            return msgspec.json.encode({"status": {"authenticated": known, "user": user}})
        asked = spec["resourceAttributes"]
        self.asked.append(asked)
        allowed = (asked["group"], asked["resource"], asked["verb"]) == ("vkgateway.io", "pages", "get")
        if "namespace" in asked:
            allowed = allowed and asked["name"] == "tenant"
            allowed = allowed and asked["namespace"] in self.namespaces.get(spec["user"], ())
            return msgspec.json.encode({"status": {"allowed": allowed}})
        return msgspec.json.encode({"status": {"allowed": allowed and asked["name"] == self.rights[spec["user"]]}})


@dataclass
class ServedPage:
    """A page that is served on a loopback port."""

    url: str
    gateway: FakeGateway
    servers: dict[str, ApiServer]
    reviewer: TokenReviewer
    hub: PageHub
    sessions: contextlib.AsyncExitStack

    async def browser(self) -> aiohttp.ClientSession:
        """Return a browser, which keeps cookies."""
        jar = aiohttp.CookieJar(unsafe=True)
        return await self.sessions.enter_async_context(
            aiohttp.ClientSession(self.url, cookie_jar=jar, headers={"Host": LOCAL_HOST})
        )

    async def signed_in(self, token: str, tenant: str = "") -> aiohttp.ClientSession:
        """Return a browser that is signed in."""
        browser = await self.browser()
        async with browser.post("/ui/api/session", json={"token": token, "tenant": tenant}) as answer:
            assert answer.status == 200, await answer.text()
            browser.headers[KEY_HEADER] = (await answer.json())["key"]
        return browser


def facts_uid(gateway: FakeGateway, tenant: str) -> str:
    found = gateway.tenants.get(tenant)
    return found.metadata.uid if found is not None else ""


@pytest.fixture
async def page() -> AsyncIterator[ServedPage]:
    async with contextlib.AsyncExitStack() as stack:
        gateway, sealer = small_gateway(), CookieSealer(b"secret")
        servers = {
            name: ApiServer(tokens, dict(RIGHTS), {user: set(each) for user, each in NAMESPACES.items()})
            for name, tokens in TENANTS.items()
        }

        def server_of(tenant: str) -> Any:
            if tenant not in servers:
                raise NotFoundError(f"tenant {tenant} is not running now")
            return servers[tenant]

        reviewer = TokenReviewer(server_of, uid_of=lambda tenant: facts_uid(gateway, tenant))
        handler = PageHandler(
            access=PageAccess(reviewer, sealer, secure=False),
            sealer=sealer,
            hub=PageHub(gateway),
            source=gateway,
            files={
                name: StaticFile("text/html; charset=utf-8", b"<p>", b"zipped", '"tag"') for name in ("", "index.html")
            },
            usage=lambda tenant, days: msgspec.json.encode({"days": [], "asked": [tenant, days]}),
            starts=lambda: b'{"pools": [], "images": []}',
            secure=False,
        )
        refresh = asyncio.create_task(handler._hub.run())
        stack.callback(refresh.cancel)
        listener = await stack.enter_async_context(HttpListener(handler, name="page", connections=512))
        port = await listener.listen_tcp("127.0.0.1", 0)
        sessions = await stack.enter_async_context(contextlib.AsyncExitStack())
        yield ServedPage(f"http://127.0.0.1:{port}", gateway, servers, reviewer, handler._hub, sessions)


async def read(session: aiohttp.ClientSession, path: str, **given: Any) -> tuple[int, Any]:
    async with session.get(f"/ui/api/{path}", **given) as answer:
        return answer.status, await answer.json()


async def next_event(lines: aiohttp.StreamReader) -> tuple[str, Any]:
    """Return the next event's name and data; comments are skipped."""
    name = ""
    async with asyncio.timeout(patience(30)):
        while line := await lines.readline():
            text = line.decode().rstrip("\n")
            if text.startswith("event: "):
                name = text.removeprefix("event: ")
            elif text.startswith("data: "):
                return name, msgspec.json.decode(text.removeprefix("data: "))
    return "", None


async def test_files_have_a_strict_policy_and_no_session(page: ServedPage) -> None:
    browser = await page.browser()
    async with browser.get("/ui/") as answer:
        assert answer.status == 200
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        tag = answer.headers["etag"]
    async with browser.get("/ui/", headers={"If-None-Match": tag}) as answer:
        assert (answer.status, await answer.read()) == (304, b"")
    async with browser.get("/", allow_redirects=False) as answer:
        assert (answer.status, answer.headers["location"]) == (308, "/ui/")


@pytest.mark.parametrize(
    "path", ["/ui/../pyproject.toml", "/ui/%2e%2e/page/handler.py", "/ui/api/else", "/metrics", "/ui/no.js"]
)
async def test_other_paths_do_not_exist(page: ServedPage, path: str) -> None:
    async with (await page.browser()).get(URL(page.url + path, encoded=True)) as answer:
        assert answer.status == 404


@pytest.mark.parametrize(
    "host", ["127.0.0.1:{port}", "localhost", "[::1]:{port}", "vkgateway.localhost.", "gpus.example.com", ""]
)
async def test_other_hosts_get_no_page_and_no_cookie(page: ServedPage, host: str) -> None:
    """Every port of a host receives its cookies, and forwarded ports of pods are at 127.0.0.1."""
    port = URL(page.url).port
    browser = await page.browser()
    sent = {"Host": host.format(port=port)}
    for method, path in (("GET", "/ui/"), ("GET", "/ui/api/session"), ("POST", "/ui/api/session")):
        async with browser.request(method, path, headers=sent, json={"token": "operator"}) as answer:
            problem = await answer.json()
            assert (answer.status, "set-cookie" in answer.headers) == (421, False)
            url = f"http://vkgateway.localhost:{port}/ui/" if "{port}" in host else "http://vkgateway.localhost/ui/"
            assert url in problem["message"]
            assert "/ui/" in problem["hint"]


@pytest.mark.parametrize("host", ["vkgateway.localhost", "VKGateway.Localhost:1234"])
async def test_the_page_has_its_name_at_every_port(page: ServedPage, host: str) -> None:
    async with (await page.browser()).get("/ui/", headers={"Host": host}) as answer:
        assert answer.status == 200


@pytest.mark.parametrize("path", ["session", "state", "stream", "history", "usage", "starts", "what-if?question={}"])
@pytest.mark.parametrize("token", ["", "stranger", "nobody"])
async def test_every_request_needs_the_right(page: ServedPage, path: str, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    status, problem = await read(await page.browser(), path, headers=headers)
    assert status == (403 if token == "nobody" else 401)
    assert problem["message"]


async def test_sign_in_sets_a_cookie_that_scripts_cannot_read(page: ServedPage) -> None:
    browser = await page.browser()
    async with browser.post("/ui/api/session", json={"token": "alice", "tenant": "alpha"}) as answer:
        assert answer.status == 200
        assert "HttpOnly" in answer.headers["set-cookie"]
        assert "alice" not in answer.headers["set-cookie"]
        key = (await answer.json())["key"]
    assert (await read(browser, "session"))[0] == 401, "the cookie alone, which every port of the host receives"
    browser.headers[KEY_HEADER] = key
    status, session = await read(browser, "session")
    assert (status, session["user"], session["scope"], session["tenant"]) == (200, "alice", "tenant", "alpha")
    async with browser.delete("/ui/api/session") as answer:
        assert answer.status == 204
    assert (await read(browser, "session"))[0] == 401


async def test_flood_of_sign_ins_does_not_refuse_readers(page: ServedPage) -> None:
    alice = await page.signed_in("alice", "alpha")
    page.reviewer.forget_tenant("alpha")
    release = page.servers["alpha"].release = asyncio.Event()

    async def attempt(token: str) -> int:
        body = {"token": token, "tenant": "alpha"}
        async with (await page.browser()).post("/ui/api/session", json=body) as answer:
            return answer.status

    flood = [asyncio.create_task(attempt(f"invalid-{number}")) for number in range(30)]
    done, _ = await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)
    assert {each.result() for each in done} == {429}
    assert (await read(alice, "session"))[0] == 200
    await page.signed_in("operator")
    release.set()
    assert set(await asyncio.gather(*flood)) == {401, 429}


@pytest.mark.parametrize(
    ("token", "tenant", "status"),
    [
        ("stranger", "", 401),
        ("alice", "", 401),  # a tenant's token does not open the platform's page
        ("alice", "beta", 401),  # nor that of another tenant
        ("operator", "alpha", 401),
        ("alice", "gamma", 401),  # no tenant of this name
        ("nobody", "", 403),
        ("nobody", "alpha", 403),
        ("x" * 5000, "", 400),
    ],
)
async def test_sign_in_is_refused(page: ServedPage, token: str, tenant: str, status: int) -> None:
    browser = await page.browser()
    async with browser.post("/ui/api/session", json={"token": token, "tenant": tenant}) as answer:
        assert answer.status == status
        assert "set-cookie" not in answer.headers
        assert (await answer.json())["message"]


async def test_an_unknown_tenant_is_answered_like_an_invalid_token(page: ServedPage) -> None:
    answers = []
    for tenant in ("beta", "gamma"):
        async with (await page.browser()).post("/ui/api/session", json={"token": "alice", "tenant": tenant}) as answer:
            answers.append((answer.status, await answer.json()))
    assert answers[0] == answers[1]


async def test_a_session_waits_for_a_tenant_that_is_not_served_yet(page: ServedPage) -> None:
    alice = await page.signed_in("alice", "alpha")
    server = page.servers.pop("alpha")
    page.reviewer.forget_tenant("alpha")
    for path in ("session", "state", "stream"):
        assert (await read(alice, path))[0] == 503
    page.servers["alpha"] = server
    assert (await read(alice, "session"))[0] == 200


async def test_a_session_with_a_deleted_tenant_does_not_read_a_later_one_of_its_name(page: ServedPage) -> None:
    alice = await page.signed_in("alice", "alpha")
    assert (await read(alice, "state"))[0] == 200
    page.servers["alpha"] = ApiServer({"alan"}, dict(RIGHTS), {})
    page.gateway.tenants["alpha"] = make_tenant("alpha", uid="another")
    assert (await read(alice, "state"))[0] == 401


async def test_sign_in_from_another_site_is_refused(page: ServedPage) -> None:
    browser = await page.browser()
    body = {"token": "alice", "tenant": "alpha"}
    async with browser.post("/ui/api/session", json=body, headers={"Sec-Fetch-Site": "cross-site"}) as answer:
        assert answer.status == 403
    async with browser.post("/ui/api/session", data=msgspec.json.encode(body)) as answer:
        assert answer.status == 415, "a form of another site cannot send JSON"
    async with browser.post("/ui/api/session", json={"token": 1}) as answer:
        assert answer.status == 400


async def test_each_reader_gets_its_own_document(page: ServedPage) -> None:
    operator = await page.signed_in("operator")
    alice, bob = await page.signed_in("alice", "alpha"), await page.signed_in("bob", "beta")
    assert {row["tenant"] for row in (await read(operator, "state"))[1]["gangs"].values()} == {"alpha", "beta"}
    for session, own, other in ((alice, "alpha", "beta"), (bob, "beta", "alpha")):
        status, state = await read(session, "state")
        assert (status, state["scope"]) == (200, "tenant")
        assert {row["tenant"] for row in state["gangs"].values()} == {own}
        assert other not in msgspec.json.encode(state).decode()
        assert (await read(session, "what-if", params={"question": "{}"}))[0] == 403
        assert (await read(session, "starts"))[0] == 403
        assert (await read(session, "usage"))[1]["asked"] == [own, 31]
        # A query cannot choose another tenant: only the credentials do.
        assert (await read(session, "state", params={"tenant": other}))[1]["gangs"] == state["gangs"]


async def test_a_bearer_token_reads_without_a_cookie(page: ServedPage) -> None:
    browser = await page.browser()
    headers = {"Authorization": "Bearer alice"}
    assert (await read(browser, "state", params={"tenant": "alpha"}, headers=headers))[0] == 200
    assert (await read(browser, "state", params={"tenant": "beta"}, headers=headers))[0] == 401


async def test_what_if_and_usage_check_their_input(page: ServedPage) -> None:
    operator = await page.signed_in("operator")
    assert (await read(operator, "what-if", params={"question": '{"kind": "gang"}'}))[0] == 200
    assert (await read(operator, "starts"))[1] == {"pools": [], "images": []}
    assert page.gateway.asked == [b'{"kind": "gang"}']
    for days in ("0", "-1", "x", "367", "²"):
        assert (await read(operator, "usage", params={"days": days}))[0] == 400
    assert (await read(operator, "usage", params={"days": "7"}))[1]["asked"] == ["", 7]


async def test_a_standby_sends_readers_to_the_leader(page: ServedPage) -> None:
    operator = await page.signed_in("operator")
    page.gateway.leading = False
    for path in ("state", "stream", "history", "usage", "starts", "what-if"):
        status, problem = await read(operator, path)
        assert status == 503
        assert "lead" in problem["message"]
    assert (await read(operator, "session"))[0] == 200


async def test_changes_arrive_as_deltas(page: ServedPage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "REFRESH_SECONDS", 0.02)
    alice = await page.signed_in("alice", "alpha")
    async with alice.get("/ui/api/stream", headers={"Accept-Encoding": "gzip"}) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        name, state = await next_event(answer.content)
        assert name == "state"
        assert "alpha/team/job/eval" in state["gangs"]
        page.gateway.remove_gang("alpha/team/job/eval")
        page.gateway.run_cycle()
        name, delta = await next_event(answer.content)
        assert name == "delta"
        assert delta["remove"]["gangs"] == ["alpha/team/job/eval"]
        assert b"beta" not in msgspec.json.encode(delta)


async def test_a_stream_ends_when_the_right_is_lost(page: ServedPage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "PING_SECONDS", 0.02)
    monkeypatch.setattr(streams, "CHECK_SECONDS", 0.05)
    alice = await page.signed_in("alice", "alpha")
    async with alice.get("/ui/api/stream") as answer:
        assert (await next_event(answer.content))[0] == "state"
        page.servers["alpha"].rights["alice"] = ""
        page.reviewer.forget_tenant("alpha")
        name, problem = await next_event(answer.content)
        assert name == "end"
        assert problem["message"]
        assert await answer.content.read() == b"\n"


async def test_a_stream_survives_an_api_server_that_is_away(page: ServedPage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "PING_SECONDS", 0.02)
    monkeypatch.setattr(hubs, "REFRESH_SECONDS", 0.02)
    monkeypatch.setattr(streams, "CHECK_SECONDS", 0.0)
    alice = await page.signed_in("alice", "alpha")
    async with alice.get("/ui/api/stream") as answer:
        assert (await next_event(answer.content))[0] == "state"
        page.servers["alpha"].away = True
        page.reviewer.forget_tenant("alpha")
        page.gateway.remove_gang("alpha/team/job/eval")
        page.gateway.run_cycle()
        assert (await next_event(answer.content))[0] == "delta"


async def test_nothing_is_computed_without_readers(page: ServedPage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "REFRESH_SECONDS", 0.01)
    monkeypatch.setattr(hubs, "PING_SECONDS", 0.01)
    operator = await page.signed_in("operator")
    async with operator.get("/ui/api/stream") as answer:
        await next_event(answer.content)
    observed = 0
    observe = page.gateway.observe

    def count() -> Any:
        nonlocal observed
        observed += 1
        return observe()

    await wait_until(lambda: not any(live.readers for live in page.hub._live.values()))
    await let_pass(0.05)  # a refresh that had begun ends
    monkeypatch.setattr(page.gateway, "observe", count)
    await let_pass(0.2)
    assert not observed


async def test_a_reader_of_one_namespace_gets_its_gangs_only(page: ServedPage) -> None:
    page.gateway.add_gangs(
        [make_gang("alpha", "sprat", namespace="prod"), make_gang("beta", "squid", namespace="prod")]
    )
    page.gateway.run_cycle()
    carol, dave = await page.signed_in("carol", "alpha"), await page.signed_in("dave", "alpha")
    session = (await read(carol, "session"))[1]
    assert (session["scope"], session["namespaces"]) == ("tenant", ["prod"])
    state = (await read(carol, "state"))[1]
    assert set(state["gangs"]) == {"alpha/prod/job/sprat"}
    assert not any(state.get(name) for name in ("tenants", "nodes", "controlPlanes"))
    text = msgspec.json.encode(state).decode()
    assert not [name for name in ("team", "research", "beta", "squid") if name in text]
    assert {row["namespace"] for row in (await read(dave, "state"))[1]["gangs"].values()} == {"prod", "team"}
    assert (await read(await page.signed_in("alice", "alpha"), "session"))[1]["namespaces"] is None
    for path in ("usage", "history", "starts", "what-if?question={}"):
        assert (await read(carol, path))[0] == 403, path
    for query in ({"namespace": "team"}, {"namespaces": "team"}, {"tenant": "beta"}):
        assert (await read(carol, "state", params=query))[1]["gangs"] == state["gangs"], "a query chooses nothing"


async def test_the_search_for_namespaces_is_cached_and_bounded(page: ServedPage) -> None:
    headers = {"Authorization": "Bearer carol"}
    browser = await page.browser()
    for _ in range(5):
        assert (await read(browser, "state", params={"tenant": "alpha"}, headers=headers))[0] == 200
    asked = [each.get("namespace", "") for each in page.servers["alpha"].asked]
    assert sorted(asked) == ["", "prod", "research", "team"], "one review for each namespace"
    for _ in range(5):
        headers = {"Authorization": "Bearer nobody"}
        assert (await read(browser, "state", params={"tenant": "alpha"}, headers=headers))[0] == 403
    assert len(page.servers["alpha"].asked) == 8


async def test_a_stream_ends_when_a_namespace_is_lost(page: ServedPage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "PING_SECONDS", 0.02)
    monkeypatch.setattr(streams, "CHECK_SECONDS", 0.05)
    dave = await page.signed_in("dave", "alpha")
    async with dave.get("/ui/api/stream") as answer:
        assert (await next_event(answer.content))[0] == "state"
        page.servers["alpha"].namespaces["dave"] = {"prod"}
        page.reviewer.forget_tenant("alpha")
        assert (await next_event(answer.content))[0] == "", "the page connects again"
    assert (await read(dave, "session"))[1]["namespaces"] == ["prod"]
    async with dave.get("/ui/api/stream") as answer:
        assert {row["namespace"] for row in (await next_event(answer.content))[1]["gangs"].values()} <= {"prod"}
        page.servers["alpha"].namespaces["dave"] = set()
        page.reviewer.forget_tenant("alpha")
        assert (await next_event(answer.content))[0] == "end"


async def test_readers_of_the_same_namespaces_share_a_document(page: ServedPage) -> None:
    page.servers["alpha"].namespaces["carol"] = {"prod", "team"}
    carol, dave = await page.signed_in("carol", "alpha"), await page.signed_in("dave", "alpha")
    async with carol.get("/ui/api/stream") as one, dave.get("/ui/api/stream") as other:
        assert await next_event(one.content) == await next_event(other.content)
        assert len(page.hub._live) == 1
