"""The admission verdict on one pod: by the arbiter, and by the tenant's limits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from vkgateway.arbiter.snapshot import PoolKey


class AdmissionState(StrEnum):
    """Decision of the arbiter or of the tenant's limits."""

    FREE = "free"
    HELD = "held"
    REJECTED = "rejected"
    """The pod was bound manually to a virtual node without free capacity for it."""
    ADMITTED = "admitted"
    EVICTING = "evicting"
    PENDING = "pending"
    """The arbiter governs the pod and has not decided yet."""
    RETAKEN = "retaken"
    """No node took the pod in time: its compute pod must be deleted and the pod placed again."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The verdict on one pod, the pod's place, and the reason if the pod is held, rejected or evicted.

    Times are seconds since the epoch.
    """

    verdict: AdmissionState
    code: str = ""
    """Reason of a held, rejected or evicted pod, in CamelCase."""
    message: str = ""
    """The same in a sentence."""
    deadline: float = 0.0
    """Evicting: when the pod is deleted."""
    grace: float | None = None
    """Evicting: maximum termination grace period in seconds."""
    evicted_for: str = ""
    """Evicting: the gang for which the pod is evicted."""
    pool: PoolKey = ("", "")
    """Pool of the pod; empty names if the arbiter does not place it."""
    node: str = ""
    """Compute node of the pod; empty: any node of its pool."""
    borrowed: bool | None = None
    """Whether the pod runs outside its tenant's guarantee; None: the arbiter does not place it."""
    since: float = 0.0
    """When the arbiter admitted the pod."""
    behind: str = ""
    """The gang in whose reservation the pod was started."""

    @property
    def is_evicting(self) -> bool:
        """Whether the pod is deleted at its deadline."""
        return self.verdict is AdmissionState.EVICTING

    @property
    def reason_text(self) -> str:
        """Code and message, as they are written on a compute pod that is evicted."""
        return f"{self.code}: {self.message}"


ADMITTED: Final = Admission(AdmissionState.ADMITTED)
