"""Conditions of a tenant's pod: which come from below, which were set above and stay, and readiness gates."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from vkgateway.model import times
from vkgateway.model.objects import Object

Conditions = list[Object]

FORWARDED_CONDITION: Final = "vkgateway.io/Forwarded"
"""`False` while a pod cannot be forwarded, with the reason; gone once its compute pod is there."""
ADMITTED_CONDITION: Final = "vkgateway.io/Admitted"
"""`False` while a pod waits for the arbiter, with the reason; gone once its compute pod is there."""
POOL_SCHEDULED_CONDITION: Final = "vkgateway.io/PoolScheduled"
"""`False` while no node of the pool takes the pod, with the compute scheduler's reason; gone once one does."""

DISRUPTION_CONDITION: Final = "DisruptionTarget"
"""Kubernetes' own: the pod is ended, or about to be, by a disruption."""

_BY_KUBELET: Final = "TerminationByKubelet"
"""Its reason where a kubelet ended a pod for want of resources: the only disruption that leaves a pod there, failed."""
_SCHEDULED: Final = "PodScheduled"
_READY: Final = "Ready"
_FROM_BELOW: Final = frozenset(
    {
        "Initialized",
        "ContainersReady",
        _READY,
        "PodReadyToStartContainers",
        "PodResizePending",
        "PodResizeInProgress",
        FORWARDED_CONDITION,
        ADMITTED_CONDITION,
        POOL_SCHEDULED_CONDITION,
    }
)
"""Types that go above when they are gone below."""


def taken_away(status: Object) -> bool:
    """Whether a pod was ended in a way in which Kubernetes' own components delete it: preempted, drained, tainted."""
    return any(
        entry["type"] == DISRUPTION_CONDITION and entry["status"] == "True" and entry.get("reason") != _BY_KUBELET
        for entry in status.get("conditions") or ()
    )


def tenant_conditions(
    below: Sequence[Object],
    above: Sequence[Object],
    *,
    gates: Sequence[str],
    clean: Callable[[str], str],
    observed: int = 0,
    now: datetime | None = None,
) -> Conditions:
    """The conditions that the tenant's pod should have, given those of the compute pod and those it has.

    `observed` takes the place of the compute pod's generation; 0: none is told.

    PodScheduled and conditions of readiness gates are the tenant's own. Conditions that only stand above stay, except
    those of `_FROM_BELOW`. A pod with readiness gates is Ready if it is below and the gates are True above, as of
    `now` where that is news.
    """
    standing = {entry["type"]: entry for entry in above}
    made: Conditions = []
    for entry in below:
        kind = entry["type"]
        if kind in gates:
            continue
        if kind == _SCHEDULED:
            made += _scheduled(entry, standing, clean, observed)
        elif kind == _READY and gates:
            made.append(_since(_gated(_cleaned(entry, clean, observed), standing, gates), standing.get(_READY), now))
        else:
            made.append(_cleaned(entry, clean, observed))
    present = {entry["type"] for entry in made} | _FROM_BELOW
    return made + [entry for entry in above if entry["type"] not in present]


def changed_conditions(wanted: Sequence[Object], standing: Sequence[Object]) -> Conditions:
    """What a strategic merge patch must say of conditions to make `wanted` of those that stand; others are left."""
    before = {entry["type"]: entry for entry in standing}
    made: Conditions = []
    for entry in wanted:
        old = before.pop(entry["type"], {})
        if entry != old:
            made.append({**dict.fromkeys(old.keys() - entry.keys()), **entry})
    return [*made, *({"$patch": "delete", "type": kind} for kind in before)]


def placed(conditions: Sequence[Object], new: Object, *, now: str) -> Conditions:
    """The conditions with `new` in the place of its type or at the end; its time is `now` if the status changed."""
    old = next((entry for entry in conditions if entry["type"] == new["type"]), None)
    same = old is not None and old["status"] == new["status"] and bool(old.get("lastTransitionTime"))
    made = {**new, "lastTransitionTime": old["lastTransitionTime"] if old is not None and same else now}
    if old is None:
        return [*conditions, made]
    return [made if entry is old else entry for entry in conditions]


def _scheduled(entry: Object, standing: dict[str, Object], clean: Callable[[str], str], observed: int) -> Conditions:
    """The tenant's PodScheduled, or without one the compute pod's once it is True.

    Above, a bound pod is scheduled. That no node below takes it is told by a condition of ours.
    """
    if entry["status"] == "True":
        return [standing.get(_SCHEDULED) or _cleaned(entry, clean, observed)]
    kept = [standing[_SCHEDULED]] if _SCHEDULED in standing else []
    if not entry.get("reason"):
        return kept
    return [*kept, {**_cleaned(entry, clean, observed), "type": POOL_SCHEDULED_CONDITION}]


def _gated(ready: Object, standing: dict[str, Object], gates: Sequence[str]) -> Object:
    """Ready as a kubelet judges it for a pod with readiness gates, in its words."""
    if ready["status"] != "True":
        return ready
    lacking = []
    for gate in gates:
        entry = standing.get(gate)
        if entry is None:
            lacking.append(f'corresponding condition of pod readiness gate "{gate}" does not exist.')
        elif entry["status"] != "True":
            lacking.append(f'the status of pod readiness gate "{gate}" is not "True", but {entry["status"]}')
    if not lacking:
        return ready
    return {**ready, "status": "False", "reason": "ReadinessGatesNotReady", "message": ", ".join(lacking)}


def _since(ready: Object, old: Object | None, now: datetime | None) -> Object:
    """Ready with the time since when it is as it is: gates open and close above, where nobody below sees it."""
    if old is not None and old["status"] == ready["status"] and old.get("lastTransitionTime"):
        return {**ready, "lastTransitionTime": old["lastTransitionTime"]}
    return ready if now is None else {**ready, "lastTransitionTime": times.render(now)}


def _cleaned(entry: Object, clean: Callable[[str], str], observed: int) -> Object:
    """A condition with a clean message and the tenant pod's generation instead of the compute pod's, if it has one."""
    message = entry.get("message")
    cleaned = clean(message) if message else message
    generation = entry.get("observedGeneration")
    if cleaned == message and (generation is None or generation == observed):
        return entry
    made = {**entry}
    if generation is not None:
        if observed:
            made["observedGeneration"] = observed
        else:
            del made["observedGeneration"]
    if message:
        made["message"] = cleaned
    return made
