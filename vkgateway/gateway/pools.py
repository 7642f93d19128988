"""What the pools of a compute cluster hold, from its nodes (pure)."""

from __future__ import annotations

from collections.abc import Mapping

from vkgateway.model.api import Pool, PoolStatus
from vkgateway.translate.poolnodes import PoolNodes


def pool_status(pool: Pool, nodes: PoolNodes, *, guaranteed: Mapping[str, str]) -> PoolStatus:
    """Count a pool's nodes and sum up what the usable ones offer, beside what tenants are guaranteed of it."""
    return PoolStatus(
        name=pool.name,
        nodes=len(nodes.nodes),
        usable_nodes=sum(node.usable for node in nodes.nodes),
        allocatable=dict(nodes.allocatable),
        guaranteed=dict(guaranteed),
    )
