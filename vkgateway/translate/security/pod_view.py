"""A pod as the rules of pod security look at it, and the words that they share."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Container = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SecurityPodView:
    """A pod as the rules look at it."""

    spec: Mapping[str, Any]
    annotations: Mapping[str, str]
    containers: Sequence[Container]

    @property
    def security_context(self) -> Mapping[str, Any]:
        """The pod's own security context."""
        return self.spec.get("securityContext") or {}

    @property
    def is_windows(self) -> bool:
        """Whether the pod says it is a Windows pod."""
        return (self.spec.get("os") or {}).get("name") == "windows"

    @property
    def has_user_namespace(self) -> bool:
        """Whether the pod has a user namespace, and so is no root on the host."""
        return self.spec.get("hostUsers") is False


Finding = tuple[str, str, str, str] | None
"""Field, value, and the plugin's reason and detail."""
Check = Callable[[SecurityPodView], Finding]


def quote_names(items: Iterable[str]) -> str:
    """Names in double quotes, separated by commas."""
    return ", ".join(f'"{item}"' for item in items)


def pluralize_noun(count: int, singular: str) -> str:
    """A noun for a count."""
    return singular if count == 1 else f"{singular}s"


def name_containers(bad: Sequence[str]) -> str:
    """ "container" or "containers", and which."""
    return f"{pluralize_noun(len(bad), 'container')} {quote_names(bad)}"


def uses_verb(bad: Sequence[str]) -> str:
    """The verb for a number of containers."""
    return "uses" if len(bad) == 1 else "use"


def container_context(container: Container) -> Mapping[str, Any]:
    """A container's security context."""
    return container.get("securityContext") or {}


def name_setters(pod_is_bad: bool, bad: Sequence[str]) -> str:
    """Who set something: the pod, containers, or both."""
    return " and ".join([*(["pod"] if pod_is_bad else []), *([name_containers(bad)] if bad else [])])


def any_path(field: str) -> str:
    """Path of a field in the security context of any container."""
    return f"spec.containers[*].securityContext.{field}"


def container_capabilities(container: Container, kind: str) -> Sequence[str]:
    """The capabilities that a container adds or drops."""
    return (container_context(container).get("capabilities") or {}).get(kind) or ()


def added_capabilities(pod: SecurityPodView, allowed: Iterable[str]) -> dict[str, set[str]]:
    """Containers that add capabilities beyond those allowed, and which."""
    wanted = {c["name"]: set(container_capabilities(c, "add")) - set(allowed) for c in pod.containers}
    return {name: extra for name, extra in wanted.items() if extra}


def forbidden_capabilities(bad: Mapping[str, set[str]]) -> str:
    """The words for capabilities that may not be added."""
    extra = sorted(set().union(*bad.values()))
    return f"{name_containers(list(bad))} must not include {quote_names(extra)} in securityContext.capabilities.add"
