"""Authorization of /metrics and /arbiter/state over TLS by the management cluster.

As in kube-rbac-proxy and controller-runtime, a TokenReview authenticates the token, and a SubjectAccessReview checks
that the user may `get` the path (`nonResourceURLs` of a ClusterRole).

While the management cluster does not answer, tokens that it accepted before still read the metrics. Otherwise
Prometheus would lose them a minute after the start of an outage, before alerts about the outage fire.
"""

from __future__ import annotations

import hashlib
import ssl
from typing import Final

import msgspec
import structlog

from vkgateway.kube.client import Client
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.kube.errors import ApiError, ServerError, Unreachable
from vkgateway.kube.tls import load_identity
from vkgateway.nodes.http import Reply, Request, Session
from vkgateway.nodes.limits import TooManyStreamsError
from vkgateway.nodes.listener import HttpListener, RequestHandler
from vkgateway.nodes.token_reviewer import TokenReviewer
from vkgateway.nodes.ttl_cache import TtlCache
from vkgateway.serve.health import PUBLIC

OUTAGE_SECONDS: Final = 900.0
"""Time since its last acceptance for which a token reads metrics while the management cluster does not answer."""
_MAX_ACCEPTED: Final = 64
_METRICS: Final = ("metrics",)
_NO_TENANT: Final = ""
_PORT_HINT: Final = "Set observability.securePort to another port, or to 0 for any free port."

_log = structlog.get_logger(__name__)


class AuthorizedHandler:
    """Handler that passes a request to `answer` if its token may get the path in the management cluster."""

    def __init__(self, management: Client, answer: RequestHandler, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._tokens = TokenReviewer(lambda _tenant: management, clock=clock)
        self._answer = answer
        self._accepted = TtlCache(clock, most=_MAX_ACCEPTED)
        """Tokens that were accepted for metrics, by their hashes."""

    async def __call__(self, request: Request, session: Session) -> Reply | None:
        """Return the reply to a request, or a refusal."""
        try:
            refusal = None if request.path in PUBLIC else await self._deny_reply(request, session)
        except TooManyStreamsError as error:
            refusal = Reply.from_text(429, str(error))
        except (ApiError, msgspec.DecodeError) as error:
            _log.warning("token review failed", error=str(error))
            is_outage = isinstance(error, (Unreachable, ServerError))
            refusal = (
                None
                if is_outage and self._was_accepted(request)
                else Reply.from_text(503, "the management cluster cannot review the token now")
            )
        return refusal or await self._answer(request, session)

    async def _deny_reply(self, request: Request, session: Session) -> Reply | None:
        scheme, _, token = request.header("authorization").partition(" ")
        user = None
        if scheme.lower() == "bearer":
            user = await self._tokens.review_token(_NO_TENANT, token.strip(), address=session.client_address)
        if user is None:
            self._accepted.forget(_digest(request))
            return Reply.from_text(401, "Unauthorized: a bearer token of the management cluster is required")
        path = "/" + "/".join(request.path)
        if not await self._tokens.can_get_path(_NO_TENANT, user, path):
            if request.path == _METRICS:
                self._accepted.forget(_digest(request))
            return Reply.from_text(403, f"Forbidden (user={user.username}, verb=get, path={path[:64]})")
        if request.path == _METRICS:
            self._accepted.put(_digest(request), True, seconds=OUTAGE_SECONDS)
        return None

    def _was_accepted(self, request: Request) -> bool:
        """Return whether a request for metrics has a token that was accepted a short time ago."""
        return request.path == _METRICS and self._accepted.get(_digest(request)) is not None


def _digest(request: Request) -> tuple[str, str]:
    return _NO_TENANT, hashlib.sha256(request.header("authorization").encode()).hexdigest()


def metrics_listener(
    management: Client, answer: RequestHandler, *, tls: ssl.SSLContext, clock: Clock = SYSTEM_CLOCK
) -> HttpListener:
    """Return the HTTPS server, which does not listen yet."""
    handler = AuthorizedHandler(management, answer, clock=clock)
    return HttpListener(handler, name="metrics over TLS", tls=tls, hint=_PORT_HINT)


def server_context(*, cert: bytes, key: bytes) -> ssl.SSLContext:
    """Return the TLS context of a server that requests no client certificate. Raises InputError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    load_identity(context, cert=cert, key=key)
    return context
