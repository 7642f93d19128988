"""What a kubeconfig may say that would change who we are or the way to the server, and that is not heeded here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vkgateway.model.errors import InputError

_Why = tuple[str, str]
"""Why it is not heeded, and the way out."""

_REMOVED: Final[_Why] = ("which Kubernetes has removed", "use an exec plugin, a token or a client certificate")
_NOBODY: Final[_Why] = (
    "and nobody is impersonated here",
    "take it out to act as the user itself, or use credentials of the one it names",
)
_OF_CLUSTERS: Final[Mapping[str, _Why]] = {
    "proxy-url": ("and no proxies are used here", "name a server that is reached without one")
}
_OF_USERS: Final[Mapping[str, _Why]] = {
    "auth-provider": _REMOVED,
    "username": _REMOVED,
    "password": _REMOVED,
    "as": _NOBODY,
    "as-uid": _NOBODY,
    "as-groups": _NOBODY,
    "as-user-extra": _NOBODY,
}


def check_cluster(entry: Mapping[str, Any], *, where: str) -> None:
    """Refuse what a cluster says that is not heeded; `where` names it. Raises InputError."""
    _check(entry, _OF_CLUSTERS, where=where)


def check_user(entry: Mapping[str, Any], *, where: str) -> None:
    """Refuse what a user says that is not heeded; `where` names it. Raises InputError."""
    _check(entry, _OF_USERS, where=where)


def _check(entry: Mapping[str, Any], unheeded: Mapping[str, _Why], *, where: str) -> None:
    for key, (why, hint) in unheeded.items():
        if entry.get(key) not in (None, ""):
            raise InputError(f"{where} has {key}, {why}", hint=hint)
