"""What the pools of a compute cluster hold, from its nodes (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vkgateway.model import quantity
from vkgateway.model.api import Pool, PoolStatus
from vkgateway.model.objects import NodeView


def members(pool: Pool, nodes: Iterable[NodeView]) -> list[NodeView]:
    """Return the nodes that the pool's selector chooses."""
    wanted = pool.node_selector.items()
    return [node for node in nodes if wanted <= node.metadata.labels.items()]


def pool_status(pool: Pool, nodes: Iterable[NodeView], *, guaranteed: Mapping[str, str]) -> PoolStatus:
    """Count a pool's nodes and sum up what the usable ones offer, beside what tenants are guaranteed of it."""
    chosen = members(pool, nodes)
    usable = [node for node in chosen if node.usable]
    return PoolStatus(
        name=pool.name,
        nodes=len(chosen),
        usable_nodes=len(usable),
        allocatable=dict(quantity.total(node.status.allocatable for node in usable)),
        guaranteed=dict(guaranteed),
    )
