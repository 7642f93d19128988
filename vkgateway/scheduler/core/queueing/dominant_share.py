"""Dominant share of a pool beyond a guarantee. This module does without numpy, as a starting gateway does."""

from __future__ import annotations

from collections.abc import Mapping

from vkgateway.api.requests import MilliResources
from vkgateway.scheduler.core.snapshot import Pool
from vkgateway.scheduler.governed import HOST_RESOURCES


def usable_capacity(pool: Pool) -> MilliResources:
    """Return the capacity of the pool's usable nodes in each device, cpu and memory, in thousandths."""
    return {
        name: sum(node.allocatable.get(name, 0) for node in pool.nodes if node.usable)
        for name in (*pool.governed, *HOST_RESOURCES)
    }


def share_beyond(used: Mapping[str, int], guarantee: Mapping[str, int], capacity: Mapping[str, int]) -> float:
    """Return the largest part of the capacity, over its resources, that is used beyond the guarantee; at least 0."""
    largest = 0.0
    for name, total in capacity.items():
        over = used.get(name, 0) - guarantee.get(name, 0)
        if over > 0:
            largest = max(largest, over / max(1, total))
    return largest
