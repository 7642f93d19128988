"""Amounts of resources for schedulers: the capacity of a pool, the requests of pods, and their texts."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from vkgateway.api.requests import MilliResources
from vkgateway.api.types import Pool as PoolSpec
from vkgateway.scheduler.core.snapshot import Pod, Pool

_ALWAYS_COVERED: Final = ("cpu", "memory")
"""Resources that nearly every pod requests, also while the pool has no node."""
_UNCOVERED: Final = frozenset({"pods"})


def pool_capacity(pool: Pool, spec: PoolSpec) -> MilliResources:
    """Return the sum of the usable nodes' resources, of devices without those that other pods use."""
    total: MilliResources = dict.fromkeys(_ALWAYS_COVERED, 0)
    skipped = _UNCOVERED | set(spec.passed_through)
    for node in pool.nodes:
        for name, amount in node.allocatable.items():
            if name not in skipped:
                taken = node.used.get(name, 0) if name in pool.governed else 0
                total[name] = total.get(name, 0) + (max(0, amount - taken) if node.usable else 0)
    return dict(sorted(total.items()))


def sum_requests(pods: Iterable[Pod], *, skip: Collection[str] = ()) -> MilliResources:
    """Return the sum of the requests of pods, without their number."""
    total: MilliResources = {}
    skipped = _UNCOVERED | set(skip)
    for pod in pods:
        for name, amount in pod.shape.requests:
            if name not in skipped:
                total[name] = total.get(name, 0) + amount
    return dict(sorted(total.items()))


def render_amount(amount: int) -> str:
    """Return thousandths as a quantity: `8`, `250m`."""
    return str(amount // 1000) if amount % 1000 == 0 else f"{amount}m"
