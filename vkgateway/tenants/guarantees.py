"""Monitor of guarantees: whether the nodes can hold each tenant's guarantee after each cycle of the arbiter."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from vkgateway.api.requests import MilliResources, is_extended
from vkgateway.clusters.status import Verdict, false_verdict, true_verdict, unknown_verdict
from vkgateway.scheduler.core.decisions import Decisions, GuaranteeLoss
from vkgateway.scheduler.core.reasons.pool_sums import change_text, in_units
from vkgateway.scheduler.core.snapshot import Pool, PoolKey, Quota, Snapshot, node_name

GUARANTEE_SATISFIED = true_verdict("Kept", "the nodes can hold the guarantee")


class GuaranteeMonitor:
    """Verdict for each tenant; `on_change` is called for each tenant whose verdict changed.

    `unmanaged_pools` returns the pools whose queues an administrator manages: guarantees have no effect there.

    A pool that a cycle leaves out, because its cluster is unreachable, keeps its last state.
    """

    def __init__(
        self,
        *,
        on_change: Callable[[str], None] = lambda _: None,
        unmanaged_pools: Callable[[], Collection[PoolKey]] = frozenset,
    ) -> None:
        self._on_change = on_change
        self._unmanaged_pools = unmanaged_pools
        self._shortfalls: dict[PoolKey, dict[str, str]] = {}
        """Message about a lost guarantee by pool and tenant; pools that were never reported are missing."""
        self._verdicts: dict[str, Verdict] = {}

    def verdict_for(self, tenant: str) -> Verdict | None:
        """Return the verdict on a tenant's guarantee; None while unknown."""
        return self._verdicts.get(tenant)

    def cycle_decided(self, snapshot: Snapshot, decisions: Decisions) -> None:
        """Update the verdicts after a cycle."""
        quotas: dict[str, list[Quota]] = {}
        for quota in snapshot.quotas:
            quotas.setdefault(quota.tenant, []).append(quota)
        self._update_shortfalls(snapshot, decisions)
        verdicts = {
            tenant: verdict
            for tenant, tenant_quotas in quotas.items()
            if (verdict := self._guarantee_verdict(tenant_quotas)) is not None
        }
        previous, self._verdicts = self._verdicts, verdicts
        for tenant, verdict in verdicts.items():
            if previous.get(tenant) != verdict:
                self._on_change(tenant)

    def _update_shortfalls(self, snapshot: Snapshot, decisions: Decisions) -> None:
        guarantees = {(quota.pool, quota.tenant): quota.guarantee for quota in snapshot.quotas}
        pools = {pool.key: pool for pool in snapshot.pools}
        self._shortfalls |= {key: {} for key in pools}
        for loss in decisions.losses:
            guarantee = guarantees.get((loss.pool, loss.tenant), {})
            self._shortfalls[loss.pool][loss.tenant] = _shortfall_message(loss, pools[loss.pool], guarantee)

    def _guarantee_verdict(self, quotas: list[Quota]) -> Verdict | None:
        if any(quota.pool not in self._shortfalls and any(map(is_extended, quota.guarantee)) for quota in quotas):
            return None
        if messages := list(self._shortfall_messages(quotas)):
            return false_verdict("NodesMissing", "; ".join(messages))
        unmanaged = sorted(quota.pool for quota in quotas if quota.guarantee and quota.pool in self._unmanaged_pools())
        if unmanaged:
            pools = ", ".join(map(node_name, unmanaged))
            return unknown_verdict(
                "QueuesNotManaged", f"{pools}: the administrator's queues decide what the tenant gets"
            )
        return GUARANTEE_SATISFIED

    def _shortfall_messages(self, quotas: list[Quota]) -> Iterator[str]:
        for quota in sorted(quotas, key=lambda quota: quota.pool):
            message = self._shortfalls.get(quota.pool, {}).get(quota.tenant)
            if message is not None:
                yield message


def _shortfall_message(loss: GuaranteeLoss, pool: Pool, guarantee: MilliResources) -> str:
    """Return a message such as `a100.local: nvidia.com/gpu 16 -> 8, cells 2x8 -> 8; 1 of 2 nodes usable`."""
    guaranteed = guarantee.get(pool.unit_resource, 0)
    amounts = f"{pool.unit_resource} {in_units(guaranteed):g} -> {in_units(max(0, guaranteed - loss.units * 1000)):g}"
    cells = "" if loss.is_sum else f", cells {change_text(loss)}"
    usable = sum(node.usable for node in pool.nodes)
    has_unmanaged = any(node.usable and node.used.get(pool.unit_resource) for node in pool.nodes)
    suffix = ", partly used by unmanaged pods" if has_unmanaged else ""
    return f"{node_name(pool.key)}: {amounts}{cells}; {usable} of {len(pool.nodes)} nodes usable{suffix}"
