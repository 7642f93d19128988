"""Check that one machine of a pool fits a pod.

A virtual node offers the sum of its machines, but a pod needs one.

The rule has two halves. `size_gate_policy` is an admission policy in the tenant cluster: it gates each pod that is
larger than every machine of some pool, so that the tenant's scheduler does not bind it by the sum. `judge_size` then
selects the virtual nodes with a machine for such a pod, or returns why there is none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from vkgateway.api.names import ADMISSION_GATE
from vkgateway.api.objects import NodeView, Object
from vkgateway.api.requests import MilliResources, render_milli, to_milli
from vkgateway.kinds.context import HOSTNAME_LABEL
from vkgateway.kinds.pods.translation.node_terms import REQUIRED
from vkgateway.scheduler.governed import ungate_patch

POLICY_NAME: Final = "vkgateway-machine-size"
_HUGE_PAGES: Final = "hugepages-"
_HOST_RESOURCES: Final = ("cpu", "memory", "ephemeral-storage")
_POLICY_KIND: Final = "MutatingAdmissionPolicy"


def is_node_resource(resource: str) -> bool:
    """Return whether a resource belongs to the machine: cpu, memory, local storage or huge pages."""
    return resource in _HOST_RESOURCES or resource.startswith(_HUGE_PAGES)


def largest_nodes(nodes: Iterable[NodeView]) -> tuple[MilliResources, ...]:
    """Return the largest machine sizes, in thousandths: those that no other machine exceeds in every resource."""
    sizes = {
        tuple(
            sorted((name, value) for name, value in to_milli(node.status.allocatable).items() if is_node_resource(name))
        )
        for node in nodes
    }
    found = [dict(size) for size in sorted(sizes)]
    return tuple(one for one in found if not any(other is not one and fits_any(one, (other,)) for other in found))


def fits_any(requests: Mapping[str, int], machines: Iterable[MilliResources]) -> bool:
    """Return whether any of the machines, when empty, fits a pod's requests."""
    wanted = [(name, amount) for name, amount in requests.items() if amount and is_node_resource(name)]
    return any(all(machine.get(name, 0) >= amount for name, amount in wanted) for machine in machines)


def rejection_reason(requests: Mapping[str, int], machines: Sequence[MilliResources]) -> tuple[str, str] | None:
    """Return a kubelet's reason and message for a pod that no machine of a pool fits, or None if one does.

    A pool without machines rejects no pod, because its machines may come back.
    """
    if not machines or fits_any(requests, machines):
        return None
    over = excess_resource(requests, machines)
    return f"OutOf{over[0] if over is not None else 'cpu'}", oversize_message(requests, machines, where="the pool")


def excess_resource(requests: Mapping[str, int], machines: Sequence[MilliResources]) -> tuple[str, int, int] | None:
    """Return the first resource of which a pod requests more than any machine has: name, request, largest offer."""
    for name in sorted(filter(is_node_resource, requests), key=lambda name: (name not in _HOST_RESOURCES, name)):
        most = max((machine.get(name, 0) for machine in machines), default=0)
        if requests[name] > most:
            return name, requests[name], most
    return None


