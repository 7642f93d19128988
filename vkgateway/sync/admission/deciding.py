"""`decide` as the arbitration calls it: loaded when it is first needed, and what did not change is carried over."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vkgateway.arbiter.decisions import Decisions
from vkgateway.arbiter.facts import Snapshot

if TYPE_CHECKING:
    from vkgateway.arbiter.carry import Carry

Decide = Callable[[Snapshot, float], Decisions]


def incremental() -> Decide:
    """`decide`, which carries over what did not change since it was called last.

    Loaded when there is first a gang: it brings numpy, for which a starting gateway should not wait.
    """
    carry: Carry | None = None

    def decide(snapshot: Snapshot, now: float) -> Decisions:
        if not snapshot.gangs:
            return Decisions()
        from vkgateway.arbiter import cycle
        from vkgateway.arbiter.carry import Carry

        nonlocal carry
        carry = carry or Carry()
        return cycle.decide(snapshot, now, carry)

    return decide
