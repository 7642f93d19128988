"""Node affinity and taints of a single node, by the rules of Kubernetes.

https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/ and
https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/. Amounts do not matter here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from vkgateway.api.objects import Taint
from vkgateway.scheduler.core.snapshot import Requirement, Toleration

_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_INT64 = 1 << 63


def meets_requirement(requirement: Requirement, value: str | None) -> bool:
    """Return whether a node with this label value (None: without the label) meets the requirement.

    No node meets a requirement that the API server would reject (unknown operator, missing values).
    """
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return bool(requirement.values) and value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            return (
                value is not None
                and len(requirement.values) == 1
                and _compare_integers(value, operator, requirement.values[0])
            )
        case _:
            return False


def matches_terms(terms: Sequence[Sequence[Requirement]], labels: Mapping[str, str]) -> bool:
    """Return whether the labels meet all requirements of one term.

    Without terms, every node matches. An empty term matches no node.
    """
    if not terms:
        return True
    return any(term and all(meets_requirement(each, labels.get(each.key)) for each in term) for term in terms)


def is_tolerated(tolerations: Sequence[Toleration], taint: Taint) -> bool:
    """Return whether one of the tolerations matches the taint."""
    return any(_tolerates_taint(toleration, taint) for toleration in tolerations)


def has_untolerated_taint(tolerations: Sequence[Toleration], taints: Sequence[Taint]) -> bool:
    """Return whether a NoSchedule or NoExecute taint is not tolerated."""
    return any(taint.effect in ("NoSchedule", "NoExecute") and not is_tolerated(tolerations, taint) for taint in taints)


def count_disliked_taints(tolerations: Sequence[Toleration], taints: Sequence[Taint]) -> int:
    """Return the number of PreferNoSchedule taints that are not tolerated."""
    return sum(taint.effect == "PreferNoSchedule" and not is_tolerated(tolerations, taint) for taint in taints)


def _tolerates_taint(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    match toleration.operator:
        case "Exists":
            return True
        case "" | "Equal":
            return toleration.value == taint.value
        case "Gt" | "Lt" as operator:
            return _compare_integers(taint.value, operator, toleration.value)
        case _:
            return False


def _compare_integers(value: str, operator: str, bound: str) -> bool:
    one, other = _parse_integer(value), _parse_integer(bound)
    if one is None or other is None:
        return False
    return one > other if operator == "Gt" else one < other


def _parse_integer(text: str) -> int | None:
    """Return a 64-bit integer in plain decimal digits; None: the text is not one."""
    if _INTEGER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if -_INT64 <= number < _INT64 else None
