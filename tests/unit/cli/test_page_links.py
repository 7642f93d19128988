"""Tests of links to the page, and of the local proxy to a gateway in a cluster."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp
import msgspec
import pytest
from aiohttp import web

from vkgateway.api.errors import InputError, UnavailableError
from vkgateway.cli.page_links import checked_url, local_page, page_link
from vkgateway.cli.page_proxy import PageProxy
from vkgateway.planes.pki import Authority
from vkgateway.serve.authorization import server_context
from vkgateway.settings.config import Config, Page

HOST = {"Host": "vkgateway.localhost"}


@pytest.mark.parametrize(
    ("page", "address", "url"),
    [
        (Page(), "", "http://vkgateway.localhost:9633"),
        (Page(address="::1", port=80), "", "http://vkgateway.localhost:80"),
        (Page(address="0.0.0.0"), "10.1.2.3", "https://10.1.2.3:9633"),
        (Page(address="10.1.2.4"), "10.1.2.3", "https://10.1.2.4:9633"),
        (Page(cert="c", key="k"), "", "https://127.0.0.1:9633"),
    ],
)
def test_the_page_of_a_gateway_on_this_machine(page: Page, address: str, url: str) -> None:
    assert local_page(msgspec.structs.replace(Config(data_dir="/d"), page=page, address=address)) == url


def test_a_gateway_without_a_page() -> None:
    with pytest.raises(UnavailableError, match="off"):
        local_page(msgspec.structs.replace(Config(data_dir="/d"), page=Page(enabled=False)))


def test_a_link_keeps_its_token_from_servers() -> None:
    link = page_link("https://gpus.example.com", token="a+b/c=", tenant="alpha", reader="jane")
    assert link == "https://gpus.example.com/ui/#tenant=alpha&reader=jane&token=a%2Bb%2Fc%3D"
    assert page_link("http://127.0.0.1:9633") == "http://127.0.0.1:9633/ui/"


def test_given_addresses() -> None:
    assert checked_url("https://gpus.example.com/ui/") == "https://gpus.example.com"
    with pytest.raises(InputError, match="gpus"):
        checked_url("gpus.example.com")


@dataclass
class Tunnels:
    """Tunnels to gateways, of which each new one leads to the next address."""

    urls: list[str] = field(default_factory=list)
    opened: int = 0
    closed: int = 0

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        if self.opened >= len(self.urls):
            raise UnavailableError("no gateway serves the cluster now")
        url = self.urls[self.opened]
        self.opened += 1
        try:
            yield url
        finally:
            self.closed += 1


@contextlib.asynccontextmanager
async def gateway_page() -> AsyncIterator[str]:
    """Serve a page over TLS, and yield its URL."""

    async def answer(request: web.Request) -> web.Response:
        reply = web.json_response({"path": request.path_qs, "sent": await request.text()}, status=418)
        reply.headers.add("Set-Cookie", "__Host-vkgateway-session=x; HttpOnly; SameSite=Strict; Secure")
        reply.headers["X-Cookie"] = request.headers.get("Cookie", "")
        reply.headers["X-Encoding"] = request.headers.get("Accept-Encoding", "")
        return reply

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    pair = Authority.create("test").issue("vkgateway", dns=("elsewhere",), server=True)
    runner = web.AppRunner(application)
    await runner.setup()
    context: ssl.SSLContext = server_context(cert=pair.cert_pem, key=pair.key_pem)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        yield f"https://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_the_proxy_passes_requests_and_makes_cookies_usable() -> None:
    async with gateway_page() as url:
        tunnels = Tunnels([url])
        async with PageProxy(tunnels.open).listen(0) as port, aiohttp.ClientSession(headers=HOST) as browser:
            address = f"http://127.0.0.1:{port}/ui/api/session?a=%2Fb"
            async with browser.post(
                address,
                data="token",
                headers={"Accept-Encoding": "br", "Cookie": "a=vkgateway-session=; vkgateway-session=y"},
            ) as answer:
                assert answer.status == 418
                assert await answer.json() == {"path": "/ui/api/session?a=/b", "sent": "token"}
                assert answer.headers["set-cookie"] == "vkgateway-session=x; HttpOnly; SameSite=Strict"
                assert answer.headers["x-encoding"] == "br"
                assert answer.headers["x-cookie"] == "a=vkgateway-session=; __Host-vkgateway-session=y"
            async with browser.get(f"http://127.0.0.1:{port}/ui/", headers={"Host": "127.0.0.1"}) as answer:
                assert (answer.status, "http://vkgateway.localhost" in (await answer.json())["message"]) == (421, True)
        assert (tunnels.opened, tunnels.closed) == (1, 1)


async def test_the_proxy_follows_a_new_leader() -> None:
    async with gateway_page() as url:
        tunnels = Tunnels(["https://127.0.0.1:1", url])
        async with (
            PageProxy(tunnels.open).listen(0) as port,
            aiohttp.ClientSession(headers=HOST) as browser,
            browser.get(f"http://127.0.0.1:{port}/ui/") as answer,
        ):
            assert answer.status == 418
        assert (tunnels.opened, tunnels.closed) == (2, 2)


async def test_the_proxy_says_that_no_gateway_answers() -> None:
    async with (
        PageProxy(Tunnels().open).listen(0) as port,
        aiohttp.ClientSession(headers=HOST) as browser,
        browser.get(f"http://127.0.0.1:{port}/ui/") as answer,
    ):
        assert answer.status == 503
        assert "no gateway serves" in (await answer.json())["message"]
