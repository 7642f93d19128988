"""Errors of etcd, by what the caller can do about them."""
# ruff: noqa: N818 - named after etcd's messages

from __future__ import annotations

from typing import ClassVar

from vkgateway.api.errors import VkgatewayError


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


_CHECK_ENDPOINTS = "Check datastore.endpoints, and that etcd runs"
_CHECK_ROUTES = "Check etcd, and the routes and firewalls to it"

# Parts of gRPC's descriptions of connections that could not be established, with the reason for people and the way out.
_CONNECTION_PROBLEMS: tuple[tuple[str, str, str], ...] = (
    (
        "CERTIFICATE_VERIFY_FAILED",
        "the CA in the gateway's settings did not sign etcd's certificate",
        "Set datastore.ca to the CA of etcd's certificate",
    ),
    (
        "Hostname Verification Check failed",
        "etcd's certificate lacks this name or address",
        "Issue a certificate with it, or set datastore.endpoints to a name in the certificate",
    ),
    (
        "TSI_DATA_CORRUPTED",
        "etcd rejects the gateway's client certificate; another CA signed it, it is not for clients, or it has expired",
        "Issue datastore.cert with the CA that etcd trusts",
    ),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS", "Start etcd with --cert-file and --client-cert-auth"),
    ("Connection refused", "connection refused", _CHECK_ENDPOINTS),
    ("Domain name not found", "the name does not resolve", _CHECK_ENDPOINTS),
    ("errors resolving", "the name does not resolve", _CHECK_ENDPOINTS),
    ("Handshake read failed", "no answer to the TLS handshake", _CHECK_ROUTES),
    ("connect() timed out", "no answer in time", _CHECK_ROUTES),
    ("tcp handshaker shutdown", "no answer in time", _CHECK_ROUTES),
    ("DEADLINE_EXCEEDED", "no answer in time", _CHECK_ROUTES),
    ("Deadline Exceeded", "no answer in time", _CHECK_ROUTES),
    ("etcdserver: request timed out", "no answer in time; it may have lost its quorum", "Check etcd's members"),
    ("etcdserver: no leader", "it has no leader", "Check etcd's members"),
)


def error_for(code: str, details: str, *, what: str, target: str) -> EtcdError:
    """Return the error for a gRPC status; `what` names the request (`UserAdd`), `target` the endpoint (HOST:PORT)."""
    if code in _UNAVAILABLE:  # first: gRPC's own texts, such as "Domain name not found", resemble etcd's
        known = ((reason, hint) for words, reason, hint in _CONNECTION_PROBLEMS if words in details)
        reason, hint = next(known, (details or code, ""))
        return EtcdUnavailable(f"etcd at {target} is unavailable: {reason} ({what})", hint=hint)
    kind = next((kind for words, kind in _ERRORS_BY_MESSAGE if words in details), EtcdError)
    return kind(f"etcd did not do {what} at {target}: {details or code}")
