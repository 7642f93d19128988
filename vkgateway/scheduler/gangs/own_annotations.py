"""vkgateway's gang annotations, alone or in addition to another integration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from vkgateway.api.names import (
    GANG_ANNOTATION,
    GANG_ANNOTATIONS,
    GANG_CHECKPOINT_ANNOTATION,
    GANG_MAX_ANNOTATION,
    GANG_MIN_ANNOTATION,
    GANG_RESTART_COST_ANNOTATION,
    GANG_RUN_LIMIT_ANNOTATION,
    GANG_SIZE_ANNOTATION,
)
from vkgateway.scheduler.gangs import mark_values
from vkgateway.scheduler.gangs.marks import MarkError
from vkgateway.scheduler.gangs.pod_view import GangPodView

JOB_OWNER: Final = "job"
"""Name of a gang that consists of the pods of one Job."""

MIN_MARK: Final = f"annotation {GANG_MIN_ANNOTATION}"
SIZE_MARK: Final = f"annotation {GANG_SIZE_ANNOTATION}"
MAX_MARK: Final = f"annotation {GANG_MAX_ANNOTATION}"
NAME_MARK: Final = f"annotation {GANG_ANNOTATION}"

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnAnnotations:
    """Values of vkgateway's annotations. None: not set. Counts are numbers of pods, times are in seconds."""

    name: str | None = None
    minimum: int | None = None
    size: int | None = None
    maximum: int | None = None
    run_limit: float | None = None
    checkpoint: float | None = None
    restart_cost: float | None = None

    @property
    def is_job_gang(self) -> bool:
        """Whether the gang consists of the pods of the Job that created this pod."""
        return self.name == JOB_OWNER or (self.name is None and self.first_number is not None)

    @property
    def first_number(self) -> tuple[str, int] | None:
        """First mark that holds a number of pods, with the number, or None."""
        numbers = ((MIN_MARK, self.minimum), (SIZE_MARK, self.size), (MAX_MARK, self.maximum))
        return next(((mark, number) for mark, number in numbers if number is not None), None)


_NO_ANNOTATIONS: Final = OwnAnnotations()


def read_own_annotations(pod: GangPodView) -> OwnAnnotations:
    """Return the values of vkgateway's annotations on a pod.

    Raises:
        MarkError: one is invalid, two contradict each other, or one was set as a label.
    """
    for key in () if GANG_ANNOTATIONS.isdisjoint(pod.labels) else sorted(GANG_ANNOTATIONS & pod.labels.keys()):
        problem = "is read from annotations only"
        raise MarkError(f"label {key}", pod.labels[key], problem, remedy="set it as an annotation of the pod")
    if GANG_ANNOTATIONS.isdisjoint(pod.annotations):
        return _NO_ANNOTATIONS
    own = OwnAnnotations(
        name=_read_annotation(pod, GANG_ANNOTATION, mark_values.parse_name),
        minimum=_read_annotation(pod, GANG_MIN_ANNOTATION, mark_values.parse_count),
        size=_read_annotation(pod, GANG_SIZE_ANNOTATION, mark_values.parse_count),
        maximum=_read_annotation(pod, GANG_MAX_ANNOTATION, mark_values.parse_count),
        run_limit=_read_annotation(pod, GANG_RUN_LIMIT_ANNOTATION, mark_values.parse_duration),
        checkpoint=_read_annotation(pod, GANG_CHECKPOINT_ANNOTATION, mark_values.parse_time),
        restart_cost=_read_annotation(pod, GANG_RESTART_COST_ANNOTATION, mark_values.parse_amount),
    )
    _check_order(MIN_MARK, own.minimum, SIZE_MARK, own.size)
    _check_order(SIZE_MARK, own.size, MAX_MARK, own.maximum)
    _check_order(MIN_MARK, own.minimum, MAX_MARK, own.maximum)
    return own


def _read_annotation(pod: GangPodView, key: str, parse: Callable[[str, str], _Value]) -> _Value | None:
    text = pod.annotations.get(key)
    return None if text is None else parse(f"annotation {key}", text)


def _check_order(lower_mark: str, lower: int | None, upper_mark: str, upper: int | None) -> None:
    if lower is not None and upper is not None and lower > upper:
        remedy = f"lower it to at most {upper}, or raise that"
        raise MarkError(lower_mark, lower, f"is more than {upper_mark} ({upper})", remedy=remedy)
