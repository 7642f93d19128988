"""Room that is being made: plans of earlier cycles are kept while they hold, new ones are made by eviction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from vkgateway.arbiter.capacity.node_fit import BoolArray
from vkgateway.arbiter.capacity.placement import place_pods
from vkgateway.arbiter.cycle_state import CycleState
from vkgateway.arbiter.decisions import Evict
from vkgateway.arbiter.guarantees.cell_placement import GuaranteedPlacement, allocate_placed
from vkgateway.arbiter.phases.idle_reserve import leaves_reserve, plan_leaves_reserve, reserve_for, with_idle_left
from vkgateway.arbiter.phases.last_cell import keeps_bound_cells
from vkgateway.arbiter.phases.own_reclaim import own_limit_victims
from vkgateway.arbiter.pool_state import PoolState
from vkgateway.arbiter.preemption.candidates import PreemptionCandidates
from vkgateway.arbiter.preemption.eviction_units import has_min_members
from vkgateway.arbiter.preemption.victim_search import VictimChoice, choose_victims
from vkgateway.arbiter.queueing.order import priority_key
from vkgateway.arbiter.queueing.pending_gangs import PendingGang
from vkgateway.arbiter.queueing.tenant_usage import sum_requests
from vkgateway.arbiter.snapshot import GUARANTEED, PLACED, Gang, Pod, PreemptionPlan


@dataclass(frozen=True, slots=True)
class CandidatePlan:
    """How room could be made for a gang's core in a pool."""

    victim_choice: VictimChoice
    evicts: tuple[Evict, ...]
    """All who would be told to go, those of the gang's own tenant first."""
    notified: Sequence[tuple[Gang, Pod]]
    """Who was told to go before, and is counted on."""
    guaranteed_placement: GuaranteedPlacement | None
    leaves: int | None = None
    """As of the plan that is made of it."""


def find_candidate_plan(
    ledger: CycleState,
    standing: PoolState,
    ask: PendingGang,
    evictable: PreemptionCandidates,
    *,
    inside: GuaranteedPlacement | None = None,
) -> CandidatePlan | None:
    """Where the smallest loss makes room for the gang; None: whoever of these goes, it does not fit. Nothing is done.

    Counted on is first who leaves anyway, for whatever reason. `guaranteed_placement`: within its tenant's cells; it
    may then count on everyone who was told to go before, for whomever, and its tenant's own borrowing work goes where
    the limit is reached. For those who end late it waits only where nobody could go sooner, and who borrows not at all.
    Who borrows also leaves the pool's reserve.
    """
    making = _search_candidate_plan(ledger, standing, ask, evictable, inside)
    leaves = inside is None and reserve_for(standing, ask.min_members) > 0
    slow = (
        ledger.late_pod_uids(standing)
        if making is not None and (making.victim_choice.awaited_pods or leaves)
        else set()
    )
    if making is None or not slow or (slow.isdisjoint(making.victim_choice.awaited_pods) and not leaves):
        return making
    sooner = _search_candidate_plan(ledger, standing, ask, evictable, inside, without=slow)
    return making if sooner is None and inside is not None else sooner


def _search_candidate_plan(
    ledger: CycleState,
    standing: PoolState,
    ask: PendingGang,
    evictable: PreemptionCandidates,
    inside: GuaranteedPlacement | None,
    *,
    without: Set[str] = frozenset(),
) -> CandidatePlan | None:
    """`without`: pods that are ending, and not waited for."""
    told = ledger.notified_pods(standing) if inside is not None else _notified_for_borrower(ledger, standing, ask)
    told = [(gang, pod) for gang, pod in told if pod.uid not in standing.terminating_pods]
    coming = [pod for pod in standing.terminating_pods.values() if pod.uid not in without]
    coming += [pod for _, pod in told]
    for own in _limit_victims(ledger, standing, ask, evictable, inside, told=told, coming=coming):
        choice = choose_victims(
            standing.node_resources,
            evictable,
            ask.gang,
            ask.min_members,
            now=ledger.now,
            excess=standing.shares_by_tenant(),
            among=allowed_nodes(standing, ask),
            ceiling=inside.usable_amounts(standing.node_resources) if inside is not None else None,
            ending=[*coming, *evicted_pods(standing, own)],
            exempt={evict.gang for evict in own} | (standing.preemptors_of(ask.gang) if inside is not None else set()),
            placer=inside,
            idle_reserve=reserve_for(standing, ask.min_members) if inside is None else 0,
        )
        if choice is not None:
            return CandidatePlan(choice, (*own, *choice.evicts), told, inside)
    return None


