"""Preemption plans of earlier cycles, which are kept while they hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vkgateway.scheduler.core.cycle_state import CycleState, late_pod_uids
from vkgateway.scheduler.core.guarantees.pool_guarantees import use_for_pods
from vkgateway.scheduler.core.phases.gang_placement import allowed_nodes
from vkgateway.scheduler.core.phases.idle_reserve import with_idle_left
from vkgateway.scheduler.core.phases.planned_starts import is_plan_free, release_plan, remove_planned_pods
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.queueing.gang_rank import priority_key
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.queueing.tenant_usage import sum_requests
from vkgateway.scheduler.core.snapshot import GUARANTEED, Gang, Pod, PreemptionPlan


def keep_guaranteed_plans(state: CycleState) -> None:
    """Start guaranteed gangs with a plan where their nodes are free, and keep the other plans that are still valid."""
    _keep_plans(state, borrowed=False)


def keep_borrowed_plans(state: CycleState) -> None:
    """Start borrowing gangs with a plan where their nodes are free, and keep the other plans that are still valid.

    No guaranteed gang waits for them.
    """
    _keep_plans(state, borrowed=True)


def _keep_plans(state: CycleState, *, borrowed: bool) -> None:
    for pool_state in state.pool_states.values():
        _PlanKeeper(state, pool_state, borrowed=borrowed).run()


class _PlanKeeper:
    """Check of the plans of earlier cycles for one pool, either guaranteed or borrowed."""

    def __init__(self, state: CycleState, pool_state: PoolState, *, borrowed: bool) -> None:
        self._cycle_state = state
        self._pool_state = pool_state
        self._borrowed = borrowed

    def run(self) -> None:
        waiting: list[tuple[PendingGang, PreemptionPlan]] = []
        for pending in sorted(self._cycle_state.planned_gangs(), key=lambda pending: priority_key(pending.gang)):
            plan = pending.gang.plan
            if plan is None or plan.borrowed is not self._borrowed or not self._can_keep(pending, plan):
                continue
            waiting.append((pending, plan))
            self._pool_state.add_pods(pending.min_members, plan.nodes)
        valid = self._feasible_plans(waiting)
        for gang, pod in list(self._notified_pods(valid)):
            self._pool_state.terminating_pods.add_pods(gang.tenant, [pod])
        for pending, plan in valid:
            remove_planned_pods(self._pool_state, pending, plan)
        # On a node with several plans, the older plan uses freed capacity first; later plans do not delay it.
        for pending, plan in sorted(valid, key=lambda each: (each[1].created, priority_key(each[0].gang))):
            self._pool_state.add_pods(pending.min_members, plan.nodes)
            ready = pending.gang.part_info is None and is_plan_free(self._pool_state, pending, plan)
            if ready and not self._pool_state.tenant_usage.exceeded_limits(pending.tenant, pending.min_members):
                self._cycle_state.start_pods(
                    pending, self._pool_state, pending.min_members, plan.nodes, guaranteed=not plan.borrowed
                )
            else:
                guaranteed, leaves = not plan.borrowed, plan.leaves
                self._cycle_state.add_plan(
                    pending, self._pool_state, plan.nodes, guaranteed=guaranteed, created=plan.created, leaves=leaves
                )

    def _can_keep(self, pending: PendingGang, plan: PreemptionPlan) -> bool:
        """Return whether nodes, limits, budgets and guarantees still allow the plan; its guarantee is then used."""
        pool_state, pods = self._pool_state, pending.min_members
        usable = (
            plan.pool == pool_state.pool.key
            and plan.pool in pending.allowed_pools
            and pending.tenant in pool_state.tenant_usage.quotas
        )
        if not usable or not (plan.borrowed or pending.gang.band is GUARANTEED):
            return False
        if plan.nodes.keys() != {pod.uid for pod in pods} or not _nodes_still_fit(pool_state, pending, plan):
            return False
        notified = sum_requests(
            pod
            for gang, pod in self._cycle_state.notified.in_pool(pool_state)
            if gang.tenant == pending.tenant and pod.uid not in pool_state.terminating_pods
        )
        if pool_state.tenant_usage.excess_over_limit(
            pending.tenant, pods, [pool_state.terminating_pods.usage_of(pending.tenant), notified]
        ):
            return False
        if plan.borrowed:
            return pool_state.tenant_usage.may_borrow(pending.tenant, pods)
        placed = [(pod, plan.nodes[pod.uid]) for pod in pods]
        return pool_state.guarantee.may_use_guarantee(pending.gang, pods) and use_for_pods(
            pool_state.guarantees, pending.tenant, pool_state.pool.unit_resource, placed
        )

    def _feasible_plans(
        self, waiting: Sequence[tuple[PendingGang, PreemptionPlan]]
    ) -> list[tuple[PendingGang, PreemptionPlan]]:
        """Return the plans whose nodes will be free. The other plans are released, the last first."""
        pool_state, valid = self._pool_state, list(waiting)
        late = late_pod_uids(pool_state, self._cycle_state.now) if self._borrowed else set()
        while valid:
            with pool_state.trial():
                pool_state.remove_pods(pod for uid, pod in pool_state.terminating_pods.items() if uid not in late)
                pool_state.remove_pods(pod for _, pod in self._notified_pods(valid))
                invalid = next(
                    (
                        each
                        for each in reversed(valid)
                        if not pool_state.fits_on_nodes(each[0].min_members, each[1].nodes)
                    ),
                    None,
                )
                if invalid is None:
                    # A guaranteed gang may have used the reserve: a plan keeps what its own tenant leaves.
                    valid = [(pending, with_idle_left(pool_state, plan)) for pending, plan in valid]
                    invalid = next((each for each in reversed(valid) if not is_plan_free(pool_state, *each)), None)
            if invalid is None:
                break
            release_plan(pool_state, *invalid)
            valid.remove(invalid)
        return valid

    def _notified_pods(self, valid: Sequence[tuple[PendingGang, PreemptionPlan]]) -> Iterator[tuple[Gang, Pod]]:
        """Yield the pods notified earlier for these gangs, or for any gang if the plans are guaranteed."""
        names = {pending.gang.whole_id for pending, _ in valid}
        for gang, pod in self._cycle_state.notified.in_pool(self._pool_state) if valid else ():
            if pod.uid not in self._pool_state.terminating_pods and (not self._borrowed or pod.evicted_for in names):
                yield gang, pod


def _nodes_still_fit(pool_state: PoolState, pending: PendingGang, plan: PreemptionPlan) -> bool:
    """Return whether the plan's nodes exist and accept these pods: labels and taints may have changed."""
    resources = pool_state.node_resources
    if not all(node in resources.nodes for node in plan.nodes.values()):
        return False
    near = allowed_nodes(pool_state, pending, plan.nodes)
    for pod in pending.min_members:
        position = resources.nodes.positions[plan.nodes[pod.uid]]
        if not resources.nodes.filter.feasible_nodes(pod.shape)[position] or (near is not None and not near[position]):
            return False
    return True
