"""Compute pods that no node has accepted yet."""

from __future__ import annotations

from vkgateway.kube.clock import Clock


class UnboundPods:
    """Since when each compute pod of one tenant is seen without a node.

    The gateway's clock counts: that of the compute cluster may differ.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[str, tuple[str, float]] = {}
        """By the uid of the tenant pod: the uid of its compute pod, and the time."""

    def seen_since(self, uid: str, compute_uid: str) -> float:
        """Return since when a compute pod is seen without a node; now, if it was not seen before."""
        known = self._since.get(uid)
        if known is None or known[0] != compute_uid:
            known = self._since[uid] = compute_uid, self._clock.time()
        return known[1]

    def forget_pod(self, uid: str) -> None:
        """Forget a tenant pod: its compute pod is bound, or does not exist."""
        self._since.pop(uid, None)
