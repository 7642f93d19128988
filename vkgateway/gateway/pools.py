"""What the pools of a compute cluster hold, from its nodes (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vkgateway.model.api import Pool, PoolStatus
from vkgateway.model.objects import NodeView
from vkgateway.translate.nodes import capacity, in_pool


def pool_status(pool: Pool, nodes: Iterable[NodeView], *, guaranteed: Mapping[str, str]) -> PoolStatus:
    """Count a pool's nodes and sum up what the usable ones offer, beside what tenants are guaranteed of it."""
    chosen = [node for node in nodes if in_pool(node, pool.node_selector)]
    return PoolStatus(
        name=pool.name,
        nodes=len(chosen),
        usable_nodes=sum(node.usable for node in chosen),
        allocatable=dict(capacity(chosen, limit={})),
        guaranteed=dict(guaranteed),
    )
