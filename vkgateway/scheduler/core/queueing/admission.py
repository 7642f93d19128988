"""The admission verdict on one pod: by the arbiter, and by the tenant's limits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from vkgateway.api.scheduling import SchedulerMarks
from vkgateway.kinds.pods.translation.conditions import RUN_LIMIT_REACHED
from vkgateway.scheduler.core.snapshot import PoolKey


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
    """Verdict of the arbiter on one pod; `code` and `message` give the reason of a held or evicted pod."""

    verdict: AdmissionState
    code: str = ""
    """Reason of a held, rejected or evicted pod, in CamelCase."""
    message: str = ""
    """The same in a sentence."""
    deadline: float = 0.0
    """Time at which an evicted pod is deleted, in seconds since the epoch."""
    grace: float | None = None
    """Grace period of an evicted pod, in seconds."""
    evicted_for: str = ""
    """The gang for which the pod is evicted."""
    pool: PoolKey = ("", "")
    """Pool of the pod; empty names if the arbiter does not place it."""
    node: str = ""
    """The compute node of the pod; empty: any node of its pool."""
    borrowed: bool | None = None
    """Whether the pod is outside its tenant's guarantee; None: the arbiter does not place it."""
    marks: SchedulerMarks | None = None
    """What another scheduler than the arbiter needs on the compute pod."""
    since: float = 0.0
    """When the arbiter admitted the pod."""
    gang: str = ""
    """The gang of an admitted pod within its tenant; empty: the arbiter does not place it."""
    behind: str = ""
    """The gang on whose reserved nodes the pod starts."""

    @property
    def is_evicting(self) -> bool:
        """Whether the pod is deleted at its deadline."""
        return self.verdict is AdmissionState.EVICTING

    @property
    def has_reached_limit(self) -> bool:
        """Whether the pod is evicted because the run of its gang reaches its limit."""
        return self.is_evicting and self.code == RUN_LIMIT_REACHED

    @property
    def reason_text(self) -> str:
        """Code and message, as annotated on an evicted compute pod."""
        return f"{self.code}: {self.message}"


ADMITTED: Final = Admission(AdmissionState.ADMITTED)
