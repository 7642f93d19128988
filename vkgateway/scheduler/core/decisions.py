"""Output of a scheduling cycle: admissions, evictions, reprieves, promotions and pending reasons. Plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

import msgspec

from vkgateway.api.scheduling import SchedulerMarks
from vkgateway.scheduler.core.snapshot import PoolKey, PreemptionPlan


class PendingReason(StrEnum):
    """Reason why a gang waits."""

    QUOTA = "WaitingForQuota"
    BUDGET = "BudgetUsedUp"
    """Its tenant starts only pods inside its guarantee until the next month."""
    ROOM = "WaitingForRoom"
    MEMBERS = "WaitingForMembers"
    EVICTION = "WaitingForEviction"
    """Victims that free its resources were notified."""
    RESERVATION = "BehindReservation"
    MAXIMUM = "AtMaximum"
    """It runs its maximum number of pods."""
    INFEASIBLE = "Infeasible"
    INVALID = "Invalid"
    """Its annotations contradict each other."""


PERMANENT_REASONS: Final = frozenset({PendingReason.INFEASIBLE, PendingReason.INVALID})
"""Reasons that waiting never resolves: the gang or the cluster must change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit:
    """Start of pods now, each on its node. All min members of the gang are among them or run already."""

    gang: str
    pool: PoolKey
    nodes: Mapping[str, str]
    """Node name by pod uid."""
    borrowed: bool
    """Outside the tenant's guarantee: the pods may be evicted later."""
    marks: Mapping[str, SchedulerMarks] = field(default_factory=dict)
    """By pod uid: what another scheduler needs on the compute pods."""
    behind: str = ""
    """Gang whose reservation these pods backfill: they are evicted when that gang can start. Snapshots repeat it as
    `Pod.behind`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    """Eviction of a gang's pods at the deadline: of all of them, or of surplus pods of an elastic gang.

    Evicted pods inside their tenant's guarantee borrow from now on (`Pod.borrowed`): a gang of a higher rank of the
    same tenant uses that part of the guarantee.
    """

    gang: str
    pods: tuple[str, ...]
    whole: bool
    makes_room_for: str
    deadline: float
    lost: float
    """GPU-seconds of work that the eviction loses."""
    saved: float = 0.0
    """GPU-seconds of all candidates that were chosen first for the same gang and then spared."""
    reached_limit: float = 0.0
    """Run limit in seconds that the gang reaches at the deadline, for no other gang's sake. Its pods stay inside the
    guarantee until they end. 0: the eviction makes room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reprieve:
    """Withdrawal of an eviction: the gang that needed the pods' resources no longer needs them, or needs less."""

    gang: str
    pods: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Promote:
    """Move of running, borrowing pods into their tenant's guarantee (`Pod.borrowed` becomes false)."""

    gang: str
    pods: tuple[str, ...]


class PendingReport(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Reason why a gang, or the waiting rest of one, does not start now.

    A cycle may hold 100,000 of them, and msgspec creates a struct in a quarter of the time of a dataclass.
    """

    gang: str
    code: PendingReason
    message: str
    """Text for the tenant: it names no other tenant, no gang of another tenant and no compute node."""
    behind: str = ""
    """Gang ahead that has a reservation; hidden from other tenants."""
    ends: str = ""
    """Gang of the same tenant that the message names, because its end would let this one start."""
    numbers: Mapping[str, float] = msgspec.field(default_factory=dict)
    place: int = 0
    """Place in the pool's queue, from 1; 0: not queued."""
    pool: PoolKey | None = None
    """Pool of that queue, for a gang in several pools; None: the gang's preferred pool."""
    earliest: float | None = None
    likely: float | None = None
    """Expected start (seconds since the epoch); None: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuaranteeLoss:
    """Loss of a tenant's guarantee in a pool while nodes are missing."""

    pool: PoolKey
    tenant: str
    units: int
    """Number of whole units lost; 0: only the cells are smaller."""
    asked: Mapping[int, int]
    """Number of cells of each size that the quota grants."""
    held: Mapping[int, int]
    """Number of cells of each size that the tenant has now."""
    is_sum: bool = False
    """The guarantee is a sum, not cells: another scheduler arbitrates the pool. Each unit is listed as a cell of 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """Decisions of one cycle.

    After they are carried out, and without news, the next cycle only repeats the pending reports, until `next_notice`.
    """

    admits: tuple[Admit, ...] = ()
    evicts: tuple[Evict, ...] = ()
    reprieves: tuple[Reprieve, ...] = ()
    promotes: tuple[Promote, ...] = ()
    holds: tuple[PendingReport, ...] = ()
    plans: Mapping[str, PreemptionPlan] = field(default_factory=dict)
    """Preemption plans in force, by gang id. The next snapshot repeats them."""
    losses: tuple[GuaranteeLoss, ...] = ()
    """Reduced guarantees, by pool and tenant."""
    next_notice: float | None = None
    """When the first of the running gangs must be notified of its run limit (seconds since the epoch); None: never."""


def merge_admits(admits: Iterable[Admit]) -> Iterable[Admit]:
    """Return one admission for each gang, pool, side of the guarantee and reserved place, in order of the first."""
    merged: dict[tuple[str, PoolKey, bool, str], Admit] = {}
    for admit in admits:
        key = admit.gang, admit.pool, admit.borrowed, admit.behind
        known = merged.get(key)
        merged[key] = admit if known is None else replace(admit, nodes={**known.nodes, **admit.nodes})
    return merged.values()
