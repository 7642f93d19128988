"""Whether the nodes hold what is guaranteed to each tenant, by what the arbiter says after each cycle."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from vkgateway.arbiter.decisions import Decisions, GuaranteeLoss
from vkgateway.arbiter.reasons.guarantee_losses import change_text
from vkgateway.arbiter.reasons.pool_sums import in_units
from vkgateway.arbiter.snapshot import Pool, PoolKey, Quota, Snapshot, node_name
from vkgateway.gateway.status import Verdict, false_verdict, true_verdict
from vkgateway.model.requests import MilliResources
from vkgateway.translate.governed import is_extended

GUARANTEE_SATISFIED = true_verdict("Kept", "the nodes hold all that is guaranteed")


class GuaranteeMonitor:
    """Keeps a verdict on each tenant; `on_change` hears of those whose verdict is another than before.

    A pool that is not told of in a cycle, since its cluster does not answer, stands as it stood before.
    """

    def __init__(self) -> None:
        self.on_change: Callable[[str], None] = lambda _: None
        self._shortfalls: dict[PoolKey, dict[str, str]] = {}
        """By pool and tenant what of a guarantee is lost; pools that were never told of are missing."""
        self._verdicts: dict[str, Verdict] = {}

    def verdict_for(self, tenant: str) -> Verdict | None:
        """What is to be told of a tenant; None: not known."""
        return self._verdicts.get(tenant)

    def cycle_decided(self, snapshot: Snapshot, decisions: Decisions) -> None:
        """A cycle is done."""
        quotas: dict[str, list[Quota]] = {}
        for quota in snapshot.quotas:
            quotas.setdefault(quota.tenant, []).append(quota)
        self._update_shortfalls(snapshot, decisions)
        verdicts = {
            tenant: found for tenant, mine in quotas.items() if (found := self._guarantee_verdict(mine)) is not None
        }
        before, self._verdicts = self._verdicts, verdicts
        for tenant, found in verdicts.items():
            if before.get(tenant) != found:
                self.on_change(tenant)

    def _update_shortfalls(self, snapshot: Snapshot, decisions: Decisions) -> None:
        guarantees = {(quota.pool, quota.tenant): quota.guarantee for quota in snapshot.quotas}
        pools = {pool.key: pool for pool in snapshot.pools}
        self._shortfalls |= {key: {} for key in pools}
        for loss in decisions.losses:
            asked = guarantees.get((loss.pool, loss.tenant), {})
            self._shortfalls[loss.pool][loss.tenant] = _shortfall_message(loss, pools[loss.pool], asked)

    def _guarantee_verdict(self, quotas: list[Quota]) -> Verdict | None:
        if any(quota.pool not in self._shortfalls and any(map(is_extended, quota.guarantee)) for quota in quotas):
            return None
        short = list(self._shortfall_messages(quotas))
        return false_verdict("NodesMissing", "; ".join(short)) if short else GUARANTEE_SATISFIED

    def _shortfall_messages(self, quotas: list[Quota]) -> Iterator[str]:
        for quota in sorted(quotas, key=lambda quota: quota.pool):
            sentence = self._shortfalls.get(quota.pool, {}).get(quota.tenant)
            if sentence is not None:
                yield sentence


def _shortfall_message(loss: GuaranteeLoss, pool: Pool, guarantee: MilliResources) -> str:
    """`a100.local: nvidia.com/gpu 16 -> 8, cells 2x8 -> 8; 1 of 2 nodes can be used`."""
    asked = guarantee.get(pool.unit_resource, 0)
    amounts = f"{pool.unit_resource} {in_units(asked):g} -> {in_units(max(0, asked - loss.units * 1000)):g}"
    usable = sum(node.usable for node in pool.nodes)
    others = any(node.usable and node.used.get(pool.unit_resource) for node in pool.nodes)
    held = ", and others' pods hold part of them" if others else ""
    return (
        f"{node_name(pool.key)}: {amounts}, cells {change_text(loss)}; {usable} of {len(pool.nodes)} nodes can be used"
        f"{held}"
    )
