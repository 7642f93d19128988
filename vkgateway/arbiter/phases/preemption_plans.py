"""Preemption plans: plans of earlier cycles are kept while they hold, and new ones are made by eviction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from vkgateway.arbiter.capacity.node_fit import BoolArray
from vkgateway.arbiter.capacity.placement import place_pods
from vkgateway.arbiter.cycle_state import CycleState, late_pod_uids
from vkgateway.arbiter.decisions import Evict
from vkgateway.arbiter.guarantees.cell_placement import GuaranteedPlacement, allocate_placed
from vkgateway.arbiter.phases.idle_reserve import leaves_reserve, plan_leaves_reserve, reserve_for, with_idle_left
from vkgateway.arbiter.phases.last_cell import keeps_bound_cells
from vkgateway.arbiter.phases.own_reclaim import own_limit_victims
from vkgateway.arbiter.pools.pool_state import PoolState
from vkgateway.arbiter.preemption.candidates import PreemptionCandidates
from vkgateway.arbiter.preemption.eviction_units import has_min_members
from vkgateway.arbiter.preemption.victim_search import VictimChoice, choose_victims
from vkgateway.arbiter.queueing.gang_rank import priority_key
from vkgateway.arbiter.queueing.pending_gangs import PendingGang
from vkgateway.arbiter.queueing.tenant_usage import sum_requests
from vkgateway.arbiter.snapshot import GUARANTEED, PLACED, Gang, Pod, PreemptionPlan
from vkgateway.model.requests import MilliResources


@dataclass(frozen=True, slots=True)
class CandidatePlan:
    """A possible plan for a gang's min members in one pool."""

    victim_choice: VictimChoice
    evicts: tuple[Evict, ...]
    """All evictions, those for the limit of the gang's tenant first."""
    notified: Sequence[tuple[Gang, Pod]]
    """Pods notified earlier whose capacity the gang may use."""
    guaranteed_placement: GuaranteedPlacement | None
    leaves: int | None = None
    """See `PreemptionPlan.leaves`."""


@dataclass(frozen=True, slots=True)
class PlanSearch:
    """Search for victims that make capacity for a gang's min members in one pool. It changes nothing."""

    state: CycleState
    pool_state: PoolState
    pending: PendingGang
    candidates: PreemptionCandidates
    notified: Sequence[tuple[Gang, Pod]]
    """Pods that were notified before, and whose capacity the gang may use."""
    terminating: Sequence[Pod]
    """Pods whose capacity the gang may use although it evicts none of them; `notified` included."""
    missing: MilliResources
    """Amounts beyond the tenant's limit, which victims of the same tenant must free."""
    placement: GuaranteedPlacement | None = None
    """Placement of the gang in its tenant's cells; None: the gang borrows."""
    exempt: Set[str] = frozenset()
    """Gangs that are not evicted."""
    excess: Mapping[str, float] | None = None
    """Shares of tenants, which decide between equal victims."""
    idle_reserve: int = 0
    """Thousandths of the unit that stay idle beside the gang."""

    def find_plan(self) -> CandidatePlan | None:
        """Return the plan with the smallest loss; None: the gang does not fit, whichever candidates are evicted."""
        for own in own_limit_victims(
            self.pool_state,
            self.pending,
            self.missing,
            self.placement,
            evictable=self.candidates,
            coming=self.terminating,
            now=self.state.now,
        ):
            plan = self.find_plan_with(own)
            if plan is not None:
                return plan
        return None

    def find_plan_with(self, own: tuple[Evict, ...]) -> CandidatePlan | None:
        """Return the plan with the smallest loss that contains these evictions for the tenant's limit."""
        choice = self.choose_victims(own)
        return CandidatePlan(choice, (*own, *choice.evicts), self.notified, self.placement) if choice else None

    def choose_victims(self, own: Sequence[Evict]) -> VictimChoice | None:
        """Return the victims, besides `own`, and the gang's nodes."""
        pool_state, placement = self.pool_state, self.placement
        return choose_victims(
            pool_state.node_resources,
            self.candidates,
            self.pending.gang,
            self.pending.min_members,
            now=self.state.now,
            excess=self.excess,
            among=allowed_nodes(pool_state, self.pending),
            ceiling=placement.usable_amounts(pool_state.node_resources) if placement is not None else None,
            ending=[*self.terminating, *evicted_pods(pool_state, own)],
            exempt={evict.gang for evict in own} | self.exempt,
            placer=placement,
            idle_reserve=self.idle_reserve,
        )


