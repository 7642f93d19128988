"""Requests of the page: files, sign-in, documents, their live changes, and what-if questions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from vkgateway.nodes.http import Reply, Request, Session
from vkgateway.nodes.limits import StreamLimiter, TooManyStreamsError
from vkgateway.page.access import PageAccess, Reader, RefusedError
from vkgateway.page.cookies import MOST_COOKIE_BYTES, CookieSealer, cookie_header
from vkgateway.page.documents import Problem, SessionInfo, SignedIn
from vkgateway.page.facts import PageSource
from vkgateway.page.hub import PageHub
from vkgateway.page.local_host import is_local_host, wrong_host
from vkgateway.page.static_files import SECURITY_HEADERS, StaticFile, find_file, reply_file
from vkgateway.page.streams import CHANGED, EventStream
from vkgateway.version import __version__

PREFIX: Final = "ui"
STREAMS_PER_TENANT: Final = 64
"""Open pages of one tenant, or of all operators of the platform."""
STREAMS: Final = 384
"""Open pages of all readers."""
_JSON: Final = "application/json"
_NO_STORE: Final = (("cache-control", "no-store"), *SECURITY_HEADERS)
_MOST_BODY_BYTES: Final = 64 * 1024
_FOREIGN_SITES: Final = frozenset({"cross-site", "same-site"})
"""Values of Sec-Fetch-Site. `same-site` is another host of the domain or another port, which SameSite does not stop."""

_STANDBY: Final = Problem(
    message="This gateway stands by and does not lead.", hint="The page tries again, until the leader answers."
)

ReaderHandler = Callable[[Request, Session, Reader], Awaitable[Reply | None]]


class _SignIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of a sign-in."""

    token: str
    tenant: str = ""


class PageHandler:
    """Handler of requests below `/ui/`. `secure`: the page is served over TLS; otherwise on a loopback address."""

    def __init__(
        self,
        *,
        access: PageAccess,
        sealer: CookieSealer,
        hub: PageHub,
        source: PageSource,
        files: Mapping[str, StaticFile],
        usage: Callable[[str, int], bytes],
        starts: Callable[[], bytes],
        secure: bool,
        documentation: str = "",
    ) -> None:
        self._access = access
        self._sealer = sealer
        self._hub = hub
        self._source = source
        self._files = files
        self._usage = usage
        self._starts = starts
        self._secure = secure
        self._documentation = documentation
        self._streams = StreamLimiter(STREAMS_PER_TENANT, total=STREAMS, what="open pages")
        self._questions = asyncio.Lock()
        """Held while a question is answered: concurrent questions would delay scheduling cycles."""
        self._handlers: Mapping[str, ReaderHandler] = {
            "session": self._answer_session,
            "state": self._answer_state,
            "stream": self._answer_stream,
            "history": self._answer_history,
            "usage": self._answer_usage,
            "starts": self._answer_starts,
            "what-if": self._answer_what_if,
        }

    async def __call__(self, request: Request, session: Session) -> Reply | None:
        """Return the reply, or None after a stream."""
        if not self._secure and not is_local_host(host := request.header("host")):
            message, hint = wrong_host(host)
            return _refusal(421, Problem(message=message, hint=hint))
        if request.path[:1] != (PREFIX,):
            return _redirect(f"/{PREFIX}/") if not request.path else _not_found()
        if request.path[1:2] != ("api",):
            return self._answer_file(request)
        try:
            return await self._answer_api(request, session)
        except RefusedError as error:
            return _refusal(error.status, error.problem)

    def _answer_file(self, request: Request) -> Reply:
        if request.method != "GET":
            return _method_refused("GET")
        file = find_file(self._files, request.path[1:])
        return reply_file(file, request) if file is not None else _not_found()

    async def _answer_api(self, request: Request, session: Session) -> Reply | None:
        name = "/".join(request.path[2:])
        handler = self._handlers.get(name)
        if handler is None:
            return _not_found()
        if name == "session" and request.method in ("POST", "DELETE"):
            _refuse_foreign_site(request)
            return await self._sign_in(request, session) if request.method == "POST" else self._sign_out()
        if request.method != "GET":
            return _method_refused("GET, POST, DELETE" if name == "session" else "GET")
        reader = await self._access.identify(request, address=session.client_address)
        if name != "session" and not self._source.observe().leading:
            raise RefusedError(503, _STANDBY)
        return await handler(request, session, reader)

    async def _sign_in(self, request: Request, session: Session) -> Reply:
        if request.header("content-type").partition(";")[0].strip() != _JSON:
            raise RefusedError(415, Problem(message=f"Content-Type must be {_JSON}"))
        try:
            asked = msgspec.json.decode(request.body[:_MOST_BODY_BYTES], type=_SignIn)
        except msgspec.DecodeError as error:
            raise RefusedError(400, Problem(message=f"the body is not valid: {error}")) from error
        value, credentials = self._sealer.seal(asked.token.strip(), asked.tenant.strip())
        if len(value) > MOST_COOKIE_BYTES:
            problem = Problem(
                message="The token is too long for a browser's cookie.", hint="Use a token of a service account."
            )
            raise RefusedError(400, problem)
        reader = await self._access.sign_in(credentials, address=session.client_address)
        info = SignedIn(**msgspec.structs.asdict(_session_info(reader, self._documentation)), key=credentials.key)
        return _json_reply(info, ("set-cookie", cookie_header(value, secure=self._secure)))

    def _sign_out(self) -> Reply:
        return Reply(204, b"", _JSON, (("set-cookie", cookie_header("", secure=self._secure)), *_NO_STORE))

    async def _answer_session(self, _: Request, __: Session, reader: Reader) -> Reply:
        return _json_reply(_session_info(reader, self._documentation))

    async def _answer_state(self, _: Request, __: Session, reader: Reader) -> Reply:
        document = await self._hub.read(reader.audience)
        return Reply(200, await asyncio.to_thread(document.encode), _JSON, _NO_STORE)

    async def _answer_stream(self, request: Request, session: Session, reader: Reader) -> Reply | None:
        try:
            with self._streams.hold_stream(reader.tenant):
                stream = EventStream(session.stream, zipped="gzip" in request.header("accept-encoding"))
                async with contextlib.aclosing(self._hub.follow(reader.audience)) as events:
                    await stream.send(events, check=lambda: self._check_again(reader))
        except TooManyStreamsError as error:
            raise RefusedError(429, Problem(message=str(error), hint="Close other pages, and retry.")) from error
        return None

    async def _check_again(self, reader: Reader) -> None:
        """Raise RefusedError if a reader may not read any more, or sees other namespaces than before."""
        if (await self._access.check(reader.credentials)).audience != reader.audience:
            raise RefusedError(CHANGED, Problem(message="Your namespaces have changed."))

    async def _answer_history(self, _: Request, __: Session, reader: Reader) -> Reply:
        _refuse_namespaces(reader)
        history, name = self._hub.history, reader.tenant
        if not name:
            return _json_reply(history.pool_series())
        tenant = self._source.observe().tenants.get(name)
        return _json_reply(history.tenant_series(name, tenant.metadata.uid if tenant is not None else ""))

    async def _answer_usage(self, request: Request, _: Session, reader: Reader) -> Reply:
        _refuse_namespaces(reader)
        text = next((value for key, value in request.query if key == "days"), "31")
        if not (text.isascii() and text.isdigit() and 1 <= int(text[:4]) <= 366):
            raise RefusedError(400, Problem(message=f"days={text[:20]!r} is not a number from 1 to 366"))
        return Reply(200, await asyncio.to_thread(self._usage, reader.tenant, int(text)), _JSON, _NO_STORE)

    async def _answer_starts(self, _: Request, __: Session, reader: Reader) -> Reply:
        if reader.tenant:
            raise RefusedError(403, Problem(message="Only operators of the platform may read the starts of all pods."))
        return Reply(200, self._starts(), _JSON, _NO_STORE)

    async def _answer_what_if(self, request: Request, _: Session, reader: Reader) -> Reply:
        if reader.tenant:
            raise RefusedError(403, Problem(message="Only operators of the platform may ask what-if questions."))
        question = next((value for key, value in request.query if key == "question"), "")
        async with self._questions:
            status, body = await asyncio.to_thread(self._source.answer_what_if, question.encode())
        return Reply(status, body, _JSON, _NO_STORE)


