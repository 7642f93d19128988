"""Declaration of a pod's gang by one integration, refined by vkgateway's annotations."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Final

from vkgateway.api.objects import Object
from vkgateway.scheduler.gangs.marks import GangMarks, Kind, MarkError, Reference, SiblingJobs
from vkgateway.scheduler.gangs.own_annotations import MAX_MARK, MIN_MARK, SIZE_MARK, OwnAnnotations
from vkgateway.scheduler.gangs.pod_view import GangPodView

Lookup = Callable[[Reference], Object | None]
"""Function that returns a referenced object, or None if it does not exist or is not known yet."""


@dataclass(frozen=True, slots=True)
class PodContext:
    """Input of an integration: a pod, its vkgateway annotations, and a lookup for referenced objects."""

    pod: GangPodView
    own_annotations: OwnAnnotations
    find_object: Lookup
    unserved_kinds: Container[Kind] = frozenset()
    """Kinds that the tenant's API server is known not to serve."""

    def needs_unserved_kind(self, declaration: GangDeclaration) -> bool:
        """Return whether the gang's pod count depends on an object whose kind is not served."""
        counted_by_annotation = self.own_annotations.minimum is not None or self.own_annotations.size is not None
        counted = declaration.minimum is not None or (counted_by_annotation and not declaration.is_explicit)
        return (
            not counted
            and declaration.missing_reference is not None
            and declaration.missing_reference.object_kind in self.unserved_kinds
        )


ROLE_STRIDE: Final = 1_000_000
"""Distance between the ranks of two roles, larger than the number of pods of any role."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangDeclaration:
    """Gang as one integration declares it, without vkgateway's annotations."""

    name: str
    """Name of the gang, unique among the gangs of this integration in its namespace."""
    is_standalone: bool = False
    """The pod belongs to no gang."""
    is_explicit: bool = False
    """The minimum was declared, not inferred. No other mark may declare a different one."""
    minimum_source: str = ""
    """Source of the minimum, for messages."""
    minimum: int | None = None
    size: int | None = None
    maximum: int | None = None
    elastic: bool | None = None
    """None: elastic if the gang can have more pods than the minimum."""
    remaining: int | None = None
    """Number of pods that can still run at the same time after some have succeeded."""
    role: str = ""
    role_minimum: Mapping[str, int] = field(default_factory=dict)
    required_roles: Mapping[str, int] = field(default_factory=dict)
    """Part of `role_minimum` that the gang needs even with a lower minimum."""
    rank: int = 0
    required_level: str = ""
    run_limit: float | None = None
    replaces_succeeded: bool = False
    replaces_failed: bool = True
    sibling_jobs: tuple[SiblingJobs, ...] = ()
    missing_reference: Reference | None = None
    """Object that would declare the pod count, if it was not found."""


def apply_annotations(
    declaration: GangDeclaration, annotations: OwnAnnotations, *, group: str, integration: str
) -> GangMarks:
    """Return the gang's marks, from an integration and the pod's vkgateway annotations.

    A tenant may declare a lower minimum than an inferred one, but not change a declared one.

    Raises:
        MarkError: the two contradict each other, or the minimum exceeds the size.
    """
    size = _resolve_size(declaration, annotations)
    minimum = _resolve_minimum(declaration, annotations, size)
    maximum = annotations.maximum if annotations.maximum is not None else declaration.maximum
    if annotations.maximum is not None and annotations.maximum < max(minimum or 0, size or 0):
        other = max(minimum or 0, size or 0)
        remedy = f"raise it to at least {other}, or remove the annotation"
        raise MarkError(MAX_MARK, annotations.maximum, f"is less than the gang's {other} pods", remedy=remedy)
    needed = minimum or 1
    if declaration.remaining is not None:
        needed = max(1, min(needed, declaration.remaining))
    return GangMarks(
        group=group,
        integration=integration,
        minimum=needed,
        excludes_succeeded=declaration.remaining is not None,
        size=size,
        maximum=maximum,
        elastic=_resolve_elastic(declaration, annotations, minimum, size, maximum),
        role=declaration.role,
        role_minimum=_role_minimum(declaration, needed),
        rank=declaration.rank,
        sibling_jobs=declaration.sibling_jobs,
        replaces_succeeded=declaration.replaces_succeeded,
        replaces_failed=declaration.replaces_failed,
        required_level=declaration.required_level,
        missing_reference=declaration.missing_reference if minimum is None else None,
    )


def _resolve_size(declaration: GangDeclaration, annotations: OwnAnnotations) -> int | None:
    if annotations.size is None or declaration.size is None or annotations.size == declaration.size:
        return declaration.size if annotations.size is None else annotations.size
    problem = f"contradicts the {declaration.size} pods of {declaration.minimum_source}"
    raise MarkError(SIZE_MARK, annotations.size, problem, remedy="remove the annotation")


def _resolve_minimum(declaration: GangDeclaration, annotations: OwnAnnotations, size: int | None) -> int | None:
    minimum, mark = declaration.minimum, declaration.minimum_source
    if annotations.minimum is not None:
        if declaration.is_explicit and minimum is not None and minimum != annotations.minimum:
            problem = f"contradicts {declaration.minimum_source} ({minimum})"
            raise MarkError(MIN_MARK, annotations.minimum, problem, remedy="remove one of the two")
        if minimum is None and declaration.is_explicit:
            return None
        minimum, mark = annotations.minimum, MIN_MARK
    elif minimum is None and not declaration.is_explicit:
        minimum = annotations.size
    if minimum is not None and size is not None and minimum > size:
        problem = f"is more than the gang's {size} pods"
        raise MarkError(mark, minimum, problem, remedy=f"lower it to at most {size}, or create more pods")
    return minimum


def _resolve_elastic(
    declaration: GangDeclaration,
    annotations: OwnAnnotations,
    minimum: int | None,
    size: int | None,
    maximum: int | None,
) -> bool:
    if annotations.maximum is not None:
        return minimum is not None and annotations.maximum > minimum
    if declaration.elastic is not None:
        return declaration.elastic
    if minimum is None:
        return False
    return size is None or size > minimum or (maximum is not None and maximum > minimum)


def _role_minimum(declaration: GangDeclaration, minimum: int) -> Mapping[str, int]:
    for roles in (declaration.role_minimum, declaration.required_roles):
        if sum(roles.values()) <= minimum:
            return roles
    return {}
