"""Sums over the pods of a pool by tenant and node, and reports of pools and tenants (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from vkgateway.api.requests import MilliResources
from vkgateway.scheduler.core.decisions import GuaranteeLoss
from vkgateway.scheduler.core.guarantees.counted_cells import count_spare_nodes
from vkgateway.scheduler.core.past_share import PastShare
from vkgateway.scheduler.core.reasons.report_types import PoolReport, ShareReport, TenantReport
from vkgateway.scheduler.core.snapshot import Pod, Pool, Quota, Snapshot, node_name


@dataclass(slots=True)
class TenantSums:
    """A tenant's usage of a pool, in thousandths."""

    used: MilliResources = field(default_factory=dict)
    borrowed: MilliResources = field(default_factory=dict)
    waiting: MilliResources = field(default_factory=dict)
    gangs_waiting: int = 0
    gangs_running: int = 0
    gangs_below_minimum: int = 0


@dataclass(slots=True)
class PoolSums:
    """Sums of a pool while its pods are counted."""

    pool: Pool
    tenants: dict[str, TenantSums] = field(default_factory=dict)
    nodes: dict[str, MilliResources] = field(default_factory=dict)
    """Usage of the gateway's pods by node."""
    inside: dict[tuple[str, str], int] = field(default_factory=dict)
    """Thousandths of the unit inside guarantees, by tenant and node."""

    def usage_of(self, tenant: str) -> TenantSums:
        """Return a tenant's usage, empty at first."""
        found = self.tenants.get(tenant)
        if found is None:
            found = self.tenants[tenant] = TenantSums()
        return found

    def count_placed(self, tenant: str, pod: Pod, node: str, *, borrowed: bool) -> None:
        """Count a pod on its node."""
        tenant_sums = self.usage_of(tenant)
        self._add_requests(tenant_sums.borrowed if borrowed else tenant_sums.used, pod)
        self._add_requests(self.nodes.setdefault(node, {}), pod)
        if not borrowed:
            amount = pod.shape.amount_of(self.pool.unit_resource)
            self.inside[tenant, node] = self.inside.get((tenant, node), 0) + amount

    def count_waiting(self, tenant: str, pod: Pod) -> None:
        self._add_requests(self.usage_of(tenant).waiting, pod)

    def _add_requests(self, total: MilliResources, pod: Pod) -> None:
        for name, amount in pod.shape.requests:
            if name in self.pool.governed:
                total[name] = total.get(name, 0) + amount


Losses = Mapping[str, GuaranteeLoss]
"""Losses of guarantees in the pool, by tenant."""


def pool_reports(sums: PoolSums, quotas: Mapping[str, Quota], losses: Losses) -> Iterator[PoolReport]:
    """Yield a report for each schedulable resource of the pool."""
    pool, all_tenants = sums.pool, sums.tenants.values()
    usable = [node for node in pool.nodes if node.usable]
    spare, spare_in_use = _count_spare_nodes(sums, quotas)
    for name in pool.governed:
        sizes = [node.allocatable.get(name, 0) for node in usable]
        others = sum(node.used.get(name, 0) for node in usable)
        frees = [
            max(0, size - node.used.get(name, 0) - sums.nodes.get(node.name, {}).get(name, 0))
            for node, size in zip(usable, sizes, strict=True)
        ]
        free, whole = sum(frees), [size for size, left in zip(sizes, frees, strict=True) if size and left == size]
        guaranteed = sum(max(0, quota.guarantee.get(name, 0)) for quota in quotas.values())
        remaining = {tenant: _kept_guarantee(name, quota, pool, losses.get(tenant)) for tenant, quota in quotas.items()}
        borrowed = sum(tenant_sums.borrowed.get(name, 0) for tenant_sums in all_tenants)
        yield PoolReport(
            pool=pool.key[1],
            compute_cluster=pool.key[0],
            node=node_name(pool.key),
            resource=name,
            nodes=len(pool.nodes),
            usable_nodes=len(usable),
            avoided_nodes=sum(node.failed_gangs > 0 for node in pool.nodes),
            allocatable=in_units(sum(sizes)),
            others=in_units(others),
            guaranteed=in_units(guaranteed),
            kept=in_units(sum(remaining.values())),
            used=in_units(sum(tenant_sums.used.get(name, 0) for tenant_sums in all_tenants)),
            borrowed=in_units(borrowed),
            lent=in_units(
                _lent_amount(
                    borrowed, _unused_guarantees(name, sums, remaining), sum(sizes) - others - sum(remaining.values())
                )
            ),
            free=in_units(free),
            waiting=in_units(sum(tenant_sums.waiting.get(name, 0) for tenant_sums in all_tenants)),
            largest=in_units(max(frees, default=0)),
            whole_nodes=len(whole),
            spare_nodes=spare if name == pool.unit_resource else 0,
            spare_nodes_in_use=spare_in_use if name == pool.unit_resource else 0,
            fragmentation=round((free - sum(whole)) / free, 4) if free else 0.0,
            gangs_waiting=sum(tenant_sums.gangs_waiting for tenant_sums in all_tenants),
            gangs_running=sum(tenant_sums.gangs_running for tenant_sums in all_tenants),
            gangs_below_minimum=sum(tenant_sums.gangs_below_minimum for tenant_sums in all_tenants),
        )


