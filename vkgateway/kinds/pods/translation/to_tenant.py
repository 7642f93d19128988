"""Merge patch for the tenant pod's status, made from the compute pod's status."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from vkgateway.api import times
from vkgateway.api.names import SCHEDULING_MODE
from vkgateway.api.objects import TERMINAL_PHASES, Object, merge_patch
from vkgateway.api.types import EXTERNAL
from vkgateway.kinds.metadata import tenant_gates
from vkgateway.kinds.pods.translation.conditions import (
    DISRUPTION_CONDITION,
    POD_SCHEDULED,
    Conditions,
    conditions_patch,
    is_disruption,
    mirror_conditions,
    set_condition,
)
from vkgateway.kinds.pods.translation.ephemeral_status import add_waiting_statuses
from vkgateway.kinds.pods.translation.own_containers import EVERY_CONTAINER, own_containers_text
from vkgateway.kinds.sanitizer import Sanitizer

_TENANT_FIELDS: Final = frozenset({"qosClass", "observedGeneration"})
_COMPUTE_FIELDS: Final = frozenset(
    {
        "nominatedNodeName",
        "resourceClaimStatuses",
        "extendedResourceClaimStatus",
        "nodeAllocatableResourceClaimStatuses",
    }
)
_UNMIRRORED_FIELDS: Final = _TENANT_FIELDS | _COMPUTE_FIELDS
_REMOVABLE_FIELDS: Final = frozenset(
    {
        "message",
        "reason",
        "podIP",
        "podIPs",
        "hostIP",
        "hostIPs",
        "startTime",
        "initContainerStatuses",
        "containerStatuses",
        "ephemeralContainerStatuses",
        "resize",
        "allocatedResources",
        "resources",
    }
)
"""Mirrored fields, removed from the tenant pod when the compute pod no longer has them."""

_CONTAINER_KINDS: Final = frozenset({"initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"})
_KNOWN_FIELDS: Final = _REMOVABLE_FIELDS | {"phase", "conditions"}
"""Fields that are sanitized one by one. Unknown fields are sanitized as a whole."""

_CONTAINER_FIELDS: Final = frozenset(
    {
        "name",
        "image",
        "imageID",
        "containerID",
        "state",
        "lastState",
        "ready",
        "started",
        "restartCount",
        "allocatedResources",
        "resources",
        "volumeMounts",
        "user",
        "stopSignal",
    }
)
"""Fields of a container's status that are sanitized one by one."""

_MERGED_LISTS: Final = frozenset({"podIPs", "hostIPs"})
"""Lists to which a strategic merge patch would append (core/v1 PodStatus). Conditions are handled separately."""

