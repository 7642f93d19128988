"""The arbiter's last verdict on each governed pod, which compute pods record so that a restart recovers it."""

from __future__ import annotations

from vkgateway.api import times
from vkgateway.api.names import (
    BORROWED_ANNOTATION,
    COMPUTE_NODE_ANNOTATION,
    EVICTION_DEADLINE_ANNOTATION,
    POOL_LABEL,
)
from vkgateway.kinds.pods.translation.conditions import RUN_LIMIT_REACHED
from vkgateway.runtime.views.annotations import BEHIND, EVICTED, EVICTED_FOR
from vkgateway.runtime.views.pods import ComputePodView
from vkgateway.scheduler.core.queueing.admission import Admission, AdmissionState


class VerdictStore:
    """Verdicts on one tenant's pods, by the tenant pod's UID."""

    def __init__(self) -> None:
        self.verdicts: dict[str, Admission] = {}

    def recover_verdict(self, pod: ComputePodView, cluster: str) -> Admission:
        """Return the verdict on a pod with a compute pod; an unknown one is taken from the compute pod."""
        verdict = self.verdicts.get(pod.tenant_uid)
        if verdict is None:
            verdict = self.verdicts[pod.tenant_uid] = recorded_verdict(pod, cluster)
        return verdict


def is_arbiter_placed(pod: ComputePodView) -> bool:
    """Return whether a compute pod was admitted, by the arbiter or by the scheduler of its pool.

    A scheduler that assigns no nodes leaves only the record of borrowing.
    """
    annotations = pod.metadata.annotations
    return COMPUTE_NODE_ANNOTATION in annotations or BORROWED_ANNOTATION in annotations


def recorded_verdict(pod: ComputePodView, cluster: str) -> Admission:
    """Return the verdict that the annotations of a running compute pod record."""
    annotations = pod.metadata.annotations
    deadline = _parse_seconds(annotations.get(EVICTION_DEADLINE_ANNOTATION))
    code, _, message = annotations.get(EVICTED, "").partition(": ")
    if code != RUN_LIMIT_REACHED:
        code = message = ""  # the message of any other eviction follows from `evicted_for`
    return Admission(
        verdict=AdmissionState.EVICTING if deadline else AdmissionState.ADMITTED,
        pool=(cluster, pod.metadata.labels.get(POOL_LABEL, "")),
        node=pod.spec.node_name or annotations.get(COMPUTE_NODE_ANNOTATION, ""),
        borrowed=annotations.get(BORROWED_ANNOTATION) != "false",
        since=_parse_seconds(pod.metadata.creation_timestamp),
        deadline=deadline,
        code=code,
        message=message,
        evicted_for=annotations.get(EVICTED_FOR, ""),
        behind=annotations.get(BEHIND, ""),
    )


def _parse_seconds(text: str | None) -> float:
    """Return seconds since the epoch; 0 for a missing or invalid time, as annotations can be edited."""
    try:
        return times.parse_time(text).timestamp() if text else 0.0
    except ValueError:
        return 0.0
