"""Input of a simulation: pools, tenants' quotas, the jobs of a trace and the settings of the platform."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from vkgateway.api.types import TenantBudget
from vkgateway.scheduler.core.past_share import PastShare
from vkgateway.scheduler.core.snapshot import Band, Gang, Pod, Policy, Pool, PoolKey, Quota, Shape
from vkgateway.tenants.usage.ledger import MonthUsage

GPU = "nvidia.com/gpu"
POOL: PoolKey = ("compute", "pool")
"""The pool of scenarios that have only one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Times are in seconds. The defaults are those of the gateway."""

    notice: float = 30.0
    """Between the notice of an eviction and the deletion."""
    grace: float = 60.0
    """Evicted pods use all of it before they terminate."""
    recreate: float = 0.0
    """Between the end of an evicted gang's pods and their re-creation.

    It doubles with each eviction of the gang, up to ten minutes, like the back-off of Kubernetes' Job controller.
    """
    startup: float = 0.0
    """Between the admission of a gang and the existence of its pods in the compute cluster.

    A gang that is evicted before keeps its pods: it queues again at the deadline, in its former place.
    """
    interval: float = 1.0
    """The least time between two scheduling cycles."""
    refresh: float = 30.0
    """The longest time between two scheduling cycles while gangs are pending.

    It doubles with each cycle that decides nothing, up to 16 times as long, until anything changes. The gateway's does
    not: it also keeps pending reasons and expected starts up to date.
    """
    begin: float = 0.0
    """When the trace begins, in seconds since the epoch: budgets are for calendar months (UTC)."""
    horizon: float = 0.0
    """The end of the period that metrics of usage cover; 0: the last submission."""
    warm_up: float = 0.0
    """The beginning that metrics of usage leave out."""
    policy: Policy = field(default_factory=Policy)

    @property
    def start_bound(self) -> float:
        """Seconds within which a gang that fits its tenant's unused guarantee must start.

        It waits for two cycles at most: one that evicts others, and one that starts it when they have terminated.
        """
        return self.notice + self.grace + 2 * self.interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One gang of a trace. `submitted` is in seconds since the trace began, `run` in seconds of undisturbed work."""

    id: str
    tenant: str
    shapes: tuple[Shape, ...]
    """What each of its pods requests."""
    submitted: float
    run: float
    pools: tuple[PoolKey, ...] = (POOL,)
    band: Band = Band.GUARANTEED
    priority: int = 0
    minimum: int = 0
    """0: all of its pods."""
    elastic: bool = False
    run_limit: float | None = None
    checkpoint: float = 0.0
    """Seconds of work between two checkpoints; 0: it saves nothing."""
    kind: str = ""
    """Jobs of one kind run for similar times; empty: nothing is known of this job."""

    def pending_gang(self, settings: Settings) -> Gang:
        """Return the job as a pending gang, as it was submitted."""
        pods = tuple(Pod(uid=f"{self.id}.{rank}", shape=shape, rank=rank) for rank, shape in enumerate(self.shapes))
        return Gang(
            id=self.id,
            tenant=self.tenant,
            pods=pods,
            pools=self.pools,
            band=self.band,
            priority=self.priority,
            created=self.submitted,
            minimum=self.minimum or len(pods),
            elastic=self.elastic,
            run_limit=self.run_limit,
            notice=settings.notice,
            grace=settings.grace,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything that a simulation needs; `jobs` are in the order of their submission, ids in the same order."""

    pools: tuple[Pool, ...]
    quotas: tuple[Quota, ...]
    jobs: tuple[Job, ...]
    settings: Settings = field(default_factory=Settings)
    budgets: Mapping[str, tuple[TenantBudget, ...]] = field(default_factory=dict)
    """Monthly budgets by tenant; tenants without a budget are missing."""
    usage: tuple[MonthUsage, ...] = ()
    """What tenants with a budget used before the trace begins."""
    past_shares: tuple[PastShare, ...] = ()
    """What tenants borrowed before the trace begins; times are in seconds since then."""

    @property
    def horizon(self) -> float:
        """The end of the period that metrics of usage cover, in seconds."""
        return self.settings.horizon or max((job.submitted for job in self.jobs), default=0.0)

    @property
    def measured_seconds(self) -> float:
        """Seconds of the period that metrics of usage cover."""
        return max(0.0, self.horizon - self.settings.warm_up)

    @property
    def pool_units(self) -> Mapping[PoolKey, str]:
        """The resource that each pool allocates."""
        return {pool.key: pool.loss_resource for pool in self.pools}

    def fingerprint(self) -> str:
        """Return a digest by which two scenarios are known to be equal."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()


def sort_jobs(scenario: Scenario) -> Scenario:
    """Return the scenario with its jobs in the order of their submission, renamed so that ids sort the same way."""
    jobs = sorted(scenario.jobs, key=lambda job: (job.submitted, job.id))
    digits = len(str(len(jobs)))
    return replace(
        scenario, jobs=tuple(replace(job, id=f"{number:0{digits}}/{job.id}") for number, job in enumerate(jobs))
    )
