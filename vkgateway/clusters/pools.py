"""Pools of a compute cluster: status, facts for the arbiter, and quotas (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vkgateway.api.names import POOL_LABEL
from vkgateway.api.objects import NodeView
from vkgateway.api.requests import MilliResources, is_extended, to_milli
from vkgateway.api.types import Pool, PoolStatus, PrePullStatus, TenantPool, WithinTenant
from vkgateway.clusters.pool_nodes import PoolNodes, order_resources
from vkgateway.clusters.unmanaged_pods import UnmanagedPodView
from vkgateway.runtime.views.ownership import owned_by
from vkgateway.runtime.views.pods import ComputePodView
from vkgateway.scheduler.core.snapshot import Node, PoolKey, Quota
from vkgateway.scheduler.core.snapshot import Pool as PoolFacts
from vkgateway.scheduler.service.verdict_store import is_arbiter_placed, recorded_verdict

_MAX_NAMED = 3
"""Maximum number of nodes named in a message."""


def pool_status(
    pool: Pool,
    nodes: PoolNodes,
    *,
    guaranteed: Mapping[str, str],
    scheduling_mode: str = "",
    pre_pull: PrePullStatus | None = None,
) -> PoolStatus:
    """Return a pool's status: node counts, the sum of the usable nodes' allocatable resources, and guarantees."""
    return PoolStatus(
        name=pool.name,
        nodes=len(nodes.nodes),
        usable_nodes=sum(node.is_usable for node in nodes.nodes),
        allocatable=dict(nodes.total_allocatable),
        guaranteed=dict(guaranteed),
        scheduling_mode=scheduling_mode,
        pre_pull=pre_pull,
    )


def has_admitted_pods(pods: Iterable[ComputePodView], pool: str) -> bool:
    """Return whether pods run in a pool that its scheduler admitted."""
    return any(
        pod.metadata.labels.get(POOL_LABEL) == pool
        and not pod.has_ended
        and is_arbiter_placed(pod)
        and owned_by(pod.tenant_name, pod.metadata)
        for pod in pods
    )


def shared_nodes(pools: Mapping[str, PoolNodes]) -> str:
    """Return a message about pools that share nodes, whose capacity would count twice; empty if none do."""
    pools_by_node: dict[str, list[str]] = {}
    for name, nodes in pools.items():
        for node in nodes.nodes:
            pools_by_node.setdefault(node.metadata.name, []).append(name)
    shared: dict[tuple[str, ...], list[str]] = {}
    for node_name, names in sorted(pools_by_node.items()):
        if len(names) > 1:
            shared.setdefault(tuple(names), []).append(node_name)
    return "; ".join(f"pools {' and '.join(names)} share {_first_names(nodes)}" for names, nodes in shared.items())


def _first_names(nodes: list[str]) -> str:
    more = len(nodes) - _MAX_NAMED
    return ", ".join(nodes[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def pool_facts(
    key: PoolKey, nodes: PoolNodes, unmanaged_pods: Iterable[UnmanagedPodView] = (), *, cell_resource: str = ""
) -> PoolFacts:
    """Return the pool without tenant pods: its nodes with their extended resources.

    Resources of `unmanaged_pods` count as used. `cell_resource` is the resource of cells, if configured.
    """
    used: dict[str, MilliResources] = {}
    for pod in unmanaged_pods:
        node_used = used.setdefault(pod.node, {})
        for name, amount in pod.requests.items():
            if is_extended(name):
                node_used[name] = node_used.get(name, 0) + amount
    return PoolFacts(
        key=key,
        nodes=tuple(
            Node(
                name=node.metadata.name,
                allocatable=to_milli(_extended_resources(node)),
                used=used.get(node.metadata.name, {}),
                usable=node.is_usable,
            )
            for node in nodes.nodes
        ),
        governed=order_resources(nodes.governed_resources, cell_resource),
    )


def guaranteed_pods(pods: Iterable[ComputePodView], key: PoolKey, unit: str) -> list[tuple[str, str, int]]:
    """Return tenant, node and thousandths of `unit` of each pod that the arbiter placed inside its guarantee."""
    found = []
    for pod in pods:
        verdict = recorded_verdict(pod, key[0]) if is_arbiter_placed(pod) and not pod.has_ended else None
        if (
            verdict is not None
            and verdict.pool == key
            and not verdict.borrowed
            and owned_by(pod.tenant_name, pod.metadata)
        ):
            found.append((pod.tenant_name, verdict.node, (pod.admitted_requests or {}).get(unit, 0)))
    return found


def build_quota(
    tenant: str, tenant_pool: TenantPool, *, granted: float = 0.0, within: WithinTenant = "LowerPriority"
) -> Quota:
    """Return a tenant's quota in a pool, granted at a time (seconds since the epoch).

    `within` is the policy for preemption of the tenant's lower priorities by its higher ones.

    Raises:
        ValueError: a quantity is not valid.
    """
    return Quota(
        tenant=tenant,
        pool=(tenant_pool.compute_cluster, tenant_pool.name),
        guarantee=to_milli(tenant_pool.guarantee),
        limit=to_milli(tenant_pool.limit),
        weight=tenant_pool.weight,
        cells=tenant_pool.cells,
        preempts=within != "Never",
        granted=granted,
    )


def _extended_resources(node: NodeView) -> dict[str, str]:
    """Return the node's extended resources with a nonzero amount."""
    return {name: text for name, text in node.status.allocatable.items() if is_extended(name) and text != "0"}
