"""Pods that end so late that nobody waits for them as if their room were there already.

Who borrows has gone within notice and grace. A pod inside its guarantee may take hours to end if its owner wants it so,
and one that hangs may never. A guarantee calls in others instead, if there are any; and what is free beside such a pod
is not kept for who borrows and would need both, but used meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vkgateway.arbiter.snapshot import ENDING, Gang, Pod

_EXTRA_WAIT = 30.0
"""Seconds that a guarantee waits for longer, rather than have anybody go."""

_OVERDUE_AFTER = 60.0
"""Seconds beyond its deadline after which nobody can tell when a pod will have gone."""


def termination_seconds(gangs: Iterable[Gang]) -> float:
    """Seconds in which any of these have gone, once they are told to go."""
    return max((gang.notice + gang.grace for gang in gangs), default=0.0)


def find_late_pods(pods: Iterable[Pod], seconds: float, *, since: float, now: float) -> Iterator[Pod]:
    """Yield the pods that end after others would have terminated, which takes `seconds` from the time `since` on.

    An evicted pod ends within its grace, which the platform caps: it is waited for, whatever else could be evicted.
    """
    last = since + seconds + _EXTRA_WAIT
    for pod in pods:
        if (pod.state is ENDING and pod.deadline > last and not pod.evicted_for) or is_overdue(pod, now):
            yield pod


def is_overdue(pod: Pod, now: float) -> bool:
    """Whether it should have gone long ago, so that nobody knows when it will have."""
    return pod.state is ENDING and pod.deadline + _OVERDUE_AFTER < now
