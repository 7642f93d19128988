"""Progress of a new tenant through its conditions (pure)."""

from __future__ import annotations

from collections.abc import Iterator

from vkgateway.api.errors import ConflictError, InputError, VkgatewayError
from vkgateway.api.objects import Condition, find_condition
from vkgateway.api.types import ACCEPTED, CONTROL_PLANE_READY, READY, VIRTUAL_NODES_READY, Tenant
from vkgateway.clusters.status import IMPOSSIBLE_REASON, TAKEN_REASON

MILESTONES = (ACCEPTED, CONTROL_PLANE_READY, VIRTUAL_NODES_READY, READY)


class Milestones:
    """Conditions that a tenant has reached, each reported once."""

    def __init__(self) -> None:
        self._reached: set[str] = set()

    @property
    def is_complete(self) -> bool:
        """Whether the tenant is ready."""
        return READY in self._reached

    def new_milestones(self, tenant: Tenant) -> Iterator[str]:
        """Yield one line for each condition that became True since the last call, except for Ready."""
        for kind in MILESTONES:
            found = _current_condition(tenant, kind)
            if kind in self._reached or found is None or found.status != "True":
                continue
            self._reached.add(kind)
            if kind != READY:
                yield f"{kind}: {found.message or found.reason}"

    def next_milestone(self, tenant: Tenant) -> str:
        """Return the first condition that is not True, with its message."""
        if tenant.status.observed_generation == 0:
            return "waiting for the gateway"
        for kind in MILESTONES:
            found = _current_condition(tenant, kind)
            if found is None or found.status != "True":
                return f"{kind}: {found.message or found.reason}" if found else f"waiting for {kind}"
        return "ready"


def _current_condition(tenant: Tenant, kind: str) -> Condition | None:
    """Return the condition if it refers to the object's current generation."""
    found = find_condition(tenant.status.conditions, kind)
    if found is None or 0 < found.observed_generation < tenant.metadata.generation:
        return None
    return found


def is_accepted(tenant: Tenant) -> bool:
    """Return whether the gateway has accepted the object's current generation."""
    accepted = _current_condition(tenant, ACCEPTED)
    return accepted is not None and accepted.status == "True"


def rejection_error(tenant: Tenant) -> VkgatewayError | None:
    """Return the error of a tenant that can never become ready; None otherwise."""
    accepted, control_plane = _current_condition(tenant, ACCEPTED), _current_condition(tenant, CONTROL_PLANE_READY)
    prefix = f"tenant {tenant.metadata.name!r} is not accepted: "
    if accepted is not None and accepted.status == "False":
        return InputError(prefix + accepted.message)
    if control_plane is not None and control_plane.status == "False" and control_plane.reason == IMPOSSIBLE_REASON:
        return InputError(prefix + control_plane.message)
    if control_plane is not None and control_plane.status == "False" and control_plane.reason == TAKEN_REASON:
        return ConflictError(prefix + control_plane.message)
    return None
