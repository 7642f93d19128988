"""What the pods of one tenant can use of a pool at most: now, and if all its nodes were usable."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from vkgateway.api.requests import MilliResources, render_milli
from vkgateway.api.types import Pool as PoolSpec
from vkgateway.scheduler.backends.amounts import pool_capacity, sum_requests
from vkgateway.scheduler.core.snapshot import Pod, Pool, Shape


class PoolSizes:
    """Sizes of a pool in thousandths, without the resources that no node reports."""

    def __init__(self, pool: Pool, spec: PoolSpec) -> None:
        self._nodes = pool.nodes
        self._skip: Collection[str] = spec.passed_through
        self.usable = pool_capacity(pool, spec)
        """What the virtual node of a tenant without a limit offers."""
        self._whole = _whole_capacity(pool, spec)
        self._largest: dict[Shape, bool] = {}

    def problem(self, pods: Sequence[Pod]) -> str:
        """Return why pods do not fit an empty pool; empty: they do. A pool without nodes fits everything."""
        requested = sum_requests(pods, skip=self._skip)
        over = {name: size for name, size in self._whole.items() if requested.get(name, 0) > size}
        if over:
            return f"its pods request more than the pool has: {render_milli(over)}"
        if not all(self._fits_a_node(pod.shape) for pod in pods):
            return "one of its pods requests more than any node of the pool has"
        return ""

    def _fits_a_node(self, shape: Shape) -> bool:
        known = self._largest.get(shape)
        if known is None:
            requests = [(name, amount) for name, amount in shape.requests if name in self._whole]
            known = self._largest[shape] = not self._nodes or any(
                all(node.allocatable.get(name, 0) >= amount for name, amount in requests) for node in self._nodes
            )
        return known


def _whole_capacity(pool: Pool, spec: PoolSpec) -> MilliResources:
    """Return the sum of all nodes' resources; empty for a pool without nodes."""
    nodes = tuple(replace(node, usable=True, used={}) for node in pool.nodes)
    return pool_capacity(replace(pool, nodes=nodes), spec) if nodes else {}
