"""Errors of etcd, by what the caller can do about them."""
# ruff: noqa: N818 - named after etcd's messages

from __future__ import annotations

from typing import ClassVar

from vkgateway.model.errors import VkgatewayError


class EtcdError(VkgatewayError):
    """A request that etcd refused or did not answer."""

    transient: ClassVar[bool] = False
    """Whether the same request may succeed later."""


class EtcdUnavailable(EtcdError):
    """No answer in time, no connection, or no leader."""

    exit_code: ClassVar[int] = 5
    transient: ClassVar[bool] = True


class EtcdDenied(EtcdError):
    """The certificate's user lacks the permission or does not exist."""


class EtcdStale(EtcdError):
    """Users or roles changed during the request; a repeated request is checked against the new ones."""

    transient: ClassVar[bool] = True


class EtcdExists(EtcdError):
    """The user or role already exists."""

    exit_code: ClassVar[int] = 4


class EtcdNotFound(EtcdError):
    """The user, role or permission does not exist."""

    exit_code: ClassVar[int] = 3


class EtcdAuthDisabled(EtcdError):
    """Authentication is disabled: every valid certificate can read all keys."""


class EtcdCompacted(EtcdError):
    """A compaction removed the requested revision."""


class EtcdFull(EtcdError):
    """The store has reached its quota and refuses writes until space is freed."""

    exit_code: ClassVar[int] = 5


SPACE_EXCEEDED = "database space exceeded"
"""Message of etcd for a full store; API servers pass it on."""

# Parts of etcd's error messages (api/v3rpc/rpctypes/error.go); its status codes alone are ambiguous.
_ERRORS_BY_MESSAGE: tuple[tuple[str, type[EtcdError]], ...] = (
    ("already exists", EtcdExists),
    ("name not found", EtcdNotFound),
    ("is not granted to the", EtcdNotFound),
    ("revision of auth store is old", EtcdStale),
    ("permission denied", EtcdDenied),
    ("authentication failed", EtcdDenied),
    ("user name is empty", EtcdDenied),
    ("invalid auth token", EtcdDenied),
    (SPACE_EXCEEDED, EtcdFull),
    ("has been compacted", EtcdCompacted),
)
_UNAVAILABLE = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"})


# Parts of gRPC's descriptions of connections that could not be established, with the reason for people.
_CONNECTION_PROBLEMS: tuple[tuple[str, str], ...] = (
    ("CERTIFICATE_VERIFY_FAILED", "the CA in the gateway's settings did not sign etcd's certificate"),
    ("Hostname Verification Check failed", "etcd's certificate lacks this name or address"),
    ("TSI_DATA_CORRUPTED", "etcd rejects the gateway's client certificate; another CA signed it, or it has expired"),
    ("Connection refused", "connection refused"),
    ("Domain name not found", "the name does not resolve"),
    ("errors resolving", "the name does not resolve"),
    ("Handshake read failed", "no answer to the TLS handshake"),
    ("DEADLINE_EXCEEDED", "no answer in time"),
    ("Deadline Exceeded", "no answer in time"),
    ("etcdserver: request timed out", "no answer in time; it may have lost its quorum"),
    ("etcdserver: no leader", "it has no leader"),
)


def error_for(code: str, details: str, *, what: str, target: str) -> EtcdError:
    """Return the error for a gRPC status; `what` names the request (`UserAdd`), `target` the endpoint (HOST:PORT)."""
    if code in _UNAVAILABLE:  # first: gRPC's own texts, such as "Domain name not found", resemble etcd's
        reason = next((text for words, text in _CONNECTION_PROBLEMS if words in details), details or code)
        return EtcdUnavailable(f"etcd at {target} is unavailable: {reason} ({what})")
    kind = next((kind for words, kind in _ERRORS_BY_MESSAGE if words in details), EtcdError)
    return kind(f"etcd did not do {what} at {target}: {details or code}")
