"""Pools of a compute cluster: status, facts for the arbiter, and quotas (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from vkgateway.api.names import POOL_LABEL, virtual_node_name
from vkgateway.api.objects import NodeView
from vkgateway.api.requests import MilliResources, is_extended, to_milli
from vkgateway.api.types import Pool, PoolStatus, PrePullStatus, TenantPool, TenantPoolStatus, WithinTenant
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPart:
    """Nodes of a pool behind one virtual node.

    The nodes have `value` of the label `label`. An empty value selects nodes without the label, an empty label all
    nodes of the pool. A `retired` part accepts no more pods: the pool is divided by another label now, or no node has
    the value.
    """

    label: str = ""
    value: str = ""
    retired: bool = False

    def node_selector(self, pool: Pool) -> dict[str, str]:
        """Return the node selector of the part."""
        return {**pool.node_selector, self.label: self.value} if self.value else pool.node_selector

    @property
    def absent_label(self) -> str:
        """The label that the part's nodes must not carry, or ""."""
        return self.label if not self.value else ""

    def node_name(self, tenant_pool: TenantPool) -> str:
        """Return the name of the part's virtual node."""
        return virtual_node_name(tenant_pool.name, tenant_pool.compute_cluster, self.value)


WHOLE_POOL = PoolPart()


def split_pool(
    pool: Pool,
    values: frozenset[str],
    *,
    nodes_known: bool,
    shown: Iterable[TenantPoolStatus],
    is_occupied: Callable[[str], bool],
) -> tuple[PoolPart, ...]:
    """Return the parts of a pool, one for each virtual node of the tenant.

    `values` are the last known values of the dividing label on the pool's nodes. `shown` are the tenant's current
    virtual nodes of this pool. An obsolete node that `is_occupied` (called with its name) becomes retired until its
    pods have terminated. While the compute nodes are unknown, the current parts stay.
    """
    parts = {"": WHOLE_POOL}
    if pool.virtual_nodes_by:
        values = values or frozenset(("",))
        parts = {value: PoolPart(label=pool.virtual_nodes_by, value=value) for value in sorted(values)}
    previous = {status.value: status for status in shown}
    if not nodes_known and previous:
        return tuple(PoolPart(label=status.virtual_nodes_by, value=status.value) for status in previous.values())
    retired = [
        PoolPart(label=status.virtual_nodes_by, value=value, retired=True)
        for value, status in previous.items()
        if value not in parts and is_occupied(status.node_name)
    ]
    return (*parts.values(), *retired)
