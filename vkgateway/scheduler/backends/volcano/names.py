"""Volcano's API, and the names of the objects that the gateway creates there."""

from __future__ import annotations

from typing import Final

API_VERSION: Final = "scheduling.volcano.sh/v1beta1"
GROUP_ANNOTATION: Final = "scheduling.k8s.io/group-name"
"""On compute pods: their PodGroup, in the same namespace."""
PODS_ANNOTATION: Final = "vkgateway.io/pods"
"""On PodGroups: the number of pods by pod set, as JSON."""
ROOT_QUEUE: Final = "root"
_CLASS_PREFIX: Final = "vkgateway-volcano-"


def priority_class_name(value: int) -> str:
    """Return the name of the priority class with a value."""
    return f"{_CLASS_PREFIX}{value}"


def priority_of_class(name: str) -> int:
    """Return the value of a priority class with this name; 0 for a class of others."""
    value = name.removeprefix(_CLASS_PREFIX)
    return int(value) if value != name and value.isdecimal() else 0
