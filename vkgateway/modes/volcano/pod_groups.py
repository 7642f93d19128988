"""PodGroups: the objects that ask Volcano to start a gang, and what their states mean."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from vkgateway.arbiter.decisions import PendingReason
from vkgateway.model.api import VOLCANO
from vkgateway.model.names import POOL_LABEL, TENANT_LABEL, compute_namespace
from vkgateway.model.objects import Meta, Object
from vkgateway.model.scheduling import queue_name
from vkgateway.model.times import parse_seconds
from vkgateway.modes.amounts import render_amount, sum_requests
from vkgateway.modes.attempt import Attempt, AttemptState, Wait
from vkgateway.modes.mode import Request
from vkgateway.modes.names import DIGEST_ANNOTATION, GANG_ANNOTATION, MODE_LABEL, TENANT_ANNOTATION, gang_namespace
from vkgateway.modes.pod_sets import count_pod_sets
from vkgateway.modes.volcano.names import API_VERSION, PODS_ANNOTATION, priority_class_name
from vkgateway.modes.volcano.priorities import volcano_priority

_QUEUED: Final = Wait(PendingReason.ROOM, "other pods of its queue use the capacity that it needs")
_ENQUEUED: Final = frozenset({"Inqueue", "Running", "Unknown", "Completed"})
"""Phases in which Volcano places pods of the group. In the others it waits, and no pod should exist."""


def pod_group(request: Request) -> Object:
    """Return the PodGroup of an attempt. All its pods start together or not at all."""
    gang, pool = request.gang, request.gang.pools[0][1]
    return {
        "apiVersion": API_VERSION,
        "kind": "PodGroup",
        "metadata": {
            "name": request.name,
            "namespace": compute_namespace(gang.tenant, gang_namespace(gang.id)),
            "labels": {MODE_LABEL: VOLCANO, TENANT_LABEL: gang.tenant, POOL_LABEL: pool},
            "annotations": {
                TENANT_ANNOTATION: gang.tenant,
                GANG_ANNOTATION: gang.id,
                DIGEST_ANNOTATION: pod_group_digest(request),
                PODS_ANNOTATION: _encode_counts(request),
            },
        },
        "spec": _spec(request),
    }


def pod_group_digest(request: Request) -> str:
    """Return the digest of a PodGroup's spec."""
    return hashlib.sha256(msgspec.json.encode(_spec(request), order="deterministic")).hexdigest()[:16]


def _encode_counts(request: Request) -> str:
    # Volcano's tasks would say the same, but it takes pods of one task for equal, whatever nodes they may use.
    return msgspec.json.encode({each.name: each.count for each in count_pod_sets(request.pods)}).decode()


def _decode_counts(view: PodGroupView) -> Mapping[str, int]:
    """Return the number of pods by pod set; none if the annotation was changed by others."""
    try:
        return msgspec.json.decode(view.metadata.annotations.get(PODS_ANNOTATION, "{}"), type=dict[str, int])
    except msgspec.DecodeError:
        return {}


def _spec(request: Request) -> Object:
    gang, spec = request.gang, request.spec
    requests = sum_requests(request.pods, skip=spec.passed_through)
    return {
        "queue": queue_name(spec.scheduling, tenant=gang.tenant, pool=spec.name),
        "priorityClassName": priority_class_name(volcano_priority(gang, is_surplus=request.is_surplus)),
        "minMember": len(request.pods),
        "minResources": {name: render_amount(amount) for name, amount in requests.items()},
    }


class _PodGroupStatus(msgspec.Struct):
    phase: str = ""


class PodGroupView(msgspec.Struct):
    """A PodGroup, as far as the gateway reads it."""

    metadata: Meta
    status: _PodGroupStatus = msgspec.field(default_factory=_PodGroupStatus)


decode_pod_group: Final = msgspec.json.Decoder(PodGroupView).decode


def read_attempt(view: PodGroupView, cluster: str, _node_of: Callable[[str], str]) -> Attempt:
    """Return the attempt that a PodGroup is. Volcano assigns nodes by binding the pods itself."""
    metadata = view.metadata
    state = _state(view)
    return Attempt(
        name=metadata.name,
        namespace=metadata.namespace,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        tenant=metadata.annotations.get(TENANT_ANNOTATION, ""),
        pool=(cluster, metadata.labels.get(POOL_LABEL, "")),
        digest=metadata.annotations.get(DIGEST_ANNOTATION, ""),
        state=state,
        created=parse_seconds(metadata.creation_timestamp),
        slots={name: {"": count} for name, count in _decode_counts(view).items()},
        wait=_QUEUED if state is AttemptState.PENDING and view.status.phase else None,
        is_ready=True,
    )


def _state(view: PodGroupView) -> AttemptState:
    if view.metadata.deletion_timestamp is not None:
        return AttemptState.DELETING
    return AttemptState.ADMITTED if view.status.phase in _ENQUEUED else AttemptState.PENDING