_OWN_TERMINATION: Final = frozenset({"Completed", "Error", "OOMKilled"})
"""Reasons of containers that ran. Their message is the container's own (its termination log), which programs read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disruption:
    """Reason why a pod was ended from outside: reason and message of its DisruptionTarget condition."""

    reason: str
    message: str


def mirror_status(
    compute_pod: Object,
    tenant_status: Object,
    *,
    node_ip: str,
    hide: Iterable[str] = (),
    node_name: str = "the node",
    observed: int = 0,
    containers: Container[str] = EVERY_CONTAINER,
) -> Object | None:
    """Return the merge patch (RFC 7386) for the tenant pod's `status`, or None if nothing differs.

    The result depends on the compute pod's `status`, and for sanitized messages on `metadata` (namespace, uid,
    annotations) and `spec.nodeName`. `node_ip` is the virtual node's address. `node_name` replaces the names of compute
    nodes in messages, `hide` holds more of these names. Lists are replaced as a whole, as in merge patches. A terminal
    phase of the tenant pod is final: it is never patched. `observed` is the generation of the tenant pod that the
    compute pod reflects. 0: the generation that was mirrored last. `containers` are the names of the tenant pod's
    containers: a compute cluster may add others, such as those of a mesh.
    """
    wanted = _wanted_status(
        compute_pod,
        tenant_status,
        node_ip=node_ip,
        hide=hide,
        node_name=node_name,
        observed=observed,
        containers=containers,
    )
    return None if wanted is None else _status_diff(wanted, tenant_status)


def strategic_patch(patch: Object, current: Object) -> Object:
    """Return a merge patch for the status `current` as a strategic merge patch, with which tenant pods are updated.

    A merge patch replaces lists. It would revert changes by others since, such as readiness gates or a disruption.
    """
    made = {**patch}
    if "conditions" in patch:
        made["conditions"] = conditions_patch(patch["conditions"], current.get("conditions") or [])
    for key in _MERGED_LISTS & patch.keys():
        if patch[key]:
            made[key] = [{"$patch": "replace"}, *patch[key]]
    return made


def final_status(
    compute_pod: Object,
    tenant_status: Object,
    *,
    disruption: Disruption | None,
    now: datetime,
    node_ip: str = "",
    node_name: str = "the node",
    observed: int = 0,
    containers: Container[str] = EVERY_CONTAINER,
) -> Object | None:
    """Return the merge patch that ends the tenant pod as the compute pod ended, or None if it has ended.

    A compute pod that was deleted, or is being deleted, without a terminal phase (its node is lost) ends as Failed.
    With `disruption`, the condition DisruptionTarget contains its reason, unless the compute pod has such a condition.
    """
    wanted = _wanted_status(
        compute_pod, tenant_status, node_ip=node_ip, node_name=node_name, observed=observed, containers=containers
    )
    if wanted is None:
        return None
    conditions: Conditions = wanted.get("conditions") or []
    if wanted["phase"] not in TERMINAL_PHASES:
        wanted["phase"] = "Failed"
        conditions = _set_not_ready(conditions, now)
    if disruption is not None:
        conditions = _set_disrupted(conditions, disruption, now)
        if wanted["phase"] == "Failed":
            wanted.setdefault("reason", disruption.reason)
            wanted.setdefault("message", disruption.message)
    if conditions:
        wanted["conditions"] = conditions
    return _status_diff(wanted, tenant_status)


def never_started(status: Object) -> bool:
    """Return whether a compute pod ended, without success, before any of its containers ran.

    A kubelet reports `ContainerStatusUnknown` for a container that it never started.
    """
    statuses = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    states = [one.get(kind) or {} for one in statuses for kind in ("state", "lastState")]
    ends = [state["terminated"] or {} for state in states if "terminated" in state]
    has_run = any("running" in state for state in states) or any(
        end.get("reason") != "ContainerStatusUnknown" for end in ends
    )
    return status.get("phase") != "Succeeded" and not has_run


def has_ended_before(status: Object, moment: datetime) -> bool:
    """Return whether a pod's phase is final and its last container ended before a moment. Unknown times are False."""
    if status.get("phase") not in TERMINAL_PHASES:
        return False
    statuses = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    states = [one.get("state") or {} for one in statuses]
    ends: list[str] = [(state["terminated"] or {}).get("finishedAt") or "" for state in states if "terminated" in state]
    if not ends or not all(ends) or any("running" in state for state in states):
        return False
    return max(map(times.parse_time, ends)) < moment


def failed_status(reason: str, message: str, *, tenant_status: Object, observed: int, now: datetime) -> Object | None:
    """Return the merge patch that fails a pod that never ran or was lost, or None if its phase is final.

    It sets what a kubelet sets that rejects a pod; `observed` is the pod's generation, 0 if it has none.
    """
    if tenant_status.get("phase") in TERMINAL_PHASES:
        return None
    wanted: Object = {"phase": "Failed", "reason": reason, "message": message}
    if observed:
        wanted["observedGeneration"] = observed
    if not tenant_status.get("startTime"):
        wanted["startTime"] = times.render_time(now)
    return _status_diff(wanted, tenant_status, removable=frozenset())


