"""Which milestones a tenant has passed on its way to ready, and what it waits for now (pure)."""

from __future__ import annotations

from collections.abc import Iterator

from vkgateway.model.api import ACCEPTED, CONTROL_PLANE_READY, READY, VIRTUAL_NODES_READY, Tenant
from vkgateway.model.objects import Condition, condition

MILESTONES = (ACCEPTED, CONTROL_PLANE_READY, VIRTUAL_NODES_READY, READY)


class Milestones:
    """Remembers what was told already, so that each milestone is told once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    @property
    def complete(self) -> bool:
        """Whether the last milestone was passed."""
        return READY in self._told

    def reached(self, tenant: Tenant) -> Iterator[str]:
        """Give one line for each milestone passed since the last look; the last one, Ready, without a line."""
        for kind in MILESTONES:
            found = _current(tenant, kind)
            if kind in self._told or found is None or found.status != "True":
                continue
            self._told.add(kind)
            if kind != READY:
                yield f"{kind}: {found.message or found.reason}"

    def pending(self, tenant: Tenant) -> str:
        """Say what the tenant waits for: the first milestone that is not passed."""
        if tenant.status.observed_generation == 0:
            return "the gateway has not looked at it yet; is it running?"
        for kind in MILESTONES:
            found = _current(tenant, kind)
            if found is None or found.status != "True":
                return f"{kind}: {found.message or found.reason}" if found else f"waiting for {kind}"
        return "ready"


def _current(tenant: Tenant, kind: str) -> Condition | None:
    """Return the condition if it speaks of the object as it is, not of an earlier generation."""
    found = condition(tenant.status.conditions, kind)
    if found is None or 0 < found.observed_generation < tenant.metadata.generation:
        return None
    return found
