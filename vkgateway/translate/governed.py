"""Pods that the arbiter governs: requests, gates, band, virtual nodes in reach, and the patch that admits them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from vkgateway.model.names import ADMISSION_GATE, LOW_CLASS
from vkgateway.model.objects import Object, Taint
from vkgateway.model.requests import MilliResources, pod_requests
from vkgateway.translate.gangs import Kind
from vkgateway.translate.gangs.mark_detection import has_mark, has_unserved_marks
from vkgateway.translate.node_terms import PREFERRED, REQUIRED, compare_numbers, term_matches

VirtualNode = tuple[Mapping[str, str], Sequence[Taint]]
"""A virtual node's labels and taints."""

HOST_RESOURCES: Final = ("cpu", "memory")
"""What a gang without devices waits for."""
_NATIVE_DOMAIN: Final = "kubernetes.io"
_OTHER_PREFIXES: Final = ("requests.", "hugepages-")
_BLOCKING_EFFECTS: Final = frozenset({"NoSchedule", "NoExecute"})
CORDON_TAINT: Final = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
"""The taint of a node that is closed to new pods (`spec.unschedulable`)."""


def is_extended(resource: str) -> bool:
    """Tell whether a resource is an extended one: its name has a domain, which is not Kubernetes' own.

    https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/#extended-resources
    """
    domain, slash, _ = resource.partition("/")
    native = domain == _NATIVE_DOMAIN or domain.endswith("." + _NATIVE_DOMAIN) or domain.startswith(_OTHER_PREFIXES)
    return bool(slash) and not native


def device_requests(pod: Mapping[str, Any]) -> MilliResources:
    """Return the extended resources that a pod's containers ask for, in thousandths, summed as the scheduler sums them.

    Init containers count; an amount of zero does not.
    """
    spec = pod.get("spec") or {}
    asked = pod_requests({"spec": {kind: spec.get(kind) for kind in ("containers", "initContainers")}})
    return {name: amount for name, amount in asked.items() if amount and is_extended(name)}


def governed_requests(pod: Mapping[str, Any]) -> MilliResources:
    """Return what a pod waits for, in thousandths: devices, or without any the cpu and memory of a gang's pod."""
    asked = device_requests(pod)
    if asked or not has_mark(pod):
        return asked
    return {name: amount for name, amount in pod_requests(pod).items() if amount and name in HOST_RESOURCES}


def is_governed(pod: Mapping[str, Any], unserved: frozenset[Kind] = frozenset()) -> bool:
    """Return whether a pod starts only when the arbiter says so: it asks for a device, or carries a gang's mark.

    A mark counts unless its tenant's API server is known not to serve its kind.
    """
    marked = has_mark(pod) and not (unserved and has_unserved_marks(pod, unserved))
    return marked or bool(device_requests(pod))


def has_gate(pod: Mapping[str, Any]) -> bool:
    """Tell whether our scheduling gate is on a pod."""
    return ADMISSION_GATE in _gate_names(pod)


def other_gates(pod: Mapping[str, Any]) -> tuple[str, ...]:
    """The scheduling gates on a pod that are not ours, in their order."""
    return tuple(name for name in _gate_names(pod) if name != ADMISSION_GATE)


def _gate_names(pod: Mapping[str, Any]) -> list[str]:
    return [gate["name"] for gate in (pod.get("spec") or {}).get("schedulingGates") or ()]


def pod_band(spec: Mapping[str, Any]) -> Literal["guaranteed", "low"]:
    """The band that a pod's spec asks for: low by the class of that name or by a negative priority, else guaranteed."""
    low = spec.get("priorityClassName") == LOW_CLASS or (spec.get("priority") or 0) < 0
    return "low" if low else "guaranteed"


def ungate_patch(uid: str, narrowing: Mapping[str, str]) -> Object:
    """Return a strategic merge patch that takes our gate off a pod and adds `narrowing` to its node selector.

    Other gates stay. While a pod is gated, its nodeSelector may be added to (KEP-3838). The server refuses the patch as
    a conflict if the pod is another than that of `uid`.
    """
    spec: Object = {"schedulingGates": [{"$patch": "delete", "name": ADMISSION_GATE}]}
    if narrowing:
        spec["nodeSelector"] = dict(narrowing)
    return {"metadata": {"uid": uid}, "spec": spec}