def _limit_victims(
    ledger: CycleState,
    standing: PoolState,
    ask: PendingGang,
    evictable: PreemptionCandidates,
    inside: GuaranteedPlacement | None,
    *,
    told: Iterable[tuple[Gang, Pod]],
    coming: Sequence[Pod],
) -> Iterator[tuple[Evict, ...]]:
    """Yield victims of the tenant's own by which it keeps its limit; a gang that borrows has none."""
    if inside is None:
        yield ()
        return
    gone = [
        standing.terminating_pods.usage_of(ask.tenant),
        sum_requests(pod for gang, pod in told if gang.tenant == ask.tenant),
    ]
    missing = standing.excess_over_limit(ask.tenant, ask.min_members, gone)
    yield from own_limit_victims(standing, ask, missing, inside, evictable=evictable, coming=coming, now=ledger.now)


def evicted_pods(standing: PoolState, evicts: Iterable[Evict]) -> list[Pod]:
    """Return the pods that these evictions evict in the pool."""
    return [
        pod
        for evict in evicts
        for uids in [set(evict.pods)]
        for pod in standing.gangs[evict.gang].pods
        if pod.uid in uids
    ]


def _notified_for_borrower(ledger: CycleState, standing: PoolState, ask: PendingGang) -> list[tuple[Gang, Pod]]:
    """Who was told to go for the gang, and may be called in for it where it borrows: it may have been inside then."""
    name = ask.gang.whole_id
    return [(gang, pod) for gang, pod in ledger.notified_for(name, standing) if is_reclaimed_for(gang, name)]


def is_reclaimed_for(gang: Gang, name: str) -> bool:
    """Return whether what leaves of a gang may do so for one that borrows (`Gang.whole_id`).

    That is surplus, and what runs in the place that was reserved for that one.
    """
    if any(each.behind == name for each in gang.pods):
        return True
    return gang.elastic and has_min_members(gang, [each for each in gang.pods if each.state is PLACED])


def adopt_plan(ledger: CycleState, standing: PoolState, ask: PendingGang, making: CandidatePlan) -> None:
    """Plan the gang's start in the room that was found; nothing in the pool may have changed since."""
    nodes, inside = making.victim_choice.nodes, making.guaranteed_placement
    if inside is not None:
        inside.commit_placement(nodes)
    standing.add_pods(ask.min_members, nodes)
    may_start = standing.fits_on_nodes(ask.min_members, nodes) and (
        inside is not None or leaves_reserve(standing, ask.min_members)
    )
    if not making.evicts and may_start and not standing.exceeded_limits(ask.tenant, ask.min_members):
        # The search for victims looks closer than that for a place: nobody needs to go.
        ledger.start_pods(ask, standing, ask.min_members, nodes, inside=inside is not None)
        return
    for gang, pod in making.notified:
        standing.terminating_pods.add_pods(gang.tenant, [pod])
    ledger.add_plan(ask, standing, nodes, inside=inside is not None, made=ledger.next_plan_time(), evicts=making.evicts)


def allowed_nodes(standing: PoolState, ask: PendingGang, nodes: Mapping[str, str] | None = None) -> BoolArray | None:
    """Where the gang's other pods may go: near those that are there, or were just given nodes, if it asks for that."""
    level = ask.gang.required_level
    if not level:
        return None
    there = [pod.node for pod in ask.placed_pods if pod.node in standing.node_resources] or list((nodes or {}).values())
    return standing.node_resources.nodes_in_domain(there[0], level) if there else None


