"""What is read of how a gang is said: the marks of one pod, the objects they refer to, and the error of bad marks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from vkgateway.model.errors import InputError
from vkgateway.model.objects import Object

_MAX_SHOWN = 80


class Kind(NamedTuple):
    """A kind of objects that say more about gangs; the server's version of it is left open."""

    group: str
    """API group, without version: any version that the server prefers will do."""
    kind: str
    plural: str

    def __str__(self) -> str:
        return f"{self.kind} of {self.group}"


@dataclass(frozen=True, slots=True)
class Reference:
    """An object beside the pod, in the pod's namespace, that says more about its gang."""

    group: str
    kind: str
    plural: str
    namespace: str
    name: str

    @property
    def object_kind(self) -> Kind:
        """The object's kind."""
        return Kind(self.group, self.kind, self.plural)

    def __str__(self) -> str:
        return f"{self.kind} {self.name} ({self.plural}.{self.group})"


FoundObjects = Mapping[Reference, Object]
"""The objects beside a pod that exist, as plain JSON. What is not in it does not exist, or is not known yet."""


class MarkError(InputError):
    """The marks of a gang contradict each other or make no sense: its pods are held until they are put right.

    `mark` names the label, annotation or field, `value` what stands there; the message holds both, and the way out.
    """

    def __init__(self, mark: str, value: object, problem: str, *, way_out: str) -> None:
        self.mark = mark
        self.value = str(value)
        super().__init__(f"{mark} is {quote_value(self.value)}, which {problem}; {way_out}")


def quote_value(value: str) -> str:
    """A value as it stands in a message: quoted, control characters escaped, cut where it is long."""
    return repr(value if len(value) <= _MAX_SHOWN else f"{value[:_MAX_SHOWN]}...")


@dataclass(frozen=True, slots=True, kw_only=True)
class GangMarks:
    """What one pod's marks say about its gang, whichever way they were written in.

    All counts are of pods, those that ask for no governed resource included. Times are seconds.
    """

    group: str
    """The gang within its tenant: `namespace/way/name`. Pods with the same one are of one gang."""
    integration: str = ""
    """The way it was said in, for people; empty: in none, the pod stands alone."""
    minimum: int = 1
    excludes_succeeded: bool = False
    """Its minimum says how many are still needed: pods that have ended well are not taken off it once more."""
    size: int | None = None
    """How many pods it has in full; None: not said."""
    maximum: int | None = None
    """To how many pods it may grow; None: not said."""
    elastic: bool = False
    """Its pods beyond the minimum may come and go one by one."""
    role: str = ""
    """The kind of task that this pod is: launcher, worker, ps."""
    role_minimum: Mapping[str, int] = field(default_factory=dict)
    rank: int = 0
    """This pod's place in the gang. Only the order of ranks means something; they need not follow each other."""
    required_level: str = ""
    """All its pods within one value of this node label."""
    preferred_level: str = ""
    run_limit: float | None = None
    """Seconds after which it will have ended."""
    checkpoint: float = 0.0
    """When its work was last saved (seconds since the epoch); 0: never."""
    restart_cost: float = 0.0
    """GPU-seconds that a restart takes, as its owner declared."""
    controller_uid: str = ""
    """UID of the object that made this pod; empty: no controller made it."""
    job_desired: int = 0
    """The number of pods that the pod's Job runs at once while none has ended; 0: no Job is known that made it."""
    job_ended: int = 0
    """The number of those that ended and are not replaced."""
    replaces_succeeded: bool = False
    """Its controller creates another pod where this one succeeds."""
    replaces_failed: bool = True
    """Somebody may create another pod where this one fails."""
    missing_reference: Reference | None = None
    """The object that says how many pods it takes, where that is not there: the gang is not judged before."""
    is_unserved: bool = False
    """The tenant's API server does not serve the kind of that object."""