def disrupted_status(
    tenant_status: Object, compute_status: Object, *, disruption: Disruption, now: datetime
) -> Object | None:
    """Return the merge patch that sets the condition DisruptionTarget, or None if one of the two pods has it."""
    if any(map(is_disruption, compute_status.get("conditions") or ())):
        return None
    conditions: Conditions = tenant_status.get("conditions") or []
    wanted = _set_disrupted(conditions, disruption, now)
    return None if wanted is conditions else {"conditions": wanted}


def condition_status(
    tenant_status: Object, kind: str, *, status: str, reason: str, message: str, now: datetime
) -> Object | None:
    """Return the merge patch that sets one condition of a pod, or None if it is set or the phase is final."""
    if tenant_status.get("phase") in TERMINAL_PHASES:
        return None
    new = {"type": kind, "status": status, "reason": reason, "message": message}
    conditions: Conditions = tenant_status.get("conditions") or []
    old = next((entry for entry in conditions if entry["type"] == kind), None)
    if old is not None and all(old.get(key) == value for key, value in new.items()):
        return None
    return {"conditions": set_condition(conditions, new, now=times.render_time(now))}


def _wanted_status(
    compute_pod: Object,
    tenant_status: Object,
    *,
    node_ip: str,
    node_name: str,
    observed: int,
    containers: Container[str],
    hide: Iterable[str] = (),
) -> Object | None:
    """Return the whole status that is mirrored to the tenant pod, or None if the tenant pod's phase is final."""
    status: Object = compute_pod.get("status") or {}
    phase = tenant_status.get("phase")
    if phase in TERMINAL_PHASES and status.get("phase") != phase:
        return None
    observed = observed or tenant_status.get("observedGeneration") or 0
    cleaner = Sanitizer.for_pod(compute_pod, hide=hide, node_name=node_name, node_ip=node_ip)
    wanted = {key: value for key, value in status.items() if key not in _UNMIRRORED_FIELDS}
    wanted.setdefault("phase", "Pending")
    if "ephemeralContainerStatuses" in tenant_status and (
        debuggers := add_waiting_statuses(wanted.get("ephemeralContainerStatuses"), tenant_status)
    ):
        wanted["ephemeralContainerStatuses"] = debuggers
    if not _KNOWN_FIELDS.issuperset(wanted):
        for key in wanted.keys() - _KNOWN_FIELDS:
            wanted[key] = cleaner.sanitize_json(wanted[key])
    for key in _CONTAINER_KINDS & wanted.keys():
        own = EVERY_CONTAINER if key == "ephemeralContainerStatuses" else containers
        wanted[key] = [_mirror_container_status(each, cleaner) for each in wanted[key] or () if each["name"] in own]
    if "message" in wanted:
        wanted["message"] = cleaner.sanitize_text(wanted["message"])
    _set_host_addresses(wanted, tenant_status, node_ip)
    annotations = (compute_pod.get("metadata") or {}).get("annotations") or {}
    conditions = mirror_conditions(
        tenant_conditions(compute_pod),
        tenant_status.get("conditions") or [],
        gates=tenant_gates(annotations),
        sanitize=lambda text: cleaner.sanitize_text(own_containers_text(text, containers)),
        observed=observed,
    )
    if observed:
        wanted["observedGeneration"] = observed
    wanted.pop("conditions", None)
    if conditions or tenant_status.get("conditions"):
        wanted["conditions"] = conditions
    return wanted


def _set_host_addresses(wanted: Object, tenant_status: Object, node_ip: str) -> None:
    """Set the virtual node's address in place of the host's. Without one, the tenant pod's addresses are kept."""
    for key, own in (("hostIP", node_ip), ("hostIPs", [{"ip": node_ip}])):
        if key in wanted and node_ip:
            wanted[key] = own
        elif key in wanted or not node_ip:
            wanted.pop(key, None)
            if key in tenant_status:
                wanted[key] = tenant_status[key]


