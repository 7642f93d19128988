"""Kueue as a scheduling mode."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from vkgateway.api.names import POOL_LABEL, SYSTEM_NAMESPACE, TENANT_LABEL
from vkgateway.api.objects import Object
from vkgateway.api.scheduling import SchedulerMarks, queue_name
from vkgateway.api.types import KUEUE
from vkgateway.api.types import Pool as PoolSpec
from vkgateway.scheduler.backends.amounts import pool_capacity, render_amount
from vkgateway.scheduler.backends.attempt import Attempt
from vkgateway.scheduler.backends.attempt_objects import attempt_metadata, spec_digest
from vkgateway.scheduler.backends.gang_split import GangSplitter
from vkgateway.scheduler.backends.guarantee import nominal_guarantees
from vkgateway.scheduler.backends.kueue.names import (
    ANY_NODE_LABELS,
    API_VERSION,
    HOSTNAME,
    TOPOLOGY_ANNOTATION,
    cohort_name,
    flavor_name,
)
from vkgateway.scheduler.backends.mode import ModeInput, Request
from vkgateway.scheduler.backends.names import MODE_LABEL
from vkgateway.scheduler.backends.pod_sets import count_pod_sets, pod_set_name
from vkgateway.scheduler.core.snapshot import GUARANTEED, Gang, Pod, Pool, Quota, Requirement, Shape, Toleration

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


class KueueMode:
    """Implementation of `SchedulingMode`."""

    max_pod_sets = MAX_POD_SETS
    retry_seconds = 0.0
    takes_slots_back = True

    def marks(self, _request: Request, _pod: Pod) -> SchedulerMarks:
        """See `SchedulingMode`. Without the annotation, Kueue would count each pod twice."""
        return SchedulerMarks(annotations={TOPOLOGY_ANNOTATION: "true"})

    def implied_attempts(self, _given: ModeInput, _splitter: GangSplitter) -> Mapping[str, Attempt]:
        """See `SchedulingMode`."""
        return {}

    def attempt_object(self, request: Request) -> Object:
        """See `SchedulingMode`."""
        return workload(request)

    def digest(self, request: Request) -> str:
        """See `SchedulingMode`."""
        return spec_digest(workload_spec(request))

    def levels(self, pool: Pool, spec: PoolSpec) -> tuple[str, ...]:
        """See `SchedulingMode`."""
        return topology_levels(pool, spec)

    def pool_objects(self, pool: Pool, spec: PoolSpec, quotas: Sequence[Quota], _gangs: Sequence[Gang]) -> list[Object]:
        """See `SchedulingMode`."""
        return pool_objects(pool, spec, quotas)


# A tenant's guarantee is the nominal quota of its queue, and its limit the most that the queue may use with
# borrowing. What no tenant is guaranteed belongs to the cohort, from which every queue borrows.
def pool_objects(pool: Pool, spec: PoolSpec, quotas: Sequence[Quota]) -> list[Object]:
    """Return the objects of a pool; none if the administrator manages the queues."""
    if not spec.scheduling.manage_queues:
        return []
    capacity = pool_capacity(pool, spec)
    nominal = nominal_guarantees(pool, spec, quotas)
    levels, flavor = _topology_spec(topology_levels(pool, spec)), _flavor_spec(spec)
    name = flavor_name(spec.name, [levels, flavor])
    return [
        _object("Topology", name, spec, levels),
        _object("ResourceFlavor", name, spec, {**flavor, "topologyName": name}),
        _object("Cohort", cohort_name(spec.name), spec, _cohort_spec(name, capacity, nominal.values())),
        *(each for quota in quotas for each in _queues(spec, name, nominal[quota.tenant], quota)),
    ]


def _object(kind: str, name: str, spec: PoolSpec, content: Object, **labels: str) -> Object:
    metadata = {"name": name, "labels": {MODE_LABEL: KUEUE, POOL_LABEL: spec.name, **labels}}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": content}


def topology_levels(pool: Pool, spec: PoolSpec) -> tuple[str, ...]:
    """Return the levels of a pool that Kueue can use, above the host name.

    Kueue 0.17 confuses a domain with a node whose host name is the same, and then admits less than fits.
    """
    hosts = {node.labels.get(HOSTNAME, node.name) for node in pool.nodes}
    return tuple(
        level
        for level in spec.levels
        if level != HOSTNAME and not any(node.labels.get(level) in hosts for node in pool.nodes)
    )


def _topology_spec(levels: Sequence[str]) -> Object:
    return {"levels": [{"nodeLabel": level} for level in (*levels, HOSTNAME)]}


def _flavor_spec(spec: PoolSpec) -> Object:
    tolerations = {"tolerations": list(spec.tolerations)} if spec.tolerations else {}
    return {"nodeLabels": dict(spec.node_selector or ANY_NODE_LABELS), **tolerations}


def _cohort_spec(flavor: str, capacity: Mapping[str, int], nominal: Collection[Mapping[str, int]]) -> Object:
    spare = {name: max(0, amount - sum(each[name] for each in nominal)) for name, amount in capacity.items()}
    return {"resourceGroups": [_resource_group(flavor, {name: {"nominal": spare[name]} for name in capacity})]}


def _queues(spec: PoolSpec, flavor: str, nominal: Mapping[str, int], quota: Quota) -> Iterator[Object]:
    name = queue_name(spec.scheduling, tenant=quota.tenant, pool=spec.name)
    labels = {TENANT_LABEL: quota.tenant}
    amounts = {each: _queue_amounts(each, amount, quota) for each, amount in nominal.items()}
    content = {
        "cohortName": cohort_name(spec.name),
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": SYSTEM_NAMESPACE}},
        "queueingStrategy": "BestEffortFIFO",
        "preemption": {
            "reclaimWithinCohort": "Any",
            "withinClusterQueue": "LowerPriority" if quota.preempts else "Never",
            "borrowWithinCohort": {"policy": "Never"},
        },
        "resourceGroups": [_resource_group(flavor, amounts)],
    }
    yield _object("ClusterQueue", name, spec, content, **labels)
    local = _object("LocalQueue", name, spec, {"clusterQueue": name}, **labels)
    local["metadata"]["namespace"] = SYSTEM_NAMESPACE
    yield local


def _queue_amounts(resource: str, nominal: int, quota: Quota) -> dict[str, int]:
    """Return the nominal quota of a tenant's queue and, for a limited resource, its borrowing limit.

    The queue borrows nothing while a budget for the resource is used up. Kueue evicts no workload for that.
    """
    limit = max(0, quota.limit[resource]) if resource in quota.limit else None
    if resource in quota.stopped:
        return {"nominal": nominal if limit is None else min(nominal, limit), "borrowing": 0}
    if limit is None:
        return {"nominal": nominal}
    return {"nominal": min(nominal, limit), "borrowing": max(0, limit - nominal)}


def _resource_group(flavor: str, amounts: Mapping[str, Mapping[str, int]]) -> Object:
    resources: list[dict[str, Any]] = []
    for name, amount in amounts.items():
        quota = {"name": name, "nominalQuota": render_amount(amount["nominal"])}
        if "borrowing" in amount:
            quota["borrowingLimit"] = render_amount(amount["borrowing"])
        resources.append(quota)
    return {"coveredResources": list(amounts), "flavors": [{"name": flavor, "resources": resources}]}
