"""What a kubeconfig may say that would change who we are or the way to the server, and that is not heeded here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vkgateway.model.errors import InputError

_Explanation = tuple[str, str]
"""Why it is not heeded, and the way out."""

_REMOVED: Final[_Explanation] = ("which Kubernetes has removed", "use an exec plugin, a token or a client certificate")
_NO_IMPERSONATION: Final[_Explanation] = (
    "and nobody is impersonated here",
    "take it out to act as the user itself, or use credentials of the one it names",
)
_UNSUPPORTED_CLUSTER_FIELDS: Final[Mapping[str, _Explanation]] = {
    "proxy-url": ("and no proxies are used here", "name a server that is reached without one")
}
_UNSUPPORTED_USER_FIELDS: Final[Mapping[str, _Explanation]] = {
    "auth-provider": _REMOVED,
    "username": _REMOVED,
    "password": _REMOVED,
    "as": _NO_IMPERSONATION,
    "as-uid": _NO_IMPERSONATION,
    "as-groups": _NO_IMPERSONATION,
    "as-user-extra": _NO_IMPERSONATION,
}


def check_cluster(entry: Mapping[str, Any], *, where: str) -> None:
    """Refuse what a cluster says that is not heeded; `where` names it. Raises InputError."""
    _check_fields(entry, _UNSUPPORTED_CLUSTER_FIELDS, where=where)


def check_user(entry: Mapping[str, Any], *, where: str) -> None:
    """Refuse what a user says that is not heeded; `where` names it. Raises InputError."""
    _check_fields(entry, _UNSUPPORTED_USER_FIELDS, where=where)


def _check_fields(entry: Mapping[str, Any], unheeded: Mapping[str, _Explanation], *, where: str) -> None:
    for key, (why, hint) in unheeded.items():
        if entry.get(key) not in (None, ""):
            raise InputError(f"{where} has {key}, {why}", hint=hint)
