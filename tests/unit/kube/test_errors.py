"""Errors: types by status, and redacted messages."""

from __future__ import annotations

import json

import pytest

from vkgateway.api.errors import VkgatewayError
from vkgateway.kube import errors


def _status(code: int, reason: str = "", message: str = "why", **details: object) -> bytes:
    return json.dumps(
        {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}
    ).encode()


@pytest.mark.parametrize(
    ("code", "reason", "kind", "transient"),
    [
        (400, "BadRequest", errors.BadRequest, False),
        (401, "Unauthorized", errors.Unauthorized, True),
        (403, "Forbidden", errors.Forbidden, False),
        (404, "NotFound", errors.NotFound, False),
        (405, "MethodNotAllowed", errors.BadRequest, False),
        (408, "Timeout", errors.ServerError, True),
        (409, "AlreadyExists", errors.AlreadyExists, False),
        (409, "Conflict", errors.Conflict, True),
        (410, "Expired", errors.Gone, True),
        (413, "RequestEntityTooLarge", errors.BadRequest, False),
        (422, "Invalid", errors.Invalid, False),
        (429, "TooManyRequests", errors.TooManyRequests, True),
        (500, "InternalError", errors.ServerError, True),
        (504, "Timeout", errors.ServerError, True),
    ],
)
def test_status_determines_error_type(code: int, reason: str, kind: type[errors.ApiError], transient: bool) -> None:
    error = errors.from_response(code, _status(code, reason), what="GET /x at alpha")
    assert type(error) is kind
    assert isinstance(error, VkgatewayError)
    assert error.is_transient is transient
    assert (error.status, error.reason) == (code, reason)
    assert str(error) == f"GET /x at alpha: why ({code} {reason})"


def test_retry_after_is_read_from_header_or_body() -> None:
    body = _status(429, retryAfterSeconds=7)
    assert errors.from_response(429, body, what="x").retry_after == 7
    assert errors.from_response(429, body, what="x", retry_after="2").retry_after == 2
    assert errors.from_response(429, body, what="x", retry_after="Wed, 21 Oct 2015 07:28:00 GMT").retry_after == 7
    assert errors.from_response(500, _status(500), what="x").retry_after is None


@pytest.mark.parametrize("header", ["1e18", "inf"])
def test_retry_after_is_bounded(header: str) -> None:
    assert errors.from_response(429, b"{}", what="x", retry_after=header).retry_after == 300
    asked = _status(429, retryAfterSeconds=2**31 - 1)
    assert errors.from_response(429, asked, what="x").retry_after == 300
    assert errors.from_response(429, b"{}", what="x", retry_after="nan").retry_after is None


def test_deeply_nested_response_is_an_ordinary_error() -> None:
    deep = b'{"details":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001
    assert isinstance(errors.from_response(403, deep, what="x"), errors.Forbidden)


def test_causes_are_decoded() -> None:
    body = _status(403, "Forbidden", causes=[{"reason": "NamespaceTerminating", "field": "metadata.namespace"}])
    assert errors.from_response(403, body, what="x").causes == ("NamespaceTerminating",)


def test_response_other_than_status_is_quoted() -> None:
    error = errors.from_response(502, b"<html>Bad Gateway</html>", what="GET /x at alpha")
    assert isinstance(error, errors.ServerError)
    assert "Bad Gateway" in str(error)
    assert str(errors.from_response(503, b"", what="x")) == "x: no reason given (503)"


def test_error_event_of_watch() -> None:
    assert isinstance(errors.from_event(_status(410, "Expired"), what="w"), errors.Gone)
    assert isinstance(errors.from_event(b"nonsense", what="w"), errors.ServerError)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("POST /api/v1/namespaces/n/secrets at a", 'Secret "s" is invalid: data[k]: Invalid value: "hunter2": no'),
        ("POST /api/v1/namespaces/n/secrets at a", 'x: Invalid value: "hunter2 \\" hunter2": no'),
        ("POST /api/v1/namespaces/n/pods at a", 'Invalid value: {"env":[{"value":"hunter2"}]}: may not change'),
        ("POST /api/v1/namespaces/n/pods at a", 'Invalid value: core.PodSpec{Env: "hunter2"}: may not change'),
        ("GET /api/v1/pods at a", "bad header Authorization: Bearer hunter2.hunter2"),
    ],
)
def test_secrets_are_redacted(what: str, message: str) -> None:
    error = errors.from_response(422, _status(422, "Invalid", message), what=what)
    assert "hunter2" not in str(error)
    assert "(hidden)" in str(error)


def test_ordinary_values_are_kept() -> None:
    message = 'spec.containers[0].name: Invalid value: "A_B": must be a DNS label'
    assert '"A_B"' in str(errors.from_response(422, _status(422, "Invalid", message), what="POST /pods"))


def test_long_messages_are_shortened() -> None:
    assert len(str(errors.from_response(500, _status(500, message="x" * 100_000), what="y"))) < 2000
