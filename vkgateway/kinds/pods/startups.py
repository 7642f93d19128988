"""Phases of the starts of one tenant's pods: observed, measured, and reported to the tenant if a start was slow."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from vkgateway.api.names import ADMISSION_GATE, POOL_LABEL, virtual_node_name
from vkgateway.api.objects import Condition, find_condition
from vkgateway.clusters.link import ComputeLink
from vkgateway.kinds.events.pulls import read_pull, starts_pull
from vkgateway.kinds.events.views import EventView
from vkgateway.kinds.pods.startup_metrics import STATISTICS
from vkgateway.kinds.pods.translation.start_phases import (
    Phase,
    StartTimes,
    current_phase,
    describe_phases,
    phase_seconds,
    precise_time,
)
from vkgateway.kinds.registry import Registry
from vkgateway.kinds.sources import COMPUTE_EVENTS, COMPUTE_PODS, RESYNC, TENANT_PODS
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.runtime.requests import RequestKind
from vkgateway.runtime.views.ownership import Key, owned_by
from vkgateway.runtime.views.pods import ComputePodView, TenantPodView

START: Final = RequestKind[str]("start")
"""A start that is complete; the key is the UID of the tenant pod."""

SLOW_START: Final = "SlowStart"
"""Reason of the event about a start that took `SLOW_SECONDS` after the admission, or longer."""
SLOW_SECONDS: Final = 10.0
REPORTS_MAX: Final = 10
REPORTS_SECONDS: Final = 60.0
"""At most `REPORTS_MAX` events in this time: in a burst of pods every start is slow, and an event for each would make
them slower. The metrics have all starts.
"""
_SETTLE_SECONDS: Final = 3.0
"""Seconds after the end of a start: kubelets send events independently of the pod's status."""
_NEW_SECONDS: Final = 10.0
"""A bound pod that is older when it is first seen has begun to start before the gateway did."""
_EVENT_AGE_MAX: Final = 60.0
"""Seconds after which an event is history: after a restart, the gateway sees those of an hour."""
_EVENTS_REMEMBERED: Final = 2048


class _Running(msgspec.Struct, rename="camel", gc=False):
    started_at: str | None = None


class _ContainerState(msgspec.Struct, gc=False):
    running: _Running | None = None
    terminated: _Running | None = None

    @property
    def run(self) -> _Running | None:
        return self.running or self.terminated


class _Container(msgspec.Struct, gc=False):
    state: _ContainerState = msgspec.field(default_factory=_ContainerState)


class _Status(msgspec.Struct, rename="camel", gc=False):
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[_Container, ...] = ()


_decode_status: Final = msgspec.json.Decoder(_Status).decode


@dataclass(slots=True)
class _Start:
    """A pod that has not become ready yet."""

    key: Key
    times: StartTimes
    pool: str = ""
    """Empty: there is no compute pod."""
    compute_uid: str = ""
    pulls: bool = False
    is_complete: bool = False


