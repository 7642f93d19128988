"""The arbiter's last verdict on each governed pod, by the tenant pod's UID."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vkgateway.arbiter.queueing.admission import Admission
from vkgateway.arbiter.snapshot import Shape

PREEMPTED: Final = "PreemptionByVkgateway"
"""Reason in the status of pods that the arbiter evicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRun:
    """A pod that held resources from `start` to `end` (seconds since the epoch)."""

    namespace: str
    name: str
    gang: str
    band: str
    verdict: Admission
    shape: Shape
    start: float
    end: float
    checkpoint: float
    """Time of its last checkpoint; 0: never."""
    end_reason: str
    """Phase in which it ended, or the reason of its eviction."""


@dataclass(frozen=True, slots=True)
class PendingMessage:
    """Why a pod's gang does not start now. Reports with the same text are equal."""

    code: str
    reason: str
    """The reason in a sentence."""
    text: str
    """The same with queue position and expected start."""


class VerdictStore:
    """Verdicts on one tenant's pods, and pending reasons of its gangs."""

    def __init__(self) -> None:
        self.verdicts: dict[str, Admission] = {}
        self.pending_messages: dict[str, PendingMessage] = {}
        """By gang."""

    def forget_pod(self, uid: str) -> None:
        """Drop the verdict on a deleted pod."""
        self.verdicts.pop(uid, None)
