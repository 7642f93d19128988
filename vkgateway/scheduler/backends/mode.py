"""The interface of a scheduling mode: translation to the scheduler's objects, and what their states mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from vkgateway.api.objects import Object
from vkgateway.api.scheduling import SchedulerMarks
from vkgateway.api.types import Pool as PoolSpec
from vkgateway.scheduler.backends.attempt import Attempt, Breach
from vkgateway.scheduler.core.decisions import Decisions
from vkgateway.scheduler.core.snapshot import Gang, Pod, Pool, PoolKey, Quota, Snapshot

if TYPE_CHECKING:
    from vkgateway.scheduler.backends.gang_split import GangSplitter


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What an attempt asks for: pods of a gang that start together or not at all."""

    name: str
    """Name of the scheduler's object."""
    gang: Gang
    pods: tuple[Pod, ...]
    spec: PoolSpec
    levels: tuple[str, ...] = ()
    """Network levels of the pool that the scheduler knows (`SchedulingMode.levels`)."""
    is_surplus: bool = False
    """One pod beyond the minimum: the scheduler evicts it before any whole gang of its rank."""
    is_borrowed: bool = False
    """When its pods start: whether they do so outside the guarantee of their tenant."""


class SchedulingMode(Protocol):
    """A scheduler of compute clusters, as the arbiter of a pool.

    How admission, eviction and waiting show is part of the `Attempt` that the mode decodes from its objects.
    """

    @property
    def max_pod_sets(self) -> int:
        """Maximum number of different shapes of pods in one attempt."""

    @property
    def retry_seconds(self) -> float:
        """Seconds between the end of a gang of which the scheduler evicted pods, and its next attempt."""

    @property
    def takes_slots_back(self) -> bool:
        """Whether the scheduler takes single slots of a running gang back."""

    def marks(self, request: Request, pod: Pod) -> SchedulerMarks:
        """Return what the scheduler needs on the compute pod of a pod that starts in an attempt."""

    def implied_attempts(self, given: ModeInput, splitter: GangSplitter) -> Mapping[str, Attempt]:
        """Return the attempts by name that exist without an object, as the scheduler has none for a gang.

        The gangs that `splitter` splits have the parts of these attempts.
        """

    def attempt_object(self, request: Request) -> Object:
        """Return the object that asks the scheduler to start pods; its annotations include its digest."""

    def digest(self, request: Request) -> str:
        """Return the digest of what `attempt_object` asks for."""

    def levels(self, pool: Pool, spec: PoolSpec) -> tuple[str, ...]:
        """Return the network levels of a pool that the scheduler can use, the widest first."""

    def pool_objects(self, pool: Pool, spec: PoolSpec, quotas: Sequence[Quota], gangs: Sequence[Gang]) -> list[Object]:
        """Return the queues of a pool with guarantees and limits, and what queues and gangs refer to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeInput:
    """What a mode decides from: its pools in one compute cluster, at one moment."""

    snapshot: Snapshot
    specs: Mapping[PoolKey, PoolSpec]
    attempts: Mapping[str, Attempt]
    """All existing attempts by name."""
    known_tenants: frozenset[str]
    """Tenants whose pods were all known once. For others, nothing is created, evicted or released."""
    removed_tenants: frozenset[str] = frozenset()
    """Tenants of attempts that do not exist any more and have no pods left."""
    breaches: Mapping[str, Breach] = field(default_factory=dict)
    """By gang: attempts of which the scheduler evicted single pods."""
    now: float


@dataclass(frozen=True, slots=True)
class Started:
    """An attempt, and the UIDs of its pods."""

    attempt: Attempt
    pods: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Return:
    """Slots of a running attempt that no pod needs any more, by pod set: those returned before are included."""

    attempt: Attempt
    slots: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeResult:
    """Decisions on pods, and the writes to the scheduler."""

    decisions: Decisions
    creates: tuple[Object, ...] = ()
    releases: tuple[Attempt, ...] = ()
    """Attempts to delete, each only in the state that was seen."""
    pool_objects: tuple[Object, ...] = field(default=())
    started: tuple[Started, ...] = ()
    """Admitted attempts whose pods exist in the compute cluster, and of which the scheduler does not know it yet."""
    ready: tuple[Attempt, ...] = ()
    """Those of them whose pods are all ready."""
    returns: tuple[Return, ...] = ()
    unsettled_tenants: frozenset[str] | None = None
    """Tenants whose quotas may not be known yet, so that their queues stay; None: any tenant."""

    @classmethod
    def empty(cls) -> ModeResult:
        """Return a result that changes nothing."""
        return cls(decisions=Decisions())

    def without_attempts(self) -> ModeResult:
        """Return the result without writes of attempts, which are not repeated."""
        return replace(self, creates=(), releases=(), ready=(), returns=())
