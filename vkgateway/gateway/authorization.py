"""/metrics and /arbiter/state over TLS, for callers whose token the management cluster knows and allows to read them.

As kube-rbac-proxy and controller-runtime do: a TokenReview says whose the token is, a SubjectAccessReview whether that
user may `get` the path (`nonResourceURLs` of a ClusterRole).
"""

from __future__ import annotations

import ssl
from typing import Final

import msgspec
import structlog

from vkgateway.gateway.health import PUBLIC
from vkgateway.kube.client import Client
from vkgateway.kube.errors import ApiError
from vkgateway.kube.tls import load_identity
from vkgateway.kubelet.http import Reply, Request, Session
from vkgateway.kubelet.listener import HttpListener, RequestHandler
from vkgateway.kubelet.stream_limiter import TooManyStreamsError
from vkgateway.kubelet.token_reviewer import TokenReviewer

_NO_TENANT: Final = ""
_PORT_HINT: Final = "Choose another with observability.securePort, or 0 for any free one."

_log = structlog.get_logger(__name__)


class AuthorizedHandler:
    """Passes requests on to `answer` if their token may get their path in the management cluster."""

    def __init__(self, management: Client, answer: RequestHandler) -> None:
        self._tokens = TokenReviewer(lambda _tenant: management)
        self._answer = answer

    async def __call__(self, request: Request, session: Session) -> Reply | None:
        """Answer a request, or refuse it."""
        try:
            refusal = None if request.path in PUBLIC else await self._deny_reply(request)
        except TooManyStreamsError as error:
            refusal = Reply.from_text(429, str(error))
        except (ApiError, msgspec.DecodeError) as error:
            _log.warning("a token could not be reviewed", error=str(error))
            refusal = Reply.from_text(503, "the management cluster cannot say now whose token this is")
        return refusal or await self._answer(request, session)

    async def _deny_reply(self, request: Request) -> Reply | None:
        scheme, _, token = request.header("authorization").partition(" ")
        user = await self._tokens.review_token(_NO_TENANT, token.strip()) if scheme.lower() == "bearer" else None
        if user is None:
            return Reply.from_text(401, "Unauthorized: a bearer token of the management cluster is needed")
        path = "/" + "/".join(request.path)
        if not await self._tokens.can_get_path(_NO_TENANT, user, path):
            return Reply.from_text(403, f"Forbidden (user={user.username}, verb=get, path={path[:64]})")
        return None


def metrics_listener(management: Client, answer: RequestHandler, *, tls: ssl.SSLContext) -> HttpListener:
    """Return the server; it listens once it is told where."""
    return HttpListener(AuthorizedHandler(management, answer), name="metrics over TLS", tls=tls, hint=_PORT_HINT)


def server_context(*, cert: bytes, key: bytes) -> ssl.SSLContext:
    """Return TLS settings of a server that asks callers for no certificate. Raises InputError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    load_identity(context, cert=cert, key=key)
    return context