def find_candidate_plan(
    state: CycleState,
    pool_state: PoolState,
    pending: PendingGang,
    candidates: PreemptionCandidates,
    *,
    placement: GuaranteedPlacement | None = None,
) -> CandidatePlan | None:
    """Return the plan with the smallest loss that makes capacity for the gang; None: it does not fit.

    The gang first uses the capacity of pods that terminate anyway. `placement`: the gang starts in its tenant's cells.
    It may then use the capacity of all notified pods, and borrowing pods of its tenant are evicted where the limit is
    reached. It waits for pods with slow terminations only where no other pod terminates sooner. A borrowing gang never
    waits for them, and leaves the pool's reserve idle.
    """
    plan = _search_plan(state, pool_state, pending, candidates, placement)
    leaves = placement is None and reserve_for(pool_state, pending.min_members) > 0
    late = (
        late_pod_uids(pool_state, state.now)
        if plan is not None and (plan.victim_choice.awaited_pods or leaves)
        else set[str]()
    )
    if plan is None or not late or (late.isdisjoint(plan.victim_choice.awaited_pods) and not leaves):
        return plan
    sooner = _search_plan(state, pool_state, pending, candidates, placement, without=late)
    return plan if sooner is None and placement is not None else sooner


def _search_plan(
    state: CycleState,
    pool_state: PoolState,
    pending: PendingGang,
    candidates: PreemptionCandidates,
    placement: GuaranteedPlacement | None,
    *,
    without: Set[str] = frozenset(),
) -> CandidatePlan | None:
    """Return the plan with the smallest loss. `without`: terminating pods that the gang does not wait for."""
    terminating = pool_state.terminating_pods
    usable = (
        _notified_for_borrower(state, pool_state, pending) if placement is None else state.notified.in_pool(pool_state)
    )
    notified = [(gang, pod) for gang, pod in usable if pod.uid not in terminating]
    missing: MilliResources = {}
    if placement is not None:
        own = sum_requests(pod for gang, pod in notified if gang.tenant == pending.tenant)
        freed = [terminating.usage_of(pending.tenant), own]
        missing = pool_state.tenant_usage.excess_over_limit(pending.tenant, pending.min_members, freed)
    search = PlanSearch(
        state,
        pool_state,
        pending,
        candidates,
        notified,
        [*(pod for pod in terminating.values() if pod.uid not in without), *(pod for _, pod in notified)],
        missing,
        placement,
        exempt=pool_state.victims.preemptors_of(pending.gang) if placement is not None else frozenset(),
        excess=pool_state.tenant_usage.shares_by_tenant(),
        idle_reserve=reserve_for(pool_state, pending.min_members) if placement is None else 0,
    )
    return search.find_plan()


def evicted_pods(pool_state: PoolState, evicts: Iterable[Evict]) -> list[Pod]:
    """Return the pods that these evictions evict in the pool."""
    return [
        pod
        for evict in evicts
        for uids in [set(evict.pods)]
        for pod in pool_state.gangs[evict.gang].pods
        if pod.uid in uids
    ]


def _notified_for_borrower(state: CycleState, pool_state: PoolState, pending: PendingGang) -> list[tuple[Gang, Pod]]:
    """Return the pods that were notified for the gang and that it may reclaim while it borrows. The gang may have been
    within its guarantee when they were notified.
    """
    name = pending.gang.whole_id
    return [(gang, pod) for gang, pod in state.notified.for_gang(name, pool_state) if is_reclaimed_for(gang, name)]


def is_reclaimed_for(gang: Gang, name: str) -> bool:
    """Return whether terminating pods of a gang are reclaimed for a borrowing gang (`Gang.whole_id`). That holds for
    surplus, and for pods on nodes that were reserved for it.
    """
    if any(each.behind == name for each in gang.pods):
        return True
    return gang.elastic and has_min_members(gang, [each for each in gang.pods if each.state is PLACED])


def adopt_plan(state: CycleState, pool_state: PoolState, pending: PendingGang, candidate: CandidatePlan) -> None:
    """Plan the gang's start on the nodes that were found. Nothing in the pool may have changed since."""
    nodes, placement = candidate.victim_choice.nodes, candidate.guaranteed_placement
    if placement is not None:
        placement.commit_placement(nodes)
    pool_state.add_pods(pending.min_members, nodes)
    may_start = pool_state.fits_on_nodes(pending.min_members, nodes) and (
        placement is not None or leaves_reserve(pool_state, pending.min_members)
    )
    if (
        not candidate.evicts
        and may_start
        and not pool_state.tenant_usage.exceeded_limits(pending.tenant, pending.min_members)
    ):
        # The search for victims is more thorough than the placement: the gang may fit without victims.
        state.start_pods(pending, pool_state, pending.min_members, nodes, guaranteed=placement is not None)
        return
    for gang, pod in candidate.notified:
        pool_state.terminating_pods.add_pods(gang.tenant, [pod])
    state.add_plan(
        pending,
        pool_state,
        nodes,
        guaranteed=placement is not None,
        made=state.next_plan_time(),
        evicts=candidate.evicts,
    )


