"""What etcd refuses, sorted by what the caller may do about it."""
# ruff: noqa: N818 - named after what etcd says

from __future__ import annotations

from typing import ClassVar

from vkgateway.model.errors import VkgatewayError


class EtcdError(VkgatewayError):
    """A call that etcd refused or never answered."""

    transient: ClassVar[bool] = False
    """True where the same call may succeed later without anybody changing it."""


class EtcdUnavailable(EtcdError):
    """No answer in time, no connection, or no leader."""

    exit_code: ClassVar[int] = 5
    transient: ClassVar[bool] = True


class EtcdDenied(EtcdError):
    """The certificate's user may not do this, or is not known at all."""


class EtcdStale(EtcdError):
    """Users or roles changed while the call was on its way; made again, it is judged anew."""

    transient: ClassVar[bool] = True


class EtcdExists(EtcdError):
    """The user or role is there already."""

    exit_code: ClassVar[int] = 4


class EtcdNotFound(EtcdError):
    """There is no such user, role or permission."""

    exit_code: ClassVar[int] = 3


class EtcdAuthDisabled(EtcdError):
    """Users and roles are not enforced: whoever has a certificate may read everything."""


class EtcdCompacted(EtcdError):
    """A compaction took the revision that was asked for."""


class EtcdFull(EtcdError):
    """The store has reached its quota and takes no more writes until space is made."""

    exit_code: ClassVar[int] = 5


SPACE_EXCEEDED = "database space exceeded"
"""What etcd says of a store that is full, and API servers after it."""

# Parts of etcd's own messages (api/v3rpc/rpctypes/error.go): its status codes alone do not tell these apart.
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


def error_for(code: str, details: str, *, what: str) -> EtcdError:
    """Return the error for a gRPC status; `what` says what was asked (`UserAdd at 10.0.0.1:2379`)."""
    kind = next((kind for words, kind in _ERRORS_BY_MESSAGE if words in details), None)
    if kind is None:
        kind = EtcdUnavailable if code in _UNAVAILABLE else EtcdError
    return kind(f"etcd did not do {what}: {details or code}")
