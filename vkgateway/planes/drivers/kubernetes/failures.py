"""The reason why pods of a control plane do not run, from their status (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from vkgateway.api.objects import Condition, ContainerStatus, Meta, Terminated, Waiting, find_condition

_STARTING = frozenset({"", "ContainerCreating", "PodInitializing"})
"""Reasons of a waiting container that say only that its start takes time."""
_IMAGE_REASONS = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName"})
_BACK_OFF = re.compile(r'^Back-off pulling image "[^"]*": ErrImagePull: ')
"""What the kubelet puts before the error of the last pull."""
_REPEATED = 3
"""Count from which a warning is no transient one, such as about a Secret that the kubelet does not know yet."""


class EventSeries(msgspec.Struct, rename="camel"):
    """Repetitions of an event that a component wrote in the API group `events.k8s.io`."""

    count: int = 1
    last_observed_time: str = ""


class Event(msgspec.Struct, rename="camel"):
    """A warning about an object; events with the same message count up.

    Those of the API group `events.k8s.io` have `event_time` and `series` instead of `last_timestamp` and `count`.
    """

    message: str = ""
    count: int = 1
    last_timestamp: str | None = None
    event_time: str | None = None
    series: EventSeries | None = None

    @property
    def times(self) -> int:
        """How often the event happened."""
        return self.series.count if self.series is not None else self.count

    @property
    def last_seen(self) -> str:
        """RFC 3339 time of the last repetition."""
        return (self.series.last_observed_time if self.series else "") or self.last_timestamp or self.event_time or ""


class PodStatus(msgspec.Struct, rename="camel"):
    """The fields of a pod's status that tell a failure."""

    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(msgspec.Struct):
    """A pod of a control plane."""

    metadata: Meta
    status: PodStatus = msgspec.field(default_factory=PodStatus)


def deployment_failure(conditions: Sequence[Condition]) -> str:
    """Return why the API server rejects the pods of a Deployment, for example a quota; empty if it admits them."""
    failure = find_condition(conditions, "ReplicaFailure")
    return f"its pods are rejected: {failure.message}" if failure is not None and failure.status == "True" else ""


def pod_failure(pods: Iterable[Pod]) -> str:
    """Return one sentence on the first pod that cannot be scheduled or started; empty if there is none."""
    for pod in pods:
        if not pod.metadata.deletion_timestamp and (reason := _scheduling_failure(pod) or _start_failure(pod)):
            return reason
    return ""


def starting_pods(pods: Iterable[Pod]) -> list[Pod]:
    """Return the pods that are on a node and wait for something outside of their containers, such as a volume."""
    return [
        pod
        for pod in pods
        if not pod.metadata.deletion_timestamp
        and any(
            container.state.waiting is not None and container.state.waiting.reason in _STARTING
            for container in pod.status.container_statuses
        )
    ]


def repeated_warning(pod: Pod, events: Iterable[Event]) -> str:
    """Return the last of the warnings about a starting pod that came again and again; empty if there is none."""
    found = last_message(event for event in events if event.times >= _REPEATED)
    return f"pod {pod.metadata.name} does not start: {_last_line(found)}" if found else ""


def last_message(events: Iterable[Event]) -> str:
    """Return the message of the last event; empty if there is none."""
    latest = max(events, key=lambda event: event.last_seen.rstrip("Z"), default=None)
    return latest.message if latest is not None else ""


def _scheduling_failure(pod: Pod) -> str:
    scheduled = find_condition(pod.status.conditions, "PodScheduled")
    if scheduled is None or scheduled.status != "False" or scheduled.reason == "SchedulingGated":
        return ""
    return f"pod {pod.metadata.name} is not scheduled: {scheduled.message}"


def _start_failure(pod: Pod) -> str:
    for container in pod.status.container_statuses:
        waiting = container.state.waiting
        ended = container.state.terminated or container.last_state.terminated
        if waiting is not None and waiting.reason not in _STARTING | {"CrashLoopBackOff"}:
            return f"{container.name} cannot start: {waiting.reason}: {_waiting_sentence(waiting)}"
        is_crashing = waiting is not None and waiting.reason == "CrashLoopBackOff"
        # Clients of the API server crash again and again until it answers, however correct they are.
        if ended is not None and is_crashing and container.name == "apiserver":
            return _crash_sentence(container.name, ended)
    return ""


def _waiting_sentence(waiting: Waiting) -> str:
    if waiting.reason in _IMAGE_REASONS:
        return f"{_BACK_OFF.sub('', _last_line(waiting.message))}; check registry, imageDigests and imagePullSecrets"
    return _last_line(waiting.message)


def _crash_sentence(name: str, ended: Terminated) -> str:
    if ended.reason == "OOMKilled":
        return f"{name} does not stay up: it exceeds its memory limit; raise resources.limits.memory of the template"
    return f"{name} does not stay up: exit code {ended.exit_code} ({ended.reason}): {_last_line(ended.message)}"


def _last_line(text: str) -> str:
    lines: Sequence[str] = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"
