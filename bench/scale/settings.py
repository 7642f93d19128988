"""Size and pace of a run, and the platform's times that depend on its speed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bench.platform import GPUS_PER_NODE

_NOTICE: Final = 30.0
_AGE_CAP: Final = 3600.0
_GRACE: Final = 20.0
_SIZES: Final = {8: 0.30, 16: 0.20, 32: 0.20, 64: 0.15, 128: 0.08, 256: 0.05, 512: 0.02}
"""Share of gangs by number of GPUs: few pods with many GPUs."""
_LARGEST: Final = 16
"""Divisor: a gang requests a sixteenth of the cluster at most."""
_GUARANTEED: Final = 0.75
"""Share of the GPUs that tenants' guarantees cover."""
_RAMP_PODS: Final = 12.0
"""Pods per second that the warm-up creates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Settings of one run.

    Properties without another unit are in seconds of the platform, which plays the trace `speed` times faster than it
    was recorded.
    """

    nodes: int = 1000
    tenants: int = 25
    minutes: float = 15.0
    speed: float = 20.0
    seed: int = 1
    load: float = 1.1
    samples: int = 8
    """Simulations with other arrival delays, which show the effect of timing."""

    @property
    def gpus(self) -> int:
        """GPUs of the cluster."""
        return self.nodes * GPUS_PER_NODE

    @property
    def guarantee(self) -> int:
        """Guaranteed GPUs of each tenant, in whole nodes."""
        return int(self.nodes * _GUARANTEED) // self.tenants * GPUS_PER_NODE

    @property
    def duration(self) -> float:
        """Time in which the trace is played, after the warm-up."""
        return 60.0 * self.minutes

    @property
    def notice(self) -> float:
        """Time between the notice of an eviction and the deletion."""
        return _NOTICE / self.speed

    @property
    def age_cap(self) -> float:
        """Maximum of the waiting time in the queue order."""
        return _AGE_CAP / self.speed

    @property
    def grace(self) -> int:
        """Grace period of the pods. Kubernetes accepts whole seconds, from 1 on."""
        return max(1, round(_GRACE / self.speed))

    @property
    def sizes(self) -> dict[int, float]:
        """Share of gangs by number of GPUs."""
        return {gpus: share for gpus, share in _SIZES.items() if gpus <= max(GPUS_PER_NODE, self.gpus // _LARGEST)}

    @property
    def ramp(self) -> float:
        """Pods per second that the warm-up creates."""
        return _RAMP_PODS
