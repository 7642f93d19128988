"""Pods that the arbiter governs: requests, gates, reachable virtual nodes, and the patch that admits them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from vkgateway.api.names import ADMISSION_GATE
from vkgateway.api.objects import Object, Taint
from vkgateway.api.requests import MilliResources, device_requests, pod_requests
from vkgateway.kinds.pods.translation.node_terms import PREFERRED, REQUIRED, compare_numbers, term_matches
from vkgateway.scheduler.gangs import Kind
from vkgateway.scheduler.gangs.mark_detection import has_mark, has_unserved_marks

VirtualNode = tuple[Mapping[str, str], Sequence[Taint]]
"""Labels and taints of a virtual node."""

HOST_RESOURCES: Final = ("cpu", "memory")
"""Governed resources of a gang without devices."""
_BLOCKING_EFFECTS: Final = frozenset({"NoSchedule", "NoExecute"})
CORDON_TAINT: Final = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
"""Taint of a cordoned node (`spec.unschedulable`)."""


def governed_requests(pod: Mapping[str, Any]) -> MilliResources:
    """Return the governed requests of a pod, in thousandths: devices, or cpu and memory of a gang without devices."""
    requests = device_requests(pod)
    if requests or not has_mark(pod):
        return requests
    return {name: amount for name, amount in pod_requests(pod).items() if amount and name in HOST_RESOURCES}


def is_governed(pod: Mapping[str, Any], unserved: frozenset[Kind] = frozenset()) -> bool:
    """Return whether a pod starts only when the arbiter admits it: it requests a device or carries a gang mark.

    A mark counts unless the tenant's API server is known not to serve its kind.
    """
    marked = has_mark(pod) and not (unserved and has_unserved_marks(pod, unserved))
    return marked or bool(device_requests(pod))


def has_gate(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod carries vkgateway's scheduling gate."""
    return ADMISSION_GATE in _gate_names(pod)


def other_gates(pod: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the scheduling gates of a pod except vkgateway's, in their order."""
    return tuple(name for name in _gate_names(pod) if name != ADMISSION_GATE)


def _gate_names(pod: Mapping[str, Any]) -> list[str]:
    return [gate["name"] for gate in (pod.get("spec") or {}).get("schedulingGates") or ()]


def ungate_patch(uid: str, narrowing: Mapping[str, str]) -> Object:
    """Return a strategic merge patch that removes vkgateway's gate and adds `narrowing` to the pod's node selector.

    Other gates stay. A gated pod's nodeSelector may be extended (KEP-3838). The API server rejects the patch with a
    conflict if the pod does not have the UID `uid`.
    """
    spec: Object = {"schedulingGates": [{"$patch": "delete", "name": ADMISSION_GATE}]}
    if narrowing:
        spec["nodeSelector"] = dict(narrowing)
    return {"metadata": {"uid": uid}, "spec": spec}


def reachable_nodes(pod: Mapping[str, Any], nodes: Mapping[str, VirtualNode]) -> tuple[str, ...]:
    """Return the names of the virtual nodes to which the tenant's scheduler may bind a pod, most preferred first.

    Equally preferred nodes keep the order of `nodes`. Node selector, required node affinity, taints and topology keys
    that a node lacks filter the nodes, preferred node affinity orders them. A pod that has a node can reach that node
    only.
    """
    spec = pod.get("spec") or {}
    settled = spec.get("nodeName")
    if settled:
        return (settled,) if settled in nodes else ()
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    needed = _needed_labels(spec)
    likings = {
        name: _preference_weight(affinity, name, labels)
        for name, (labels, taints) in nodes.items()
        if _matches_node(spec, affinity, name, labels)
        and all(key in labels for _, key in needed)
        and not _has_untolerated_taint(spec.get("tolerations") or (), taints)
    }
    return tuple(sorted(likings, key=lambda name: -likings[name]))


def has_pod_constraints(pod: Mapping[str, Any]) -> bool:
    """Return whether the choice of virtual node depends on other pods.

    It does with required affinity or anti-affinity among pods, and with topology spread that must be satisfied.
    """
    spec = pod.get("spec") or {}
    affinity = spec.get("affinity") or {}
    among_pods = (affinity.get(kind) or {} for kind in ("podAffinity", "podAntiAffinity"))
    spread = spec.get("topologySpreadConstraints") or ()
    return any(each.get(REQUIRED) for each in among_pods) or any(map(is_hard_spread, spread))


def is_hard_spread(constraint: Mapping[str, Any]) -> bool:
    """Return whether a topology spread constraint must be satisfied."""
    return constraint.get("whenUnsatisfiable") == "DoNotSchedule"


def _needed_labels(spec: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return field and key of the labels without which no node is feasible: the topology keys of hard topology spread
    and of required pod affinity.
    """
    spread = spec.get("topologySpreadConstraints") or ()
    terms = ((spec.get("affinity") or {}).get("podAffinity") or {}).get(REQUIRED) or ()
    return [
        *(
            (f"spec.topologySpreadConstraints[{index}].topologyKey", each["topologyKey"])
            for index, each in enumerate(spread)
            if is_hard_spread(each)
        ),
        *(
            (f"spec.affinity.podAffinity.{REQUIRED}[{index}].topologyKey", each["topologyKey"])
            for index, each in enumerate(terms)
        ),
    ]


def unreachable_reason(pod: Mapping[str, Any], nodes: Mapping[str, VirtualNode]) -> str:
    """Return why a pod can reach none of the tenant's virtual nodes: what keeps it off those that it selects."""
    spec = pod.get("spec") or {}
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    selected = [name for name, (labels, _) in nodes.items() if _matches_node(spec, affinity, name, labels)]
    if not selected:
        return f"no virtual node matches its node selector and affinity; available virtual nodes: {', '.join(nodes)}"
    needed = _needed_labels(spec)
    labeled = [name for name in selected if all(key in nodes[name][0] for _, key in needed)]
    if not labeled:
        field, key = next(each for each in needed if any(each[1] not in nodes[name][0] for name in selected))
        return (
            f"{field}: {key} is no label of virtual node {', '.join(selected)}; use a label that virtual nodes show,"
            " such as kubernetes.io/hostname, or ask the platform for virtual nodes by this label"
        )
    tolerations = spec.get("tolerations") or ()
    return "; ".join(_closed_reason(name, tolerations, nodes[name][1]) for name in labeled)


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
    """Return the sum of the weights of the preferred terms that match."""
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
