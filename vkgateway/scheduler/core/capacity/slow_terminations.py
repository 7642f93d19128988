"""Pods that end too late to count as free capacity.

Borrowing pods terminate within the notice plus the grace period. A pod inside its guarantee may take hours if its owner
configured so, and a hanging pod may never terminate. A guaranteed gang preempts other pods instead, if possible. Free
capacity next to such a pod is not reserved for a borrowing gang that needs both: other gangs use it in the meantime.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vkgateway.scheduler.core.snapshot import ENDING, Gang, Pod

_EXTRA_WAIT = 30.0
"""Additional seconds that a guaranteed gang waits rather than preempt pods."""

_OVERDUE_AFTER = 60.0
"""Seconds beyond its deadline after which the end of a pod is unknown."""


def termination_seconds(gangs: Iterable[Gang]) -> float:
    """Return the seconds within which all pods of these gangs terminate after an eviction notice."""
    return max((gang.notice + gang.grace for gang in gangs), default=0.0)


def find_late_pods(pods: Iterable[Pod], seconds: float, *, since: float, now: float) -> Iterator[Pod]:
    """Yield the pods that end after others would have terminated, which takes `seconds` from the time `since` on.

    An evicted pod ends within its grace period, which the platform caps: the gang waits for it, whatever else could be
    evicted.
    """
    last = since + seconds + _EXTRA_WAIT
    for pod in pods:
        if (pod.state is ENDING and pod.deadline > last and not pod.evicted_for) or is_overdue(pod, now):
            yield pod


def is_overdue(pod: Pod, now: float) -> bool:
    """Return whether the pod is so far beyond its deadline that its end is unknown."""
    return pod.state is ENDING and pod.deadline + _OVERDUE_AFTER < now
