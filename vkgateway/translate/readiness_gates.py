"""Readiness gates: conditions that the tenant writes, copied to the compute pod."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from vkgateway.model.names import is_reserved
from vkgateway.model.objects import Object

READINESS_GATES_ANNOTATION: Final = "vkgateway.io/readiness-gates"
"""Annotation of compute pods: condition types of the tenant pod's readiness gates, separated by commas."""

_KUBERNETES_CONDITIONS: Final = frozenset(
    {
        "AllContainersRestarting",
        "ContainersReady",
        "DisruptionTarget",
        "Initialized",
        "PodReadyToStartContainers",
        "PodResizeInProgress",
        "PodResizePending",
        "PodScheduled",
        "Ready",
    }
)
"""Conditions that kubelets, schedulers and Kubernetes' controllers write (core/v1 PodConditionType)."""
_COMPARED_FIELDS: Final = ("type", "status", "reason", "message", "lastProbeTime", "lastTransitionTime")
"""Compared fields of a condition. The generation is left out, because the compute pod has its own."""


def render_gates(spec: Mapping[str, Any]) -> str:
    """Return the value of `READINESS_GATES_ANNOTATION` for a tenant pod, empty if it has no gates."""
    return ",".join(gate["conditionType"] for gate in spec.get("readinessGates") or ())


def tenant_gates(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return the condition types that only the tenant sets on a pod.

    `annotations` are those of the compute pod. A gate may name a condition that Kubernetes or vkgateway writes. Such a
    condition is never the tenant's.
    """
    text = annotations.get(READINESS_GATES_ANNOTATION)
    if not text:
        return ()
    kinds = dict.fromkeys(text.split(","))
    return tuple(kind for kind in kinds if kind not in _KUBERNETES_CONDITIONS and not is_reserved(kind))


def gate_conditions_patch(tenant: Sequence[Object], compute: Sequence[Object], gates: Iterable[str]) -> list[Object]:
    """Return the strategic merge patch of the compute pod's gate conditions, empty if nothing differs.

    `tenant` and `compute` are the conditions of the two pods. A condition that the tenant removed is removed from the
    compute pod, too.
    """
    wanted = {entry["type"]: _compared_fields(entry) for entry in tenant}
    current = {entry["type"]: _compared_fields(entry) for entry in compute}
    made: list[Object] = []
    for gate in gates:
        new, old = wanted.get(gate), current.get(gate)
        if new is None and old is not None:
            made.append({"$patch": "delete", "type": gate})
        elif new is not None and new != old:
            made.append({**dict.fromkeys((old or {}).keys() - new.keys()), **new})
    return made


def _compared_fields(condition: Object) -> Object:
    return {key: condition[key] for key in _COMPARED_FIELDS if condition.get(key) not in (None, "")}
