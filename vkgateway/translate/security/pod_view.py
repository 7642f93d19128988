"""Pod as the security rules see it, and the words that the rules share."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Container = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SecurityPodView:
    """Accessors for the parts of a pod that security rules check."""

    spec: Mapping[str, Any]
    annotations: Mapping[str, str]
    containers: Sequence[Container]

    @property
    def security_context(self) -> Mapping[str, Any]:
        """Security context of the pod."""
        return self.spec.get("securityContext") or {}

    @property
    def is_windows(self) -> bool:
        """Whether the pod declares itself a Windows pod."""
        return (self.spec.get("os") or {}).get("name") == "windows"

    @property
    def has_user_namespace(self) -> bool:
        """Whether the pod has a user namespace, so that its root user is not root on the host."""
        return self.spec.get("hostUsers") is False


Finding = tuple[str, str, str, str] | None
"""Field, value, and the plugin's reason and detail."""
Check = Callable[[SecurityPodView], Finding]


def quote_names(items: Iterable[str]) -> str:
    """Return names in double quotes, separated by commas."""
    return ", ".join(f'"{item}"' for item in items)


def pluralize_noun(count: int, singular: str) -> str:
    """Return the noun for a count."""
    return singular if count == 1 else f"{singular}s"


def name_containers(bad: Sequence[str]) -> str:
    """Return "container" or "containers" with their names."""
    return f"{pluralize_noun(len(bad), 'container')} {quote_names(bad)}"


def uses_verb(bad: Sequence[str]) -> str:
    """Return the verb for a number of containers."""
    return "uses" if len(bad) == 1 else "use"


def container_context(container: Container) -> Mapping[str, Any]:
    """Return a container's security context."""
    return container.get("securityContext") or {}


def name_setters(pod_is_bad: bool, bad: Sequence[str]) -> str:
    """Return the words for pod, containers or both, whichever set a value."""
    return " and ".join([*(["pod"] if pod_is_bad else []), *([name_containers(bad)] if bad else [])])


def any_path(field: str) -> str:
    """Return the path of a field in the security context of any container."""
    return f"spec.containers[*].securityContext.{field}"


def container_capabilities(container: Container, kind: str) -> Sequence[str]:
    """Return the capabilities that a container adds or drops."""
    return (container_context(container).get("capabilities") or {}).get(kind) or ()


def added_capabilities(pod: SecurityPodView, allowed: Iterable[str]) -> dict[str, set[str]]:
    """Return the containers that add capabilities beyond those allowed, with these capabilities."""
    wanted = {c["name"]: set(container_capabilities(c, "add")) - set(allowed) for c in pod.containers}
    return {name: extra for name, extra in wanted.items() if extra}


def forbidden_capabilities(bad: Mapping[str, set[str]]) -> str:
    """Return the words for capabilities that must not be added."""
    extra = sorted(set().union(*bad.values()))
    return f"{name_containers(list(bad))} must not include {quote_names(extra)} in securityContext.capabilities.add"
