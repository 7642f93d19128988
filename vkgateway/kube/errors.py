"""What can go wrong between us and an API server, sorted by what the caller may do about it.

Whether trying again can help is `ApiError.is_transient`. The sorting follows the API conventions' section on
status codes
(https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md).
"""
# ruff: noqa: N818 - the classes carry the reasons' names that the Kubernetes API gives them

from __future__ import annotations

import math
import re
from typing import ClassVar

import msgspec

from vkgateway.model.errors import VkgatewayError

_MAX_MESSAGE_LENGTH = 1024
_MAX_RETRY_AFTER_SECONDS = 300.0
"""Seconds of a Retry-After that are believed; a tenant's own webhooks may ask for any."""
_QUOTED_VALUE = re.compile(r'(Invalid value: )(?:"(?:[^"\\]|\\.)*"|\S+)')
_QUOTED_OBJECT = re.compile(r"(Invalid value: )(?:\{|\w+\.\w+\{).*", re.DOTALL)
_BEARER = re.compile(r"(?i)(bearer )[\w.~+/=-]+")


class ApiError(VkgatewayError):
    """A request that an API server refused or never answered.

    `status` is the HTTP status (0 where there was no answer), `reason` Kubernetes' word for it, `causes` the
    finer reasons it lists (`NamespaceTerminating`), `retry_after` the seconds the server asks to wait,
    `message` what was asked and what came of it, `server_message` the server's own part of that; both cut to a sane
    length and without what may be secret.
    """

    is_transient: ClassVar[bool] = False
    """True where the same request may succeed later without anybody changing it."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        reason: str = "",
        causes: tuple[str, ...] = (),
        retry_after: float | None = None,
        words: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.server_message = words or message
        self.status = status
        self.reason = reason
        self.causes = causes
        self.retry_after = retry_after

    @property
    def message(self) -> str:
        """What went wrong, in one sentence."""
        return str(self.args[0])


class BadRequest(ApiError):
    """400 and other refusals of the request's form."""

    exit_code: ClassVar[int] = 2


class Unauthorized(ApiError):
    """401: the server does not know us; a renewed credential may help, so it is worth trying again."""

    is_transient: ClassVar[bool] = True


class Forbidden(ApiError):
    """403: the server knows us and says no, by its access rules, a quota or an admission plugin."""


class NotFound(ApiError):
    """404: there is no such object, or no such kind."""

    exit_code: ClassVar[int] = 3


class Conflict(ApiError):
    """409: the object is not what we thought it was (resource version, UID); look again."""

    exit_code: ClassVar[int] = 4
    is_transient: ClassVar[bool] = True


class AlreadyExists(ApiError):
    """409 with reason AlreadyExists: the name is taken."""

    exit_code: ClassVar[int] = 4


class Gone(ApiError):
    """410: the resource version or continue token is too old; list anew."""

    is_transient: ClassVar[bool] = True


class Invalid(ApiError):
    """422: the object breaks its schema or validation rules."""

    exit_code: ClassVar[int] = 2


class TooManyRequests(ApiError):
    """429: the server sheds load, or a disruption budget stands in the way; `retry_after` says for how
    long.
    """

    is_transient: ClassVar[bool] = True


class ServerError(ApiError):
    """5xx: the server, its store or one of its webhooks failed."""

    exit_code: ClassVar[int] = 5
    is_transient: ClassVar[bool] = True


class ResponseTooLarge(ServerError):
    """More bytes than are taken in; fewer objects at a time may be had."""


class Unreachable(ApiError):
    """No answer at all: connection refused or lost, time-out, TLS failure."""

    exit_code: ClassVar[int] = 5
    is_transient: ClassVar[bool] = True


_BY_STATUS: dict[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    408: ServerError,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}


class _Cause(msgspec.Struct):
    reason: str = ""


class _Details(msgspec.Struct, rename="camel"):
    retry_after_seconds: float = 0
    causes: tuple[_Cause, ...] | None = None


class _Status(msgspec.Struct):
    kind: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


_decode_status = msgspec.json.Decoder(_Status).decode


def from_response(status: int, body: bytes, *, what: str, retry_after: str | None = None) -> ApiError:
    """The error that an HTTP answer stands for; `what` says what was asked of whom (`GET /api/v1/pods at
    alpha`).
    """
    try:
        said = _decode_status(body)
    except (msgspec.DecodeError, RecursionError):
        said = _Status(message=body[:_MAX_MESSAGE_LENGTH].decode("utf-8", "replace").strip())
    return _build_error(status, said, what=what, header=retry_after)


def from_event(body: bytes, *, what: str) -> ApiError:
    """The error that a watch event of type ERROR carries; without a code of its own it counts as a server
    error.
    """
    try:
        said = _decode_status(body)
    except (msgspec.DecodeError, RecursionError):
        said = _Status(message="an unreadable error event")
    return _build_error(said.code or 500, said, what=what, header=None)


def _build_error(status: int, said: _Status, *, what: str, header: str | None) -> ApiError:
    kind = _BY_STATUS.get(status) or (ServerError if status >= 500 else BadRequest)
    if kind is Conflict and said.reason == "AlreadyExists":
        kind = AlreadyExists
    retry_after = _parse_retry_after(header)
    if retry_after is None and said.details is not None and said.details.retry_after_seconds > 0:
        retry_after = min(said.details.retry_after_seconds, _MAX_RETRY_AFTER_SECONDS)
    causes = said.details.causes if said.details is not None else None
    words = redact_message(said.message, secret="/secrets" in what or what.endswith("/token")) or "no reason given"
    return kind(
        f"{what}: {words} ({' '.join(filter(None, (str(status), said.reason)))})",
        status=status,
        reason=said.reason,
        causes=tuple(cause.reason for cause in causes or ()),
        retry_after=retry_after,
        words=words,
    )


def _parse_retry_after(header: str | None) -> float | None:
    """The Retry-After header where it is a number of seconds; API servers send no dates."""
    try:
        seconds = float(header) if header else math.nan
    except ValueError:
        return None
    return None if math.isnan(seconds) else min(max(seconds, 0.0), _MAX_RETRY_AFTER_SECONDS)


def redact_message(message: str, *, secret: bool = False) -> str:
    """The server's words without bearer tokens and without the objects it quotes back whole.

    With `secret` no value that it quotes is kept: the request was about a Secret or a token.
    """
    message = _QUOTED_OBJECT.sub(r"\1(hidden)", message)
    if secret:
        message = _QUOTED_VALUE.sub(r"\1(hidden)", message)
    message = _BEARER.sub(r"\1(hidden)", message)
    return message if len(message) <= _MAX_MESSAGE_LENGTH else message[:_MAX_MESSAGE_LENGTH] + "..."