def _count_spare_nodes(sums: PoolSums, quotas: Mapping[str, Quota]) -> tuple[int, int]:
    """Return the spare nodes, and those in use."""
    if not sums.inside:
        return count_spare_nodes(sums.pool, quotas.values()), 0
    # An idle gateway does without numpy.
    from vkgateway.scheduler.core.guarantees.pool_guarantees import PoolGuarantees

    placed = [(tenant, node, amount) for (tenant, node), amount in sums.inside.items()]
    guarantees = PoolGuarantees(sums.pool, quotas.values(), placed)
    return guarantees.spare_nodes(), guarantees.spare_nodes_in_use()


def _kept_guarantee(name: str, quota: Quota, pool: Pool, loss: GuaranteeLoss | None) -> int:
    """Return the part of a guarantee that the nodes hold."""
    lost = loss.units * 1000 if loss is not None and name == pool.unit_resource else 0
    return max(0, quota.guarantee.get(name, 0) - lost)


def _unused_guarantees(name: str, sums: PoolSums, remaining: Mapping[str, int]) -> int:
    """Return the part of the guarantees that their tenants do not use."""
    nothing = TenantSums()
    return sum(
        max(0, amount - sums.tenants.get(tenant, nothing).used.get(name, 0)) for tenant, amount in remaining.items()
    )


def _lent_amount(borrowed: int, unused: int, unguaranteed: int) -> int:
    """Return the lent amount: borrowed amounts beyond the unguaranteed capacity come from unused guarantees."""
    return min(unused, max(0, borrowed - max(0, unguaranteed)))


def tenant_reports(sums: PoolSums, quotas: Mapping[str, Quota], losses: Losses) -> Iterator[TenantReport]:
    """Yield a report for each tenant with a quota or pods in the pool, and each resource."""
    for tenant in sorted(quotas.keys() | sums.tenants.keys()):
        quota, tenant_sums = quotas.get(tenant), sums.tenants.get(tenant, TenantSums())
        for name in sums.pool.governed:
            limit = quota.limit.get(name) if quota is not None else None
            loss = losses.get(tenant) if name == sums.pool.unit_resource else None
            yield TenantReport(
                tenant=tenant,
                pool=sums.pool.key[1],
                compute_cluster=sums.pool.key[0],
                resource=name,
                guarantee=in_units(quota.guarantee.get(name, 0) if quota is not None else 0),
                kept=in_units(_kept_guarantee(name, quota, sums.pool, loss) if quota is not None else 0),
                reduced=change_text(loss) if loss is not None else "",
                limit=in_units(limit) if limit is not None else None,
                weight=quota.weight if quota is not None else 0.0,
                used=in_units(tenant_sums.used.get(name, 0)),
                borrowed=in_units(tenant_sums.borrowed.get(name, 0)),
                waiting=in_units(tenant_sums.waiting.get(name, 0)),
                gangs_waiting=tenant_sums.gangs_waiting,
                gangs_running=tenant_sums.gangs_running,
            )


def in_units(amount: int) -> float:
    """Return thousandths as units, whole numbers as int."""
    return amount // 1000 if amount % 1000 == 0 else amount / 1000


def cells_text(cells: Mapping[int, int]) -> str:
    """Return cells in the command-line form, the largest first: `2x8+1`; `none` without cells."""
    parts = (f"{number}x{size}" if number > 1 else f"{size}" for size, number in sorted(cells.items(), reverse=True))
    return "+".join(parts) or "none"


def change_text(loss: GuaranteeLoss) -> str:
    """Return the change of a tenant's cells, `2x8 -> 8`; of a guarantee that is a sum, its units: `16 -> 8`."""
    if loss.is_sum:
        return f"{loss.asked.get(1, 0)} -> {loss.held.get(1, 0)}"
    return f"{cells_text(loss.asked)} -> {cells_text(loss.held)}"


_DIGITS = 6


def share_reports(
    snapshot: Snapshot, now: float, past_shares: Iterable[PastShare] | None = None
) -> tuple[ShareReport, ...]:
    """Return the shares of all tenants in all pools at a time (seconds since the epoch); none without a half-life.

    `past_shares` are those after the decisions on the snapshot; None: those of the snapshot.
    """
    half_life = snapshot.policy.half_life
    if not half_life:
        return ()
    known = {(each.tenant, each.pool): each for each in (snapshot.past_shares if past_shares is None else past_shares)}
    found = []
    for quota in sorted(snapshot.quotas, key=lambda quota: (quota.pool, quota.tenant)):
        share = known.get((quota.tenant, quota.pool))
        found.append(
            ShareReport(
                tenant=quota.tenant,
                pool=node_name(quota.pool),
                weight=quota.weight,
                now=round(share.share, _DIGITS) if share is not None else 0.0,
                past=round(share.average_at(now, half_life), _DIGITS) if share is not None else 0.0,
                at=now,
            )
        )
    return tuple(found)
