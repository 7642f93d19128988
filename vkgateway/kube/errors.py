"""Errors of requests to an API server, classified by the possible reaction.

`ApiError.is_transient` says whether a retry can help. The classes follow the status codes of the API conventions
(https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md).
"""
# ruff: noqa: N818 - the classes have the names of the Kubernetes API's reasons

from __future__ import annotations

import math
import re
from typing import ClassVar

import msgspec

from vkgateway.api.errors import VkgatewayError

_MAX_MESSAGE_LENGTH = 1024
_MAX_RETRY_AFTER_SECONDS = 300.0
"""Limit of a Retry-After in seconds: a tenant's webhooks may send any value."""
_QUOTED_VALUE = re.compile(r'(Invalid value: )(?:"(?:[^"\\]|\\.)*"|\S+)')
_QUOTED_OBJECT = re.compile(r"(Invalid value: )(?:\{|\w+\.\w+\{).*", re.DOTALL)
_BEARER = re.compile(r"(?i)(bearer )[\w.~+/=-]+")


class ApiError(VkgatewayError):
    """A request that an API server refused or did not answer.

    `status` is the HTTP status (0 without a response), `reason` the Kubernetes reason, and `causes` the reasons of the
    details (`NamespaceTerminating`). `retry_after` is the delay in seconds that the server requests. `message` contains
    the request and the error, `server_message` the server's part only. Both are shortened, and secrets are removed.
    """

    is_transient: ClassVar[bool] = False
    """Whether the same request may succeed later."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        reason: str = "",
        causes: tuple[str, ...] = (),
        retry_after: float | None = None,
        server_message: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.server_message = server_message or message
        self.status = status
        self.reason = reason
        self.causes = causes
        self.retry_after = retry_after

    @property
    def message(self) -> str:
        """The error in one sentence."""
        return str(self.args[0])


class BadRequest(ApiError):
    """400 and other statuses for an invalid request."""

    exit_code: ClassVar[int] = 2


class Unauthorized(ApiError):
    """401: the server does not accept the credentials. Transient, because renewed credentials may help."""

    is_transient: ClassVar[bool] = True


class Forbidden(ApiError):
    """403: authorization, a quota or an admission plugin refuses the request."""


class NotFound(ApiError):
    """404: the object or the kind does not exist."""

    exit_code: ClassVar[int] = 3


class Conflict(ApiError):
    """409: the object's resource version or UID differs from the request. Read the object again."""

    exit_code: ClassVar[int] = 4
    is_transient: ClassVar[bool] = True


class AlreadyExists(ApiError):
    """409 with reason AlreadyExists: an object with this name exists."""

    exit_code: ClassVar[int] = 4


class Gone(ApiError):
    """410: the resource version or continue token expired. List again."""

    is_transient: ClassVar[bool] = True


class Invalid(ApiError):
    """422: the object violates its schema or validation rules."""

    exit_code: ClassVar[int] = 2


class TooManyRequests(ApiError):
    """429: the server is overloaded, or a disruption budget prevents an eviction. See `retry_after`."""

    is_transient: ClassVar[bool] = True


class ServerError(ApiError):
    """5xx: the server, its datastore or one of its webhooks failed."""

    exit_code: ClassVar[int] = 5
    is_transient: ClassVar[bool] = True


class ResponseTooLarge(ServerError):
    """The response exceeds the size limit. A list with a lower limit may succeed."""


class Unreachable(ApiError):
    """No response: connection refused or lost, timeout or TLS failure."""

    exit_code: ClassVar[int] = 5
    is_transient: ClassVar[bool] = True


class NotLeader(ApiError):
    """The request was not sent, because this process does not lead or cannot prove it. See `write_gate`."""

    exit_code: ClassVar[int] = 4
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
    """Return the error of an HTTP response. `what` names request and server (`GET /api/v1/pods at alpha`)."""
    try:
        decoded = _decode_status(body)
    except (msgspec.DecodeError, RecursionError):
        decoded = _Status(message=body[:_MAX_MESSAGE_LENGTH].decode("utf-8", "replace").strip())
    return _build_error(status, decoded, what=what, header=retry_after)


def from_event(body: bytes, *, what: str) -> ApiError:
    """Return the error of a watch event of type ERROR. An event without a code is a server error."""
    try:
        decoded = _decode_status(body)
    except (msgspec.DecodeError, RecursionError):
        decoded = _Status(message="an unreadable error event")
    return _build_error(decoded.code or 500, decoded, what=what, header=None)


def _build_error(status: int, decoded: _Status, *, what: str, header: str | None) -> ApiError:
    kind = _BY_STATUS.get(status) or (ServerError if status >= 500 else BadRequest)
    if kind is Conflict and decoded.reason == "AlreadyExists":
        kind = AlreadyExists
    retry_after = _parse_retry_after(header)
    details = decoded.details
    if retry_after is None and details is not None and details.retry_after_seconds > 0:
        retry_after = min(details.retry_after_seconds, _MAX_RETRY_AFTER_SECONDS)
    causes = details.causes if details is not None else None
    message = redact_message(decoded.message, secret="/secrets" in what or what.endswith("/token"))
    message = message or "no reason given"
    return kind(
        f"{what}: {message} ({' '.join(filter(None, (str(status), decoded.reason)))})",
        status=status,
        reason=decoded.reason,
        causes=tuple(cause.reason for cause in causes or ()),
        retry_after=retry_after,
        server_message=message,
    )


def _parse_retry_after(header: str | None) -> float | None:
    """Return the seconds of a Retry-After header, or None. API servers send no dates."""
    try:
        seconds = float(header) if header else math.nan
    except ValueError:
        return None
    return None if math.isnan(seconds) else min(max(seconds, 0.0), _MAX_RETRY_AFTER_SECONDS)


def redact_message(message: str, *, secret: bool = False) -> str:
    """Return a server's message without bearer tokens and quoted objects.

    With `secret` (for requests on a Secret or a token), all quoted values are removed.
    """
    message = _QUOTED_OBJECT.sub(r"\1(hidden)", message)
    if secret:
        message = _QUOTED_VALUE.sub(r"\1(hidden)", message)
    message = _BEARER.sub(r"\1(hidden)", message)
    return message if len(message) <= _MAX_MESSAGE_LENGTH else message[:_MAX_MESSAGE_LENGTH] + "..."
