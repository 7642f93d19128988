"""Local HTTP server that passes requests of a browser to the page of a gateway in a cluster.

The browser would reject the gateway's certificate, because it names no address of this machine. The connection behind
the proxy is a tunnel through the API server. The proxy adds no credentials.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

import aiohttp
from aiohttp import web

from vkgateway.api.errors import UnavailableError
from vkgateway.kube.tls import client_context
from vkgateway.page.cookies import COOKIE
from vkgateway.page.local_host import is_local_host, wrong_host

_HOP_HEADERS: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "upgrade", "host"})
_SECURE: Final = re.compile(rf"^__Host-(?={COOKIE}=)|;\s*secure\b", re.IGNORECASE)
_PLAIN: Final = re.compile(rf"(?<![^;\s])(?={COOKIE}=)")
_ATTEMPTS: Final = 2

OpenUpstream = Callable[[], AbstractAsyncContextManager[str]]
"""Opens a tunnel to the leading gateway, and yields its `https://` URL. Raises UnavailableError."""


class PageProxy:
    """Proxy with one tunnel, which it opens again if the gateway behind it does not answer."""

    def __init__(self, open_upstream: OpenUpstream) -> None:
        self._open_upstream = open_upstream
        self._upstream = contextlib.AsyncExitStack()
        self._url = ""
        self._opening = asyncio.Lock()
        self._client: aiohttp.ClientSession | None = None

    @contextlib.asynccontextmanager
    async def listen(self, port: int) -> AsyncIterator[int]:
        """Listen on a loopback port (0: any free one), and yield the port. Raises UnavailableError."""
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._pass_request)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        connector = aiohttp.TCPConnector(ssl=client_context(insecure=True))
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as self._client:
            await runner.setup()
            try:
                await web.TCPSite(runner, "127.0.0.1", port).start()
                yield runner.addresses[0][1]
            except OSError as error:
                raise UnavailableError(f"cannot listen on 127.0.0.1:{port}: {error}", hint="Use --port 0.") from error
            finally:
                await runner.cleanup()
                await self._upstream.aclose()

    async def _pass_request(self, request: web.Request) -> web.StreamResponse:
        assert self._client is not None
        if not is_local_host(request.headers.get("Host", "")):
            message, hint = wrong_host(request.headers.get("Host", ""))
            return web.json_response({"message": message, "hint": hint}, status=421)
        body, problem = await request.read(), ""
        headers = {
            name: _PLAIN.sub("__Host-", value) if name.lower() == "cookie" else value
            for name, value in request.headers.items()
            if name.lower() not in _HOP_HEADERS
        }
        for _ in range(_ATTEMPTS):
            url = ""
            try:
                url = await self._find_upstream()
                target = f"{url}{request.raw_path}"
                limits = aiohttp.ClientTimeout(total=None, sock_connect=10)
                answer = await self._client.request(
                    request.method, target, headers=headers, data=body, allow_redirects=False, timeout=limits
                )
            except (aiohttp.ClientError, OSError, UnavailableError) as error:
                problem = str(error)
                await self._drop_upstream(url)
                continue
            async with answer:
                return await _pass_answer(request, answer)
        return web.json_response({"message": f"the gateway is unreachable: {problem}"}, status=503)

    async def _find_upstream(self) -> str:
        async with self._opening:
            if not self._url:
                self._url = await self._upstream.enter_async_context(self._open_upstream())
            return self._url

    async def _drop_upstream(self, url: str) -> None:
        """Close the tunnel with this URL, unless another request has replaced it."""
        async with self._opening:
            if self._url == url:
                self._url = ""
                await self._upstream.aclose()


async def _pass_answer(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status)
    for name, value in answer.headers.items():
        if name.lower() not in _HOP_HEADERS:
            # The browser is connected over HTTP, where it would ignore the cookie of HTTPS.
            response.headers.add(name, _SECURE.sub("", value) if name.lower() == "set-cookie" else value)
    await response.prepare(request)
    with contextlib.suppress(aiohttp.ClientError, OSError):  # the browser sees the end, and reconnects
        async for piece in answer.content.iter_any():
            await response.write(piece)
    return response
