"""What the arbiter answers: who starts where, who must go for whom, who waits and why. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from vkgateway.arbiter.snapshot import PoolKey, PreemptionPlan


class PendingReason(StrEnum):
    """Why a gang waits."""

    QUOTA = "WaitingForQuota"
    ROOM = "WaitingForRoom"
    MEMBERS = "WaitingForMembers"
    EVICTION = "WaitingForEviction"
    """Its room is being made: others were told to go."""
    RESERVATION = "BehindReservation"
    MAXIMUM = "AtMaximum"
    """As many of its pods run as it may grow to."""
    INFEASIBLE = "Infeasible"
    INVALID = "Invalid"
    """Its marks contradict each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit:
    """These pods start now, each on its node; all of the gang's minimum are among them or run already."""

    gang: str
    pool: PoolKey
    nodes: Mapping[str, str]
    """Pod uid to node."""
    borrowed: bool
    """Outside the tenant's cells: may be evicted later."""
    behind: str = ""
    """The gang in whose reserved place it starts, and for which it goes when that one's time has come; to be told
    again as `Pod.behind`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    """These pods of a gang go at the deadline: all of them, or some of an elastic gang's surplus.

    Those that were inside their tenant's cells borrow from now on (`Pod.borrowed`): a gang of its that outranks them
    has the cells.
    """

    gang: str
    pods: tuple[str, ...]
    whole: bool
    makes_room_for: str
    deadline: float
    lost: float
    """GPU-seconds of work that are lost by it."""
    saved: float = 0.0
    """GPU-seconds of those who were chosen first for the same gang, in all, and could stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reprieve:
    """These pods were told to go, and may stay: what they made room for is not there any more, or needs less."""

    gang: str
    pods: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Promote:
    """These pods run, borrowed, and count from now on as inside their tenant's cells (`Pod.borrowed` is false)."""

    gang: str
    pods: tuple[str, ...]


class PendingReport(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A gang, or the waiting rest of one, does not start now.

    There may be a hundred thousand in each cycle, and a struct is made in a quarter of the time of a dataclass.
    """

    gang: str
    code: PendingReason
    message: str
    """For the tenant to read: names no other tenant, none of its gangs, no compute node."""
    behind: str = ""
    """The gang ahead for which room is kept; not for other tenants to read."""
    numbers: Mapping[str, float] = msgspec.field(default_factory=dict)
    place: int = 0
    """Gangs of the same pool before it, plus one; 0 where it does not stand in line."""
    pool: PoolKey | None = None
    """The pool of that line, for a gang in several pools; None: the one that the gang likes best."""
    earliest: float | None = None
    likely: float | None = None
    """When it may start (seconds since the epoch); None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuaranteeLoss:
    """What a tenant's guarantee in a pool has lost because nodes are missing, until they are back."""

    pool: PoolKey
    tenant: str
    units: int
    """Whole units lost; 0: nothing, but its cells are smaller."""
    asked: Mapping[int, int]
    """Its cells by right: how many of each size."""
    held: Mapping[int, int]
    """Its cells now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """All of one cycle. Deciding again with them carried out, and nothing new, gives none but the same holds."""

    admits: tuple[Admit, ...] = ()
    evicts: tuple[Evict, ...] = ()
    reprieves: tuple[Reprieve, ...] = ()
    promotes: tuple[Promote, ...] = ()
    holds: tuple[PendingReport, ...] = ()
    plans: Mapping[str, PreemptionPlan] = field(default_factory=dict)
    """By gang, all plans that are in force from now on: to be told again in the next cycle."""
    losses: tuple[GuaranteeLoss, ...] = ()
    """Guarantees that are reduced now, by pool and tenant."""
