"""Kueue's objects for a pool and its tenants: topology, flavor, cohort, and one queue for each tenant.

A tenant's guarantee is the nominal quota of its queue, and its limit the most that the queue may use with borrowing.
What no tenant is guaranteed belongs to the cohort, from which every queue borrows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from vkgateway.arbiter.snapshot import Pool, Quota
from vkgateway.model.api import KUEUE
from vkgateway.model.api import Pool as PoolSpec
from vkgateway.model.names import POOL_LABEL, SYSTEM_NAMESPACE, TENANT_LABEL
from vkgateway.model.objects import Object
from vkgateway.model.requests import MilliResources
from vkgateway.model.scheduling import queue_name
from vkgateway.modes.kueue.names import ANY_NODE_LABELS, API_VERSION, HOSTNAME, cohort_name, flavor_name
from vkgateway.modes.kueue.workloads import render_amount
from vkgateway.modes.names import MODE_LABEL

_ALWAYS_COVERED: Final = ("cpu", "memory")
"""Resources that nearly every pod requests, also while the pool has no node."""
_UNCOVERED: Final = frozenset({"pods"})


def pool_objects(pool: Pool, spec: PoolSpec, quotas: Sequence[Quota]) -> list[Object]:
    """Return the objects of a pool; none if the administrator manages the queues."""
    if not spec.scheduling.manage_queues:
        return []
    capacity = _capacity(pool, spec)
    levels, flavor = _topology_spec(topology_levels(pool, spec)), _flavor_spec(spec)
    name = flavor_name(spec.name, [levels, flavor])
    return [
        _object("Topology", name, spec, levels),
        _object("ResourceFlavor", name, spec, {**flavor, "topologyName": name}),
        _object("Cohort", cohort_name(spec.name), spec, _cohort_spec(name, capacity, quotas)),
        *(each for quota in quotas for each in _queues(spec, name, capacity, quota)),
    ]


def _object(kind: str, name: str, spec: PoolSpec, content: Object, **labels: str) -> Object:
    metadata = {"name": name, "labels": {MODE_LABEL: KUEUE, POOL_LABEL: spec.name, **labels}}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": content}


def _capacity(pool: Pool, spec: PoolSpec) -> MilliResources:
    """Return the sum of the usable nodes' resources, of devices without those that other pods use."""
    total: MilliResources = dict.fromkeys(_ALWAYS_COVERED, 0)
    skipped = _UNCOVERED | set(spec.passed_through)
    for node in pool.nodes:
        for name, amount in node.allocatable.items():
            if name not in skipped:
                taken = node.used.get(name, 0) if name in pool.governed else 0
                total[name] = total.get(name, 0) + (max(0, amount - taken) if node.usable else 0)
    return dict(sorted(total.items()))


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


def _cohort_spec(flavor: str, capacity: Mapping[str, int], quotas: Sequence[Quota]) -> Object:
    spare = {
        name: max(0, amount - sum(quota.guarantee.get(name, 0) for quota in quotas))
        for name, amount in capacity.items()
    }
    return {"resourceGroups": [_resource_group(flavor, {name: {"nominal": spare[name]} for name in capacity})]}


def _queues(spec: PoolSpec, flavor: str, capacity: Mapping[str, int], quota: Quota) -> Iterator[Object]:
    name = queue_name(spec.scheduling, tenant=quota.tenant, pool=spec.name)
    labels = {TENANT_LABEL: quota.tenant}
    amounts = {each: _queue_amounts(each, quota) for each in capacity}
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


def _queue_amounts(resource: str, quota: Quota) -> dict[str, int]:
    """Return the nominal quota of a tenant's queue and, for a limited resource, its borrowing limit."""
    nominal = max(0, quota.guarantee.get(resource, 0))
    if resource not in quota.limit:
        return {"nominal": nominal}
    limit = max(0, quota.limit[resource])
    return {"nominal": min(nominal, limit), "borrowing": max(0, limit - nominal)}


def _resource_group(flavor: str, amounts: Mapping[str, Mapping[str, int]]) -> Object:
    resources: list[dict[str, Any]] = []
    for name, amount in amounts.items():
        quota = {"name": name, "nominalQuota": render_amount(amount["nominal"])}
        if "borrowing" in amount:
            quota["borrowingLimit"] = render_amount(amount["borrowing"])
        resources.append(quota)
    return {"coveredResources": list(amounts), "flavors": [{"name": flavor, "resources": resources}]}
