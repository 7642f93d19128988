"""PodGroups: the objects that ask Volcano to start a gang, and what their states mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from vkgateway.api.names import compute_namespace
from vkgateway.api.objects import Meta, Object
from vkgateway.api.scheduling import queue_name
from vkgateway.api.types import VOLCANO
from vkgateway.scheduler.backends.amounts import render_amount, sum_requests
from vkgateway.scheduler.backends.attempt import Attempt, AttemptState, Wait
from vkgateway.scheduler.backends.attempt_objects import attempt_metadata, read_object
from vkgateway.scheduler.backends.mode import Request
from vkgateway.scheduler.backends.names import gang_namespace
from vkgateway.scheduler.backends.pod_sets import count_pod_sets
from vkgateway.scheduler.backends.volcano.names import (
    API_VERSION,
    PODS_ANNOTATION,
    priority_class_name,
    priority_of_class,
)
from vkgateway.scheduler.backends.volcano.priorities import volcano_priority
from vkgateway.scheduler.core.decisions import PendingReason

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