def place_borrowed(standing: PoolState, ask: PendingGang, pods: Sequence[Pod]) -> dict[str, str] | None:
    """A place for these pods in what is free, which they borrow; it is taken.

    Nodes without anybody's cells are taken before those that are equal in all else: there it may be left alone.
    """
    gang = ask.gang
    return place_pods(
        standing.node_resources,
        pods,
        required_level=gang.required_level,
        preferred_level=gang.preferred_level,
        among=allowed_nodes(standing, ask),
        preferred_nodes=standing.unbound_nodes,
    )


def place_borrowed_last(standing: PoolState, ask: PendingGang, pods: Sequence[Pod]) -> dict[str, str] | None:
    """Return the same. In a pool with a reserve it leaves the rest of cells in use until last.

    What is idle there serves guaranteed pods at once. What is idle on other tenants' nodes does not.
    """
    if standing.reserve:
        gang = ask.gang
        nodes = place_pods(
            standing.node_resources,
            pods,
            required_level=gang.required_level,
            preferred_level=gang.preferred_level,
            among=standing.node_resources.node_mask(allowed_nodes(standing, ask)) & standing.nodes_without_spare,
            preferred_nodes=standing.unbound_nodes,
        )
        if nodes is not None:
            return nodes
    return place_borrowed(standing, ask, pods)


def place_keeping_reserve(standing: PoolState, ask: PendingGang, pods: Sequence[Pod]) -> dict[str, str] | None:
    """Return a place as `place_borrowed` does; None: the gang would use the pool's reserve."""
    mark = standing.node_resources.mark()
    nodes = place_borrowed_last(standing, ask, pods)
    if nodes is not None and not leaves_reserve(standing, pods):
        standing.node_resources.undo(mark)
        return None
    return nodes


def placement_in_guarantee(
    standing: PoolState, ask: PendingGang, pods: Sequence[Pod], *, filling: bool = False
) -> GuaranteedPlacement:
    """The search for a place of these pods inside their tenant's cells; `filling`: in those that are bound already."""
    gang = ask.gang
    return GuaranteedPlacement(
        standing.cells,
        ask.tenant,
        pods,
        required_level=gang.required_level,
        preferred_level=gang.preferred_level,
        among=allowed_nodes(standing, ask),
        reservation=standing.cells_reserved_ahead(gang),
        only_bound=filling,
    )


def keep_plans(ledger: CycleState, *, borrowed: bool) -> None:
    """Whoever has a plan starts when it can; the plans of the others are kept, if they still hold.

    `borrowed`: the plans of those that borrow, which keep no guarantee waiting; otherwise those inside cells.
    """
    for standing in ledger.pool_states.values():
        _PlanKeeper(ledger, standing, borrowed=borrowed).run()


