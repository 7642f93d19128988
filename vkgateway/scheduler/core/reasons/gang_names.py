"""Names of gangs for human readers (pure)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from vkgateway.scheduler.core.decisions import PendingReport

LONE_POD = "pod"
"""Kind in the ids of pods without a gang; the name is the uid."""

Names = Mapping[str, tuple[str, ...]]
"""By uid of a pod: its namespace and name and, if it has one, kind and name of its controller, such as `Job/train`."""


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


def controller_of(gang: str, names: Names) -> str:
    """Return kind and name of a single pod's controller; empty for other gangs and for pods without one."""
    return "".join(names.get(gang.split("/", 3)[-1], ())[2:]) if is_lone(gang) else ""


def is_lone(gang: str) -> bool:
    """Return whether a gang is a single pod."""
    parts = gang.split("/", 3)
    return len(parts) == 4 and parts[2] == LONE_POD


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


def name_gangs(report: PendingReport, names: Names) -> str:
    """Return the message of a report with the ids of the tenant's own gangs that it names replaced by their texts."""
    message = report.message
    for gang in (report.behind, report.ends):
        group = gang.partition("/")[2]
        if group and group in message:
            message = message.replace(group, gang_text(group, lambda uid: names.get(uid, ("", ""))[1]))
    return message


def hide_gang(message: str, gang: str, pod_name: str) -> str:
    """Return a message, as `name_gangs` returns it, without the name of a gang.

    `pod_name` is the name of a pod without a gang.
    """
    group = gang.partition("/")[2]
    for text in (gang_text(group, lambda _: pod_name), gang_text(group, lambda _: ""), group):
        if text:
            message = message.replace(text, "a gang of another namespace")
    return message
