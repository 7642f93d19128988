"""What one way says of a pod's gang, and how our own annotations refine it."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Final

from vkgateway.model.objects import Object
from vkgateway.translate.gangs.marks import GangMarks, Kind, MarkError, Reference
from vkgateway.translate.gangs.own_annotations import MAX_MARK, MIN_MARK, SIZE_MARK, OwnAnnotations
from vkgateway.translate.gangs.pod_view import GangPodView

Lookup = Callable[[Reference], Object | None]
"""Finds an object beside the pod; None: it does not exist, or is not known yet."""


@dataclass(frozen=True, slots=True)
class PodContext:
    """What a way is asked about: a pod, what our annotations on it say, and where to find objects beside it."""

    pod: GangPodView
    own_annotations: OwnAnnotations
    find_object: Lookup
    unserved_kinds: Container[Kind] = frozenset()
    """Kinds that the tenant's API server does not serve, as far as that is known."""

    def needs_unserved_kind(self, said: GangDeclaration) -> bool:
        """Return whether the number of pods is up to an object that cannot exist: its kind is not served."""
        own = self.own_annotations.minimum is not None or self.own_annotations.size is not None
        counted = said.minimum is not None or (own and not said.is_explicit)
        return (
            not counted
            and said.missing_reference is not None
            and said.missing_reference.object_kind in self.unserved_kinds
        )


ROLE_STRIDE: Final = 1_000_000
"""Ranks of one role lie this far from those of the next: more than any gang has pods of a role."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangDeclaration:
    """What a way says, before our annotations are taken into account."""

    name: str
    """The gang's name among those that were said in this way, in its namespace."""
    is_standalone: bool = False
    """It says that the pod is in no gang."""
    is_explicit: bool = False
    """The minimum was written down as such, and is not only what we conclude: nobody else may say another."""
    minimum_source: str = ""
    """Where the minimum comes from, for messages."""
    minimum: int | None = None
    size: int | None = None
    maximum: int | None = None
    elastic: bool | None = None
    """None: where there can be more pods than the minimum."""
    remaining: int | None = None
    """How many pods it can still have at once, where some have ended well."""
    role: str = ""
    role_minimum: Mapping[str, int] = field(default_factory=dict)
    required_roles: Mapping[str, int] = field(default_factory=dict)
    """The part of `role_minimum` that the gang cannot run without even where its minimum is lowered."""
    rank: int = 0
    required_level: str = ""
    run_limit: float | None = None
    replaces_succeeded: bool = False
    replaces_failed: bool = True
    missing_reference: Reference | None = None
    """The object that would say how many, where it was not found."""


def apply_annotations(said: GangDeclaration, own: OwnAnnotations, *, group: str, way: str) -> GangMarks:
    """The gang's counts, from a way and from our annotations beside it.

    A lower minimum than the one concluded from a job is a tenant's to declare; one that was written down stays.

    Raises:
        MarkError: the two contradict each other, or the minimum is above the size.
    """
    size = _resolve_size(said, own)
    minimum = _resolve_minimum(said, own, size)
    maximum = own.maximum if own.maximum is not None else said.maximum
    if own.maximum is not None and own.maximum < max(minimum or 0, size or 0):
        other = max(minimum or 0, size or 0)
        way_out = f"raise it to at least {other}, or take it off"
        raise MarkError(MAX_MARK, own.maximum, f"is less than the gang's {other} pods", way_out=way_out)
    needed = minimum or 1
    if said.remaining is not None:
        needed = max(1, min(needed, said.remaining))
    return GangMarks(
        group=group,
        integration=way,
        minimum=needed,
        excludes_succeeded=said.remaining is not None,
        size=size,
        maximum=maximum,
        elastic=_resolve_elastic(said, own, minimum, size, maximum),
        role=said.role,
        role_minimum=_role_minimum(said, needed),
        rank=said.rank,
        replaces_succeeded=said.replaces_succeeded,
        replaces_failed=said.replaces_failed,
        required_level=said.required_level,
        missing_reference=said.missing_reference if minimum is None else None,
    )


def _resolve_size(said: GangDeclaration, own: OwnAnnotations) -> int | None:
    if own.size is None or said.size is None or own.size == said.size:
        return said.size if own.size is None else own.size
    problem = f"contradicts the {said.size} pods that follow from {said.minimum_source}"
    raise MarkError(SIZE_MARK, own.size, problem, way_out="take it off, the number is known without it")


def _resolve_minimum(said: GangDeclaration, own: OwnAnnotations, size: int | None) -> int | None:
    minimum, mark = said.minimum, said.minimum_source
    if own.minimum is not None:
        if said.is_explicit and minimum is not None and minimum != own.minimum:
            problem = f"contradicts {said.minimum_source} ({minimum})"
            raise MarkError(MIN_MARK, own.minimum, problem, way_out="take one of the two off")
        if minimum is None and said.is_explicit:
            return None
        minimum, mark = own.minimum, MIN_MARK
    elif minimum is None and not said.is_explicit:
        minimum = own.size
    if minimum is not None and size is not None and minimum > size:
        problem = f"is more than the gang's {size} pods"
        raise MarkError(mark, minimum, problem, way_out=f"lower it to at most {size}, or make more pods")
    return minimum


def _resolve_elastic(
    said: GangDeclaration, own: OwnAnnotations, minimum: int | None, size: int | None, maximum: int | None
) -> bool:
    if own.maximum is not None:
        return minimum is not None and own.maximum > minimum
    if said.elastic is not None:
        return said.elastic
    if minimum is None:
        return False
    return size is None or size > minimum or (maximum is not None and maximum > minimum)


def _role_minimum(said: GangDeclaration, minimum: int) -> Mapping[str, int]:
    for roles in (said.role_minimum, said.required_roles):
        if sum(roles.values()) <= minimum:
            return roles
    return {}
