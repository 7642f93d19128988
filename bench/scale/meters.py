"""CPU and memory of gateway and machine during a run, and durations of the arbiter's cycles."""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bench import procfs, startmetrics
from bench.platform import Platform
from bench.procfs import CpuMeter
from bench.stats import percentile
from bench.timeline import now

_BUCKET: Final = re.compile(r'^vkgateway_arbiter_cycle_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)
_SAMPLE: Final = 5.0
_FULL: Final = 0.95
GATEWAY: Final = "gateway"

Buckets = Mapping[float, float]
"""Number of cycles with at most this duration, by seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterFigures:
    """Figures of a run after its warm-up.

    CPU is in seconds by kind of process, memory in MiB. `busy` holds a share of all cores for each sample, and `steps`
    the cycles of the arbiter.
    """

    seconds: float
    cpu: Mapping[str, float]
    peak: float
    busy: Sequence[float]
    steps: Buckets = field(default_factory=dict)

    @property
    def mean_cores(self) -> float:
        """Mean number of cores that the gateway used."""
        return self.cpu.get(GATEWAY, 0.0) / self.seconds

    @property
    def full_share(self) -> float:
        """Share of samples in which the machine had nearly no idle core."""
        return sum(share > _FULL for share in self.busy) / len(self.busy) if self.busy else 0.0

    @property
    def median_busy(self) -> float:
        """Median of the samples."""
        return percentile(self.busy, 0.5)


class Meters:
    """Meters that run from `begin` to `finish`."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._socket = platform.paths.data_dir / "run/gateway.sock"
        self._busy: list[float] = []
        self._cpu: CpuMeter | None = None
        self._started = 0.0
        self._steps: Buckets = {}

    async def begin(self) -> None:
        """Start to count."""
        procfs.reset_peak(await self._platform.gateway_pid())
        self._steps = parse_cycles(await startmetrics.fetch_metrics(self._socket))
        self._cpu, self._started = await self._platform.start_meter(), now()
        self._busy.clear()

    async def sample(self) -> None:
        """Sample the machine until cancelled."""
        while True:
            busy, started = procfs.busy_seconds(), now()
            await asyncio.sleep(_SAMPLE)
            cores = len(os.sched_getaffinity(0))
            self._busy.append((procfs.busy_seconds() - busy) / (now() - started) / cores)

    async def finish(self) -> MeterFigures:
        """Return the figures."""
        assert self._cpu is not None
        after = parse_cycles(await startmetrics.fetch_metrics(self._socket))
        return MeterFigures(
            seconds=now() - self._started,
            cpu=self._cpu.read_seconds(),
            peak=procfs.memory_mib(await self._platform.gateway_pid())["VmHWM"],
            busy=tuple(self._busy),
            steps={bound: count - self._steps.get(bound, 0.0) for bound, count in after.items()},
        )


def parse_cycles(page: str) -> Buckets:
    """Return the histogram of cycles in a page of metrics."""
    return {float(match[1]): float(match[2]) for match in _BUCKET.finditer(page)}


def quantile(steps: Buckets, share: float) -> float:
    """Return the seconds that this share of the cycles did not exceed, by linear interpolation as in Prometheus.

    NaN if there are no cycles. A share of 1 gives the upper bound of the slowest cycle's bucket.
    """
    ordered = sorted(steps.items())
    total = ordered[-1][1] if ordered else 0.0
    if not total:
        return math.nan
    lower, reached = 0.0, 0.0
    for bound, count in ordered:
        if count >= share * total:
            part = (share * total - reached) / (count - reached) if count > reached else 1.0
            return bound if math.isinf(bound) else lower + (bound - lower) * part
        lower, reached = bound, count
    return ordered[-1][0]
