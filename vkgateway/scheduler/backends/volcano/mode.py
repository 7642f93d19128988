"""Volcano as a scheduling mode."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from vkgateway.api.names import POOL_LABEL, TENANT_LABEL, compute_namespace
from vkgateway.api.objects import Meta, Object
from vkgateway.api.scheduling import SchedulerMarks, queue_name
from vkgateway.api.types import VOLCANO
from vkgateway.api.types import Pool as PoolSpec
from vkgateway.scheduler.backends.amounts import pool_capacity, render_amount, sum_requests
from vkgateway.scheduler.backends.attempt import Attempt, AttemptState, Wait
from vkgateway.scheduler.backends.attempt_objects import attempt_metadata, read_object, spec_digest
from vkgateway.scheduler.backends.gang_split import GangSplitter
from vkgateway.scheduler.backends.mode import ModeInput, Request
from vkgateway.scheduler.backends.names import MODE_LABEL, gang_namespace
from vkgateway.scheduler.backends.pod_sets import count_pod_sets
from vkgateway.scheduler.backends.volcano.names import (
    API_VERSION,
    GROUP_ANNOTATION,
    PODS_ANNOTATION,
    ROOT_QUEUE,
    priority_class_name,
    priority_of_class,
)
from vkgateway.scheduler.core.decisions import PendingReason
from vkgateway.scheduler.core.snapshot import GUARANTEED, Gang, Pod, Pool, Quota


class VolcanoMode:
    """Implementation of `SchedulingMode`."""

    max_pod_sets = sys.maxsize
    retry_seconds = 10.0
    takes_slots_back = False

    def marks(self, request: Request, _pod: Pod) -> SchedulerMarks:
        """See `SchedulingMode`. Volcano gives no notice, and pods end within the grace that they were created with."""
        return SchedulerMarks(
            scheduler_name=request.spec.scheduling.scheduler_name or "volcano",
            priority_class=priority_class_name(volcano_priority(request.gang, is_surplus=request.is_surplus)),
            annotations={GROUP_ANNOTATION: request.name},
            grace=int(request.gang.grace),
        )

    def implied_attempts(self, _given: ModeInput, _splitter: GangSplitter) -> Mapping[str, Attempt]:
        """See `SchedulingMode`."""
        return {}

    def attempt_object(self, request: Request) -> Object:
        """See `SchedulingMode`."""
        return pod_group(request)

    def digest(self, request: Request) -> str:
        """See `SchedulingMode`."""
        return spec_digest(pod_group_spec(request))

    def levels(self, _pool: Pool, _spec: PoolSpec) -> tuple[str, ...]:
        """See `SchedulingMode`. Volcano does not preempt for gangs with a network topology."""
        return ()

    def pool_objects(self, pool: Pool, spec: PoolSpec, quotas: Sequence[Quota], gangs: Sequence[Gang]) -> list[Object]:
        """See `SchedulingMode`."""
        return pool_objects(pool, spec, quotas, gangs)


# A queue has no `guarantee`, which Volcano never lends. What a queue uses beyond `deserved` can be reclaimed.
def pool_objects(pool: Pool, spec: PoolSpec, quotas: Sequence[Quota], gangs: Sequence[Gang]) -> list[Object]:
    """Return the priority classes of a pool's gangs and, unless the administrator manages them, the tenants' queues."""
    classes = priority_classes(gangs)
    if not spec.scheduling.manage_queues:
        return classes
    capacity = pool_capacity(pool, spec)
    return [*classes, *(_queue(spec, quota, capacity) for quota in quotas)]


def _queue(spec: PoolSpec, quota: Quota, capacity: Mapping[str, int]) -> Object:
    # Volcano counts the whole cluster: a queue without a limit could otherwise ask for the nodes of other pools.
    limit = {name: min(amount, quota.limit.get(name, amount)) for name, amount in capacity.items()}
    # No pod starts beyond the guarantee while a budget is used up. Volcano evicts none for a lower capability.
    limit |= {name: min(limit[name], max(0, quota.guarantee.get(name, 0))) for name in quota.stopped if name in limit}
    # Its webhook refuses more than the capability.
    deserved = {name: min(amount, limit[name]) for name, amount in quota.guarantee.items() if name in limit}
    labels = {MODE_LABEL: VOLCANO, POOL_LABEL: spec.name, TENANT_LABEL: quota.tenant}
    return {
        "apiVersion": API_VERSION,
        "kind": "Queue",
        "metadata": {
            "name": queue_name(spec.scheduling, tenant=quota.tenant, pool=spec.name),
            "labels": labels,
        },
        "spec": {
            "parent": ROOT_QUEUE,
            "weight": 1,
            "reclaimable": True,
            "deserved": {name: render_amount(amount) for name, amount in sorted(deserved.items()) if amount > 0},
            "capability": {name: render_amount(amount) for name, amount in sorted(limit.items())},
        },
    }


# Volcano takes a priority from a class, of the PodGroup and of its pods. The classes of tenants' pods under the
# arbiter cannot be used: they never preempt, and Volcano then reclaims nothing for such pods.
_GUARANTEED: Final = 900
_LOW: Final = 400
_SURPLUS: Final = -250
"""Surplus ranks below the whole gangs of its band."""


def volcano_priority(gang: Gang, *, is_surplus: bool = False) -> int:
    """Return the priority of a gang's PodGroup: the guaranteed band before the low band, then the gang's priority.

    A gang's priority counts with its size and first digit, so that tenants cannot cause an unlimited number of classes.
    """
    base = (_GUARANTEED if gang.band is GUARANTEED else _LOW) + (_SURPLUS if is_surplus else 0)
    return base + (_coarse(gang.priority) if gang.preempts else 0)


def _coarse(priority: int) -> int:
    """Return a number from -109 to 109 with the order of priorities: number of digits, then the first digit."""
    if not priority:
        return 0
    digits = str(abs(priority))
    size = 10 * len(digits) + int(digits[0])
    return size if priority > 0 else -size


def priority_classes(gangs: Iterable[Gang]) -> list[Object]:
    """Return the priority classes that the gangs of a pool need. Each may get pods that start after the others."""
    values = {volcano_priority(gang, is_surplus=surplus) for gang in gangs for surplus in (False, True)}
    return [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": priority_class_name(value), "labels": {MODE_LABEL: VOLCANO}},
            "value": value,
            "description": "Tenants' pods in pools that Volcano schedules.",
        }
        for value in sorted(values)
    ]


_QUEUED: Final = Wait(PendingReason.ROOM, "other pods of its queue use the capacity that it needs")
_ENQUEUED: Final = frozenset({"Inqueue", "Running", "Unknown", "Completed"})
"""Phases in which Volcano places pods of the group. In the others it waits, and no pod should exist."""


def pod_group(request: Request) -> Object:
    """Return the PodGroup of an attempt. All its pods start together or not at all."""
    spec, tenant = pod_group_spec(request), request.gang.tenant
    metadata = attempt_metadata(
        request,
        spec,
        mode=VOLCANO,
        namespace=compute_namespace(tenant, gang_namespace(request.gang.id)),
        annotations={PODS_ANNOTATION: _encode_counts(request)},
    )
    return {"apiVersion": API_VERSION, "kind": "PodGroup", "metadata": metadata, "spec": spec}


def _encode_counts(request: Request) -> str:
    # Volcano's tasks would say the same, but it takes pods of one task for equal, whatever nodes they may use.
    return msgspec.json.encode({each.name: each.count for each in count_pod_sets(request.pods)}).decode()


def _decode_counts(view: PodGroupView) -> Mapping[str, int]:
    """Return the number of pods by pod set; none if the annotation was changed by others."""
    try:
        return msgspec.json.decode(view.metadata.annotations.get(PODS_ANNOTATION, "{}"), type=dict[str, int])
    except msgspec.DecodeError:
        return {}


def pod_group_spec(request: Request) -> Object:
    """Return what a PodGroup asks for."""
    gang, spec = request.gang, request.spec
    requests = sum_requests(request.pods, skip=spec.passed_through)
    return {
        "queue": queue_name(spec.scheduling, tenant=gang.tenant, pool=spec.name),
        "priorityClassName": priority_class_name(volcano_priority(gang, is_surplus=request.is_surplus)),
        "minMember": len(request.pods),
        "minResources": {name: render_amount(amount) for name, amount in requests.items()},
    }


class _PodGroupSpec(msgspec.Struct, rename="camel"):
    priority_class_name: str = ""


class _PodGroupStatus(msgspec.Struct):
    phase: str = ""


class PodGroupView(msgspec.Struct):
    """A PodGroup, as far as the gateway reads it."""

    metadata: Meta
    spec: _PodGroupSpec = msgspec.field(default_factory=_PodGroupSpec)
    status: _PodGroupStatus = msgspec.field(default_factory=_PodGroupStatus)


decode_pod_group: Final = msgspec.json.Decoder(PodGroupView).decode


def read_attempt(view: PodGroupView, cluster: str, _node_of: Callable[[str], str]) -> Attempt:
    """Return the attempt that a PodGroup is. Volcano assigns nodes by binding the pods itself."""
    state = _state(view)
    return read_object(
        view.metadata,
        cluster,
        state=state,
        priority=priority_of_class(view.spec.priority_class_name),
        slots={name: {"": count} for name, count in _decode_counts(view).items()},
        wait=_QUEUED if state is AttemptState.PENDING and view.status.phase else None,
        is_ready=True,
    )


def _state(view: PodGroupView) -> AttemptState:
    if view.metadata.deletion_timestamp is not None:
        return AttemptState.DELETING
    return AttemptState.ADMITTED if view.status.phase in _ENQUEUED else AttemptState.PENDING
