"""Rights of a user of a fake API server: roles of a manifest, as RBAC evaluates them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Self

from vkgateway.kube.resources import Resource
from vkgateway.serve import rbac

_Rule = tuple[str, dict[str, Any]]
_Read = Callable[[], list[dict[str, Any]]]


class Rights:
    """Rules of roles, for a namespace or everywhere ("")."""

    def __init__(self, documents: Iterable[dict[str, Any]]) -> None:
        self._rules: list[_Rule] = [
            (document["metadata"].get("namespace", ""), rule)
            for document in documents
            if document["kind"] in ("ClusterRole", "Role")
            for rule in document["rules"]
            if "resources" in rule
        ]

    @classmethod
    def of_compute(cls) -> Self:
        """Return the gateway's rights in a compute cluster."""
        return cls(_roles(rbac.compute_roles))

    @classmethod
    def of_management(cls) -> Self:
        """Return the gateway's rights in a management cluster that is not a compute cluster."""
        return cls(_roles(rbac.management_roles))

    @classmethod
    def of_both(cls) -> Self:
        """Return the gateway's rights in a management cluster that is also a compute cluster."""
        return cls([*_roles(rbac.compute_roles), *_roles(rbac.management_roles)])

    @classmethod
    def of_driver(cls) -> Self:
        """Return the gateway's rights in a management cluster that runs control planes as pods."""
        return cls([*_roles(rbac.management_roles), *_roles(rbac.control_plane_roles)])

    def allow(self, verb: str, resource: Resource, *, namespace: str, name: str, subresource: str = "") -> bool:
        """Return whether a rule allows a request."""
        _, _, rest = resource.prefix.partition("/")
        group = rest.rpartition("/")[0]
        kind = f"{resource.plural}/{subresource}" if subresource else resource.plural
        return any(
            where in ("", namespace)
            and group in rule["apiGroups"]
            and kind in rule["resources"]
            and verb in rule["verbs"]
            and ("resourceNames" not in rule or name in rule["resourceNames"])
            for where, rule in self._rules
        )


@functools.cache
def _roles(read: _Read) -> list[dict[str, Any]]:
    """Read a manifest once: thousands of fake servers use it."""
    return read()
