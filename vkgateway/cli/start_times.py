"""Phases of a pod's start, from the pod and its events in the tenant cluster (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from vkgateway.api.objects import Object
from vkgateway.api.times import parse_seconds
from vkgateway.kinds.events.pulls import read_pull, starts_pull
from vkgateway.kinds.pods.translation.start_phases import (
    StartTimes,
    current_phase,
    describe_phases,
    phase_seconds,
    since_phase,
)


def describe_start(pod: Object, events: Iterable[Object], *, now: float) -> str:
    """Return the phases of a pod's start in words; empty if the pod is not bound, or has restarted since.

    Times are those of Kubernetes, in whole seconds; durations of pulls are exact. `events` are those of the pod.
    """
    status = pod.get("status") or {}
    containers = status.get("containerStatuses") or ()
    if not (pod.get("spec") or {}).get("nodeName") or any(each.get("restartCount") for each in containers):
        return ""
    times = _start_times(pod)
    pulls = _add_pulls(times, events)
    phase = current_phase(times, pulls=pulls)
    text = describe_phases(phase_seconds(times))
    if phase is None or status.get("phase") in ("Succeeded", "Failed"):
        return text
    return f"{text}; in {phase} for {max(0.0, now - since_phase(times)):.0f} s"


def _start_times(pod: Object) -> StartTimes:
    status = pod.get("status") or {}
    since = {
        entry["type"]: parse_seconds(entry.get("lastTransitionTime"))
        for entry in status.get("conditions") or ()
        if entry["status"] == "True"
    }
    states = [each.get("state") or {} for each in status.get("containerStatuses") or ()]
    runs = [(state.get("running") or state.get("terminated") or {}).get("startedAt") for state in states]
    return StartTimes(
        parse_seconds(pod["metadata"].get("creationTimestamp")),
        admitted=since.get("PodScheduled") or None,
        bound=parse_seconds(status.get("startTime")) or None,
        sandbox=since.get("PodReadyToStartContainers") or None,
        started=max(map(parse_seconds, runs)) if runs and all(runs) else None,
        ready=since.get("Ready") or None,
    )


def _add_pulls(times: StartTimes, events: Iterable[Object]) -> bool:
    """Add the durations of pulls, and return whether the last event about a pull says that one started."""
    pulls = False
    for event in sorted(events, key=_last_seen):
        reason, message = event.get("reason") or "", event.get("message") or ""
        pull = read_pull(reason, message)
        if pull is not None:
            times.pull_seconds += pull.total_seconds
        if pull is not None or starts_pull(reason):
            pulls = pull is None
    return pulls


def _last_seen(event: Object) -> float:
    return parse_seconds(event.get("lastTimestamp") or event.get("eventTime"))
