"""Checks that writing a kubeconfig does not destroy entries of other clusters."""

from __future__ import annotations

from typing import Any

from vkgateway.api.errors import ConflictError

Document = dict[str, Any]


def check_merge(into: Document, added: Document, *, where: object) -> None:
    """Check that a merge replaces only entries of the same cluster.

    A context of the same name belongs to another cluster if its cluster or user differs. So does a cluster without its
    user, or a user without its cluster. Raises ConflictError that names the entry.
    """
    for context in added.get("contexts") or []:
        pair = _cluster_and_user(context)
        for existing in into.get("contexts") or []:
            if existing["name"] == context["name"] and _cluster_and_user(existing) != pair:
                raise _name_conflict("context", context["name"], where=where)
        cluster, user = pair
        has_cluster, has_user = cluster in _entry_names(into, "clusters"), user in _entry_names(into, "users")
        if has_cluster != has_user:
            raise (
                _name_conflict("cluster", cluster, where=where)
                if has_cluster
                else _name_conflict("user", user, where=where)
            )


def check_replacement(old: Document, new: Document, *, where: object) -> None:
    """Check that the new document contains all clusters of the old one. Raises ConflictError that names the others."""
    if lost := sorted(_entry_names(old, "clusters") - _entry_names(new, "clusters")):
        raise ConflictError(
            f"{where} contains other clusters, which would be lost: {', '.join(lost)}",
            hint="Add this cluster to the file with --merge, or specify another file.",
        )


def _entry_names(document: Document, section: str) -> set[str]:
    return {entry["name"] for entry in document.get(section) or []}


def _cluster_and_user(context: Document) -> tuple[str, str]:
    fields = context.get("context") or {}
    return str(fields.get("cluster", "")), str(fields.get("user", ""))


def _name_conflict(kind: str, name: str, *, where: object) -> ConflictError:
    return ConflictError(
        f"kubeconfig {where} contains another {kind} {name!r}, which would be lost",
        hint=f"Rename that {kind}, or write this kubeconfig to a separate file with -f FILE.",
    )
