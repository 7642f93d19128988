"""Breaches: which gangs lost pods because their scheduler evicted single pods, and since when (pure)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from vkgateway.scheduler.backends.attempt import Attempt, Breach
from vkgateway.scheduler.backends.names import attempt_name
from vkgateway.scheduler.core.preemption.eviction_units import has_min_members
from vkgateway.scheduler.core.snapshot import PLACED, WAITING, Gang

_GRAIN: Final = 1.0
"""Seconds to which API servers round times."""


class Eviction(NamedTuple):
    """The last eviction of a single pod of a gang by its scheduler."""

    at: float
    """Time in seconds since the epoch, as the ended pod shows it; infinite: the gateway saw it happen."""
    is_explained: bool = True
    """Whether the scheduler recorded a reason. External schedulers may delete pods without a word."""


def update_breaches(
    known: Mapping[str, Breach],
    gangs: Iterable[Gang],
    attempts: Mapping[str, Attempt],
    *,
    preempted: Mapping[str, float],
    retry_seconds: float,
    now: float,
) -> dict[str, Breach]:
    """Return the breaches of gangs by ID.

    A breach lasts until the gang has its minimum again or its next attempt exists. Without any attempt, or if the gang
    is gone, it lasts until the gang may start again, `retry_seconds` after its last pod ended. `preempted` are the
    gangs of which evictions of pods became known since the last call, with the times of `Eviction`. An eviction before
    the start of a pod that runs now concerns an earlier run of the gang.
    """
    gangs = tuple(gangs)
    gone = known.keys() - {gang.id for gang in gangs}
    # A gang whose pods have all ended is unknown until its controller replaces them.
    found = {gang: known[gang] for gang in gone if now < known[gang].last_pod + retry_seconds}
    for gang in gangs:
        breach = known.get(gang.id)
        attempt = attempts.get(attempt_name(gang.tenant, gang.id))
        if gang.id in preempted and _last_start(gang) <= preempted[gang.id] + _GRAIN:
            breach = Breach(attempt.uid if attempt is not None else "", now)
        elif _is_whole(gang):
            continue
        if breach is None or (attempt is not None and attempt.uid != breach.attempt):
            continue
        if any(pod.state is not WAITING for pod in gang.pods):
            found[gang.id] = Breach(breach.attempt, now)
        elif attempt is not None or now < breach.last_pod + retry_seconds:
            found[gang.id] = breach
    return found


def _last_start(gang: Gang) -> float:
    """Return when the last pod that holds resources started; infinite: there is none."""
    return max((pod.since for pod in gang.pods if pod.state is not WAITING), default=math.inf)


def _is_whole(gang: Gang) -> bool:
    """Return whether a gang runs with its minimum, and no pod of it terminates."""
    running = [pod for pod in gang.pods if pod.state is not WAITING]
    return all(pod.state is PLACED for pod in running) and has_min_members(gang, running)
