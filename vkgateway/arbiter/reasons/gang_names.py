"""Names of gangs for human readers (pure)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

LONE_POD = "pod"
"""Kind in the ids of pods without a gang; the name is the uid."""

Names = Mapping[str, tuple[str, str]]
"""Namespaces and names of pods by uid."""


def split_gang_id(gang: str, names: Names) -> tuple[str, str, str]:
    """Return namespace, kind and name of `TENANT/namespace/kind/name`; an id of another form is the name.

    A single pod has no kind, and the name of the pod.
    """
    parts = gang.split("/", 3)[1:]
    if len(parts) != 3:
        return "", "", gang
    namespace, kind, name = parts
    if kind != LONE_POD:
        return namespace, kind, name
    return namespace, "", names.get(name, ("", name))[1]


def is_gang_of(gang: str, tenant: str, namespaces: Collection[str]) -> bool:
    """Return whether a gang belongs to one of these namespaces of a tenant."""
    parts = gang.split("/", 3)
    return len(parts) == 4 and parts[0] == tenant and parts[1] in namespaces


def gang_text(group: str, name_of: Callable[[str], str]) -> str:
    """Return the text for `namespace/kind/name` that the gang's own tenant reads.

    `name_of` returns pods' names by uid.
    """
    parts = group.split("/", 2)
    if len(parts) != 3:
        return group
    namespace, kind, name = parts
    if kind != LONE_POD:
        return f"gang {namespace}/{name}"
    pod_name = name_of(name)
    return f"pod {namespace}/{pod_name}" if pod_name else f"a pod of namespace {namespace}"


def name_gang_ahead(message: str, behind: str, names: Names) -> str:
    """Return the message of a report with the id of the tenant's own gang ahead replaced by its text."""
    group = behind.partition("/")[2]
    if not group or group not in message:
        return message
    return message.replace(group, gang_text(group, lambda uid: names.get(uid, ("", ""))[1]))


def hide_gang_ahead(message: str, behind: str, pod_name: str) -> str:
    """Return a message, as `name_gang_ahead` returns it, without the name of the gang ahead.

    `pod_name` is the name of a pod without a gang.
    """
    group = behind.partition("/")[2]
    for text in (gang_text(group, lambda _: pod_name), gang_text(group, lambda _: ""), group):
        if text:
            message = message.replace(text, "a gang of another namespace")
    return message
