"""Which milestones a tenant has passed on its way to ready, and what it waits for now (pure)."""

from __future__ import annotations

from collections.abc import Iterator

from vkgateway.gateway.status import IMPOSSIBLE, TAKEN
from vkgateway.model.api import ACCEPTED, CONTROL_PLANE_READY, READY, VIRTUAL_NODES_READY, Tenant
from vkgateway.model.errors import ConflictError, InputError, VkgatewayError
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
            return "waiting for the gateway, which has not looked at it yet"
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


def refusal(tenant: Tenant) -> VkgatewayError | None:
    """Return what stands against a tenant that no waiting will heal; None where nothing does."""
    accepted, made = _current(tenant, ACCEPTED), _current(tenant, CONTROL_PLANE_READY)
    sentence, hint = f"tenant {tenant.metadata.name!r} cannot be had: ", "Nothing of it is kept."
    if accepted is not None and accepted.status == "False":
        return InputError(sentence + accepted.message, hint=hint)
    if made is not None and made.status == "False" and made.reason == IMPOSSIBLE:
        return InputError(sentence + made.message, hint=hint)
    if made is not None and made.status == "False" and made.reason == TAKEN:
        return ConflictError(sentence + made.message, hint=hint)
    return None
