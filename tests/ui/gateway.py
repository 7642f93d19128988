"""The real page with given documents, in a thread: requests, sign-in, streams and deltas are those of the gateway.

Only three things are replaced: what the gateway knows, which is a document; API servers that review tokens; and the
waiting times.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

import vkgateway
from tests.support.ports import free_port
from tests.ui.documents import Document, Item
from vkgateway.api.errors import NotFoundError
from vkgateway.nodes.http import Reply, Request, Session
from vkgateway.nodes.listener import HttpListener
from vkgateway.nodes.token_reviewer import TokenReviewer
from vkgateway.page import documents, handler, hub, streams
from vkgateway.page.access import PageAccess
from vkgateway.page.cookies import COOKIE, CookieSealer
from vkgateway.page.facts import Observation
from vkgateway.page.handler import PageHandler
from vkgateway.page.hub import PageHub
from vkgateway.page.local_host import LOCAL_HOST
from vkgateway.page.static_files import load_files
from vkgateway.page.timeline import Timeline

STATIC = Path(vkgateway.__file__).parent / "page" / "static"
TOKEN = "good-token"
USER = "jane@example.com"


def shorten_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check access much more often than in production, and show documents as they are given."""
    monkeypatch.setattr(streams, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(hub, "_build_document", lambda facts, _: facts)


def serve_version(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Pretend that another version of the gateway answers."""
    monkeypatch.setattr(handler, "__version__", version)


@dataclass
class _ApiServer:
    """API server that knows one token, while its user may see the page."""

    name: str = "server"
    knows_token: bool = True
    namespaces: tuple[str, ...] | None = None
    """Namespaces in which the user may see the page; None: everywhere."""

    async def request(self, method: str, path: str, **given: Any) -> bytes:
        if method == "GET":
            return msgspec.json.encode({"items": [{"metadata": {"name": each}} for each in self.namespaces or ()]})
        spec = msgspec.json.decode(given["body"])["spec"]
        if path.endswith("tokenreviews"):
            known = self.knows_token and spec["token"] == TOKEN
            return msgspec.json.encode({"status": {"authenticated": known, "user": {"username": USER}}})
        namespace = spec["resourceAttributes"].get("namespace")
        return msgspec.json.encode({"status": {"allowed": self.namespaces is None or namespace in self.namespaces}})


@dataclass
class _Source:
    """The gateway behind the page: it leads or stands by, and answers questions as a test says."""

    leading: bool
    answer: Callable[[Item], Item] = lambda question: {"message": "No answer is set.", "hint": ""}

    def observe(self) -> Observation:
        return Observation(
            time=0.0, leading=self.leading, cycle=None, tenants={}, compute_clusters={}, timeline=Timeline()
        )

    def pod_names(self) -> Mapping[str, tuple[str, str]]:
        return {}

    def answer_what_if(self, question: bytes) -> tuple[int, bytes]:
        answer = self.answer(msgspec.json.decode(question))
        return 422 if "message" in answer else 200, msgspec.json.encode(answer)


@dataclass
class _History:
    content: Item = field(default_factory=lambda: {"step": 60, "times": [], "series": {}})

    def pool_series(self) -> Item:
        return self.content

    def tenant_series(self, tenant: str, uid: str) -> Item:
        return self.content


class _Hub(PageHub):
    """Hub that reads the given document in place of the arbiter's state. `_build_document` returns it unchanged."""

    given: documents.Document

    async def _collect(self) -> Any:
        return self.given

    async def refresh(self) -> None:
        """Give the document to all readers now, not when the next regular refresh is due."""
        for audience, live in list(self._live.items()):
            await self._refresh(audience, live)


class Gateway:
    """Page on a port that stays the same after a restart. Its methods are called from the test's thread."""

    def __init__(self, document: Document, *, tenant: str = "", namespaces: tuple[str, ...] | None = None) -> None:
        self.document = document
        self.tenant = tenant
        self.source = _Source(document["leading"])
        self.history = _History()
        self.usage: Item = {"days": []}
        self.starts: Item = {"pools": [], "images": []}
        self.refuse: tuple[int, str, str] | None = None
        """Status, message and hint of every answer but files."""
        self._may_answer = asyncio.Event()
        """Whether anything but files is answered."""
        self._may_answer.set()
        self.requests: list[str] = []
        self.url = ""
        self._server = _ApiServer(namespaces=namespaces)
        self._sealer = CookieSealer(b"secret")
        self._changes = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._port = free_port()
        self._do(self._start())

    def session(self) -> tuple[Item, Item]:
        """Return the cookie of a session and the storage with its key, as a browser's context takes them."""
        value, credentials = self._sealer.seal(TOKEN, self.tenant)
        stored = [{"name": COOKIE, "value": credentials.key}]
        origin = {"origin": self.url.removesuffix("/ui/"), "localStorage": stored}
        cookie = {"name": COOKIE, "value": value, "domain": LOCAL_HOST, "path": "/"}
        return cookie, {"cookies": [], "origins": [origin]}

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

    def hold(self) -> None:
        """Answer nothing but files until `release`."""
        self._loop.call_soon_threadsafe(self._may_answer.clear)

    def release(self) -> None:
        """Answer everything again."""
        self._loop.call_soon_threadsafe(self._may_answer.set)

    def publish(self, document: Document) -> None:
        """Replace the document, and give the change to all readers."""
        self.document = document
        self._changes += 1
        self.source.leading = document["leading"]
        self._do(self._give())

    def forget_token(self) -> None:
        """End all sessions: their token is not valid any more."""
        self._server.knows_token = False
        self._do(self._forget())

    def know_token(self) -> None:
        """Accept the token again."""
        self._server.knows_token = True
        self._do(self._forget())

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(15)

    async def _start(self) -> None:
        self._reviewer = TokenReviewer(self._server_of)
        self._hub = _Hub(self.source)
        self._hub.history = self.history  # type: ignore[assignment] # it has the same methods
        await self._give()
        self._handler = PageHandler(
            access=PageAccess(self._reviewer, self._sealer, secure=False),
            sealer=self._sealer,
            hub=self._hub,
            source=self.source,
            files=load_files(),
            usage=lambda tenant, days: msgspec.json.encode(self.usage),
            starts=lambda: msgspec.json.encode(self.starts),
            secure=False,
            documentation="https://docs.example.com/vkgateway/",
        )
        self._refresh = asyncio.create_task(self._hub.run())
        self._listener = HttpListener(self._answer, name="page", connections=256)
        await self._listener.listen_tcp("127.0.0.1", self._port)
        self.url = f"http://{LOCAL_HOST}:{self._port}/ui/"

    async def _stop(self) -> None:
        self._refresh.cancel()
        await asyncio.gather(self._refresh, return_exceptions=True)
        await self._listener.close()

    async def _give(self) -> None:
        # The hub takes documents of the same time for unchanged.
        self._hub.given = structured({**self.document, "time": self.document["time"] + self._changes / 1000})
        await self._hub.refresh()

    async def _forget(self) -> None:
        self._reviewer.forget_tenant(self.tenant)

    def _server_of(self, tenant: str) -> Any:
        if tenant != self.tenant:
            raise NotFoundError(f"tenant {tenant} is not running now")
        return self._server

    async def _answer(self, request: Request, session: Session) -> Reply | None:
        self.requests.append(f"{request.method} {'/'.join(request.path)}")
        if request.path[1:2] == ("api",):
            await self._may_answer.wait()
            if self.refuse is not None:
                status, message, hint = self.refuse
                return Reply(status, msgspec.json.encode({"message": message, "hint": hint}), "application/json")
        return await self._handler(request, session)


def structured(document: Document) -> documents.Document:
    """Return a document with structs as rows, as the gateway compares them."""
    sections = {
        name: {key: _row(row) for key, row in rows.items()} for name, rows in document.items() if isinstance(rows, dict)
    }
    return documents.Document(
        scope=document["scope"], time=document["time"], leading=document["leading"], sections=sections
    )


def _row(fields: Item) -> msgspec.Struct:
    return _row_type(tuple(fields))(**{f"{name}_": value for name, value in fields.items()})


@cache
def _row_type(names: tuple[str, ...]) -> type[msgspec.Struct]:
    renamed = {f"{name}_": name for name in names}
    return msgspec.defstruct("Row", [(name, Any) for name in renamed], rename=renamed)
