"""Unsupported kubeconfig fields that would change the identity or the route to the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vkgateway.api.errors import InputError

_Explanation = tuple[str, str]
"""The reason, and a remedy."""

_REMOVED: Final[_Explanation] = ("which Kubernetes has removed", "use an exec plugin, a token or a client certificate")
_NO_IMPERSONATION: Final[_Explanation] = (
    "but vkgateway does not support impersonation",
    "remove the field to act as the user itself, or use credentials of the impersonated user",
)
_UNSUPPORTED_CLUSTER_FIELDS: Final[Mapping[str, _Explanation]] = {
    "proxy-url": ("but vkgateway does not support proxies", "use a server that is reachable without a proxy")
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
    """Raise InputError for an unsupported field of a cluster. `where` names the cluster."""
    _check_fields(entry, _UNSUPPORTED_CLUSTER_FIELDS, where=where)


def check_user(entry: Mapping[str, Any], *, where: str) -> None:
    """Raise InputError for an unsupported field of a user. `where` names the user."""
    _check_fields(entry, _UNSUPPORTED_USER_FIELDS, where=where)


def _check_fields(entry: Mapping[str, Any], unsupported: Mapping[str, _Explanation], *, where: str) -> None:
    for key, (reason, hint) in unsupported.items():
        if entry.get(key) not in (None, ""):
            raise InputError(f"{where} has {key}, {reason}", hint=hint)
