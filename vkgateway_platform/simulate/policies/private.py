"""Private clusters: each tenant alone, with its cells as nodes, scheduled by the arbiter."""

from __future__ import annotations

from dataclasses import replace

from vkgateway.scheduler.core.guarantees.cell_sizes import list_sizes, pool_levels, quota_cells
from vkgateway.scheduler.core.snapshot import Node, Pool, PoolKey, Quota
from vkgateway_platform.simulate.policies.arbiter import ArbiterScheduler
from vkgateway_platform.simulate.scenario import Job, Scenario
from vkgateway_platform.simulate.traces.adaptation import adapt_jobs
from vkgateway_platform.simulate.usage import MILLI_PER_UNIT


class PrivateClusters(ArbiterScheduler):
    """The arbiter, with a pool for each tenant. Tenants do not lend to each other."""

    name = "private"

    def arrange(self, scenario: Scenario) -> Scenario:
        """Return a scenario with a pool of its cells for each tenant, and the jobs that can run there."""
        pools = {pool.key: pool for pool in scenario.pools}
        alone = {
            (quota.tenant, quota.pool): _private_pool(pools[quota.pool], quota)
            for quota in scenario.quotas
            if quota.pool in pools and pools[quota.pool].unit_resource
        }
        quotas = tuple(
            replace(quota, pool=alone[quota.tenant, quota.pool].key, limit={})
            for quota in scenario.quotas
            if (quota.tenant, quota.pool) in alone
        )
        jobs = (_move_job(job, alone) for job in scenario.jobs)
        found = tuple(alone.values())
        return replace(
            scenario,
            pools=found,
            quotas=quotas,
            jobs=adapt_jobs((job for job in jobs if job is not None), found),
            budgets={},  # no tenant borrows
        )


def _private_pool(pool: Pool, quota: Quota) -> Pool:
    levels = pool_levels(pool)
    like = max(pool.nodes, key=lambda node: node.allocatable.get(pool.unit_resource, 0), default=None)
    sizes = list_sizes(quota_cells(quota, pool.unit_resource, levels), levels)
    nodes = tuple(
        _cell_node(f"{quota.tenant}-{number}", size, like, pool.unit_resource) for number, size in enumerate(sizes)
    )
    key = (pool.key[0], f"{pool.key[1]}/{quota.tenant}")
    return replace(pool, key=key, nodes=nodes, levels=())


def _cell_node(name: str, size: int, like: Node | None, unit: str) -> Node:
    """Return a node of one cell: a part of the pool's largest node."""
    allocatable = dict(like.allocatable) if like is not None else {unit: size * MILLI_PER_UNIT}
    whole = allocatable[unit]
    return Node(
        name=name, allocatable={key: amount * size * MILLI_PER_UNIT // whole for key, amount in allocatable.items()}
    )


def _move_job(job: Job, alone: dict[tuple[str, PoolKey], Pool]) -> Job | None:
    """Return the job in its tenant's private cluster; None: it can never run there."""
    pool = next((alone[job.tenant, key] for key in job.pools if (job.tenant, key) in alone), None)
    if pool is None:
        return None
    requests = [shape.amount_of(pool.unit_resource) for shape in job.shapes[: job.minimum or None]]
    sizes = [node.allocatable[pool.unit_resource] for node in pool.nodes]
    if sum(requests) > sum(sizes) or max(requests, default=0) > max(sizes, default=0):
        return None
    return replace(job, pools=(pool.key,))