class PodStartups:
    """Observer of the starts of one tenant's pods.

    It measures the first start of each pod whose compute pod did not exist when the gateway first saw the pod.
    Kubernetes states times in whole seconds, so the time at which the gateway sees a change decides within the second.
    """

    def __init__(self, scope: TenantScope) -> None:
        self._scope = scope
        self._clock = scope.clock
        self._starts: dict[str, _Start] = {}
        """By the UID of the tenant pod."""
        self._seen_events: OrderedDict[str, int] = OrderedDict()
        """UIDs of events about pulls, with their last count."""
        self._reported: deque[float] = deque(maxlen=REPORTS_MAX)
        """Times of the last events about slow starts."""

    def set_up(self, registry: Registry) -> None:
        """See `Reconciler`."""
        (
            registry.for_(START, self.finish_start)
            .runs("startups", self.run)
            .watches(TENANT_PODS, self.tenant_pod_changed)
            .watches(COMPUTE_PODS, self.compute_pod_changed)
            .watches(COMPUTE_EVENTS, self.event_changed)
            .watches(RESYNC, self.enqueue_complete)
        )

    async def run(self) -> None:
        """Report the starting pods in the metrics until cancelled."""
        STATISTICS.sources.add(self.starting)
        try:
            await asyncio.Event().wait()
        finally:
            STATISTICS.sources.discard(self.starting)

    def enqueue_complete(self) -> None:
        """Request again to measure complete starts: requests are dropped while a list is incomplete."""
        for uid, start in self._starts.items():
            if start.is_complete:
                self._scope.work_queue.enqueue(START, uid, _SETTLE_SECONDS)

    def starting(self) -> Iterator[tuple[str, Phase]]:
        """Yield the pool and the phase of each pod with a compute pod that is not ready yet."""
        for start in self._starts.values():
            phase = current_phase(start.times, pulls=start.pulls)
            if start.pool and phase is not None and not start.is_complete:
                yield start.pool, phase

    def tenant_pod_changed(self, old: TenantPodView | None, new: TenantPodView | None) -> None:
        """Handle a change of a tenant pod."""
        if new is None or new.is_terminal:
            view = new or old
            assert view is not None
            self._drop(view.metadata.uid)
            return
        start = self._starts.get(new.metadata.uid)
        if start is None and old is None:
            start = self._begin(new)
        if start is not None and start.times.admitted is None and not _is_gated(new):
            start.times.admitted = start.times.created if old is None else self._clock.time()

    def _begin(self, view: TenantPodView) -> _Start | None:
        now, metadata = self._clock.time(), view.metadata
        created = precise_time(metadata.creation_timestamp, now)
        if view.has_run or (view.spec.node_name and now - created > _NEW_SECONDS):
            return None
        start = self._starts[metadata.uid] = _Start(metadata.key, StartTimes(created))
        return start

    def compute_pod_changed(self, key: Key) -> None:
        """Handle a change of a compute pod."""
        tenant_pod = self._scope.cache.pods.store.get(key)
        start = self._starts.get(tenant_pod.metadata.uid) if tenant_pod is not None else None
        if tenant_pod is None or start is None or start.is_complete:
            return
        for name, link in self._scope.links.items():
            found = link.pods.find_pod(self._scope.name, key)
            if found is not None and found.tenant_uid == tenant_pod.metadata.uid:
                self._observe(tenant_pod.metadata.uid, start, found, name)

    def _observe(self, uid: str, start: _Start, pod: ComputePodView, cluster: str) -> None:
        if start.compute_uid != pod.metadata.uid:
            start.times.restart()
            start.compute_uid, start.pool = pod.metadata.uid, _pool_name(pod, cluster)
        _observe_status(start.times, pod, self._clock.time())
        if start.times.ready is not None or pod.has_ended:
            start.is_complete = True
            self._scope.work_queue.enqueue(START, uid, _SETTLE_SECONDS)

    def event_changed(self, cluster: str, key: Key) -> None:
        """Handle an event of a kubelet about a compute pod."""
        link = self._scope.links.get(cluster)
        event = link.events.store.get(key) if link is not None else None
        if link is None or event is None or self._clock.time() - event.last_seen > _EVENT_AGE_MAX:
            return
        pod = self._find_pod(link, event)
        if pod is not None and (starts_pull(event.reason) or read_pull(event.reason, event.message) is not None):
            self._observe_pull(event, pod, cluster)

    def _find_pod(self, link: ComputeLink, event: EventView) -> ComputePodView | None:
        about = event.involved_object
        pod = link.pods.store.get((about.namespace, about.name))
        if pod is None or pod.metadata.uid != about.uid or not owned_by(self._scope.name, pod.metadata):
            return None
        return pod

    def _observe_pull(self, event: EventView, pod: ComputePodView, cluster: str) -> None:
        start = self._starts.get(pod.tenant_uid)
        if start is not None and start.compute_uid != pod.metadata.uid:
            start = None
        pull = read_pull(event.reason, event.message)
        if start is not None:
            start.pulls = pull is None
        if pull is None or not (new := self._count_new(event)):
            return
        for _ in range(new):
            STATISTICS.add_pull(_pool_name(pod, cluster), pull)
        if start is not None:
            start.times.pull_seconds += pull.total_seconds

    def _count_new(self, event: EventView) -> int:
        """Return how often an event occurred since it was seen last. Kubelets count repetitions."""
        uid, count = event.metadata.uid, event.count or 1
        known = self._seen_events.pop(uid, 0)
        self._seen_events[uid] = max(count, known)
        while len(self._seen_events) > _EVENTS_REMEMBERED:
            self._seen_events.popitem(last=False)
        # The count of an event that began before the gateway did is history.
        return max(0, count - known) if known else 1

    async def finish_start(self, uid: str) -> None:
        """Measure a complete start, and report it to the tenant if it was slow."""
        start = self._starts.pop(uid, None)
        if start is None:
            return
        phases = phase_seconds(start.times)
        if "start" not in phases:
            return  # the pod ended without a running container
        STATISTICS.add_start(start.pool, phases)
        view = self._scope.cache.pods.store.get(start.key)
        total = sum(phases.values())
        is_slow = "ready" in phases and total - phases["admit"] >= SLOW_SECONDS
        if view is None or view.metadata.uid != uid or not is_slow or not self._may_report():
            return
        await self._scope.events.emit_event(
            view.metadata,
            reason=SLOW_START,
            message=f"The pod became ready {total:.1f} s after its creation: {describe_phases(phases)}.",
            kind="Normal",
        )

    def _may_report(self) -> bool:
        """Return whether an event about a slow start is allowed now, and count it."""
        now = self._clock.time()
        if len(self._reported) == REPORTS_MAX and now - self._reported[0] < REPORTS_SECONDS:
            return False
        self._reported.append(now)
        return True

    def _drop(self, uid: str) -> None:
        start = self._starts.get(uid)
        if start is not None and not start.is_complete:
            del self._starts[uid]


def _pool_name(pod: ComputePodView, cluster: str) -> str:
    return virtual_node_name(pod.metadata.labels.get(POOL_LABEL, ""), cluster)


def _is_gated(view: TenantPodView) -> bool:
    return any(gate.name == ADMISSION_GATE for gate in view.spec.scheduling_gates)


def _observe_status(times: StartTimes, pod: ComputePodView, now: float) -> None:
    """Add the milestones in the status of a compute pod, as seen now."""
    try:
        status = _decode_status(pod.status)
        if times.bound is None and pod.spec.node_name:
            times.bound = _condition_time(status, "PodScheduled", now) or now
        if times.sandbox is None:
            times.sandbox = _condition_time(status, "PodReadyToStartContainers", now)
        runs = [container.state.run for container in status.container_statuses]
        if times.started is None and runs and all(run is not None for run in runs):
            times.started = max(precise_time(run.started_at, now) for run in runs if run is not None)
        if times.ready is None:
            times.ready = _condition_time(status, "Ready", now)
    except (msgspec.DecodeError, ValueError, OverflowError):
        return  # a status that no kubelet writes


def _condition_time(status: _Status, kind: str, now: float) -> float | None:
    """Return since when a condition is True; None if it is not."""
    found = find_condition(status.conditions, kind)
    return precise_time(found.last_transition_time, now) if found is not None and found.status == "True" else None
