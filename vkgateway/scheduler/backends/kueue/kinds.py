"""Kueue's kinds in a compute cluster."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Final

import msgspec

from vkgateway.api import times
from vkgateway.api.names import SYSTEM_NAMESPACE
from vkgateway.api.objects import Condition, Meta, Object
from vkgateway.api.types import KUEUE
from vkgateway.kube.resources import Resource
from vkgateway.scheduler.backends.attempt import Attempt, AttemptState, Wait
from vkgateway.scheduler.backends.attempt_objects import read_object
from vkgateway.scheduler.backends.kinds import ModeKinds
from vkgateway.scheduler.backends.kueue.names import API_VERSION
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


# The text of a message never reaches a tenant: it names queues, nodes and Workloads of other tenants.
NOT_CONSIDERED: Final = Wait(PendingReason.ROOM, "the scheduler of the pool has not considered it yet")

_WAITS: Final = (
    ("Pending the preemption of", Wait(PendingReason.EVICTION, "starts when pods that were notified have terminated")),
    ("maximum capacity", Wait(PendingReason.INFEASIBLE, "requests more than the pool or your limit ever offers")),
    ("exceeds nominal + borrowing", Wait(PendingReason.QUOTA, "its start would exceed your limit")),
    ("borrowing limit", Wait(PendingReason.QUOTA, "its start would exceed your limit")),
    ("doesn't allow to fit", Wait(PendingReason.ROOM, "no set of nodes has enough capacity for all of its pods now")),
    ("allows to fit only", Wait(PendingReason.ROOM, "no set of nodes has enough capacity for all of its pods now")),
    ("insufficient unused quota", Wait(PendingReason.ROOM, "other pods use the capacity that it needs")),
    ("insufficient quota", Wait(PendingReason.ROOM, "other pods use the capacity that it needs")),
    ("unavailable in ClusterQueue", Wait(PendingReason.INFEASIBLE, "requests a resource that the pool does not offer")),
    ("LocalQueue", Wait(PendingReason.ROOM, "the queue of the pool does not exist or is stopped")),
    ("ClusterQueue", Wait(PendingReason.ROOM, "the queue of the pool does not exist or is stopped")),
    ("Waiting for all admitted workloads", Wait(PendingReason.ROOM, "waits until earlier gangs of the pool are ready")),
)
"""By a part of Kueue's message; the first one that matches counts."""
_OTHER: Final = Wait(PendingReason.ROOM, "the scheduler of the pool has no capacity for it now")


def find_wait(message: str) -> Wait:
    """Return why a Workload with this message in its condition QuotaReserved is pending."""
    if not message:
        return NOT_CONSIDERED
    return next((wait for part, wait in _WAITS if part in message), _OTHER)


PREFIX: Final = f"apis/{API_VERSION}"
WORKLOADS: Final = Resource(PREFIX, "workloads", "Workload")
LOCAL_QUEUES: Final = Resource(PREFIX, "localqueues", "LocalQueue")
CLUSTER_QUEUES: Final = Resource(PREFIX, "clusterqueues", "ClusterQueue", namespaced=False)
COHORTS: Final = Resource(PREFIX, "cohorts", "Cohort", namespaced=False)
FLAVORS: Final = Resource(PREFIX, "resourceflavors", "ResourceFlavor", namespaced=False)
TOPOLOGIES: Final = Resource(PREFIX, "topologies", "Topology", namespaced=False)


def _ready_status(now: datetime) -> Object:
    """Return the condition without which Kueue would evict a gang if it waits for its pods (`waitForPodsReady`)."""
    return {
        "conditions": [
            {
                "type": PODS_READY,
                "status": "True",
                "reason": "Started",
                "message": "All pods are ready",
                "lastTransitionTime": times.render_time(now),
            }
        ]
    }


def _returned_status(slots: Mapping[str, int]) -> Object:
    """Return the number of pods by pod set for which Kueue reserves no quota any more. It must never decrease."""
    return {"reclaimablePods": [{"name": name, "count": count} for name, count in sorted(slots.items())]}


KUEUE_KINDS: Final[ModeKinds[WorkloadView]] = ModeKinds(
    mode=KUEUE,
    title="Kueue",
    attempts=WORKLOADS,
    namespace=SYSTEM_NAMESPACE,
    pool_kinds=(LOCAL_QUEUES, CLUSTER_QUEUES, COHORTS, FLAVORS, TOPOLOGIES),
    decode=decode_workload,
    read=read_attempt,
    ready_status=_ready_status,
    returned_status=_returned_status,
)
