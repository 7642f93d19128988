"""Kueue's objects for a pool and its tenants: topology, flavor, cohort, and one queue for each tenant.

A tenant's guarantee is the nominal quota of its queue, and its limit the most that the queue may use with borrowing.
What no tenant is guaranteed belongs to the cohort, from which every queue borrows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from vkgateway.api.names import POOL_LABEL, SYSTEM_NAMESPACE, TENANT_LABEL
from vkgateway.api.objects import Object
from vkgateway.api.scheduling import queue_name
from vkgateway.api.types import KUEUE
from vkgateway.api.types import Pool as PoolSpec
from vkgateway.scheduler.backends.amounts import pool_capacity, render_amount
from vkgateway.scheduler.backends.guarantee import nominal_guarantees
from vkgateway.scheduler.backends.kueue.names import (
    ANY_NODE_LABELS,
    API_VERSION,
    HOSTNAME,
    cohort_name,
    flavor_name,
)
from vkgateway.scheduler.backends.names import MODE_LABEL
from vkgateway.scheduler.core.snapshot import Pool, Quota


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
