"""What the arbiter last said of each governed pod, by the tenant pod's uid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vkgateway.arbiter.queueing.admission import Admission
from vkgateway.arbiter.snapshot import Shape

PREEMPTED: Final = "PreemptionByVkgateway"
"""Reason that a pod which was evicted by the arbiter ends with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRun:
    """A pod that held something below, from `start` to `end` (seconds since the epoch)."""

    namespace: str
    name: str
    gang: str
    band: str
    verdict: Admission
    shape: Shape
    start: float
    end: float
    checkpoint: float
    """When its work was last saved; 0: never."""
    end_reason: str
    """The phase that it ended in, or why it was taken away."""


@dataclass(frozen=True, slots=True)
class PendingMessage:
    """Why a pod's gang does not start now, and how that is told: what makes no difference to the text is no news."""

    code: str
    reason: str
    """Why, in a sentence."""
    text: str
    """The same with place in line and expected start."""


class VerdictStore:
    """The verdicts on one tenant's pods, and the holds of its gangs."""

    def __init__(self) -> None:
        self.verdicts: dict[str, Admission] = {}
        self.pending_messages: dict[str, PendingMessage] = {}
        """By gang."""

    def forget_pod(self, uid: str) -> None:
        """Drop what was said of a pod that is gone."""
        self.verdicts.pop(uid, None)
