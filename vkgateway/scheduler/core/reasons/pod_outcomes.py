"""Where pods are after the decisions of a cycle (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vkgateway.scheduler.core.decisions import Decisions, PendingReport
from vkgateway.scheduler.core.snapshot import Gang, Pod, PodState, PoolKey, PreemptionPlan


class PodOutcomes:
    """Changes of pods through the decisions."""

    def __init__(self, decisions: Decisions) -> None:
        self.placed = {
            uid: (admit.pool, node, admit.borrowed) for admit in decisions.admits for uid, node in admit.nodes.items()
        }
        self.evict_deadlines = {uid: evict.deadline for evict in decisions.evicts for uid in evict.pods}
        self.reprieved = {uid for reprieve in decisions.reprieves for uid in reprieve.pods}
        self.promoted = {uid for promote in decisions.promotes for uid in promote.pods}
        self.pending_reports: Mapping[str, PendingReport] = {report.gang: report for report in decisions.holds}
        self.plans: Mapping[str, PreemptionPlan] = decisions.plans

    def placement_of(self, pod: Pod) -> tuple[PoolKey, str, bool] | None:
        """Return pool, node and whether the pod borrows; None: it waits."""
        if pod.state is PodState.WAITING:
            return self.placed.get(pod.uid)
        return (pod.pool, pod.node, pod.borrowed and pod.uid not in self.promoted) if pod.pool is not None else None

    def plans_of(self, gang: Gang) -> Sequence[PreemptionPlan]:
        """Return the gang's plans, one for each of its pools."""
        plan = self.plans.get(gang.id)
        return (plan, *plan.also) if plan is not None else ()

    def deadline_of(self, pod: Pod) -> float | None:
        """Return the deadline of a terminating pod; None: it stays."""
        if pod.uid in self.evict_deadlines:
            return self.evict_deadlines[pod.uid]
        is_terminating = pod.state in (PodState.NOTIFIED, PodState.ENDING) and pod.uid not in self.reprieved
        return pod.deadline if is_terminating else None
