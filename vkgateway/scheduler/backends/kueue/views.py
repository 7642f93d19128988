"""Kueue's objects as the gateway reads them: narrow views, and what the conditions of a Workload mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from vkgateway.api.objects import Condition, Meta
from vkgateway.scheduler.backends.attempt import Attempt, AttemptState, Wait
from vkgateway.scheduler.backends.attempt_objects import read_object
from vkgateway.scheduler.backends.kueue.reasons import find_wait
from vkgateway.scheduler.backends.names import GANG_ANNOTATION
from vkgateway.scheduler.core.decisions import PendingReason

PODS_READY: Final = "PodsReady"
"""Condition by which Kueue decides whether a gang started in time (`waitForPodsReady`)."""
_PREEMPTOR: Final = re.compile(r"\(UID: ([-0-9a-zA-Z]+)")
"""In the message of the condition Preempted: the UID of the Workload that needs the resources."""


class _IndividualValues(msgspec.Struct):
    roots: tuple[str, ...]
    prefix: str = ""
    suffix: str = ""


class _LevelValues(msgspec.Struct):
    """Host names of the domains of a slice: one for all, or one each. Exactly one field is set."""

    universal: str | None = None
    individual: _IndividualValues | None = None


class _PodCounts(msgspec.Struct):
    """Number of pods in the domains of a slice: one for all, or one each. Exactly one field is set."""

    universal: int | None = None
    individual: tuple[int, ...] = ()


class _Slice(msgspec.Struct, rename="camel"):
    domain_count: int
    values_per_level: tuple[_LevelValues, ...]
    pod_counts: _PodCounts


class _TopologyAssignment(msgspec.Struct, rename="camel"):
    slices: tuple[_Slice, ...] = ()


class _PodSetAssignment(msgspec.Struct, rename="camel"):
    name: str
    count: int | None = None
    topology_assignment: _TopologyAssignment | None = None


class _Admission(msgspec.Struct, rename="camel"):
    pod_set_assignments: tuple[_PodSetAssignment, ...] = ()


class _RequeueState(msgspec.Struct, rename="camel"):
    requeue_at: str | None = None


class _ReclaimablePods(msgspec.Struct):
    name: str
    count: int = 0


class _WorkloadStatus(msgspec.Struct, rename="camel"):
    conditions: tuple[Condition, ...] = ()
    admission: _Admission | None = None
    requeue_state: _RequeueState | None = None
    reclaimable_pods: tuple[_ReclaimablePods, ...] = ()


class _WorkloadSpec(msgspec.Struct, rename="camel"):
    priority: int | None = None
    active: bool | None = None


class WorkloadView(msgspec.Struct, rename="camel"):
    """A Workload, as far as the gateway reads it."""

    metadata: Meta
    spec: _WorkloadSpec = msgspec.field(default_factory=_WorkloadSpec)
    status: _WorkloadStatus = msgspec.field(default_factory=_WorkloadStatus)

    def condition(self, kind: str) -> Condition | None:
        """Return a condition that is True."""
        return next((each for each in self.status.conditions if each.type == kind and each.status == "True"), None)


decode_workload: Final = msgspec.json.Decoder(WorkloadView).decode


def read_attempt(view: WorkloadView, cluster: str, node_of: Callable[[str], str]) -> Attempt:
    """Return the attempt that a Workload is. `node_of` returns the name of the node with a host name."""
    state = _state(view)
    preempted = view.condition("Preempted")
    found = _PREEMPTOR.search(preempted.message) if preempted is not None else None
    return read_object(
        view.metadata,
        cluster,
        state=state,
        priority=view.spec.priority or 0,
        slots=_slots(view, node_of) if state is AttemptState.ADMITTED else {},
        returned={each.name: each.count for each in view.status.reclaimable_pods},
        wait=_wait(view) if state is AttemptState.PENDING else None,
        is_ready=view.condition(PODS_READY) is not None,
        preemptor=found[1] if found is not None else "",
    )


def gang_of(view: WorkloadView) -> str:
    """Return the gang of a Workload."""
    return view.metadata.annotations.get(GANG_ANNOTATION, "")


def _state(view: WorkloadView) -> AttemptState:
    if view.metadata.deletion_timestamp is not None:
        return AttemptState.DELETING
    if view.condition("Evicted") or view.condition("Finished"):
        return AttemptState.EVICTED
    return AttemptState.ADMITTED if view.condition("Admitted") else AttemptState.PENDING


def _wait(view: WorkloadView) -> Wait:
    if view.spec.active is False:
        return Wait(PendingReason.ROOM, "an administrator stopped its start")
    reserved = next((each for each in view.status.conditions if each.type == "QuotaReserved"), None)
    if reserved is not None and reserved.status == "True":
        return Wait(PendingReason.ROOM, "its capacity is reserved; it waits for a check of the compute cluster")
    return find_wait(reserved.message if reserved is not None else "")


def _slots(view: WorkloadView, node_of: Callable[[str], str]) -> Mapping[str, Mapping[str, int]]:
    """Return the number of pods on each node, by pod set."""
    admission = view.status.admission
    if admission is None:
        return {}
    slots: dict[str, dict[str, int]] = {}
    for each in admission.pod_set_assignments:
        nodes = slots.setdefault(each.name, {})
        if each.topology_assignment is None:
            nodes[""] = each.count or 0
            continue
        for host, count in _domains(each.topology_assignment):
            node = node_of(host)
            nodes[node] = nodes.get(node, 0) + count
    return slots


def _domains(assignment: _TopologyAssignment) -> Iterator[tuple[str, int]]:
    """Yield each assigned domain of the lowest level, a host name, with its number of pods."""
    for part in assignment.slices:
        values, counts = part.values_per_level[-1], part.pod_counts
        for index in range(part.domain_count):
            yield _host(values, index), counts.universal or counts.individual[index]


def _host(values: _LevelValues, index: int) -> str:
    if values.individual is None:
        return values.universal or ""
    each = values.individual
    return f"{each.prefix}{each.roots[index]}{each.suffix}"
