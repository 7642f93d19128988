"""Result of a simulation: metrics of one scheduler over one scenario. Plain data for tables, JSON and reports."""

from __future__ import annotations

import msgspec

from vkgateway_platform.simulate.state import Sample


class WaitStatistics(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Seconds from submission to the first start, of gangs of one kind. Percentiles cover gangs that started."""

    band: str
    size: str
    """Class of GPUs, like `2-8`; empty: all sizes."""
    gangs: int
    never_started: int
    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None


class LateGang(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An entitled gang that started after the bound, or never (`started` is missing)."""

    gang: str
    tenant: str
    gpus: float
    submitted: float
    started: float | None
    late: float
    """Seconds after the bound."""
    reason: str = ""
    """Code of its first pending reason. Empty: the scheduler gives none, or the gang waited for evictions alone."""
    behind: str = ""
    """Gang for which capacity was reserved, if that was the reason."""
    behind_own: bool = False
    """That gang is an older one of the same tenant, which would also come first in the tenant's private cluster."""


class Anomaly(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A guaranteed gang that waited longer than in its tenant's private cluster, plus the bound. In seconds."""

    gang: str
    tenant: str
    gpus: float
    wait: float
    private: float


class TenantUsage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Usage of one tenant. `gpus` is the average until the horizon."""

    tenant: str
    guarantee: float
    weight: float
    gpus: float
    guaranteed_wait: float | None
    """Mean, in seconds."""
    low_wait: float | None
    evictions: int


class BudgetMonth(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Use of a budget in one UTC month, in unit-hours (GPU-hours)."""

    month: str
    tenant: str
    resource: str
    pool: str
    """Pool to which the budget is restricted; empty: all pools."""
    budget: float
    used: float
    used_up: float | None
    """When it was used up, in seconds since the trace began; None: never in this month."""


class SimulationResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Metrics of one scheduler. Shares are of all GPUs of the cluster, from 0 to 1, from warm-up to horizon."""

    scheduler: str
    gangs: int
    ended: int
    never_started: int
    makespan: float
    """When the last gang ended, in seconds."""
    allocation: float
    borrowed: float
    terminating: float
    fragmentation: float
    """Idle GPUs on partly used nodes."""
    waits: list[WaitStatistics]
    longest_wait: float
    """Longest wait of any gang, for its first start or after an eviction, ended or not: a measure of starvation."""
    queued: float
    """Mean seconds that a gang was pending, also after evictions."""
    entitled: int
    """Gangs that fitted their tenant's unused guarantee when they were submitted."""
    entitled_p99: float | None
    """The 99th percentile of their waits, in seconds."""
    late: list[LateGang]
    late_p99: float | None
    """The 99th percentile of the lateness of late gangs."""
    evictions: int
    evicted_gangs: int
    lost_gpu_hours: float
    anomalies: list[Anomaly] | None
    """None: private clusters were not simulated."""
    fairness: float
    """Jain's index over GPU-seconds per weight: 1 is equal, 1/n one tenant has all."""
    cycles: int
    cycle_p50: float | None
    """Seconds that a cycle took; None: not measured."""
    cycle_p99: float | None
    cycle_max: float | None
    tenants: list[TenantUsage]
    budgets: list[BudgetMonth] = []
    samples: list[Sample] = []
    """Averages over parts of the time."""
    first_waits: dict[str, list[float]] = {}
    """By band, the seconds that each gang waited, ordered."""
