"""HTTP server of the gateway's health, metrics and arbiter state.

/healthz, /livez and /readyz are public. /metrics, /arbiter/state, /arbiter/what-if and /arbiter/usage name all tenants.
They are served on a Unix socket that only the gateway's user can open, and over TLS to callers that the management
cluster authorizes (see `authorization`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, Self

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from vkgateway.nodes.http import Reply, Request, Session
from vkgateway.nodes.listener import HttpListener

Check = Callable[[], str]
"""Returns the problem, or "" if there is none."""

QuestionHandler = Callable[[bytes], tuple[int, bytes]]
"""Returns the HTTP status and the JSON answer to a question."""

UsageHandler = Callable[[str, int], bytes]
"""Returns the usage of a tenant ("": of all) in a number of UTC days, as JSON."""
_USAGE_DAYS: Final = 31

PUBLIC: Final = (("healthz",), ("livez",), ("readyz",))
"""Paths that reveal nothing about tenants."""
_PUBLIC_HELP: Final = (
    "not found; available: /healthz, /livez, /readyz; "
    "/metrics, /arbiter/state, /arbiter/what-if and /arbiter/usage are served over HTTPS only"
)
_ALL_HELP: Final = (
    "not found; available: /healthz, /livez, /readyz, /metrics, /arbiter/state, /arbiter/what-if, /arbiter/usage"
)


_ARBITER_PATHS: Final = (("arbiter", "state"), ("arbiter", "what-if"), ("arbiter", "usage"))
_NO_ARBITER: Final = "only the leading gateway knows the arbiter's state; /readyz says which gateway leads"


class HealthServer:
    """HTTP server of the gateway; the named `checks` decide /readyz, `refresh` is called before metrics are read.

    `address` and `port` serve the public paths, `socket` serves all paths. `state` returns pools, tenants and gangs as
    JSON; `what_if` answers a question about them; `usage` returns the usage of a tenant, or of all, in the last days.
    They may take long and run in separate threads, `what_if` one at a time. Without them, their paths return 503.
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
        usage: UsageHandler | None = None,
    ) -> None:
        self._address = address
        self.port = port
        """The port of the public paths."""
        self._checks = checks
        self._permanent_checks: dict[str, Check] = {}
        self._notices: dict[str, Check] = {}
        self._socket = socket
        self._refresh = refresh
        self._state = state
        self._what_if = what_if
        self._usage = usage
        self._question_lock = asyncio.Lock()
        """Held while a question is answered: concurrent questions would delay scheduling cycles."""
        self._stack = contextlib.AsyncExitStack()
        self._metrics_lock = asyncio.Lock()
        """Held from the refresh to the end of the read, so that no reader sees a half-finished refresh."""

    def set_handlers(
        self,
        *,
        checks: Mapping[str, Check],
        refresh: Callable[[], Awaitable[None] | None],
    ) -> None:
        """Replace the handlers: the server starts before the parts of the gateway that answer requests."""
        self._checks = checks
        self._refresh = refresh

    def set_arbiter(self, *, state: Callable[[], bytes], what_if: QuestionHandler, usage: UsageHandler) -> None:
        """Serve the arbiter's paths, because this gateway leads now."""
        self._state = state
        self._what_if = what_if
        self._usage = usage

    def add_check(self, name: str, check: Check) -> None:
        """Add a check of /readyz that `set_handlers` does not replace."""
        self._permanent_checks[name] = check

    def add_notice(self, name: str, notice: Check) -> None:
        """Add a line to /readyz whose text does not make the gateway unready."""
        self._notices[name] = notice

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            hint = "Set observability.port to another port, or to 0 for any free port."
            public = await stack.enter_async_context(HttpListener(self._answer_public, name="health", hint=hint))
            self.port = await public.listen_tcp(self._address, self.port)
            if self._socket is not None:
                hint = "Set observability.socket to another path."
                private = await stack.enter_async_context(HttpListener(self.answer_request, name="metrics", hint=hint))
                await private.listen_unix(self._socket)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def answer_request(self, request: Request, session: Session) -> Reply:
        """Return the reply to a caller that is authorized for all paths."""
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
        if request.path == ("arbiter", "usage") and request.method == "GET" and self._usage is not None:
            asked = dict(request.query)
            days = asked.get("days", "")[:4]
            number = int(days) if days.isascii() and days.isdecimal() else _USAGE_DAYS
            body = await asyncio.to_thread(self._usage, asked.get("tenant", ""), number)
            return Reply(200, body, "application/json")
        if request.path in _ARBITER_PATHS and request.method == "GET":
            return Reply.from_text(503, _NO_ARBITER)
        return await self._answer_public(request, session, known=_ALL_HELP)

    async def _answer_public(self, request: Request, _: Session, *, known: str = _PUBLIC_HELP) -> Reply:
        if request.method != "GET":
            return Reply.from_text(405, "only GET is supported")
        if request.path in (("healthz",), ("livez",)):
            return Reply.from_text(200, "ok")
        if request.path == ("readyz",):
            return self._readyz_reply()
        return Reply.from_text(404, known)

    def _readyz_reply(self) -> Reply:
        """Return one line per check, in the format of Kubernetes servers."""
        problems = {name: check() for name, check in {**self._checks, **self._permanent_checks}.items()}
        lines = [f"[-]{name}: {problem}" if problem else f"[+]{name} ok" for name, problem in problems.items()]
        lines += [f"[+]{name} ok: {text}" for name, notice in self._notices.items() if (text := notice())]
        return Reply.from_text(503 if any(problems.values()) else 200, "\n".join(lines))
