"""Workloads: the objects that ask Kueue to admit a gang."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from vkgateway.api.names import SYSTEM_NAMESPACE
from vkgateway.api.objects import Object
from vkgateway.api.scheduling import queue_name
from vkgateway.api.types import KUEUE
from vkgateway.scheduler.backends.amounts import render_amount
from vkgateway.scheduler.backends.attempt_objects import attempt_metadata
from vkgateway.scheduler.backends.kueue.names import API_VERSION, HOSTNAME
from vkgateway.scheduler.backends.mode import Request
from vkgateway.scheduler.backends.pod_sets import count_pod_sets, pod_set_name
from vkgateway.scheduler.core.snapshot import GUARANTEED, Gang, Requirement, Shape, Toleration

MAX_POD_SETS: Final = 8
"""Maximum number of pod sets in a Workload, as its CRD says."""
_STAYS_ON_CORDONED_NODES: Final = Toleration(
    key="node.kubernetes.io/unschedulable", operator="Exists", effect="NoSchedule"
)
"""Kueue starts nothing on a cordoned node anyway. Without this toleration, it also moves the slots of pods that run
there, or evicts their gang if it finds no other node."""
_BAND_STEP: Final = 1_000_000_000
_MOST_PRIORITY: Final = 450_000_000
_SURPLUS_STEP: Final = 500_000_000


def workload(request: Request) -> Object:
    """Return the Workload of an attempt."""
    spec = workload_spec(request)
    metadata = attempt_metadata(request, spec, mode=KUEUE, namespace=SYSTEM_NAMESPACE)
    return {"apiVersion": API_VERSION, "kind": "Workload", "metadata": metadata, "spec": spec}


def workload_spec(request: Request) -> Object:
    """Return what a Workload asks for."""
    gang, spec = request.gang, request.spec
    return {
        "queueName": queue_name(spec.scheduling, tenant=gang.tenant, pool=spec.name),
        "priority": workload_priority(gang, is_surplus=request.is_surplus),
        "podSets": _pod_sets(request),
    }


def workload_priority(gang: Gang, *, is_surplus: bool = False) -> int:
    """Return the priority of a gang's Workload: the guaranteed band before the low band, then the gang's priority.

    Surplus ranks below the whole gangs of its band.
    """
    band = 0 if gang.band is GUARANTEED else -_BAND_STEP
    own = max(-_MOST_PRIORITY, min(_MOST_PRIORITY, gang.priority)) if gang.preempts else 0
    return band + own // 2 - (_SURPLUS_STEP // 2 if is_surplus else 0)


def _pod_sets(request: Request) -> list[Object]:
    by_name: dict[str, Shape] = {}
    for pod in request.pods:
        by_name.setdefault(pod_set_name(pod), pod.shape)
    # An administrator's own flavors may have no topology, and then refuse requests for one.
    topology = _topology_request(request) if request.spec.scheduling.manage_queues else {}
    return [
        {
            "name": each.name,
            "count": each.count,
            "template": _template(by_name[each.name], skip=request.spec.passed_through),
            **topology,
        }
        for each in count_pod_sets(request.pods)
    ]


def _topology_request(request: Request) -> Object:
    gang, levels = request.gang, (*request.levels, HOSTNAME)
    if gang.required_level in levels:
        return {"topologyRequest": {"required": gang.required_level}}
    if gang.preferred_level in levels:
        return {"topologyRequest": {"preferred": gang.preferred_level}}
    return {"topologyRequest": {"unconstrained": True}}


def _template(shape: Shape, *, skip: Sequence[str]) -> Object:
    """Return a pod template with requests and node constraints only; Kueue needs no more."""
    requests = {name: render_amount(amount) for name, amount in shape.requests if name != "pods" and name not in skip}
    spec: Object = {"containers": [{"name": "pod", "image": "vkgateway", "resources": {"requests": requests}}]}
    spec["tolerations"] = _tolerations((*shape.tolerations, _STAYS_ON_CORDONED_NODES))
    if shape.terms:
        terms = [{"matchExpressions": [_expression(each) for each in term]} for term in shape.terms]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        spec["affinity"] = {"nodeAffinity": required}
    return {"spec": spec}


def _expression(requirement: Requirement) -> Object:
    values = {"values": list(requirement.values)} if requirement.values else {}
    return {"key": requirement.key, "operator": requirement.operator, **values}


def _tolerations(tolerations: Iterable[Toleration]) -> list[Mapping[str, Any]]:
    return [
        {
            name: value
            for name, value in (
                ("key", each.key),
                ("operator", each.operator),
                ("value", each.value),
                ("effect", each.effect),
            )
            if value
        }
        for each in tolerations
    ]