class _PlanKeeper:
    """The plans for one pool, inside cells or borrowed."""

    def __init__(self, ledger: CycleState, standing: PoolState, *, borrowed: bool) -> None:
        self._cycle_state = ledger
        self._pool_state = standing
        self._borrowed = borrowed

    def run(self) -> None:
        waiting: list[tuple[PendingGang, PreemptionPlan]] = []
        for ask in sorted(self._cycle_state.planned_gangs(), key=lambda ask: priority_key(ask.gang)):
            plan = ask.gang.plan
            if plan is None or plan.borrowed is not self._borrowed or not self._can_keep(ask, plan):
                continue
            waiting.append((ask, plan))
            self._pool_state.add_pods(ask.min_members, plan.nodes)
        if not self._borrowed:
            names = {ask.gang.id for ask, _ in waiting}
            for name in sorted(self._pool_state.guarantee_usage.planned - names):
                self._pool_state.guarantee_usage.release_plan(name)
        kept = self._feasible_plans(waiting)
        for gang, pod in list(self._notified_pods(kept)):
            self._pool_state.terminating_pods.add_pods(gang.tenant, [pod])
        for ask, plan in kept:
            _remove_planned_pods(self._pool_state, ask, plan)
        # Of plans on one node the older has what comes free first: whoever follows does not keep it waiting.
        for ask, plan in sorted(kept, key=lambda each: (each[1].made, priority_key(each[0].gang))):
            self._pool_state.add_pods(ask.min_members, plan.nodes)
            ready = ask.gang.part_info is None and is_plan_free(self._pool_state, ask, plan)
            if ready and not self._pool_state.exceeded_limits(ask.tenant, ask.min_members):
                self._cycle_state.start_pods(
                    ask, self._pool_state, ask.min_members, plan.nodes, inside=not plan.borrowed
                )
            else:
                inside, leaves = not plan.borrowed, plan.leaves
                self._cycle_state.add_plan(
                    ask, self._pool_state, plan.nodes, inside=inside, made=plan.made, leaves=leaves
                )

    def _can_keep(self, ask: PendingGang, plan: PreemptionPlan) -> bool:
        """Whether the plan can be kept as far as nodes, limits and cells go; its cells are held then."""
        standing, pods = self._pool_state, ask.min_members
        usable = plan.pool == standing.pool.key and plan.pool in ask.allowed_pools and standing.is_usable_by(ask)
        if not usable or not (plan.borrowed or ask.gang.band is GUARANTEED):
            return False
        if plan.nodes.keys() != {pod.uid for pod in pods} or not _nodes_still_fit(standing, ask, plan):
            return False
        told = sum_requests(
            pod
            for gang, pod in self._cycle_state.notified_pods(standing)
            if gang.tenant == ask.tenant and pod.uid not in standing.terminating_pods
        )
        if standing.excess_over_limit(ask.tenant, pods, [standing.terminating_pods.usage_of(ask.tenant), told]):
            return False
        if plan.borrowed:
            return True
        if ask.gang.id in standing.guarantee_usage.planned:
            return True
        placed = [(pod, plan.nodes[pod.uid]) for pod in pods]
        return standing.may_use_guarantee(ask.gang, pods) and allocate_placed(
            standing.cells, ask.tenant, standing.pool.unit_resource, placed
        )

    def _feasible_plans(
        self, waiting: Sequence[tuple[PendingGang, PreemptionPlan]]
    ) -> list[tuple[PendingGang, PreemptionPlan]]:
        """Those whose room will be there; the others' is let go, the last first."""
        standing, kept = self._pool_state, list(waiting)
        slow = self._cycle_state.late_pod_uids(standing) if self._borrowed else set()
        while kept:
            mark = standing.node_resources.mark()
            standing.remove_pods(pod for uid, pod in standing.terminating_pods.items() if uid not in slow)
            standing.remove_pods(pod for _, pod in self._notified_pods(kept))
            bad = next(
                (each for each in reversed(kept) if not standing.fits_on_nodes(each[0].min_members, each[1].nodes)),
                None,
            )
            if bad is None:
                # A guarantee may have used the reserve since: what a plan has of its own tenant is not lost by that.
                kept = [(ask, with_idle_left(standing, plan)) for ask, plan in kept]
                bad = next((each for each in reversed(kept) if not is_plan_free(standing, *each)), None)
            standing.node_resources.undo(mark)
            if bad is None:
                break
            release_plan(standing, *bad)
            kept.remove(bad)
        return kept

    def _notified_pods(self, kept: Sequence[tuple[PendingGang, PreemptionPlan]]) -> Iterator[tuple[Gang, Pod]]:
        """Who was told to go before: for one of these, or for anybody where they are inside their cells."""
        names = {ask.gang.whole_id for ask, _ in kept}
        for gang, pod in self._cycle_state.notified_pods(self._pool_state) if kept else ():
            if pod.uid not in self._pool_state.terminating_pods and (not self._borrowed or pod.evicted_for in names):
                yield gang, pod


def _nodes_still_fit(standing: PoolState, ask: PendingGang, plan: PreemptionPlan) -> bool:
    """Whether the plan's nodes are there and take these pods: since it was made, labels and taints may have changed."""
    room = standing.node_resources
    if not all(node in room for node in plan.nodes.values()):
        return False
    near = allowed_nodes(standing, ask, plan.nodes)
    for pod in ask.min_members:
        position = room.position_of(plan.nodes[pod.uid])
        if not room.node_filter.feasible_nodes(pod.shape)[position] or (near is not None and not near[position]):
            return False
    return True