def oversize_message(requests: Mapping[str, int], machines: Sequence[MilliResources], *, where: str) -> str:
    """Return the sentence for a pod that no machine of `where` fits."""
    over = excess_resource(requests, machines)
    if over is not None:
        name, amount, most = over
        asked, offered = render_milli({name: amount}), render_milli({name: most})
        return f"no machine of {where} has {asked}; a pod can have {offered} at most"
    together = render_milli({name: amount for name, amount in requests.items() if amount and is_node_resource(name)})
    return f"no machine of {where} has {together} together"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolNodeSizes:
    """Machine sizes of the pool behind one virtual node."""

    virtual_node: str
    usable_sizes: tuple[MilliResources, ...]
    """Largest sizes of usable machines."""
    all_sizes: tuple[MilliResources, ...]
    """Largest sizes of all machines, including those that are cordoned or down."""
    has_several: bool = True
    """More than one machine is usable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeVerdict:
    """Virtual nodes that a pod may use by its size."""

    nodes: tuple[str, ...] = ()
    """Virtual nodes with a machine for the pod. Empty: the pod waits."""
    is_narrowed: bool = False
    """Other reachable virtual nodes have no machine for the pod."""
    is_temporary: bool = False
    """The pod waits for machines that exist but are not usable now."""
    reason: str = ""


def judge_size(requests: Mapping[str, int], pools: Sequence[PoolNodeSizes]) -> SizeVerdict:
    """Return the verdict for a pod on the pools that it can reach."""
    fitting = tuple(pool.virtual_node for pool in pools if fits_any(requests, pool.usable_sizes))
    if fitting:
        return SizeVerdict(nodes=fitting, is_narrowed=len(fitting) < len(pools))
    sleeping = [pool for pool in pools if fits_any(requests, pool.all_sizes)]
    if sleeping:
        names = ", ".join(pool.virtual_node for pool in sleeping)
        return SizeVerdict(
            is_temporary=True, reason=f"the machines of {names} that are large enough are not usable now"
        )
    return SizeVerdict(
        reason="; ".join(oversize_message(requests, pool.all_sizes, where=pool.virtual_node) for pool in pools)
    )


def admit_patch(pod: Object, verdict: SizeVerdict) -> Object:
    """Return the strategic merge patch that removes vkgateway's gate and restricts the pod to the nodes of a verdict.

    A gated pod's node affinity may be narrowed: expressions may be added to each of its terms (KEP-3838).
    """
    only = {HOSTNAME_LABEL: verdict.nodes[0]} if _is_single(verdict) else {}
    patch = ungate_patch(pod["metadata"]["uid"], only)
    if verdict.is_narrowed and not _is_single(verdict):
        expression = {"key": HOSTNAME_LABEL, "operator": "In", "values": list(verdict.nodes)}
        affinity = ((pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED) or {}
        terms = affinity.get("nodeSelectorTerms") or [{}]
        narrowed = [{**term, "matchExpressions": [*(term.get("matchExpressions") or ()), expression]} for term in terms]
        patch["spec"]["affinity"] = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": narrowed}}}
    return patch


def _is_single(verdict: SizeVerdict) -> bool:
    return verdict.is_narrowed and len(verdict.nodes) == 1


def size_gate_policy(pools: Iterable[tuple[MilliResources, ...]], *, api_version: str) -> list[Object]:
    """Return the admission policy and its binding for pools with these machine sizes (`largest_nodes`).

    The policy counts init containers as if all ran at the same time. It may gate a pod that fits, and the gateway then
    removes the gate.
    """
    shapes = sorted({json.dumps([_whole_units(machine) for machine in pool], sort_keys=True) for pool in pools if pool})
    names = sorted({name for shape in shapes for machine in json.loads(shape) for name in machine})
    return [
        {
            "apiVersion": api_version,
            "kind": _POLICY_KIND,
            "metadata": {"name": POLICY_NAME},
            "spec": {
                "failurePolicy": "Ignore",
                "reinvocationPolicy": "IfNeeded",
                "matchConstraints": {
                    "matchPolicy": "Equivalent",
                    "namespaceSelector": {},
                    "objectSelector": {},
                    "resourceRules": [
                        {
                            "apiGroups": [""],
                            "apiVersions": ["v1"],
                            "operations": ["CREATE"],
                            "resources": ["pods"],
                            "scope": "*",
                        }
                    ],
                },
                "matchConditions": [{"name": "larger-than-a-machine", "expression": _larger_expression(shapes, names)}],
                "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": _ADD_GATE}}],
            },
        },
        {
            "apiVersion": api_version,
            "kind": f"{_POLICY_KIND}Binding",
            "metadata": {"name": POLICY_NAME},
            "spec": {"policyName": POLICY_NAME},
        },
    ]


_BOUND_EXPRESSION: Final = "has(object.spec.nodeName) && object.spec.nodeName != ''"
_GATED_EXPRESSION: Final = (
    f"has(object.spec.schedulingGates) && object.spec.schedulingGates.exists(gate, gate.name == '{ADMISSION_GATE}')"
)
_CONTAINERS: Final = "(object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : []))"
_GATE: Final = f"{{'name': '{ADMISSION_GATE}'}}"
_ADD_GATE: Final = (
    "has(object.spec.schedulingGates)"
    f" ? [JSONPatch{{op: 'add', path: '/spec/schedulingGates/-', value: {_GATE}}}]"
    f" : [JSONPatch{{op: 'add', path: '/spec/schedulingGates', value: [{_GATE}]}}]"
)


def _larger_expression(shapes: Sequence[str], names: Sequence[str]) -> str:
    """Return the CEL expression that is true for a pod that fits no machine of at least one pool.

    Each created pod pays for the evaluation. So one condition covers all pools, and most pods end at its cheap part:
    they fit even the smallest amount that any machine has of each resource.
    """
    machines = [machine for shape in shapes for machine in json.loads(shape)]
    if not machines or not names:
        return "false"
    least = {name: min(machine.get(name, 0.0) for machine in machines) for name in names}
    large = " || ".join(f"{_sum_expression(name)} > {json.dumps(amount)}" for name, amount in least.items())
    pod = "{" + ", ".join(f"'{name}': {_request_expression(name)}" for name in names) + "}"
    fits_one = "pool.exists(machine, pod.all(name, name in machine && pod[name] <= machine[name] || pod[name] == 0.0))"
    exact = f"[{pod}].exists(pod, [{', '.join(shapes)}].exists(pool, !{fits_one}))"
    whole = "has(object.spec.resources) || has(object.spec.overhead)"
    return f"!({_BOUND_EXPRESSION}) && !({_GATED_EXPRESSION}) && ({whole} || {large}) && {exact}"


def _request_expression(name: str) -> str:
    """Return the CEL expression for the amount of a resource that a pod requests, as a number."""
    whole = (
        f"{_has_request_expression('object.spec', name)} ? "
        f"{_request_value('object.spec', name)} : {_sum_expression(name)}"
    )
    extra = _float_expression(f"object.spec.overhead['{name}']")
    return f"({whole}) + (has(object.spec.overhead) && '{name}' in object.spec.overhead ? {extra} : 0.0)"


def _sum_expression(name: str) -> str:
    one = f"{_has_request_expression('c', name)} ? {_request_value('c', name)} : 0.0"
    return f"{_CONTAINERS}.map(c, {one}).sum()"


def _has_request_expression(owner: str, name: str) -> str:
    return f"has({owner}.resources) && has({owner}.resources.requests) && '{name}' in {owner}.resources.requests"


def _request_value(owner: str, name: str) -> str:
    return _float_expression(f"{owner}.resources.requests['{name}']")


def _float_expression(quantity: str) -> str:
    return f"quantity(string({quantity})).asApproximateFloat()"


def _whole_units(machine: Mapping[str, int]) -> dict[str, float]:
    return {name: amount / 1000 for name, amount in machine.items()}
