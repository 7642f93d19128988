"""What a kubeconfig file holds already must not be lost when another is put into it or in its place."""

from __future__ import annotations

from typing import Any

from vkgateway.model.errors import ConflictError

Document = dict[str, Any]


def check_merge(into: Document, added: Document, *, where: object) -> None:
    """See that a merge replaces only what an earlier one of the same cluster brought.

    A context of the same name is another's where it names another cluster or user, and so is a cluster without its
    user, or a user without its cluster. Raises ConflictError that names it.
    """
    for context in added.get("contexts") or []:
        pair = _cluster_and_user(context)
        for there in into.get("contexts") or []:
            if there["name"] == context["name"] and _cluster_and_user(there) != pair:
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
    """See that the old document knows no cluster that the new one does not. Raises ConflictError that names them."""
    if lost := sorted(_entry_names(old, "clusters") - _entry_names(new, "clusters")):
        raise ConflictError(
            f"{where} holds other clusters, which would be lost: {', '.join(lost)}",
            hint="Add this one to them with --merge, or name another file.",
        )


def _entry_names(document: Document, section: str) -> set[str]:
    return {entry["name"] for entry in document.get(section) or []}


def _cluster_and_user(context: Document) -> tuple[str, str]:
    said = context.get("context") or {}
    return str(said.get("cluster", "")), str(said.get("user", ""))


def _name_conflict(kind: str, name: str, *, where: object) -> ConflictError:
    return ConflictError(
        f"kubeconfig {where} has a {kind} {name!r} of its own, which would be lost",
        hint="Rename that one, or write this kubeconfig to a file of its own with -f FILE.",
    )
