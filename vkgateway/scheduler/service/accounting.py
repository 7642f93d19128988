"""Metrics and usage records of one tenant's governed pods: durations of starts, and usage of ended pods."""

from __future__ import annotations

import re
import statistics
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vkgateway.kinds.pods.translation.conditions import PREEMPTED
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.runtime.views.pods import ComputePodView
from vkgateway.scheduler.core.queueing.admission import Admission
from vkgateway.scheduler.core.snapshot import Shape
from vkgateway.scheduler.service.member import GangMember, MemberState, gang_id
from vkgateway.scheduler.service.node_failures import failed_runs

if TYPE_CHECKING:
    from vkgateway.scheduler.service.arbitration import Arbitration


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRun:
    """A pod that held resources from `start` to `end` (seconds since the epoch)."""

    namespace: str
    name: str
    gang: str
    band: str
    verdict: Admission
    shape: Shape
    start: float
    end: float
    checkpoint: float
    """Time of its last checkpoint; 0: never."""
    end_reason: str
    """Phase in which it ended, or the reason of its eviction."""


class PodAccounting:
    """Accounting of one tenant's governed pods."""

    def __init__(self, scope: TenantScope, arbitration: Arbitration) -> None:
        self._tenant = scope.name
        self._pods = scope.cache.pods
        self._arbitration = arbitration
        self._clock = scope.clock
        self._history = RunHistory()
        self._start_times: dict[str, float] = {}
        """Time since when each pod holds resources in a compute cluster, by UID (seconds since the epoch)."""
        self._failed_runs: dict[str, int] = {}
        """Number of failed runs of the containers of each pod, by UID."""

    def expected_run(self, member: GangMember) -> float | None:
        """Return the seconds that a pod will run, from the runs of similar pods; None if too few are known."""
        return self._history.expected_run(*member.key)

    def pod_arrived(self, member: GangMember) -> None:
        """Record a pod that was read for the first time and waits for its placement."""
        self._arbitration.start_meter.pod_arrived(
            self._gang_id(member), member.uid, created=member.created, now=self._clock.time()
        )

    def record_state(
        self, member: GangMember, state: MemberState, *, compute_pod: ComputePodView | None, verdict: Admission | None
    ) -> None:
        """Record the current state of a pod."""
        uid = member.uid
        if compute_pod is not None and verdict is not None and not verdict.is_evicting:
            self._record_failures(member, compute_pod, verdict)
        if state.state is None:
            self._arbitration.start_meter.pod_gone(self._gang_id(member), uid)
            start = self._start_times.pop(uid, None)
            if start is not None and state.has_succeeded:
                self._history.add_run(*member.key, self._clock.time() - start)
            if start is not None and verdict is not None:
                self._arbitration.pod_ended(
                    self._tenant, self._build_run(member, verdict, start=start, done=state.has_succeeded)
                )
        elif compute_pod is not None and state.verdict is not None:
            self._start_times.setdefault(uid, state.verdict.since)
            if compute_pod.spec.node_name:
                self._arbitration.start_meter.pod_bound(uid, now=self._clock.time())

    def forget_pod(self, member: GangMember) -> None:
        """Forget a pod that was deleted, or belongs to no gang any more."""
        self._arbitration.start_meter.pod_gone(self._gang_id(member), member.uid)
        self._start_times.pop(member.uid, None)
        self._failed_runs.pop(member.uid, None)

    def _record_failures(self, member: GangMember, pod: ComputePodView, verdict: Admission) -> None:
        """Record failures on the pod's node, unless the tenant deletes the pod, or they are known already."""
        if (failed := failed_runs(pod)) <= self._failed_runs.get(member.uid, 0):
            return
        tenant_pod = self._pods.store.get(member.key)
        if tenant_pod is None or tenant_pod.metadata.deletion_timestamp is not None:
            return
        self._failed_runs[member.uid] = failed
        self._arbitration.record_failure(verdict.pool[0], pod.spec.node_name or verdict.node, self._gang_id(member))

    def _build_run(self, member: GangMember, verdict: Admission, *, start: float, done: bool) -> PodRun:
        return PodRun(
            namespace=member.key[0],
            name=member.key[1],
            gang=self._gang_id(member),
            band=member.band,
            verdict=verdict,
            shape=member.shape,
            start=start,
            end=self._clock.time(),
            checkpoint=member.marks.checkpoint if member.marks is not None else 0.0,
            end_reason=(verdict.code or PREEMPTED) if verdict.is_evicting else "Succeeded" if done else "Ended",
        )

    def _gang_id(self, member: GangMember) -> str:
        return gang_id(self._tenant, member.gang_group)


_MAX_KINDS: Final = 4096
"""Maximum number of workload kinds; those that ran last are kept."""
_MAX_RUNS: Final = 20
"""Maximum number of runs of a kind."""
_MIN_RUNS: Final = 3
"""Minimum number of runs for a forecast."""
_RUN_SUFFIX: Final = re.compile(r"[0-9]+|[a-z0-9]{5,10}")
"""Parts of a name that differ between runs: numbers, and suffixes of Jobs and generateName."""


class RunHistory:
    """Run times of one tenant's workloads, since the start of the process."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[str, deque[float]] = OrderedDict()

    def add_run(self, namespace: str, name: str, seconds: float) -> None:
        """Record that a workload of this name completed after a number of seconds."""
        kind = _workload_kind(namespace, name)
        self._kinds.setdefault(kind, deque(maxlen=_MAX_RUNS)).append(seconds)
        self._kinds.move_to_end(kind)
        while len(self._kinds) > _MAX_KINDS:
            self._kinds.popitem(last=False)

    def expected_run(self, namespace: str, name: str) -> float | None:
        """Return the median run time of workloads of this kind in seconds; None if too few are known."""
        runs = self._kinds.get(_workload_kind(namespace, name), ())
        return statistics.median(runs) if len(runs) >= _MIN_RUNS else None


def _workload_kind(namespace: str, name: str) -> str:
    """Return the name without the parts that differ between runs.

    They are removed one by one: tenants choose names, and a single pattern could be made to backtrack without end.
    """
    kept, dash, last = name.rpartition("-")
    while dash and _RUN_SUFFIX.fullmatch(last):
        name = kept
        kept, dash, last = name.rpartition("-")
    return f"{namespace}/{name}"
