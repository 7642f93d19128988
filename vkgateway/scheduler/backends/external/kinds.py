"""Reconciler of an external scheduler, which has no objects of the gateway."""

from __future__ import annotations

from vkgateway.clusters.link import ComputeLink
from vkgateway.scheduler.backends.attempt import Attempt
from vkgateway.scheduler.backends.mode import ModeResult


class NoReconciler:
    """Counterpart of `AttemptReconciler` without any object."""

    is_known = True

    def __init__(self, link: ComputeLink, **_unused: object) -> None:
        self.link = link

    def attempts(self) -> dict[str, Attempt]:
        """See `AttemptReconciler`."""
        return {}

    def apply(self, _result: ModeResult) -> None:
        """See `AttemptReconciler`."""

    async def run(self) -> None:
        """See `AttemptReconciler`."""
