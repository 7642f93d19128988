"""Reports of compute nodes: which tenants use their devices (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from vkgateway.scheduler.core.decisions import Decisions, PendingReport
from vkgateway.scheduler.core.reasons.pool_sums import in_units
from vkgateway.scheduler.core.snapshot import (
    Gang,
    Node,
    Pod,
    PodState,
    Pool,
    PoolKey,
    PreemptionPlan,
    Snapshot,
    node_name,
)

_NodeKey = tuple[PoolKey, str]


class NodePart(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """Whole units of a node's resource that the pods of one gang hold."""

    tenant: str
    gang: str
    units: float
    borrowed: bool
    """Outside the tenant's guarantee."""
    leaving: bool
    """The pods are evicted or terminate."""


class NodeReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Compute node, for one schedulable resource of its pool. Amounts are in whole units."""

    name: str
    pool: str
    """Virtual node of its pool."""
    compute_cluster: str
    resource: str
    capacity: float
    usable: bool
    """Ready and schedulable."""
    failed_gangs: int = 0
    """Number of gangs that failed there within an hour, if the node is chosen last because of them; else 0."""
    others: float
    """Usage of unmanaged pods."""
    free: float
    parts: tuple[NodePart, ...]


def build_node_reports(snapshot: Snapshot, decisions: Decisions) -> Iterator[NodeReport]:
    """Yield the nodes of all pools after the decisions are carried out, in time proportional to pods and nodes."""
    placed = _pods_by_node(snapshot, PodOutcomes(decisions))
    for pool in snapshot.pools:
        for node in pool.nodes:
            pods = placed.get((pool.key, node.name), ())
            for resource in pool.governed:
                if node.allocatable.get(resource, 0):
                    yield _node_report(pool, node, resource, pods)


_PlacedPod = tuple[Gang, Pod, bool, bool]
"""Gang, pod, whether it borrows, and whether it leaves."""


def _pods_by_node(snapshot: Snapshot, outcomes: PodOutcomes) -> dict[_NodeKey, list[_PlacedPod]]:
    found: dict[_NodeKey, list[_PlacedPod]] = {}
    for gang in snapshot.gangs:
        for pod in gang.pods:
            place = outcomes.placement_of(pod)
            if place is not None:
                leaves = outcomes.deadline_of(pod) is not None
                found.setdefault((place[0], place[1]), []).append((gang, pod, place[2], leaves))
    return found


def _node_report(pool: Pool, node: Node, resource: str, pods: list[_PlacedPod] | tuple[()]) -> NodeReport:
    amounts: dict[tuple[str, str, bool, bool], int] = {}
    for gang, pod, borrowed, leaving in pods:
        key = gang.tenant, gang.id, borrowed, leaving
        amounts[key] = amounts.get(key, 0) + pod.shape.amount_of(resource)
    capacity, others = node.allocatable.get(resource, 0), node.used.get(resource, 0)
    return NodeReport(
        name=node.name,
        pool=node_name(pool.key),
        compute_cluster=pool.key[0],
        resource=resource,
        capacity=in_units(capacity),
        usable=node.usable,
        failed_gangs=node.failed_gangs,
        others=in_units(others),
        free=in_units(max(0, capacity - others - sum(amounts.values()))),
        parts=tuple(
            NodePart(tenant=tenant, gang=gang_id, units=in_units(amount), borrowed=borrowed, leaving=leaving)
            for (tenant, gang_id, borrowed, leaving), amount in sorted(amounts.items())
            if amount
        ),
    )


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
