"""Generator of synthetic jobs: load, sizes, run times and bands, from a source of random numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from vkgateway.scheduler.core.snapshot import GUARANTEED, LOW, Shape
from vkgateway_platform.simulate.scenario import GPU, Job

GANG_SIZES: Mapping[int, float] = MappingProxyType({1: 0.35, 2: 0.15, 4: 0.15, 8: 0.18, 16: 0.09, 32: 0.05, 64: 0.03})
"""GPUs of a gang, and the share of gangs with as many."""


class RandomSource(Protocol):
    """Random numbers, as `random.Random` draws them."""

    def random(self) -> float:
        """Return a number from 0 to 1."""
        ...

    def lognormvariate(self, mu: float, sigma: float) -> float:
        """Return a number whose logarithm is normal."""
        ...

    def choices(self, population: Sequence[int], weights: Sequence[float]) -> list[int]:
        """Return a list of one of them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadParameters:
    """What a generator draws. Times are in seconds."""

    gpus: float
    """Of the cluster."""
    resource: str = GPU
    tenants: tuple[str, ...]
    load: float = 1.0
    """Requested GPU-seconds, as a share of what the cluster has in `duration`."""
    duration: float = 86_400.0
    sizes: Mapping[int, float] = field(default_factory=lambda: GANG_SIZES)
    per_pod: int = 8
    """GPUs of a pod of a larger gang."""
    low: float = 0.5
    """The share of gangs in the low band."""
    skew: float = 0.5
    """0: all tenants submit the same amount of work; 1: the second half of what the first does, the third a third."""
    log_run: float = 7.1
    """The logarithm of the median run time: 20 minutes."""
    spread: float = 1.5
    """The standard deviation of the logarithm of the run time."""
    shortest: float = 60.0
    longest: float = 43_200.0
    checkpoint: float = 0.0
    """Seconds between two checkpoints; 0: none."""


def generate_jobs(work: WorkloadParameters, draws: RandomSource) -> tuple[Job, ...]:
    """Draw jobs until they request the load, and spread them evenly at random over the duration."""
    sizes, tenants = list(work.sizes), range(len(work.tenants))
    activity = [1.0 / (number + 1) ** work.skew for number in tenants]
    wanted = work.load * work.gpus * work.duration
    jobs: list[Job] = []
    while wanted > 0:
        gpus = draws.choices(sizes, list(work.sizes.values()))[0]
        tenant = work.tenants[draws.choices(list(tenants), activity)[0]]
        band = LOW if draws.random() < work.low else GUARANTEED
        run = min(max(draws.lognormvariate(work.log_run, work.spread), work.shortest), work.longest)
        number = len(jobs)
        jobs.append(
            Job(
                id=f"{tenant}/{gpus}/{number}",
                tenant=tenant,
                shapes=pod_shapes(gpus, work.per_pod, work.resource),
                submitted=round(draws.random() * work.duration, 3),
                run=round(run, 3),
                band=band,
                checkpoint=work.checkpoint,
                kind=f"{tenant}/{band}/{gpus}",
            )
        )
        wanted -= gpus * run
    return tuple(jobs)


def pod_shapes(gpus: int, per_pod: int, resource: str = GPU) -> tuple[Shape, ...]:
    """Return the pods of a gang: full ones, and one for the rest."""
    full, rest = divmod(gpus, per_pod)
    shape = Shape.from_requests({resource: per_pod * 1000})
    return (shape,) * full + ((Shape.from_requests({resource: rest * 1000}),) if rest else ())
