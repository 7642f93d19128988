"""What the gateway says of itself: /healthz and /readyz to every caller, the rest to some.

The rest, /metrics, /arbiter/state and /arbiter/what-if, names all tenants. It is served at a Unix socket that only the
gateway's own user may open, and over TLS to callers that the management cluster authorises (`authorised`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from vkgateway.kubelet.http import Reply, Request, Session
from vkgateway.kubelet.listener import HttpListener

Check = Callable[[], str]
"""Says what is wrong, or "" if nothing is."""

QuestionHandler = Callable[[bytes], tuple[int, bytes]]
"""Answers a question in JSON, with an HTTP status."""

PUBLIC: Final = (("healthz",), ("readyz",))
"""Paths that say nothing of tenants."""
_PUBLIC_HELP: Final = (
    "known here: /healthz, /readyz; /metrics, /arbiter/state and /arbiter/what-if are served over HTTPS only"
)
_ALL_HELP: Final = "known here: /healthz, /readyz, /metrics, /arbiter/state, /arbiter/what-if"


class HealthServer:
    """Answers for the gateway; `checks` by name decide on /readyz, `refresh` is called before metrics are read.

    `address` and `port` serve the public paths, `socket` serves all. `state` returns, as JSON, the state of pools,
    tenants and gangs, `what_if` answers a question about them. Each is called in a thread of its own, since it may take
    long, and `what_if` for one question at a time; without them the paths are not known.
    """

    def __init__(
        self,
        *,
        address: str,
        port: int,
        checks: Mapping[str, Check],
        socket: Path | None = None,
        refresh: Callable[[], Awaitable[None] | None] = lambda: None,
        state: Callable[[], bytes] | None = None,
        what_if: QuestionHandler | None = None,
    ) -> None:
        self._address = address
        self._port = port
        self._checks = checks
        self._socket = socket
        self._refresh = refresh
        self._state = state
        self._what_if = what_if
        self._question_lock = asyncio.Lock()
        """Held while a question is answered: further ones wait, so that the gateway's own cycles get their turn."""
        self._stack = contextlib.AsyncExitStack()
        self._metrics_lock = asyncio.Lock()
        """Held from the first figure that is set to the last that is read: one reader must not see another's halves."""

    def set_handlers(
        self,
        *,
        checks: Mapping[str, Check],
        refresh: Callable[[], Awaitable[None] | None],
        state: Callable[[], bytes],
        what_if: QuestionHandler,
    ) -> None:
        """From now on answer by these; a gateway lives, and says what it waits for, before there is more to tell."""
        self._checks = checks
        self._refresh = refresh
        self._state = state
        self._what_if = what_if

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._port

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            hint = "Choose another with observability.port, or 0 for any free one."
            public = await stack.enter_async_context(HttpListener(self._answer_public, name="health", hint=hint))
            self._port = await public.listen_tcp(self._address, self._port)
            if self._socket is not None:
                hint = "Choose another with observability.socket."
                private = await stack.enter_async_context(HttpListener(self.answer_request, name="metrics", hint=hint))
                await private.listen_unix(self._socket)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def answer_request(self, request: Request, session: Session) -> Reply:
        """Answer a caller that may read everything."""
        if request.path == ("metrics",) and request.method == "GET":
            async with self._metrics_lock:
                if (refreshed := self._refresh()) is not None:
                    await refreshed
                return Reply(200, generate_latest(), CONTENT_TYPE_LATEST)
        if request.path == ("arbiter", "state") and request.method == "GET" and self._state is not None:
            return Reply(200, await asyncio.to_thread(self._state), "application/json")
        if request.path == ("arbiter", "what-if") and request.method == "GET" and self._what_if is not None:
            question = next((value for key, value in request.query if key == "question"), "")
            async with self._question_lock:
                status, body = await asyncio.to_thread(self._what_if, question.encode())
            return Reply(status, body, "application/json")
        return await self._answer_public(request, session, known=_ALL_HELP)

    async def _answer_public(self, request: Request, _: Session, *, known: str = _PUBLIC_HELP) -> Reply:
        if request.method != "GET":
            return Reply.from_text(405, "only GET is known here")
        if request.path == ("healthz",):
            return Reply.from_text(200, "ok")
        if request.path == ("readyz",):
            return self._readyz_reply()
        return Reply.from_text(404, known)

    def _readyz_reply(self) -> Reply:
        """Every check on a line of its own, as Kubernetes' own servers tell them."""
        found = {name: check() for name, check in self._checks.items()}
        lines = [f"[-]{name}: {why}" if why else f"[+]{name} ok" for name, why in found.items()]
        return Reply.from_text(503 if any(found.values()) else 200, "\n".join(lines))
