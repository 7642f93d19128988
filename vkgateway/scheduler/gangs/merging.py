"""Marks of a gang, merged from those of its pods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from vkgateway.scheduler.gangs.marks import GangMarks, MarkError

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