def is_plan_free(standing: PoolState, ask: PendingGang, plan: PreemptionPlan) -> bool:
    """Return whether the room of a plan, which is taken already, is free and the pool's reserve beside it is idle."""
    return standing.fits_on_nodes(ask.min_members, plan.nodes) and plan_leaves_reserve(standing, ask.min_members, plan)


def any_plan_lacks_reserve(ledger: CycleState) -> bool:
    """Return whether a start of this cycle used units of the reserve that a plan to borrow must leave idle."""
    return any(
        standing.reserve > 0
        and any(
            plan.borrowed and plan.pool == key and not _will_leave_reserve(standing, ledger.pending_gangs[name], plan)
            for name, plan in ledger.plans.items()
        )
        for key, standing in ledger.pool_states.items()
    )


def _will_leave_reserve(standing: PoolState, ask: PendingGang, plan: PreemptionPlan) -> bool:
    mark = standing.node_resources.mark()
    standing.remove_pods(standing.terminating_pods.values())
    leaves = plan_leaves_reserve(standing, ask.min_members, plan)
    standing.node_resources.undo(mark)
    return leaves


def release_plan(standing: PoolState, ask: PendingGang, plan: PreemptionPlan) -> None:
    """The plan's room and cells are free again."""
    for pod in ask.min_members:
        standing.node_resources.remove_pods(plan.nodes[pod.uid], pod.shape)
        if not plan.borrowed:
            standing.cells.release_cells(
                ask.tenant, plan.nodes[pod.uid], pod.shape.amount_of(standing.pool.unit_resource)
            )


def start_ready_plans(ledger: CycleState) -> None:
    """Whoever has a plan, and for whom nobody needs to go after all, starts; of those on one node the older first."""
    for key, standing in ledger.pool_states.items():
        plans = [(ledger.pending_gangs[name], plan) for name, plan in ledger.plans.items() if plan.pool == key]
        plans.sort(key=lambda each: (each[1].made, priority_key(each[0].gang)))
        for ask, plan in plans:
            _remove_planned_pods(standing, ask, plan)
        for ask, plan in plans:
            standing.add_pods(ask.min_members, plan.nodes)
            ready = ask.gang.part_info is None and is_plan_free(standing, ask, plan)
            if ready and standing.is_within_limit(ask.tenant, ask.min_members):
                ledger.start_planned(ask, standing, plan.nodes)


def _remove_planned_pods(standing: PoolState, ask: PendingGang, plan: PreemptionPlan) -> None:
    for pod in ask.min_members:
        standing.node_resources.remove_pods(plan.nodes[pod.uid], pod.shape)


def start_on_other_nodes(ledger: CycleState) -> bool:
    """Whoever has a plan, and could start at once on other nodes than those, does; whether anybody did."""
    before = len(ledger.plans)
    for gang, plan in sorted(ledger.plans.items()):
        ask, standing = ledger.pending_gangs[gang], ledger.pool_states[plan.pool]
        if ask.gang.part_info is not None:
            continue
        mark, held = standing.node_resources.mark(), standing.cells.mark()
        release_plan(standing, ask, plan)
        nodes = find_other_nodes(standing, ask, plan) if standing.is_within_limit(ask.tenant, ask.min_members) else None
        if nodes is None:
            standing.node_resources.undo(mark)
            standing.cells.undo(held)
        else:
            ledger.start_planned(ask, standing, nodes)
    return len(ledger.plans) < before


def find_other_nodes(standing: PoolState, ask: PendingGang, plan: PreemptionPlan) -> Mapping[str, str] | None:
    """A place in what is free for a gang whose plan was let go, inside cells if that was; room and cells are taken."""
    if plan.borrowed:
        return place_keeping_reserve(standing, ask, ask.min_members)
    filling = keeps_bound_cells(standing, ask, plan.nodes.values())
    inside = placement_in_guarantee(standing, ask, ask.min_members, filling=filling)
    nodes = inside(standing.node_resources)
    if nodes is not None:
        inside.commit_placement(nodes)
        standing.add_pods(ask.min_members, nodes)
    return nodes
