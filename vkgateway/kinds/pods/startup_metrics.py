"""Metrics of the starts of pods by phase, and of image pulls; and the same for people, as a report.

Series are bounded: pools times phases, pools times results, and the images that took the longest in total.
"""

from __future__ import annotations

from collections import Counter as Count
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import msgspec
from prometheus_client import Counter, Gauge, Histogram

from vkgateway.kinds.events.pulls import RESULTS, Pull
from vkgateway.kinds.pods.translation.start_phases import PHASES, Phase

TOTAL: Final = "total"
"""Value of the label `phase` for the sum of all phases."""
SHOWN_IMAGES: Final = 20
"""Images with series."""
_KNOWN_IMAGES: Final = 500
_RECENT_STARTS: Final = 500
"""Starts by pool from which the report computes its quantiles."""
_IMAGE_MAX: Final = 256
"""Characters of an image's name that are kept: the name is a tenant's text."""

PHASE_SECONDS: Final = Histogram(
    "vkgateway_pod_start_phase_seconds",
    "Duration of each phase of the start of a pod that became ready, and of all phases, by pool.",
    ["pool", "phase"],
    buckets=(0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 7200),
)
STARTING: Final = Gauge(
    "vkgateway_pods_starting", "Pods with a compute pod that are not ready yet, by pool and phase.", ["pool", "phase"]
)
PULLS: Final = Counter(
    "vkgateway_image_pulls",
    "Ends of image pulls that kubelets report about tenants' pods, by pool and result.",
    ["pool", "result"],
)
IMAGE_PULLS: Final = Gauge(
    "vkgateway_top_image_pulls",
    "Pulls of an image since the gateway leads, for the 20 images whose pulls took the longest in total.",
    ["image"],
)
IMAGE_SECONDS: Final = Gauge(
    "vkgateway_top_image_pull_seconds",
    "Total duration of these pulls, without the time that they waited for others.",
    ["image"],
)


class PhaseReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Durations of one phase over the last starts in a pool, in seconds."""

    phase: str
    median: float
    slowest: float


class PoolStarts(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Starts of pods in one pool."""

    pool: str
    starts: int
    """Number of starts that the durations describe."""
    phases: tuple[PhaseReport, ...]
    starting: dict[str, int]
    """Pods that start now, by phase."""


class ImageReport(msgspec.Struct, kw_only=True, rename="camel"):
    """Pulls of one image."""

    image: str
    pulls: int = 0
    seconds: float = 0.0
    """Total duration, without waiting."""
    longest: float = 0.0
    failures: int = 0


class StartReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Starts by pool, and the images whose pulls took the longest in total, those first."""

    pools: tuple[PoolStarts, ...]
    images: tuple[ImageReport, ...]


class StartStatistics:
    """Recent starts and image pulls of all tenants, of bounded size."""

    def __init__(self) -> None:
        self._starts: dict[str, deque[Mapping[Phase, float]]] = defaultdict(lambda: deque(maxlen=_RECENT_STARTS))
        self._images: dict[str, ImageReport] = {}
        self.sources: set[Callable[[], Iterable[tuple[str, Phase]]]] = set()
        """For each tenant: returns the pool and the phase of each pod with a compute pod that is not ready yet."""

    def add_start(self, pool: str, phases: Mapping[Phase, float]) -> None:
        """Record the seconds of the phases of a start."""
        self._starts[pool].append(phases)
        for phase, seconds in phases.items():
            PHASE_SECONDS.labels(pool, phase).observe(seconds)
        PHASE_SECONDS.labels(pool, TOTAL).observe(sum(phases.values()))

    def add_pull(self, pool: str, pull: Pull) -> None:
        """Record the end of a pull."""
        PULLS.labels(pool, pull.result).inc()
        if pull.result == "present" or not pull.image:
            return
        name = pull.image[:_IMAGE_MAX]
        image = self._images.get(name)
        if image is None:
            image = self._images[name] = ImageReport(image=name)
            self._drop_images(kept=name)
        if pull.result == "pulled":
            image.pulls += 1
            image.seconds += pull.seconds
            image.longest = max(image.longest, pull.seconds)
        else:
            image.failures += 1

    def update_metrics(self, pools: Collection[str]) -> None:
        """Set the gauges, and drop pools that do not exist any more; `pools` are those that exist."""
        self._forget_pools(pools)
        for pool in pools:
            for result in RESULTS:
                PULLS.labels(pool, result)  # `increase` of a series that starts with 1 is 0
        for gauge in (STARTING, IMAGE_PULLS, IMAGE_SECONDS):
            gauge.clear()
        for (pool, phase), count in self._count_starting().items():
            STARTING.labels(pool, phase).set(count)
        for image in self._top_images():
            IMAGE_PULLS.labels(image.image).set(image.pulls)
            IMAGE_SECONDS.labels(image.image).set(image.seconds)

    def report(self) -> StartReport:
        """Return the report for people."""
        starting = self._count_starting()
        names = sorted({*self._starts, *(pool for pool, _ in starting)})
        return StartReport(
            pools=tuple(self._pool_report(name, starting) for name in names),
            images=tuple(self._top_images(failed=True)),
        )

    def _count_starting(self) -> Mapping[tuple[str, Phase], int]:
        return Count(entry for source in self.sources for entry in source())

    def _pool_report(self, pool: str, starting: Mapping[tuple[str, Phase], int]) -> PoolStarts:
        starts = self._starts.get(pool, ())
        durations = {phase: sorted(start[phase] for start in starts if phase in start) for phase in PHASES}
        return PoolStarts(
            pool=pool,
            starts=len(starts),
            phases=tuple(
                PhaseReport(phase=phase, median=found[len(found) // 2], slowest=found[-1])
                for phase, found in durations.items()
                if found
            ),
            starting={phase: count for (name, phase), count in starting.items() if name == pool},
        )

    def _top_images(self, *, failed: bool = False) -> list[ImageReport]:
        """Return the images that took the longest; with `failed`, also those that were never pulled."""
        found = [image for image in self._images.values() if image.pulls or (failed and image.failures)]
        return sorted(found, key=lambda image: (-image.seconds, image.image))[:SHOWN_IMAGES]

    def _drop_images(self, *, kept: str) -> None:
        while len(self._images) > _KNOWN_IMAGES:
            del self._images[min((name for name in self._images if name != kept), key=self._weight)]

    def _weight(self, name: str) -> tuple[float, int]:
        return self._images[name].seconds, self._images[name].failures

    def _forget_pools(self, pools: Collection[str]) -> None:
        for name in self._starts.keys() - set(pools):
            del self._starts[name]
        for metric in (PHASE_SECONDS, PULLS):
            for labels in {tuple(each.labels.values()) for found in metric.collect() for each in found.samples}:
                if labels[0] not in pools:
                    metric.remove(*labels[:2])


STATISTICS: Final = StartStatistics()
"""Of this process, as its metrics are."""