def _status_diff(
    wanted: Mapping[str, Any], tenant_status: Mapping[str, Any], *, removable: frozenset[str] = _REMOVABLE_FIELDS
) -> Object | None:
    patch: Object = {}
    for key, value in wanted.items():
        if key not in tenant_status:
            patch[key] = value
        elif not _is_field_equal(key, value, tenant_status):
            current = tenant_status[key]
            patch[key] = merge_patch(current, value) if isinstance(current, dict) and isinstance(value, dict) else value
    for key in removable:
        if key in tenant_status and key not in wanted:
            patch[key] = None
    return patch or None


def _is_field_equal(key: str, value: Any, tenant_status: Mapping[str, Any]) -> bool:
    """Return whether a field has the value already. The order of conditions does not count."""
    current = tenant_status[key]
    if value == current or key != "conditions":
        return bool(value == current)
    return not conditions_patch(value, current or [])


def _mirror_container_status(status: Object, cleaner: Sanitizer) -> Object:
    if not _CONTAINER_FIELDS.issuperset(status):
        status = {
            key: value if key in _CONTAINER_FIELDS else cleaner.sanitize_json(value) for key, value in status.items()
        }
    for key in ("state", "lastState"):
        for name, details in (status.get(key) or {}).items():
            text = details.get("message")
            if not text or details.get("reason") in _OWN_TERMINATION:
                continue
            if (cleaned := cleaner.sanitize_text(text)) != text:
                status = {**status, key: {**status[key], name: {**details, "message": cleaned}}}
    return status


def _set_not_ready(conditions: Conditions, now: datetime) -> Conditions:
    stamp = times.render_time(now)
    for kind in ("Ready", "ContainersReady"):
        if any(entry["type"] == kind and entry["status"] == "True" for entry in conditions):
            new = {"type": kind, "status": "False", "reason": "PodFailed", "message": ""}
            conditions = set_condition(conditions, new, now=stamp)
    return conditions


def _set_disrupted(conditions: Conditions, disruption: Disruption, now: datetime) -> Conditions:
    if any(map(is_disruption, conditions)):
        return conditions
    new = {"type": DISRUPTION_CONDITION, "status": "True", "reason": disruption.reason, "message": disruption.message}
    return set_condition(conditions, new, now=times.render_time(now))


# Any scheduler may write anything, such as queues, gangs and pods of other tenants. Of its messages, tenants see the
# part that has the form of kube-scheduler, which counts nodes and names none.
UNPLACED: Final = "the scheduler of the pool has not placed the pod"
EVICTED: Final = "the scheduler of the pool needs its resources for other pods"
_NODE_COUNTS: Final = re.compile(r"\b\d+/\d+ nodes are available: \d+ [^\"\n]*")
"""A plugin that refuses a pod before any node is considered writes its own words after the colon, not a count."""
_SCHEDULERS: Final = {POD_SCHEDULED: UNPLACED, DISRUPTION_CONDITION: EVICTED}
"""Conditions that schedulers write, with what tenants read instead of their messages."""
_PREEMPTION: Final = "PreemptionByScheduler"


def tenant_conditions(compute_pod: Mapping[str, Object]) -> Sequence[Object]:
    """Return the conditions of a compute pod, those by an external scheduler without its words."""
    found: Sequence[Object] = (compute_pod.get("status") or {}).get("conditions") or []
    annotations = (compute_pod.get("metadata") or {}).get("annotations") or {}
    if annotations.get(SCHEDULING_MODE) != EXTERNAL:
        return found
    return [_reduced(entry) if _is_schedulers(entry) else entry for entry in found]


def _is_schedulers(entry: Object) -> bool:
    return entry["type"] == POD_SCHEDULED or (
        entry["type"] == DISRUPTION_CONDITION and entry.get("reason") == _PREEMPTION
    )


def _reduced(entry: Object) -> Object:
    message = entry.get("message")
    if not message:
        return entry
    counts = _NODE_COUNTS.search(message)
    return {**entry, "message": counts[0].rstrip() if counts else _SCHEDULERS[entry["type"]]}
