"""Which milestones a tenant has passed on its way to ready, and what it waits for now (pure)."""

from __future__ import annotations

from collections.abc import Iterator

from vkgateway.gateway.status import IMPOSSIBLE_REASON, TAKEN_REASON
from vkgateway.model.api import ACCEPTED, CONTROL_PLANE_READY, READY, VIRTUAL_NODES_READY, Tenant
from vkgateway.model.errors import ConflictError, InputError, VkgatewayError
from vkgateway.model.objects import Condition, find_condition

MILESTONES = (ACCEPTED, CONTROL_PLANE_READY, VIRTUAL_NODES_READY, READY)


class Milestones:
    """Remembers what was told already, so that each milestone is told once."""

    def __init__(self) -> None:
        self._reached: set[str] = set()

    @property
    def is_complete(self) -> bool:
        """Whether the last milestone was passed."""
        return READY in self._reached

    def new_milestones(self, tenant: Tenant) -> Iterator[str]:
        """Give one line for each milestone passed since the last look; the last one, Ready, without a line."""
        for kind in MILESTONES:
            found = _current_condition(tenant, kind)
            if kind in self._reached or found is None or found.status != "True":
                continue
            self._reached.add(kind)
            if kind != READY:
                yield f"{kind}: {found.message or found.reason}"

    def next_milestone(self, tenant: Tenant) -> str:
        """Say what the tenant waits for: the first milestone that is not passed."""
        if tenant.status.observed_generation == 0:
            return "waiting for the gateway, which has not looked at it yet"
        for kind in MILESTONES:
            found = _current_condition(tenant, kind)
            if found is None or found.status != "True":
                return f"{kind}: {found.message or found.reason}" if found else f"waiting for {kind}"
        return "ready"


def _current_condition(tenant: Tenant, kind: str) -> Condition | None:
    """Return the condition if it speaks of the object as it is, not of an earlier generation."""
    found = find_condition(tenant.status.conditions, kind)
    if found is None or 0 < found.observed_generation < tenant.metadata.generation:
        return None
    return found


def rejection_error(tenant: Tenant) -> VkgatewayError | None:
    """Return what stands against a tenant that no waiting will heal; None where nothing does."""
    accepted, made = _current_condition(tenant, ACCEPTED), _current_condition(tenant, CONTROL_PLANE_READY)
    sentence, hint = f"tenant {tenant.metadata.name!r} cannot be had: ", "Nothing of it is kept."
    if accepted is not None and accepted.status == "False":
        return InputError(sentence + accepted.message, hint=hint)
    if made is not None and made.status == "False" and made.reason == IMPOSSIBLE_REASON:
        return InputError(sentence + made.message, hint=hint)
    if made is not None and made.status == "False" and made.reason == TAKEN_REASON:
        return ConflictError(sentence + made.message, hint=hint)
    return None
