"""The virtual nodes on which a pod may run, and the pools and compute nodes behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vkgateway.api.names import COMPUTE_CLUSTER_LABEL, POOL_LABEL
from vkgateway.api.objects import Object
from vkgateway.kinds.context import HOSTNAME_LABEL
from vkgateway.kinds.tenant_scope import VirtualNodeBinding
from vkgateway.scheduler.core.snapshot import PoolKey
from vkgateway.scheduler.governed import VirtualNode


def shown_nodes(bindings: Mapping[str, VirtualNodeBinding], nodes: Mapping[str, VirtualNode]) -> dict[str, VirtualNode]:
    """Return the virtual nodes with the gateway's labels, and with the labels and taints that the tenant added.

    `nodes` are those that the tenant's API server has shown; a node that is not shown yet has the gateway's labels.
    """
    shown: dict[str, VirtualNode] = {}
    for name, binding in bindings.items():
        labels, taints = nodes.get(name, ({}, ()))
        shown[name] = {**labels, **binding.pool.virtual_labels()}, taints
    return shown


def pools_of(nodes: Sequence[str], bindings: Mapping[str, VirtualNodeBinding]) -> tuple[PoolKey, ...]:
    """Return the pools that virtual nodes belong to, each once, in the order of the nodes."""
    return tuple(dict.fromkeys(bindings[name].pool_key for name in nodes))


def virtual_node_terms(nodes: Sequence[str], bindings: Mapping[str, VirtualNodeBinding]) -> list[Object]:
    """Return node selector terms for the compute nodes behind the virtual nodes on which a pod may run.

    One term must hold. Empty if the pod may run on all virtual nodes of these pools: then compute nodes need no
    selector.
    """
    pools = set(pools_of(nodes, bindings))
    everywhere = {name for name, binding in bindings.items() if binding.pool_key in pools}
    if everywhere == set(nodes):
        return []
    return [{"matchExpressions": bindings[name].pool.node_requirements()} for name in nodes]


def narrowing_selector(
    pool: PoolKey, compute_node: str, bindings: Mapping[str, VirtualNodeBinding], *, any_part: bool
) -> dict[str, str]:
    """Return the node selector that leads the tenant's scheduler to the virtual node in front of a compute node.

    With `any_part`, or if no virtual node is in front of the compute node, it selects any virtual node of the pool.
    """
    fronts = virtual_nodes_for(pool, "" if any_part else compute_node, bindings)
    if len(fronts) == 1:
        return {HOSTNAME_LABEL: fronts[0]}
    return {COMPUTE_CLUSTER_LABEL: pool[0], POOL_LABEL: pool[1]}


def virtual_nodes_for(pool: PoolKey, compute_node: str, bindings: Mapping[str, VirtualNodeBinding]) -> list[str]:
    """Return the virtual nodes of a pool; with a compute node, only those in front of it.

    The only virtual node of a pool is in front of all its compute nodes, known or not.
    """
    fronts = [name for name, binding in bindings.items() if binding.pool_key == pool]
    if len(fronts) == 1 or not compute_node:
        return fronts
    return [name for name in fronts if bindings[name].has_compute_node(compute_node)]