def allowed_nodes(
    pool_state: PoolState, pending: PendingGang, nodes: Mapping[str, str] | None = None
) -> BoolArray | None:
    """Return the mask of nodes for the gang's other pods, near the placed pods or these nodes; None: all nodes."""
    level = pending.gang.required_level
    if not level:
        return None
    there = [pod.node for pod in pending.placed_pods if pod.node in pool_state.node_resources.nodes] or list(
        (nodes or {}).values()
    )
    return pool_state.node_resources.nodes.domain_mask(there[0], level) if there else None


def place_borrowed(pool_state: PoolState, pending: PendingGang, pods: Sequence[Pod]) -> dict[str, str] | None:
    """Place these pods, which borrow, in free capacity; None: they do not fit. Among equal nodes, those without bound
    cells come first: fewer guarantees reclaim them.
    """
    gang = pending.gang
    return place_pods(
        pool_state.node_resources,
        pods,
        required_level=gang.required_level,
        preferred_level=gang.preferred_level,
        among=allowed_nodes(pool_state, pending),
        preferred_nodes=pool_state.guarantee.unbound_nodes,
    )


def place_borrowed_last(pool_state: PoolState, pending: PendingGang, pods: Sequence[Pod]) -> dict[str, str] | None:
    """Place these pods as `place_borrowed` does. In a pool with a reserve, the rest of bound cells is used last:
    guaranteed pods start there without evictions. Idle units on nodes of other tenants' cells do not help them.
    """
    if pool_state.facts.idle_reserve:
        gang = pending.gang
        nodes = place_pods(
            pool_state.node_resources,
            pods,
            required_level=gang.required_level,
            preferred_level=gang.preferred_level,
            among=pool_state.node_resources.nodes.mask_of(allowed_nodes(pool_state, pending))
            & pool_state.guarantee.nodes_without_spare,
            preferred_nodes=pool_state.guarantee.unbound_nodes,
        )
        if nodes is not None:
            return nodes
    return place_borrowed(pool_state, pending, pods)


def place_keeping_reserve(pool_state: PoolState, pending: PendingGang, pods: Sequence[Pod]) -> dict[str, str] | None:
    """Place these pods as `place_borrowed` does; None also if the gang would use the pool's reserve."""
    with pool_state.node_resources.trial() as trial:
        nodes = place_borrowed_last(pool_state, pending, pods)
        if nodes is None or leaves_reserve(pool_state, pods):
            trial.commit()
            return nodes
    return None


def placement_in_guarantee(
    pool_state: PoolState, pending: PendingGang, pods: Sequence[Pod], *, only_bound: bool = False
) -> GuaranteedPlacement:
    """Return the placement search for these pods in their tenant's cells; `only_bound`: only in bound cells."""
    gang = pending.gang
    return GuaranteedPlacement(
        pool_state.cells,
        pending.tenant,
        pods,
        required_level=gang.required_level,
        preferred_level=gang.preferred_level,
        among=allowed_nodes(pool_state, pending),
        reservation=pool_state.guarantee.cells_reserved_ahead(gang),
        only_bound=only_bound,
    )


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
        if not self._borrowed:
            names = {pending.gang.id for pending, _ in waiting}
            for name in sorted(self._pool_state.guarantee_usage.planned - names):
                self._pool_state.guarantee_usage.release_plan(name)
        valid = self._feasible_plans(waiting)
        for gang, pod in list(self._notified_pods(valid)):
            self._pool_state.terminating_pods.add_pods(gang.tenant, [pod])
        for pending, plan in valid:
            _remove_planned_pods(self._pool_state, pending, plan)
        # On a node with several plans, the older plan uses freed capacity first; later plans do not delay it.
        for pending, plan in sorted(valid, key=lambda each: (each[1].made, priority_key(each[0].gang))):
            self._pool_state.add_pods(pending.min_members, plan.nodes)
            ready = pending.gang.part_info is None and is_plan_free(self._pool_state, pending, plan)
            if ready and not self._pool_state.tenant_usage.exceeded_limits(pending.tenant, pending.min_members):
                self._cycle_state.start_pods(
                    pending, self._pool_state, pending.min_members, plan.nodes, guaranteed=not plan.borrowed
                )
            else:
                guaranteed, leaves = not plan.borrowed, plan.leaves
                self._cycle_state.add_plan(
                    pending, self._pool_state, plan.nodes, guaranteed=guaranteed, made=plan.made, leaves=leaves
                )

    def _can_keep(self, pending: PendingGang, plan: PreemptionPlan) -> bool:
        """Return whether nodes, limits and cells still allow the plan; its cells are then allocated."""
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
            return True
        if pending.gang.id in pool_state.guarantee_usage.planned:
            return True
        placed = [(pod, plan.nodes[pod.uid]) for pod in pods]
        return pool_state.guarantee.may_use_guarantee(pending.gang, pods) and allocate_placed(
            pool_state.cells, pending.tenant, pool_state.pool.unit_resource, placed
        )

    def _feasible_plans(
        self, waiting: Sequence[tuple[PendingGang, PreemptionPlan]]
    ) -> list[tuple[PendingGang, PreemptionPlan]]:
        """Return the plans whose nodes will be free. The other plans are released, the last first."""
        pool_state, valid = self._pool_state, list(waiting)
        late = late_pod_uids(pool_state, self._cycle_state.now) if self._borrowed else set()
        while valid:
            with pool_state.node_resources.trial():
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


