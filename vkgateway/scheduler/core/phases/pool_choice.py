"""Choice between pools for a gang: within its guarantee, with the smallest loss, and with the best fit. Equal pools are
chosen in the gang's order of preference, in which they are tried.

The arbiter doesn't predict the best pool: it places the gang in each, or searches victims there, and reverts it. Gangs
with a single pool skip this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from vkgateway.scheduler.core.capacity.node_resources import NodeResources
from vkgateway.scheduler.core.cycle_state import CycleState
from vkgateway.scheduler.core.guarantees.guaranteed_placement import GuaranteedPlacement
from vkgateway.scheduler.core.guarantees.pool_guarantees import use_for_pods
from vkgateway.scheduler.core.phases.gang_placement import placement_in_guarantee
from vkgateway.scheduler.core.phases.plan_search import CandidatePlan, adopt_plan
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.snapshot import GUARANTEED, PLACED, Pod

T = TypeVar("T")
PoolPlacement = tuple[PoolState, GuaranteedPlacement, Mapping[str, str]]
"""A pool, the gang's placement inside its tenant's guarantee there, and the nodes by uid."""
PlanAdopter = Callable[[CycleState, PoolState, PendingGang, CandidatePlan], None]
"""Plans a gang's start on the nodes of a candidate plan, and evicts its victims."""


def pick_best(found: Sequence[T], rank: Callable[[T], Any]) -> T:
    """Return the first item of the smallest rank. A single item is not ranked."""
    return found[0] if len(found) == 1 else min(found, key=rank)


def measure_fit(resources: NodeResources, pods: Sequence[Pod], nodes: Mapping[str, str]) -> tuple[int, int]:
    """Return how many whole nodes the pods would split, and the thousandths of the unit left on all their nodes. The
    pods do not count as placed yet.
    """
    unit, whole = resources.pool.unit_resource, resources.nodes.largest_units
    asked: dict[str, int] = {}
    for pod in pods:
        name = nodes[pod.uid]
        asked[name] = asked.get(name, 0) + pod.shape.amount_of(unit)
    broken = left = 0
    for name, amount in asked.items():
        free = resources.free.amounts_on(name).get(unit, 0)
        broken += amount > 0 and free >= whole
        left += max(0, free - amount)
    return broken, left


def fits_guarantee(pool_state: PoolState, pending: PendingGang, nodes: Mapping[str, str]) -> bool:
    """Return whether the tenant's guarantee would hold the gang's min members on these nodes."""
    if pending.gang.band is not GUARANTEED or not pool_state.guarantee.may_use_guarantee(
        pending.gang, pending.min_members
    ):
        return False
    with pool_state.trial():
        placed = [(pod, nodes[pod.uid]) for pod in pending.min_members]
        return use_for_pods(pool_state.guarantees, pending.tenant, pool_state.pool.unit_resource, placed)


def guaranteed_placements(pools: Iterable[PoolState], pending: PendingGang) -> Iterator[PoolPlacement]:
    """Yield a placement of the gang's min members inside its tenant's guarantee, for each pool. Nothing is taken."""
    for pool_state in pools:
        if not pool_state.tenant_usage.exceeded_limits(pending.tenant, pending.min_members):
            placement = placement_in_guarantee(pool_state, pending, pending.min_members)
            nodes = placement(pool_state.node_resources)
            if nodes is not None:
                yield pool_state, placement, nodes


def start_in_best_pool(state: CycleState, pending: PendingGang, places: Sequence[PoolPlacement]) -> None:
    """Start the gang's min members where they fit best."""
    pool_state, placement, nodes = pick_best(
        places, lambda each: measure_fit(each[0].node_resources, pending.min_members, each[2])
    )
    placement.commit_placement(nodes, pool_state.pool.unit_resource)
    pool_state.add_pods(pending.min_members, nodes)
    state.start_pods(pending, pool_state, pending.min_members, nodes, guaranteed=True)


def plan_in_best_pool(
    state: CycleState,
    pools: Iterable[PoolState],
    pending: PendingGang,
    find_plan: Callable[[PoolState], CandidatePlan | None],
    *,
    adopt: PlanAdopter = adopt_plan,
) -> bool:
    """Adopt the cheapest of the plans that these pools have for the gang; False: there is none."""
    found = [(pool_state, plan) for pool_state in pools if (plan := find_plan(pool_state)) is not None]
    if not found:
        return False
    pool_state, plan = pick_best(found, lambda each: _preemption_cost(each[0], pending, each[1], state.now))
    adopt(state, pool_state, pending, plan)
    return True


def _preemption_cost(
    pool_state: PoolState, pending: PendingGang, candidate: CandidatePlan, now: float
) -> tuple[bool, bool, float, int, int]:
    """Return the cost of a plan: whether a victim is in its minimum run time, whether there are victims, the
    GPU-seconds lost, and the fit.
    """
    protected = any(_is_protected(pool_state, evict.gang, now) for evict in candidate.evicts)
    with pool_state.trial():
        pool_state.remove_pods(_freed_pods(pool_state, candidate))
        fit = measure_fit(pool_state.node_resources, pending.min_members, candidate.victim_choice.nodes)
    return protected, bool(candidate.evicts), sum(evict.lost for evict in candidate.evicts), *fit


def _freed_pods(pool_state: PoolState, candidate: CandidatePlan) -> Iterator[Pod]:
    """Yield the pods whose capacity the plan uses."""
    going = {uid for evict in candidate.evicts for uid in evict.pods}
    for name in {evict.gang: None for evict in candidate.evicts}:
        yield from (pod for pod in pool_state.gangs[name].pods if pod.uid in going)
    notified = {pod.uid: pod for _, pod in candidate.notified}
    yield from (
        notified.get(uid) or pool_state.terminating_pods[uid]
        for uid in candidate.victim_choice.awaited_pods
        if uid not in going
    )


def _is_protected(pool_state: PoolState, gang: str, now: float) -> bool:
    known = pool_state.gangs[gang]
    since = [pod.since for pod in known.pods if pod.state is PLACED and pool_state.gang_index.has_pod(pod)]
    return bool(since) and min(since) + known.minimum_run > now
