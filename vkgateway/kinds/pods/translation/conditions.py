"""Conditions of a tenant pod: those mirrored from the compute pod, and those set in the tenant cluster."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from vkgateway.api import times
from vkgateway.api.objects import Object

Conditions = list[Object]

FORWARDED_CONDITION: Final = "vkgateway.io/Forwarded"
"""`False`, with the reason, while a pod cannot be forwarded. Removed once the compute pod exists."""
ADMITTED_CONDITION: Final = "vkgateway.io/Admitted"
"""`False`, with the reason, while a pod waits for the arbiter. Removed once the compute pod exists."""
POOL_SCHEDULED_CONDITION: Final = "vkgateway.io/PoolScheduled"
"""`False`, with the compute scheduler's reason, while no node of the pool accepts the pod. Removed once one does."""

DISRUPTION_CONDITION: Final = "DisruptionTarget"
"""Kubernetes' condition for a pod that a disruption ended or is about to end."""
PREEMPTED: Final = "PreemptionByVkgateway"
"""Its reason, and the reason in the status, of pods that the arbiter evicts."""
RUN_LIMIT_REACHED: Final = "RunLimitReached"
"""The same, of pods that the arbiter evicts because the run of their gang reaches its limit."""
EVICTION_REASONS: Final = frozenset({PREEMPTED, RUN_LIMIT_REACHED})
"""Reasons of all evictions by the arbiter."""
DELETED_IN_COMPUTE: Final = "DeletionByComputeCluster"
"""Its reason if a pod was deleted in the compute cluster without a recorded reason."""

_KUBELET_REASON: Final = "TerminationByKubelet"
"""Its reason if a kubelet ended the pod for lack of resources. After this disruption alone, the failed pod remains."""
POD_SCHEDULED: Final = "PodScheduled"
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
"""Types that are removed from the tenant pod when the compute pod no longer has them."""
_COMPARED_FIELDS: Final = ("type", "status", "reason", "message", "lastProbeTime", "lastTransitionTime")
"""Compared fields of a condition. The generation is left out, because the compute pod has its own."""


def is_disrupted(status: Object) -> bool:
    """Return whether a pod ended in a way after which Kubernetes deletes it: preemption, drain or taint."""
    return any(
        is_disruption(entry) and entry.get("reason") != _KUBELET_REASON for entry in status.get("conditions") or ()
    )


def is_disruption(condition: Object) -> bool:
    """Return whether a condition says that a disruption ended the pod or is about to end it."""
    return bool(condition["type"] == DISRUPTION_CONDITION and condition["status"] == "True")


def last_condition_change(status: Object, *, since: str | None) -> float:
    """Return when a pod's conditions last changed, or `since` if none did, in seconds since the epoch."""
    moments = [since, *(entry.get("lastTransitionTime") for entry in status.get("conditions") or ())]
    return max((times.parse_time(moment).timestamp() for moment in moments if moment), default=0.0)


def mirror_conditions(
    compute: Sequence[Object],
    tenant: Sequence[Object],
    *,
    gates: Sequence[str],
    sanitize: Callable[[str], str],
    observed: int = 0,
) -> Conditions:
    """Return the conditions of the tenant pod, from those of the compute pod and its current ones.

    `observed` replaces the compute pod's observed generation. 0 removes it.

    The tenant pod keeps its own PodScheduled and the conditions of `gates` (`metadata.tenant_gates`), which the
    compute pod copies from the tenant. Conditions that only the tenant pod has are kept, except those of
    `_MIRRORED_TYPES`.
    """
    current = {entry["type"]: entry for entry in tenant}
    made: Conditions = []
    for entry in compute:
        kind = entry["type"]
        if kind in gates:
            continue
        if kind == POD_SCHEDULED:
            made += _mirror_scheduled(entry, current, sanitize, observed)
        else:
            made.append(_sanitize_condition(entry, sanitize, observed))
    present = {entry["type"] for entry in made} | _MIRRORED_TYPES
    return made + [entry for entry in tenant if entry["type"] not in present]


def unscheduled_reason(status: Object) -> str:
    """Return why no node of the pool accepts a pod, as shown to the tenant. It is empty if a node accepted it."""
    return next(
        (
            entry.get("message") or entry.get("reason") or ""
            for entry in status.get("conditions") or ()
            if entry["type"] == POOL_SCHEDULED_CONDITION and entry["status"] == "False"
        ),
        "",
    )


def conditions_patch(wanted: Sequence[Object], current: Sequence[Object]) -> Conditions:
    """Return the strategic merge patch that turns the `current` conditions into `wanted`, without unchanged ones."""
    before = {entry["type"]: entry for entry in current}
    made: Conditions = []
    for entry in wanted:
        old = before.pop(entry["type"], {})
        if entry != old:
            made.append({**dict.fromkeys(old.keys() - entry.keys()), **entry})
    return [*made, *({"$patch": "delete", "type": kind} for kind in before)]


def gate_conditions_patch(tenant: Sequence[Object], compute: Sequence[Object], gates: Iterable[str]) -> list[Object]:
    """Return the strategic merge patch of the compute pod's gate conditions, empty if nothing differs.

    `tenant` and `compute` are the conditions of the two pods. A condition that the tenant removed is removed from the
    compute pod, too.
    """
    wanted = {entry["type"]: _compared_fields(entry) for entry in tenant}
    current = {entry["type"]: _compared_fields(entry) for entry in compute}
    made: list[Object] = []
    for gate in gates:
        new, old = wanted.get(gate), current.get(gate)
        if new is None and old is not None:
            made.append({"$patch": "delete", "type": gate})
        elif new is not None and new != old:
            made.append({**dict.fromkeys((old or {}).keys() - new.keys()), **new})
    return made


def set_condition(conditions: Sequence[Object], new: Object, *, now: str) -> Conditions:
    """Return the conditions with `new` in place of its type or at the end. Its time is `now` if the status changed."""
    old = next((entry for entry in conditions if entry["type"] == new["type"]), None)
    same = old is not None and old["status"] == new["status"] and bool(old.get("lastTransitionTime"))
    made = {**new, "lastTransitionTime": old["lastTransitionTime"] if old is not None and same else now}
    if old is None:
        return [*conditions, made]
    return [made if entry is old else entry for entry in conditions]


def _mirror_scheduled(
    entry: Object, current: dict[str, Object], sanitize: Callable[[str], str], observed: int
) -> Conditions:
    """Return the tenant pod's PodScheduled, or the compute pod's if it is True and the tenant pod has none.

    In the tenant cluster, a bound pod is scheduled. Condition PoolScheduled reports that no compute node accepts the
    pod.
    """
    if entry["status"] == "True":
        mirrored = _sanitize_condition(entry, sanitize, observed)
        own = current.get(POD_SCHEDULED)
        seen = {"observedGeneration": observed} if observed and "observedGeneration" in entry else {}
        return [{**own, **seen} if own is not None else mirrored]
    kept = [current[POD_SCHEDULED]] if POD_SCHEDULED in current else []
    if not entry.get("reason"):
        return kept
    return [*kept, {**_sanitize_condition(entry, sanitize, observed), "type": POOL_SCHEDULED_CONDITION}]


def _sanitize_condition(entry: Object, sanitize: Callable[[str], str], observed: int) -> Object:
    """Return a condition with a sanitized message and with the tenant pod's generation, if the condition has one."""
    message = entry.get("message")
    cleaned = sanitize(message) if message else message
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


def _compared_fields(condition: Object) -> Object:
    return {key: condition[key] for key in _COMPARED_FIELDS if condition.get(key) not in (None, "")}
