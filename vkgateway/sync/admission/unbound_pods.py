"""Compute pods that no node has accepted yet, and those that are reverted for that reason."""

from __future__ import annotations

from vkgateway.kube.clock import Clock
from vkgateway.sync.views.annotations import RETAKEN
from vkgateway.sync.views.pods import ComputePodView


class UnboundPods:
    """Compute pods of one tenant that no node has accepted yet.

    The gateway's clock counts: that of the compute cluster may differ.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[str, tuple[str, float]] = {}
        """By the UID of the tenant pod: the UID of its compute pod, and since when it is seen without a node."""
        self.reverted: dict[str, str] = {}
        """UIDs of compute pods that are being reverted, with the UIDs of their tenant pods."""

    def seen_since(self, uid: str, compute_uid: str) -> float:
        """Return since when a compute pod is seen without a node; now, if it was not seen before."""
        known = self._since.get(uid)
        if known is None or known[0] != compute_uid:
            known = self._since[uid] = compute_uid, self._clock.time()
        return known[1]

    def mark_reverted(self, uid: str, compute_uid: str) -> bool:
        """Record that a compute pod is removed because no node accepted it. Return False if that is known."""
        is_new = compute_uid not in self.reverted
        self.reverted[compute_uid] = uid
        return is_new

    def mark_bound(self, uid: str, compute_uid: str) -> bool:
        """Record that a node accepted a compute pod. Return whether the compute pod was being reverted."""
        self._since.pop(uid, None)
        return self.reverted.pop(compute_uid, None) is not None

    def is_reverted(self, pod: ComputePodView) -> bool:
        """Return whether a compute pod is being reverted."""
        return pod.metadata.uid in self.reverted or RETAKEN in pod.metadata.annotations

    def forget_pod(self, uid: str) -> None:
        """Drop the state of a deleted tenant pod."""
        self._since.pop(uid, None)
        for compute_uid in [each for each, owner in self.reverted.items() if owner == uid]:
            del self.reverted[compute_uid]