def is_plan_free(pool_state: PoolState, pending: PendingGang, plan: PreemptionPlan) -> bool:
    """Return whether the plan's nodes are free, and the pool's reserve is idle. Its pods count as placed already."""
    return pool_state.fits_on_nodes(pending.min_members, plan.nodes) and plan_leaves_reserve(
        pool_state, pending.min_members, plan
    )


def any_plan_lacks_reserve(state: CycleState) -> bool:
    """Return whether a start of this round used reserve units that a plan to borrow must leave idle."""
    return any(
        pool_state.facts.idle_reserve > 0
        and any(
            plan.borrowed and plan.pool == key and not _will_leave_reserve(pool_state, state.pending_gangs[name], plan)
            for name, plan in state.plans.items()
        )
        for key, pool_state in state.pool_states.items()
    )


def _will_leave_reserve(pool_state: PoolState, pending: PendingGang, plan: PreemptionPlan) -> bool:
    with pool_state.node_resources.trial():
        pool_state.remove_pods(pool_state.terminating_pods.values())
        return plan_leaves_reserve(pool_state, pending.min_members, plan)


def release_plan(pool_state: PoolState, pending: PendingGang, plan: PreemptionPlan) -> None:
    """Release the plan's nodes and cells."""
    for pod in pending.min_members:
        pool_state.node_resources.remove_pods(plan.nodes[pod.uid], pod.shape)
        if not plan.borrowed:
            pool_state.cells.release_cells(
                pending.tenant, plan.nodes[pod.uid], pod.shape.amount_of(pool_state.pool.unit_resource)
            )


def start_ready_plans(state: CycleState) -> None:
    """Start gangs whose plans need no more terminations; of plans on one node, the older ones first."""
    for key, pool_state in state.pool_states.items():
        plans = [(state.pending_gangs[name], plan) for name, plan in state.plans.items() if plan.pool == key]
        plans.sort(key=lambda each: (each[1].made, priority_key(each[0].gang)))
        for pending, plan in plans:
            _remove_planned_pods(pool_state, pending, plan)
        for pending, plan in plans:
            pool_state.add_pods(pending.min_members, plan.nodes)
            ready = pending.gang.part_info is None and is_plan_free(pool_state, pending, plan)
            if ready and pool_state.tenant_usage.is_within_limit(pending.tenant, pending.min_members):
                state.start_planned(pending, pool_state, plan.nodes)


def _remove_planned_pods(pool_state: PoolState, pending: PendingGang, plan: PreemptionPlan) -> None:
    for pod in pending.min_members:
        pool_state.node_resources.remove_pods(plan.nodes[pod.uid], pod.shape)


def start_on_other_nodes(state: CycleState) -> bool:
    """Start gangs with a plan on other nodes where they fit now; return whether any starts."""
    before = len(state.plans)
    for gang, plan in sorted(state.plans.items()):
        pending, pool_state = state.pending_gangs[gang], state.pool_states[plan.pool]
        if pending.gang.part_info is not None:
            continue
        with pool_state.placement_trial() as trial:
            release_plan(pool_state, pending, plan)
            is_allowed = pool_state.tenant_usage.is_within_limit(pending.tenant, pending.min_members)
            nodes = find_other_nodes(pool_state, pending, plan) if is_allowed else None
            if nodes is not None:
                state.start_planned(pending, pool_state, nodes)
                trial.commit()
    return len(state.plans) < before


def find_other_nodes(pool_state: PoolState, pending: PendingGang, plan: PreemptionPlan) -> Mapping[str, str] | None:
    """Return free nodes for a gang whose plan is released, in cells if the plan was, and take nodes and cells."""
    if plan.borrowed:
        return place_keeping_reserve(pool_state, pending, pending.min_members)
    only_bound = keeps_bound_cells(pool_state, pending, plan.nodes.values())
    placement = placement_in_guarantee(pool_state, pending, pending.min_members, only_bound=only_bound)
    nodes = placement(pool_state.node_resources)
    if nodes is not None:
        placement.commit_placement(nodes)
        pool_state.add_pods(pending.min_members, nodes)
    return nodes
