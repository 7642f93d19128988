"""The arbiter's snapshot of all tenants and all reachable compute clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from vkgateway.api.requests import is_extended
from vkgateway.api.types import Pool as PoolSpec
from vkgateway.scheduler.core.decisions import PendingReason, PendingReport
from vkgateway.scheduler.core.snapshot import (
    Gang,
    PodState,
    Policy,
    Pool,
    PoolKey,
    PreemptionPlan,
    Quota,
    Snapshot,
)
from vkgateway.scheduler.service.cluster_cache import ClusterCache
from vkgateway.scheduler.service.occupancy import requested_images
from vkgateway.scheduler.service.tenant_admission import TenantAdmission

StoppedBorrowing = Callable[[str, PoolKey], Mapping[str, float]]
"""Returns the resources that new pods of a tenant may not borrow in a pool, with the hours of the used-up budget."""


def build_snapshot(
    tenants: Mapping[str, TenantAdmission],
    clusters: Mapping[str, ClusterCache],
    specs: Mapping[str, Iterable[PoolSpec]],
    *,
    plans: Mapping[str, PreemptionPlan],
    policy: Policy,
    stopped: StoppedBorrowing,
    now: float,
) -> tuple[Snapshot, list[PendingReport]]:
    """Return the snapshot, and the pending reasons of gangs that the arbiter cannot judge. `plans` are those of the
    last cycle, `stopped` returns what a tenant may not borrow in a pool.
    """
    pools: list[Pool] = []
    known = sorted(name for name, cluster in clusters.items() if cluster.is_known)
    images = requested_images(tenant.gangs.images for tenant in tenants.values())
    for name in known:
        pools += clusters[name].update_pools(specs.get(name, ()), images=images, now=now)
    gangs: list[Gang] = []
    holds: list[PendingReport] = []
    quotas: list[Quota] = []
    for name in sorted(tenants):
        tenant = tenants[name]
        tenant.gangs.set_plans(plans)
        tenant.expire_verdicts(now)
        found, held = tenant.gangs.build_gangs()
        gangs += [*found, *tenant.orphans.gangs()]
        holds += held
        quotas += [_with_stopped(_remaining_quota(quota, clusters), stopped) for quota in tenant.quotas]
    away = [gang for gang in gangs if gang.pools and all(pool[0] not in known for pool in gang.pools)]
    holds += [_unreachable_reason(gang) for gang in away if any(pod.state is PodState.WAITING for pod in gang.pods)]
    gangs.sort(key=lambda gang: gang.id)
    return Snapshot(pools=tuple(pools), quotas=tuple(quotas), gangs=tuple(gangs), policy=policy), holds


def _remaining_quota(quota: Quota, clusters: Mapping[str, ClusterCache]) -> Quota:
    """Return a tenant's quota without the usage of its pods that the arbiter does not place.

    Of the guarantee, those pods use CPU, memory and similar resources: devices count on nodes, which only placed pods
    use.
    """
    cluster = clusters.get(quota.pool[0])
    taken = cluster.unplaced_usage(quota.tenant, quota.pool[1]) if cluster is not None else {}
    if not taken or (taken.keys().isdisjoint(quota.limit) and taken.keys().isdisjoint(quota.guarantee)):
        return quota
    limit = {name: amount - taken.get(name, 0) for name, amount in quota.limit.items()}
    guarantee = {
        name: amount if is_extended(name) else max(0, amount - taken.get(name, 0))
        for name, amount in quota.guarantee.items()
    }
    return replace(quota, limit=limit, guarantee=guarantee)


def _with_stopped(quota: Quota, stopped: StoppedBorrowing) -> Quota:
    """Return a quota with the resources that its tenant may not borrow, because a budget is used up."""
    hours = stopped(quota.tenant, quota.pool)
    return replace(quota, stopped=tuple(sorted(hours)), budget_hours=hours) if hours else quota


def _unreachable_reason(gang: Gang) -> PendingReport:
    return PendingReport(gang=gang.id, code=PendingReason.ROOM, message="the compute cluster cannot be reached now")
