"""`decide` as the arbitration calls it: loaded when it is first needed, and what did not change is carried over."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vkgateway.arbiter.decisions import Decisions
from vkgateway.arbiter.snapshot import Pool, Snapshot

if TYPE_CHECKING:
    from vkgateway.arbiter.cache import Cache

Decide = Callable[[Snapshot, float], Decisions]


def incremental_decide() -> Decide:
    """`decide`, which carries over what did not change since it was called last.

    Loaded when there is first a gang, or a guarantee to be reduced: it brings numpy, for which a starting gateway
    should not wait.
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
    """Whether no node of a pool is closed, and all that is guaranteed there is left beside what others hold."""
    guaranteed = sum(quota.guarantee.get(pool.unit_resource, 0) for quota in snapshot.quotas if quota.pool == pool.key)
    left = sum(
        node.allocatable.get(pool.unit_resource, 0) - node.used.get(pool.unit_resource, 0) for node in pool.nodes
    )
    return all(node.usable for node in pool.nodes) and guaranteed <= left
