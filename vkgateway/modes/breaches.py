"""Breaches: which gangs lost pods because their scheduler evicted single pods, and since when (pure)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from vkgateway.arbiter.snapshot import WAITING, Gang
from vkgateway.modes.attempt import Attempt, Breach
from vkgateway.modes.names import attempt_name


def update_breaches(
    known: Mapping[str, Breach],
    gangs: Iterable[Gang],
    attempts: Mapping[str, Attempt],
    *,
    preempted: Collection[str],
    now: float,
) -> dict[str, Breach]:
    """Return the breaches of gangs by ID.

    A breach lasts until the next attempt of its gang exists, or the gang is gone. `preempted` are the gangs of which
    the scheduler evicted pods since the last call.
    """
    found: dict[str, Breach] = {}
    for gang in gangs:
        breach = known.get(gang.id)
        attempt = attempts.get(attempt_name(gang.tenant, gang.id))
        if gang.id in preempted:
            breach = Breach(attempt.uid if attempt is not None else "", now)
        if breach is None or (attempt is not None and attempt.uid != breach.attempt):
            continue
        has_pods = any(pod.state is not WAITING for pod in gang.pods)
        found[gang.id] = Breach(breach.attempt, now) if has_pods else breach
    return found
