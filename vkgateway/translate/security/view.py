"""A pod as the rules of pod security look at it, and the words that they share."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Container = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod as the rules look at it."""

    spec: Mapping[str, Any]
    annotations: Mapping[str, str]
    containers: Sequence[Container]

    @property
    def security(self) -> Mapping[str, Any]:
        """The pod's own security context."""
        return self.spec.get("securityContext") or {}

    @property
    def windows(self) -> bool:
        """Whether the pod says it is a Windows pod."""
        return (self.spec.get("os") or {}).get("name") == "windows"

    @property
    def user_namespace(self) -> bool:
        """Whether the pod has a user namespace, and so is no root on the host."""
        return self.spec.get("hostUsers") is False


Finding = tuple[str, str, str, str] | None
"""Field, value, and the plugin's reason and detail."""
Check = Callable[[PodView], Finding]


def quoted(items: Iterable[str]) -> str:
    """Names in double quotes, separated by commas."""
    return ", ".join(f'"{item}"' for item in items)


def plural(count: int, singular: str) -> str:
    """A noun for a count."""
    return singular if count == 1 else f"{singular}s"


def named(bad: Sequence[str]) -> str:
    """ "container" or "containers", and which."""
    return f"{plural(len(bad), 'container')} {quoted(bad)}"


def uses(bad: Sequence[str]) -> str:
    """The verb for a number of containers."""
    return "uses" if len(bad) == 1 else "use"


def context(container: Container) -> Mapping[str, Any]:
    """A container's security context."""
    return container.get("securityContext") or {}


def setters(pod_is_bad: bool, bad: Sequence[str]) -> str:
    """Who set something: the pod, containers, or both."""
    return " and ".join([*(["pod"] if pod_is_bad else []), *([named(bad)] if bad else [])])


def any_path(field: str) -> str:
    """Path of a field in the security context of any container."""
    return f"spec.containers[*].securityContext.{field}"


def capabilities(container: Container, kind: str) -> Sequence[str]:
    """The capabilities that a container adds or drops."""
    return (context(container).get("capabilities") or {}).get(kind) or ()


def added(pod: PodView, allowed: Iterable[str]) -> dict[str, set[str]]:
    """Containers that add capabilities beyond those allowed, and which."""
    wanted = {c["name"]: set(capabilities(c, "add")) - set(allowed) for c in pod.containers}
    return {name: extra for name, extra in wanted.items() if extra}


def must_not_add(bad: Mapping[str, set[str]]) -> str:
    """The words for capabilities that may not be added."""
    extra = sorted(set().union(*bad.values()))
    return f"{named(list(bad))} must not include {quoted(extra)} in securityContext.capabilities.add"
