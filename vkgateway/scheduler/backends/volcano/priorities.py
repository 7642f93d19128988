"""Priorities of gangs at Volcano, and the priority classes that carry them.

Volcano takes a priority from a class, of the PodGroup and of its pods. The classes of tenants' pods under the arbiter
cannot be used: they never preempt, and Volcano then reclaims nothing for such pods.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from vkgateway.api.objects import Object
from vkgateway.api.types import VOLCANO
from vkgateway.scheduler.backends.names import MODE_LABEL
from vkgateway.scheduler.backends.volcano.names import priority_class_name
from vkgateway.scheduler.core.snapshot import GUARANTEED, Gang

_GUARANTEED: Final = 900
_LOW: Final = 400
_SURPLUS: Final = -250
"""Surplus ranks below the whole gangs of its band."""


def volcano_priority(gang: Gang, *, is_surplus: bool = False) -> int:
    """Return the priority of a gang's PodGroup: the guaranteed band before the low band, then the gang's priority.

    A gang's priority counts with its size and first digit, so that tenants cannot cause an unlimited number of classes.
    """
    base = (_GUARANTEED if gang.band is GUARANTEED else _LOW) + (_SURPLUS if is_surplus else 0)
    return base + (_coarse(gang.priority) if gang.preempts else 0)


def _coarse(priority: int) -> int:
    """Return a number from -109 to 109 with the order of priorities: number of digits, then the first digit."""
    if not priority:
        return 0
    digits = str(abs(priority))
    size = 10 * len(digits) + int(digits[0])
    return size if priority > 0 else -size


def priority_classes(gangs: Iterable[Gang]) -> list[Object]:
    """Return the priority classes that the gangs of a pool need. Each may get pods that start after the others."""
    values = {volcano_priority(gang, is_surplus=surplus) for gang in gangs for surplus in (False, True)}
    return [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": priority_class_name(value), "labels": {MODE_LABEL: VOLCANO}},
            "value": value,
            "description": "Tenants' pods in pools that Volcano schedules.",
        }
        for value in sorted(values)
    ]
