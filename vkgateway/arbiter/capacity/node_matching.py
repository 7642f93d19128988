"""Whether a node's labels meet a pod's affinity, and which taints it tolerates: Kubernetes' rules, one node at a time.

https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/ and
https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/. Amounts are no matter of this file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from vkgateway.arbiter.snapshot import Node, Requirement, Shape, Toleration
from vkgateway.model.objects import Taint

_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_INT64 = 1 << 63


def meets_requirement(requirement: Requirement, value: str | None) -> bool:
    """Whether a node whose label has this value (None: it does not have the label) meets the requirement.

    A requirement that the API server would not accept (an unknown operator, values missing) is met by no node.
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
    """Whether the labels meet all of one of the terms. No terms: any node. An empty term selects nothing."""
    if not terms:
        return True
    return any(term and all(meets_requirement(each, labels.get(each.key)) for each in term) for term in terms)


def is_tolerated(tolerations: Sequence[Toleration], taint: Taint) -> bool:
    """Whether one of the tolerations takes the taint."""
    return any(_tolerates_taint(toleration, taint) for toleration in tolerations)


def has_untolerated_taint(tolerations: Sequence[Toleration], taints: Sequence[Taint]) -> bool:
    """Whether a taint that is not tolerated keeps the pod away."""
    return any(taint.effect in ("NoSchedule", "NoExecute") and not is_tolerated(tolerations, taint) for taint in taints)


def count_disliked_taints(tolerations: Sequence[Toleration], taints: Sequence[Taint]) -> int:
    """How many taints that are not tolerated say that the pod should rather go elsewhere."""
    return sum(taint.effect == "PreferNoSchedule" and not is_tolerated(tolerations, taint) for taint in taints)


def node_fits(shape: Shape, node: Node) -> bool:
    """Whether the shape may run on the node as far as labels, taints and the node's state go."""
    return (
        node.usable
        and matches_terms(shape.terms, node.labels)
        and not has_untolerated_taint(shape.tolerations, node.taints)
    )


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
    """A whole number of 64 bits in plain decimal digits; None: it is none."""
    if _INTEGER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if -_INT64 <= number < _INT64 else None