def reachable_nodes(pod: Mapping[str, Any], nodes: Mapping[str, VirtualNode]) -> tuple[str, ...]:
    """The names of the tenant's virtual nodes on which its scheduler might put a pod, best liked first.

    Of equally liked ones, in the order of `nodes`. Node selector, required node affinity and taints decide, preferred
    node affinity orders. A pod that has its node already can be on that one only, whatever it asks for.
    """
    spec = pod.get("spec") or {}
    settled = spec.get("nodeName")
    if settled:
        return (settled,) if settled in nodes else ()
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    likings = {
        name: _preference_weight(affinity, name, labels)
        for name, (labels, taints) in nodes.items()
        if _matches_node(spec, affinity, name, labels)
        and not _has_untolerated_taint(spec.get("tolerations") or (), taints)
    }
    return tuple(sorted(likings, key=lambda name: -likings[name]))


def has_pod_constraints(pod: Mapping[str, Any]) -> bool:
    """Whether it is a matter of other pods which virtual node the tenant's scheduler may put a pod on.

    So it is with required affinity and anti-affinity among pods, and with topology spread that must be kept.
    """
    spec = pod.get("spec") or {}
    affinity = spec.get("affinity") or {}
    among_pods = (affinity.get(kind) or {} for kind in ("podAffinity", "podAntiAffinity"))
    spread = spec.get("topologySpreadConstraints") or ()
    return any(each.get(REQUIRED) for each in among_pods) or any(
        each.get("whenUnsatisfiable") == "DoNotSchedule" for each in spread
    )


def unreachable_reason(pod: Mapping[str, Any], nodes: Mapping[str, VirtualNode]) -> str:
    """Say why a pod can reach none of the tenant's virtual nodes: what keeps it off those that it selects."""
    spec = pod.get("spec") or {}
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    selected = [name for name, (labels, _) in nodes.items() if _matches_node(spec, affinity, name, labels)]
    if not selected:
        return f"no virtual node is one that its node selector and affinity ask for: there are {', '.join(nodes)}"
    tolerations = spec.get("tolerations") or ()
    return "; ".join(_closed_reason(name, tolerations, nodes[name][1]) for name in selected)


def _closed_reason(name: str, tolerations: Sequence[Mapping[str, Any]], taints: Sequence[Taint]) -> str:
    refused = [taint for taint in taints if _has_untolerated_taint(tolerations, (taint,))]
    if any(taint.key == CORDON_TAINT.key for taint in refused):
        return f"virtual node {name} is cordoned"
    told = ", ".join(f"{taint.key}={taint.value}:{taint.effect}" for taint in refused)
    return f"virtual node {name} has a taint that it does not tolerate: {told}"


def _matches_node(spec: Mapping[str, Any], affinity: Mapping[str, Any], name: str, labels: Mapping[str, str]) -> bool:
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    required = affinity.get(REQUIRED)
    terms = (required or {}).get("nodeSelectorTerms") or ()
    return not required or any(term_matches(term, name=name, labels=labels) for term in terms)


def _preference_weight(affinity: Mapping[str, Any], name: str, labels: Mapping[str, str]) -> int:
    """The sum of the weights of the preferred terms that hold."""
    return sum(
        weighted.get("weight") or 0
        for weighted in affinity.get(PREFERRED) or ()
        if term_matches(weighted.get("preference") or {}, name=name, labels=labels)
    )


def _has_untolerated_taint(tolerations: Sequence[Mapping[str, Any]], taints: Sequence[Taint]) -> bool:
    return any(
        taint.effect in _BLOCKING_EFFECTS and not any(_tolerates_taint(toleration, taint) for toleration in tolerations)
        for taint in taints
    )


def _tolerates_taint(toleration: Mapping[str, Any], taint: Taint) -> bool:
    if toleration.get("effect") not in (None, "", taint.effect) or toleration.get("key") not in (None, "", taint.key):
        return False
    operator, value = toleration.get("operator") or "Equal", toleration.get("value") or ""
    if operator == "Exists":
        return True
    return value == taint.value if operator == "Equal" else compare_numbers(taint.value, operator, (value,))
