"""What the pools of a compute cluster hold, from its nodes, and quotas in them as the arbiter knows them (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vkgateway.arbiter.snapshot import Node, PoolKey, Quota
from vkgateway.arbiter.snapshot import Pool as PoolFacts
from vkgateway.model.api import Pool, PoolStatus, TenantPool, WithinTenant
from vkgateway.model.objects import NodeView
from vkgateway.model.requests import MilliResources, to_milli
from vkgateway.sync.admission.pod_observer import is_arbiter_placed, recover_verdict
from vkgateway.sync.compute.unmanaged_pods import UnmanagedPodView
from vkgateway.sync.views.ownership import owned_by
from vkgateway.sync.views.pods import ComputePodView
from vkgateway.translate.governed import is_extended
from vkgateway.translate.pool_nodes import PoolNodes, order_resources

_MAX_NAMED = 3
"""So many nodes are named at most."""


def pool_status(pool: Pool, nodes: PoolNodes, *, guaranteed: Mapping[str, str]) -> PoolStatus:
    """Count a pool's nodes and sum up what the usable ones offer, beside what tenants are guaranteed of it."""
    return PoolStatus(
        name=pool.name,
        nodes=len(nodes.nodes),
        usable_nodes=sum(node.is_usable for node in nodes.nodes),
        allocatable=dict(nodes.total_allocatable),
        guaranteed=dict(guaranteed),
    )


def shared_nodes(pools: Mapping[str, PoolNodes]) -> str:
    """Say which pools, by name, have nodes in common; empty where none has: what both promise is there once."""
    holders: dict[str, list[str]] = {}
    for name, nodes in pools.items():
        for node in nodes.nodes:
            holders.setdefault(node.metadata.name, []).append(name)
    common: dict[tuple[str, ...], list[str]] = {}
    for node_name, names in sorted(holders.items()):
        if len(names) > 1:
            common.setdefault(tuple(names), []).append(node_name)
    return "; ".join(f"pools {' and '.join(names)} share {_first_names(nodes)}" for names, nodes in common.items())


def _first_names(nodes: list[str]) -> str:
    more = len(nodes) - _MAX_NAMED
    return ", ".join(nodes[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def pool_facts(
    key: PoolKey, nodes: PoolNodes, strangers: Iterable[UnmanagedPodView] = (), *, cell_resource: str = ""
) -> PoolFacts:
    """The pool with nothing of ours running on it: its nodes, and of each the extended resources alone.

    `strangers` are all pods that are not the gateway's: what they hold is nobody's to promise. `cell_resource` is what
    cells are pieces of, if that is said.
    """
    held: dict[str, MilliResources] = {}
    for stranger in strangers:
        here = held.setdefault(stranger.node, {})
        for name, amount in stranger.requests.items():
            if is_extended(name):
                here[name] = here.get(name, 0) + amount
    return PoolFacts(
        key=key,
        nodes=tuple(
            Node(
                name=node.metadata.name,
                allocatable=to_milli(_extended_resources(node)),
                used=held.get(node.metadata.name, {}),
                usable=node.is_usable,
            )
            for node in nodes.nodes
        ),
        governed=order_resources(nodes.governed_resources, cell_resource),
    )


def guaranteed_pods(pods: Iterable[ComputePodView], key: PoolKey, unit: str) -> list[tuple[str, str, int]]:
    """Tenant, node and thousandths of the unit of each pod that the arbiter placed in a pool inside its guarantee."""
    found = []
    for pod in pods:
        said = recover_verdict(pod, key[0]) if is_arbiter_placed(pod) and not pod.has_ended else None
        if said is not None and said.pool == key and not said.borrowed and owned_by(pod.tenant_name, pod.metadata):
            found.append((pod.tenant_name, said.node, (pod.admitted_requests or {}).get(unit, 0)))
    return found


def build_quota(
    tenant: str, wanted: TenantPool, *, granted: float = 0.0, within: WithinTenant = "LowerPriority"
) -> Quota:
    """A tenant's part of a pool, granted at a time (seconds since the epoch).

    `within` says whether the tenant's higher priorities preempt its lower ones.

    Raises:
        ValueError: a quantity cannot be read.
    """
    return Quota(
        tenant=tenant,
        pool=(wanted.compute_cluster, wanted.name),
        guarantee=to_milli(wanted.guarantee),
        limit=to_milli(wanted.limit),
        weight=wanted.weight,
        cells=wanted.cells,
        preempts=within != "Never",
        granted=granted,
    )


def _extended_resources(node: NodeView) -> dict[str, str]:
    """Of what a node offers, the extended resources that it has any of."""
    return {name: text for name, text in node.status.allocatable.items() if is_extended(name) and text != "0"}
