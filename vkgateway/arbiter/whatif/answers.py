"""What is answered: verdict, gangs, evictions and other effects, in the form in which it is shown. Plain data."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from vkgateway.arbiter.reasons.report_types import PoolReport
from vkgateway.arbiter.whatif.questions import Question


class Verdict(StrEnum):
    """The answer in a word."""

    STARTS = "Starts"
    STARTS_AFTER_EVICTION = "StartsAfterEviction"
    """It starts as soon as others have gone: those under `evictions`, or those that leave already."""
    WAITS = "Waits"
    NEVER = "Never"
    """It waits for ever unless something else changes."""
    ACCEPTED = "Accepted"
    ACCEPTED_LATER = "AcceptedLater"
    """The guarantee is accepted once enough of the pods have ended that stand where its cells would be."""
    REFUSED = "Refused"
    UNUSED = "Unused"
    """No gang's pods run on the nodes."""
    RESTARTS = "AllRestart"
    SOME_WAIT = "SomeWait"
    HELPS = "Helps"
    """Something that waits starts, or starts earlier; or a reduced guarantee is restored."""
    NO_EFFECT = "NoEffect"


class EffectKind(StrEnum):
    """What becomes of a gang that the question is not about."""

    STARTS = "Starts"
    DOES_NOT_START = "DoesNotStart"
    """It would start now otherwise."""
    STARTS_AFTER_EVICTION = "StartsAfterEviction"
    SPARED = "Spared"
    """It would be evicted, or stay so, otherwise."""
    NOT_SPARED = "NotSpared"
    """It has notice, which would be withdrawn otherwise."""
    INSIDE_GUARANTEE = "InsideGuarantee"
    """It runs, borrows, and counts as inside its tenant's guarantee from now on."""
    BORROWS = "Borrows"
    """It goes on borrowing, and would count as inside otherwise."""
    EARLIER = "Earlier"
    LATER = "Later"
    REASON = "Reason"
    """It waits for another reason."""


class _AnswerStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """Times are in seconds since the epoch, durations in seconds."""


class GangName(_AnswerStruct, frozen=True, gc=False):
    """Which gang: `way` says how it was said, and is empty for a lone pod."""

    id: str
    tenant: str
    namespace: str
    way: str
    name: str


class Placement(_AnswerStruct, frozen=True, gc=False):
    """So many pods on a compute node."""

    pool: str
    """The virtual node that stands for the pool."""
    node: str
    pods: int


class Outcome(_AnswerStruct, frozen=True, gc=False):
    """What becomes of a gang that the question is about."""

    gang: GangName
    verdict: Verdict
    pods: int
    """Those that the question is about; others of the gang may run on."""
    starting: int
    """The number of these that start; the surplus of an elastic gang may wait."""
    running: int = 0
    """Others of the gang that run on."""
    placements: tuple[Placement, ...] = ()
    borrowed: bool = False
    """It starts outside its tenant's guarantee: it may be evicted later."""
    code: str = ""
    message: str = ""
    """Why all of it, or some of it, does not start now."""
    pool: str = ""
    """The virtual node in whose line it stands, or where it starts."""
    place: int = 0
    earliest: float | None = None
    likely: float | None = None
    expected: str = ""
    """The same in words; empty where that is no question of time."""
    behind: str = ""
    """The gang ahead for which room is reserved."""


class Eviction(_AnswerStruct, frozen=True, gc=False):
    """A gang that is evicted, or some of its pods, and would not be otherwise."""

    gang: GangName
    pods: int
    of: int
    """How many of its pods run."""
    whole: bool
    inside: bool
    """It runs inside its tenant's guarantee."""
    nodes: tuple[str, ...]
    makes_room_for: str
    """The gang's id."""
    notice: float
    deadline: float
    grace: float
    lost: float
    """Seconds of work that are lost, times the units (GPUs) that it holds."""


class Effect(_AnswerStruct, frozen=True, gc=False):
    """What changes for a gang that the question is not about, but for evictions."""

    gang: GangName
    what: EffectKind
    pods: int
    before: str
    after: str


class Cell(_AnswerStruct, frozen=True, gc=False):
    """A cell of the guarantee that was asked about."""

    size: int
    bound: bool
    """Pods of the tenant run in it already; else the rest tells what a pod that fills it would meet now."""
    node: str
    """Where it is bound or would be; empty: nowhere yet."""
    verdict: Verdict
    borrowed: bool = False
    """The pod would start outside the guarantee: its cell cannot bind anywhere now."""
    message: str = ""
    expected: str = ""


class GuaranteeChange(_AnswerStruct, frozen=True, gc=False):
    """What the nodes hold of a tenant's guarantee: `2x8` or, where some is missing, `2x8 -> 8`."""

    tenant: str
    pool: str
    units_lost_before: int
    units_lost_after: int
    before: str
    after: str


class PoolChange(_AnswerStruct, frozen=True, gc=False):
    """A pool by one resource, without and with what was asked about."""

    before: PoolReport | None
    after: PoolReport | None


class Answer(_AnswerStruct, frozen=True, gc=False):
    """All of it. What would happen anyway is left out."""

    question: Question
    time: float
    """When it was decided."""
    seen: float
    """When the snapshot was made that it was decided from."""
    verdict: Verdict
    summary: str
    gangs: tuple[Outcome, ...] = ()
    """Those that the question is about."""
    evictions: tuple[Eviction, ...] = ()
    effects: tuple[Effect, ...] = ()
    more_effects: int = 0
    """So many further effects are not listed."""
    cells: tuple[Cell, ...] = ()
    guarantees: tuple[GuaranteeChange, ...] = ()
    pools: tuple[PoolChange, ...] = ()
    """Those that change."""
    notes: tuple[str, ...] = ()
    """What else should be known, in sentences: ways out, assumptions."""
