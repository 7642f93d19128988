"""Pod sets: the pods of a gang that a scheduler cannot tell apart."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

import msgspec

from vkgateway.scheduler.backends.attempt import PodSet
from vkgateway.scheduler.core.snapshot import Pod

NAME_PREFIX: Final = 7
"""Length of the part that pod set names have in common if their pods request the same.

The node constraints of a pod change when it is bound to one of several virtual nodes, and its pod set with them.
"""


def pod_set_name(pod: Pod) -> str:
    """Return the name of a pod's pod set, which depends on its requests and node constraints (see `NAME_PREFIX`)."""
    shape = pod.shape
    terms = [[[each.key, each.operator, each.values] for each in term] for term in shape.terms]
    tolerations = [[each.key, each.operator, each.value, each.effect] for each in shape.tolerations]
    return f"s{_short_digest(shape.requests)}{_short_digest([terms, tolerations])}"


def _short_digest(content: object) -> str:
    return hashlib.sha256(msgspec.json.encode(content)).hexdigest()[: NAME_PREFIX - 1]


def count_pod_sets(pods: Iterable[Pod]) -> list[PodSet]:
    """Return the pod sets of pods, ordered by name."""
    counts: dict[str, int] = {}
    for pod in pods:
        name = pod_set_name(pod)
        counts[name] = counts.get(name, 0) + 1
    return [PodSet(name=name, count=count) for name, count in sorted(counts.items())]
