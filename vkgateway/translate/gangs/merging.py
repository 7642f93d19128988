"""The marks of a gang, out of those of its pods: what all must say alike, and what one of them may say for all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from vkgateway.translate.gangs.marks import GangMarks, MarkError

_FieldGetter = Callable[[GangMarks], object]

_EQUAL_FIELDS: Final[tuple[tuple[str, _FieldGetter], ...]] = (
    ("minimum", lambda marks: marks.minimum),
    ("size", lambda marks: marks.size),
    ("largest size", lambda marks: marks.maximum),
    ("minimum of each role", lambda marks: dict(marks.role_minimum)),
)


def merge_marks(pods: Sequence[GangMarks]) -> GangMarks:
    """The gang's marks, from those of its pods that exist; `role` and `rank` are left out.

    Its last checkpoint is the latest that a pod tells, its restart cost the largest; it has ended after the longest
    run limit, if all its pods have one. A level of the network that some of them ask for is asked for all.

    Raises:
        MarkError: its pods do not say the same.
        ValueError: there are no pods, or they are of several gangs.
    """
    first = pods[0] if pods else None
    if first is None or any(marks.group != first.group for marks in pods):
        raise ValueError("the marks of one gang are agreed on at a time")
    waiting = next((marks for marks in pods if marks.missing_reference is not None), None)
    if waiting is None:
        for what, say in _EQUAL_FIELDS:
            _require_equal(first.group, what, (say(marks) for marks in pods))
    required = _require_equal(
        first.group, "required level of the network", _set_values(pods, lambda marks: marks.required_level)
    )
    preferred = _require_equal(
        first.group, "preferred level of the network", _set_values(pods, lambda marks: marks.preferred_level)
    )
    limits = [marks.run_limit for marks in pods if marks.run_limit is not None]
    return replace(
        first,
        role="",
        rank=0,
        elastic=all(marks.elastic for marks in pods),
        required_level=str(required or ""),
        preferred_level=str(preferred or ""),
        run_limit=max(limits) if len(limits) == len(pods) else None,
        checkpoint=max(marks.checkpoint for marks in pods),
        restart_cost=max(marks.restart_cost for marks in pods),
        missing_reference=waiting.missing_reference if waiting is not None else None,
        is_unserved=waiting is not None and waiting.is_unserved,
    )


def _set_values(pods: Iterable[GangMarks], say: _FieldGetter) -> Iterable[object]:
    return (value for marks in pods if (value := say(marks)))


def _require_equal(group: str, what: str, values: Iterable[object]) -> object:
    """The value that all say; None where there is none."""
    found: object = None
    for position, value in enumerate(values):
        if position and value != found:
            problem = f"is {found} on another of its pods"
            raise MarkError(f"the {what} of gang {group}", value, problem, way_out="say the same on all its pods")
        found = value
    return found
