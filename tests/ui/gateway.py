"""Gateway for tests of the page, in a thread: it serves the static files, and given documents as the real one would."""

from __future__ import annotations

import asyncio
import json
import mimetypes
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from aiohttp import web

import vkgateway
from tests.ui.documents import VERSION, Document, Item

STATIC = Path(vkgateway.__file__).parent / "page" / "static"
POLICY = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
COOKIE = "session"

Sections = dict[str, dict[str, Item]]


def delta(before: Document, after: Document) -> Document:
    """Return what changes between two documents, as the stream sends it."""
    changed: Sections = {}
    removed: dict[str, list[str]] = {}
    for name, old in before.items():
        if not isinstance(old, dict):
            continue
        new = after.get(name, {})
        if news := {key: item for key, item in new.items() if old.get(key) != item}:
            changed[name] = news
        if gone := [key for key in old if key not in new]:
            removed[name] = gone
    return {"time": after["time"], "leading": after["leading"], "set": changed, "remove": removed}


class Gateway:
    """Server on a port that stays the same after a restart. Its methods are called from the test's thread."""

    def __init__(self, document: Document, *, scope: str = "platform", tenant: str = "") -> None:
        self.document = document
        self.session: Item = {
            "user": "jane@example.com",
            "scope": scope,
            "tenant": tenant,
            "expires": None,
            "version": VERSION,
        }
        self.history: Item = {"step": 15, "times": [], "series": {}}
        self.usage: Item = {"days": []}
        self.answer: Callable[[Item], Item] = lambda question: {"message": "no answer is set", "hint": ""}
        self.token = "good-token"
        self.cookies: set[str] = {"signed-in"}
        self.refuse: tuple[int, str, str] | None = None
        """Status, message and hint of every answer but static files."""
        self.delay = 0.0
        """Seconds before each answer."""
        self.requests: list[str] = []
        self._streams: set[asyncio.Queue[bytes]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._runner: web.AppRunner | None = None
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/ui/"

    def start(self) -> None:
        self._do(self._start())

    def stop(self) -> None:
        """End all connections and refuse new ones."""
        self._do(self._stop())

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def publish(self, document: Document) -> None:
        """Send the changes to a new document."""
        message = event("delta", delta(self.document, document))
        self.document = document
        self._do(self._send(message))

    def end(self, message: str, hint: str = "") -> None:
        """End all sessions."""
        self.cookies.clear()
        self._do(self._send(event("end", {"message": message, "hint": hint})))

    @property
    def streams(self) -> int:
        return len(self._streams)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(15)

    async def _start(self) -> None:
        app = web.Application(middlewares=[self._answer])
        app.router.add_get("/ui/api/session", self._read_session)
        app.router.add_post("/ui/api/session", self._sign_in)
        app.router.add_delete("/ui/api/session", self._sign_out)
        app.router.add_get("/ui/api/stream", self._stream)
        app.router.add_get("/ui/api/history", self._history)
        app.router.add_get("/ui/api/usage", self._usage)
        app.router.add_get("/ui/api/what-if", self._what_if)
        app.router.add_get("/ui/{name:.*}", self._file)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _stop(self) -> None:
        if self._runner is not None:
            for queue in self._streams:
                queue.put_nowait(b"")
            await self._runner.cleanup()
            self._runner = None

    async def _send(self, message: bytes) -> None:
        for queue in self._streams:
            queue.put_nowait(message)

    @web.middleware
    async def _answer(self, request: web.Request, handler: Callable[..., Any]) -> web.StreamResponse:
        path = request.path.removeprefix("/ui/")
        self.requests.append(f"{request.method} {path}")
        if path.startswith("api/"):
            if self.delay:
                await asyncio.sleep(self.delay)
            if self.refuse is not None:
                return problem(*self.refuse)
            if path != "api/session" and request.cookies.get(COOKIE) not in self.cookies:
                return problem(401, "You are not signed in.", "Sign in.")
        response: web.StreamResponse = await handler(request)
        if not response.prepared:
            response.headers["Content-Security-Policy"] = POLICY
            if isinstance(response, web.Response) and response.body is not None:
                response.enable_compression()
        return response

    async def _read_session(self, request: web.Request) -> web.Response:
        if request.cookies.get(COOKIE) not in self.cookies:
            return problem(401, "You are not signed in.", "Sign in.")
        return web.json_response(self.session)

    async def _sign_in(self, request: web.Request) -> web.Response:
        given = await request.json()
        if given["token"] != self.token:
            return problem(401, "The token is not valid.", "Create another one: kubectl create token NAME.")
        self.cookies.add("signed-in")
        response = web.json_response(self.session)
        response.set_cookie(COOKIE, "signed-in", httponly=True, samesite="Strict", path="/ui/")
        return response

    async def _sign_out(self, request: web.Request) -> web.Response:
        self.cookies.clear()
        response = web.Response(status=204)
        response.del_cookie(COOKIE, path="/ui/")
        return response

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        queue.put_nowait(event("state", self.document))
        self._streams.add(queue)
        try:
            while message := await queue.get():
                await response.write(message)
        except ConnectionResetError:
            pass
        finally:
            self._streams.discard(queue)
        return response

    async def _history(self, request: web.Request) -> web.Response:
        return web.json_response(self.history)

    async def _usage(self, request: web.Request) -> web.Response:
        return web.json_response(self.usage)

    async def _what_if(self, request: web.Request) -> web.Response:
        answer = self.answer(json.loads(request.query["question"]))
        return web.json_response(answer, status=422 if "message" in answer else 200)

    async def _file(self, request: web.Request) -> web.StreamResponse:
        path = (STATIC / (request.match_info["name"] or "index.html")).resolve()
        if not path.is_relative_to(STATIC) or not path.is_file():
            return problem(404, f"{request.path} does not exist.", "")
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        return web.Response(body=path.read_bytes(), content_type=kind)


def event(name: str, content: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps(content)}\n\n".encode()


def problem(status: int, message: str, hint: str) -> web.Response:
    return web.json_response({"message": message, "hint": hint}, status=status)
