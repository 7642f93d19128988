"""Clusters and tenants of a simulation, without a file: N nodes of M GPUs, and equal guarantees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vkgateway.scheduler.core.snapshot import Node, Pool, PoolKey, Quota
from vkgateway_platform.simulate.scenario import GPU, POOL


def equal_nodes(number: int, gpus: int, *, key: PoolKey = POOL) -> Pool:
    """Return a pool of equal nodes."""
    digits = len(str(max(0, number - 1)))
    nodes = tuple(Node(name=f"n{index:0{digits}}", allocatable={GPU: gpus * 1000}) for index in range(number))
    return Pool(key=key, nodes=nodes, governed=(GPU,))


def equal_quotas(pool: Pool, tenants: int, *, guaranteed: float) -> tuple[Quota, ...]:
    """Divide a share of the pool into equal guarantees of whole nodes, or of whole GPUs where nodes are few."""
    sizes = sorted((node.allocatable.get(pool.unit_resource, 0) // 1000 for node in pool.nodes), reverse=True)
    each = int(sum(sizes) * guaranteed) // tenants
    largest = sizes[0] if sizes else 1
    each = each // largest * largest or each
    return tuple(
        Quota(tenant=f"t{number}", pool=pool.key, guarantee={pool.unit_resource: each * 1000})
        for number in range(tenants)
    )


def named_quotas(pools: Sequence[Pool], tenants: Sequence[str], *, guaranteed: float) -> tuple[Quota, ...]:
    """Like `equal_quotas`, in each pool, for tenants of these names."""
    return tuple(
        replace(quota, tenant=name)
        for pool in pools
        for name, quota in zip(tenants, equal_quotas(pool, len(tenants), guaranteed=guaranteed), strict=True)
    )
