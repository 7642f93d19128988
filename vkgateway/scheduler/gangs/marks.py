"""Gang marks of a pod, the objects they refer to, and the error for invalid marks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from vkgateway.api.errors import InputError
from vkgateway.api.objects import Object

_MAX_SHOWN = 80


class Kind(NamedTuple):
    """Kind of object that declares a gang. The API version is the one that the server prefers."""

    group: str
    """API group without version. Any version that the server prefers is accepted."""
    kind: str
    plural: str

    def __str__(self) -> str:
        return f"{self.kind} of {self.group}"


@dataclass(frozen=True, slots=True)
class Reference:
    """Reference to an object in the pod's namespace that declares its gang."""

    group: str
    kind: str
    plural: str
    namespace: str
    name: str

    @property
    def object_kind(self) -> Kind:
        return Kind(self.group, self.kind, self.plural)

    def __str__(self) -> str:
        return f"{self.kind} {self.name} ({self.plural}.{self.group})"


FoundObjects = Mapping[Reference, Object]
"""Referenced objects that exist, as plain JSON. An object that is not in the map does not exist or is not known yet."""


class MarkError(InputError):
    """Contradictory or invalid gang marks.

    The pods wait until the marks are corrected.

    `mark` names the label, annotation or field, and `value` is its value. The message contains both, and how to fix it.
    """

    def __init__(self, mark: str, value: object, problem: str, *, remedy: str) -> None:
        self.mark = mark
        self.value = str(value)
        super().__init__(f"{mark} is {quote_value(self.value)}, which {problem}; {remedy}")


def quote_value(value: str) -> str:
    """Return a value for a message: quoted, with control characters escaped, and cut if it is long."""
    return repr(value if len(value) <= _MAX_SHOWN else f"{value[:_MAX_SHOWN]}...")


class SiblingJobs(NamedTuple):
    """Jobs of one role whose pods belong to a gang: `PREFIX-0` to `PREFIX-(REPLICAS - 1)`."""

    role: str
    prefix: str
    replicas: int
    attempt: int
    """Which re-creation of the Jobs belongs to the gang."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangMarks:
    """Marks of one pod about its gang, whatever integration declares them.

    All counts are numbers of pods, including pods that request no governed resource. Times are in seconds.
    """

    group: str
    """Gang within its tenant: `namespace/integration/name`. Pods with the same value belong to one gang."""
    integration: str = ""
    """Title of the integration that declares the gang. Empty: none, the pod is a gang of one."""
    minimum: int = 1
    excludes_succeeded: bool = False
    """The minimum counts pods that are still needed, so succeeded pods are not subtracted again."""
    size: int | None = None
    """Full number of pods. None: not declared."""
    maximum: int | None = None
    """Number of pods to which the gang may grow. None: not declared."""
    elastic: bool = False
    """Pods beyond the minimum may start and end one by one."""
    role: str = ""
    """Role of this pod: launcher, worker, ps."""
    role_minimum: Mapping[str, int] = field(default_factory=dict)
    rank: int = 0
    """Position of this pod in the gang. Only the order of ranks counts. They need not be consecutive."""
    required_level: str = ""
    """Node label of which all pods must share one value."""
    preferred_level: str = ""
    run_limit: float | None = None
    """Seconds after which the gang has ended."""
    run_limit_source: str = ""
    """What declares the run limit, for messages."""
    checkpoint: float = 0.0
    """When the gang last saved its work, in seconds since the epoch. 0: never."""
    restart_cost: float = 0.0
    """Cost of a restart in GPU-seconds, as declared by the owner."""
    controller_uid: str = ""
    """UID of the object that created this pod. Empty: no controller created it."""
    job_desired: int = 0
    """Number of pods that the pod's Job runs at the same time until the first one ends. 0: no Job is known."""
    job_ended: int = 0
    """Number of those pods that ended and are not replaced."""
    sibling_jobs: tuple[SiblingJobs, ...] = ()
    """All Jobs of the gang, also those without pods. Empty: unknown."""
    replaces_succeeded: bool = False
    """The controller creates another pod if this one succeeds."""
    replaces_failed: bool = True
    """Another pod may be created if this one fails."""
    missing_reference: Reference | None = None
    """Missing object that declares the pod count. The arbiter does not decide about the gang until it exists."""
    is_unserved: bool = False
    """The tenant's API server does not serve the kind of that object."""


_FieldGetter = Callable[[GangMarks], object]

_EQUAL_FIELDS: Final[tuple[tuple[str, _FieldGetter], ...]] = (
    ("minimum", lambda marks: marks.minimum),
    ("size", lambda marks: marks.size),
    ("largest size", lambda marks: marks.maximum),
    ("minimum of each role", lambda marks: dict(marks.role_minimum)),
)


def merge_marks(pods: Sequence[GangMarks]) -> GangMarks:
    """Return the gang's marks, merged from those of its existing pods, without `role` and `rank`.

    The checkpoint is the latest of all pods, and the restart cost the largest. The run limit is the longest, if all
    pods have one. A topology level that some pods request applies to all.

    Raises:
        MarkError: the pods contradict each other.
        ValueError: there are no pods, or they belong to several gangs.
    """
    first = pods[0] if pods else None
    if first is None or any(marks.group != first.group for marks in pods):
        raise ValueError("the marks of one gang are agreed on at a time")
    waiting = next((marks for marks in pods if marks.missing_reference is not None), None)
    if waiting is None:
        for what, get_value in _EQUAL_FIELDS:
            _require_equal(first.group, what, (get_value(marks) for marks in pods))
    required = _require_equal(
        first.group, "required topology level", _set_values(pods, lambda marks: marks.required_level)
    )
    preferred = _require_equal(
        first.group, "preferred topology level", _set_values(pods, lambda marks: marks.preferred_level)
    )
    limits = [(marks.run_limit, marks.run_limit_source) for marks in pods if marks.run_limit is not None]
    limit, source = max(limits) if len(limits) == len(pods) else (None, "")
    return replace(
        first,
        role="",
        rank=0,
        elastic=all(marks.elastic for marks in pods),
        required_level=str(required or ""),
        preferred_level=str(preferred or ""),
        run_limit=limit,
        run_limit_source=source,
        checkpoint=max(marks.checkpoint for marks in pods),
        restart_cost=max(marks.restart_cost for marks in pods),
        missing_reference=waiting.missing_reference if waiting is not None else None,
        is_unserved=waiting is not None and waiting.is_unserved,
    )


def _set_values(pods: Iterable[GangMarks], get_value: _FieldGetter) -> Iterable[object]:
    return (value for marks in pods if (value := get_value(marks)))


def _require_equal(group: str, what: str, values: Iterable[object]) -> object:
    """Return the value that all pods share, or None if there are no values."""
    found: object = None
    for position, value in enumerate(values):
        if position and value != found:
            problem = f"is {found} on another pod of the gang"
            raise MarkError(
                f"the {what} of gang {group}", value, problem, remedy="set the same value on all pods of the gang"
            )
        found = value
    return found
