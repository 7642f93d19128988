"""Answers: verdict, gangs, evictions and other effects, in the form for display. Plain data."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from vkgateway.scheduler.core.reasons.report_types import PoolReport
from vkgateway.scheduler.core.whatif.questions import Question


class Verdict(StrEnum):
    """Verdict in one word."""

    STARTS = "Starts"
    STARTS_AFTER_EVICTION = "StartsAfterEviction"
    """It starts when other pods have terminated: those under `evictions`, or pods that terminate anyway."""
    WAITS = "Waits"
    NEVER = "Never"
    """It waits until something else changes."""
    ACCEPTED = "Accepted"
    ACCEPTED_LATER = "AcceptedLater"
    """The guarantee is accepted when enough of the pods have ended that run where its cells would be."""
    REFUSED = "Refused"
    UNUSED = "Unused"
    """No gang's pods run on the nodes."""
    RESTARTS = "AllRestart"
    SOME_WAIT = "SomeWait"
    HELPS = "Helps"
    """A waiting gang starts, or starts earlier; or a reduced guarantee is restored."""
    NO_EFFECT = "NoEffect"


class EffectKind(StrEnum):
    """Effect on a gang that the question is not about."""

    STARTS = "Starts"
    DOES_NOT_START = "DoesNotStart"
    """It would start now otherwise."""
    STARTS_AFTER_EVICTION = "StartsAfterEviction"
    SPARED = "Spared"
    """It would be evicted, or stay evicted, otherwise."""
    NOT_SPARED = "NotSpared"
    """It was notified of its eviction, which would be withdrawn otherwise."""
    INSIDE_GUARANTEE = "InsideGuarantee"
    """It runs, borrows, and counts as inside its tenant's guarantee from now on."""
    BORROWS = "Borrows"
    """It continues to borrow, and would count as inside otherwise."""
    EARLIER = "Earlier"
    LATER = "Later"
    REASON = "Reason"
    """It waits for another reason."""


class _AnswerStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """Base of answers. Times are in seconds since the epoch, durations in seconds."""


class GangName(_AnswerStruct, frozen=True, gc=False):
    """Name of a gang; `way` says how the gang is defined, and is empty for a single pod."""

    id: str
    tenant: str
    namespace: str
    way: str
    name: str


class Placement(_AnswerStruct, frozen=True, gc=False):
    """Number of pods on a compute node."""

    pool: str
    """Virtual node of the pool."""
    node: str
    pods: int


class Outcome(_AnswerStruct, frozen=True, gc=False):
    """Outcome for a gang that the question is about."""

    gang: GangName
    verdict: Verdict
    pods: int
    """Pods that the question is about; other pods of the gang may keep running."""
    starting: int
    """Number of these pods that start; the surplus of an elastic gang may wait."""
    running: int = 0
    """Other pods of the gang that keep running."""
    placements: tuple[Placement, ...] = ()
    borrowed: bool = False
    """It starts outside its tenant's guarantee: it may be evicted later."""
    code: str = ""
    message: str = ""
    """Reason why some or all pods do not start now."""
    pool: str = ""
    """Virtual node in whose queue it waits, or where it starts."""
    place: int = 0
    earliest: float | None = None
    likely: float | None = None
    expected: str = ""
    """Expected start in words; empty where time alone does not help."""
    behind: str = ""
    """Gang ahead that has a reservation."""


class Eviction(_AnswerStruct, frozen=True, gc=False):
    """Eviction of a gang or some of its pods that would not happen otherwise."""

    gang: GangName
    pods: int
    of: int
    """Number of its running pods."""
    whole: bool
    inside: bool
    """It runs inside its tenant's guarantee."""
    nodes: tuple[str, ...]
    makes_room_for: str
    """Id of the gang."""
    notice: float
    deadline: float
    grace: float
    lost: float
    """Lost seconds of work times the units (GPUs) that it holds."""


class Effect(_AnswerStruct, frozen=True, gc=False):
    """Effect other than an eviction on a gang that the question is not about."""

    gang: GangName
    what: EffectKind
    pods: int
    before: str
    after: str


class Cell(_AnswerStruct, frozen=True, gc=False):
    """Cell of the requested guarantee."""

    size: int
    in_use: bool
    """Pods of the tenant run in it already. Otherwise the other fields describe a pod that fills it now."""
    node: str
    """Node of these pods, or of the one that would fill it; empty: none yet."""
    verdict: Verdict
    borrowed: bool = False
    """The pod would start outside the guarantee: other guaranteed pods are on the nodes that it could use."""
    message: str = ""
    expected: str = ""


class GuaranteeChange(_AnswerStruct, frozen=True, gc=False):
    """Change of what the nodes hold of a tenant's guarantee: `2x8` or, where some is missing, `2x8 -> 8`."""

    tenant: str
    pool: str
    units_lost_before: int
    units_lost_after: int
    before: str
    after: str


class PoolChange(_AnswerStruct, frozen=True, gc=False):
    """Report of a pool for one resource, without and with the change."""

    before: PoolReport | None
    after: PoolReport | None


class Answer(_AnswerStruct, frozen=True, gc=False):
    """Complete answer. Effects that would happen anyway are omitted."""

    question: Question
    time: float
    """Time of the decision."""
    seen: float
    """Time of the snapshot."""
    verdict: Verdict
    summary: str
    gangs: tuple[Outcome, ...] = ()
    """Gangs that the question is about."""
    evictions: tuple[Eviction, ...] = ()
    effects: tuple[Effect, ...] = ()
    more_effects: int = 0
    """Number of further effects that are not listed."""
    cells: tuple[Cell, ...] = ()
    guarantees: tuple[GuaranteeChange, ...] = ()
    pools: tuple[PoolChange, ...] = ()
    """Pools that change."""
    notes: tuple[str, ...] = ()
    """Further information in sentences: remedies, assumptions."""
