"""The `decide` function of the arbitration: loaded on first use, and incremental between cycles."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vkgateway.arbiter.decisions import Decisions
from vkgateway.arbiter.snapshot import Pool, Snapshot

if TYPE_CHECKING:
    from vkgateway.arbiter.cache import Cache

Decide = Callable[[Snapshot, float], Decisions]


def incremental_decide() -> Decide:
    """Return a `decide` function that reuses what did not change since its last call.

    The arbiter is loaded for the first gang, or for a guarantee that must be reduced: it imports numpy, for which the
    start of the gateway should not wait.
    """
    carry: Cache | None = None

    def decide(snapshot: Snapshot, now: float) -> Decisions:
        nonlocal carry
        if carry is None and not snapshot.gangs and all(_covers_guarantees(pool, snapshot) for pool in snapshot.pools):
            return Decisions()
        from vkgateway.arbiter import cycle
        from vkgateway.arbiter.cache import Cache

        carry = carry or Cache()
        return cycle.decide(snapshot, now, carry)

    return decide


def _covers_guarantees(pool: Pool, snapshot: Snapshot) -> bool:
    """Return whether all nodes of the pools are available and the guarantees fit into what other pods leave."""
    guaranteed = sum(quota.guarantee.get(pool.unit_resource, 0) for quota in snapshot.quotas if quota.pool == pool.key)
    left = sum(
        node.allocatable.get(pool.unit_resource, 0) - node.used.get(pool.unit_resource, 0) for node in pool.nodes
    )
    return all(node.usable for node in pool.nodes) and guaranteed <= left