def _session_info(reader: Reader, documentation: str) -> SessionInfo:
    return SessionInfo(
        user=reader.user,
        scope=reader.scope,
        tenant=reader.tenant,
        namespaces=reader.namespaces,
        expires=reader.credentials.until or None,
        version=__version__,
        documentation=documentation,
    )


def _refuse_namespaces(reader: Reader) -> None:
    """Refuse what is counted for whole tenants to readers of some namespaces. Raises RefusedError."""
    if reader.namespaces is not None:
        message = "Usage is counted for the whole tenant, and you may see some of its namespaces only."
        raise RefusedError(403, Problem(message=message, hint="A ClusterRoleBinding to the ClusterRole view shows it."))


def _refuse_foreign_site(request: Request) -> None:
    """Refuse requests that a page of another site sent. Raises RefusedError."""
    if request.header("sec-fetch-site") in _FOREIGN_SITES:
        raise RefusedError(403, Problem(message="Requests of other sites are refused."))


def _json_reply(content: object, *headers: tuple[str, str]) -> Reply:
    return Reply(200, msgspec.json.encode(content), _JSON, (*headers, *_NO_STORE))


def _refusal(status: int, problem: Problem) -> Reply:
    return Reply(status, msgspec.json.encode(problem), _JSON, _NO_STORE)


def _not_found() -> Reply:
    return _refusal(404, Problem(message="not found", hint=f"The page is at /{PREFIX}/."))


def _method_refused(allowed: str) -> Reply:
    reply = _refusal(405, Problem(message=f"only {allowed} is supported"))
    return Reply(reply.status, reply.body, reply.content_type, (("allow", allowed), *reply.headers))


def _redirect(location: str) -> Reply:
    return Reply(308, b"", headers=(("location", location), *SECURITY_HEADERS))
