"""Conditions of a tenant's pod: which come from below, and which were set above and stay."""

from collections.abc import Callable, Sequence
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

_KUBELET_REASON: Final = "TerminationByKubelet"
"""Its reason where a kubelet ended a pod for want of resources: the only disruption that leaves a pod there, failed."""
_POD_SCHEDULED: Final = "PodScheduled"
_MIRRORED_TYPES: Final = frozenset(
    {
        "Initialized",
        "ContainersReady",
        "Ready",
        "PodReadyToStartContainers",
        "PodResizePending",
        "PodResizeInProgress",
        FORWARDED_CONDITION,
        ADMITTED_CONDITION,
        POOL_SCHEDULED_CONDITION,
    }
)
"""Types that go above when they are gone below."""


def is_disrupted(status: Object) -> bool:
    """Whether a pod was ended in a way in which Kubernetes' own components delete it: preempted, drained, tainted."""
    return any(
        entry["type"] == DISRUPTION_CONDITION and entry["status"] == "True" and entry.get("reason") != _KUBELET_REASON
        for entry in status.get("conditions") or ()
    )


def last_condition_change(status: Object, *, since: str | None) -> float:
    """Return when a pod's conditions last changed, or `since` if none did, in seconds since the epoch."""
    moments = [since, *(entry.get("lastTransitionTime") for entry in status.get("conditions") or ())]
    return max((times.parse_time(moment).timestamp() for moment in moments if moment), default=0.0)


def mirror_conditions(
    below: Sequence[Object],
    above: Sequence[Object],
    *,
    gates: Sequence[str],
    clean: Callable[[str], str],
    observed: int = 0,
) -> Conditions:
    """The conditions that the tenant's pod should have, given those of the compute pod and those it has.

    `observed` takes the place of the compute pod's generation; 0: none is told.

    PodScheduled is the tenant's own, and so are the conditions of `gates` (`readiness.tenant_gates`), which the
    compute pod has from the tenant. Conditions that only stand above stay, except those of `_MIRRORED_TYPES`.
    """
    standing = {entry["type"]: entry for entry in above}
    made: Conditions = []
    for entry in below:
        kind = entry["type"]
        if kind in gates:
            continue
        if kind == _POD_SCHEDULED:
            made += _mirror_scheduled(entry, standing, clean, observed)
        else:
            made.append(_sanitize_condition(entry, clean, observed))
    present = {entry["type"] for entry in made} | _MIRRORED_TYPES
    return made + [entry for entry in above if entry["type"] not in present]


def unscheduled_reason(status: Object) -> str:
    """Return why no node of the pool takes a pod, as its tenant reads it; empty: that is not the case."""
    return next(
        (
            entry.get("message") or entry.get("reason") or ""
            for entry in status.get("conditions") or ()
            if entry["type"] == POOL_SCHEDULED_CONDITION and entry["status"] == "False"
        ),
        "",
    )


def conditions_patch(wanted: Sequence[Object], standing: Sequence[Object]) -> Conditions:
    """What a strategic merge patch must say of conditions to make `wanted` of those that stand; others are left."""
    before = {entry["type"]: entry for entry in standing}
    made: Conditions = []
    for entry in wanted:
        old = before.pop(entry["type"], {})
        if entry != old:
            made.append({**dict.fromkeys(old.keys() - entry.keys()), **entry})
    return [*made, *({"$patch": "delete", "type": kind} for kind in before)]


def set_condition(conditions: Sequence[Object], new: Object, *, now: str) -> Conditions:
    """The conditions with `new` in the place of its type or at the end; its time is `now` if the status changed."""
    old = next((entry for entry in conditions if entry["type"] == new["type"]), None)
    same = old is not None and old["status"] == new["status"] and bool(old.get("lastTransitionTime"))
    made = {**new, "lastTransitionTime": old["lastTransitionTime"] if old is not None and same else now}
    if old is None:
        return [*conditions, made]
    return [made if entry is old else entry for entry in conditions]


def _mirror_scheduled(
    entry: Object, standing: dict[str, Object], clean: Callable[[str], str], observed: int
) -> Conditions:
    """The tenant's PodScheduled, or without one the compute pod's once it is True.

    Above, a bound pod is scheduled. That no node below takes it is told by a condition of ours.
    """
    if entry["status"] == "True":
        return [standing.get(_POD_SCHEDULED) or _sanitize_condition(entry, clean, observed)]
    kept = [standing[_POD_SCHEDULED]] if _POD_SCHEDULED in standing else []
    if not entry.get("reason"):
        return kept
    return [*kept, {**_sanitize_condition(entry, clean, observed), "type": POOL_SCHEDULED_CONDITION}]


def _sanitize_condition(entry: Object, clean: Callable[[str], str], observed: int) -> Object:
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
