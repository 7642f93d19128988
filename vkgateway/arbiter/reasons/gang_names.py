"""What gangs are called where people read of them (pure)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

LONE_POD = "pod"
"""Stands for the way in the ids of pods that are in no gang; the name is the uid."""

Names = Mapping[str, tuple[str, str]]
"""Namespaces and names of pods by uid."""


def split_gang_id(gang: str, names: Names) -> tuple[str, str, str]:
    """Return namespace, way and name out of `TENANT/namespace/way/name`; an id that is not made so is the name.

    A lone pod has no way, and the pod's name.
    """
    parts = gang.split("/", 3)[1:]
    if len(parts) != 3:
        return "", "", gang
    namespace, way, name = parts
    if way != LONE_POD:
        return namespace, way, name
    return namespace, "", names.get(name, ("", name))[1]


def gang_text(group: str, name_of: Callable[[str], str]) -> str:
    """What a gang's own tenant reads of it, by `namespace/way/name`; `name_of` knows pods' names by their uids."""
    parts = group.split("/", 2)
    if len(parts) != 3:
        return group
    namespace, way, name = parts
    if way != LONE_POD:
        return f"gang {namespace}/{name}"
    known = name_of(name)
    return f"pod {namespace}/{known}" if known else f"a pod of namespace {namespace}"


def name_gang_ahead(message: str, behind: str, names: Names) -> str:
    """The message of a hold, in which the gang ahead, if it is the tenant's own, stands as `namespace/way/name`."""
    group = behind.partition("/")[2]
    if not group or group not in message:
        return message
    return message.replace(group, gang_text(group, lambda uid: names.get(uid, ("", ""))[1]))
