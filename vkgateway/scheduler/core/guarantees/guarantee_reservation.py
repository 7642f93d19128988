"""Part of a guarantee that is reserved for a waiting gang of the tenant, which its later gangs must not use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vkgateway.scheduler.core.guarantees.pool_guarantees import PoolGuarantees, use_placed
from vkgateway.scheduler.core.snapshot import Gang

NodeUse = tuple[str, int]
"""Node, and thousandths of the pool's unit used there inside the guarantee."""


@dataclass(frozen=True, slots=True)
class GuaranteeReservation:
    """Nominated placement of a gang, and the use that must end before it starts."""

    gang: Gang
    awaited: Sequence[NodeUse]
    """Use of later gangs of its tenant that must end first."""
    nominated: Sequence[NodeUse]
    """Use of the gang after its start."""
    start: float | None
    """Time at which the awaited use has ended (seconds since the epoch); None: unknown."""

    def apply_to(self, guarantees: PoolGuarantees) -> bool:
        """Change the guarantees to their state after the gang's start; return False if they no longer allow it."""
        try:
            for node, amount in self.awaited:
                guarantees.release(self.gang.tenant, node, amount)
        except ValueError:
            return False  # Part of the awaited use has ended or counts as borrowing.
        return use_placed(guarantees, self.gang.tenant, self.nominated)
