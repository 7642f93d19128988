"""Reason why a gang in the queue waits, with the message and the numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from vkgateway.api.requests import MilliResources, render_milli
from vkgateway.scheduler.core.capacity.forecast import Reservation
from vkgateway.scheduler.core.capacity.node_matching import has_untolerated_taint, matches_terms
from vkgateway.scheduler.core.cycle_state import CycleState
from vkgateway.scheduler.core.decisions import PendingReason, PendingReport
from vkgateway.scheduler.core.phases.feasibility import count_placeable_empty, is_feasible
from vkgateway.scheduler.core.phases.idle_reserve import can_never_borrow, would_use_reserve
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.queueing.tenant_usage import sum_requests
from vkgateway.scheduler.core.reasons.budget_texts import budget_numbers, budget_text
from vkgateway.scheduler.core.reasons.fit_cache import FitCache
from vkgateway.scheduler.core.reasons.message_texts import duration_text, pods_text, pools_text, reserve_text
from vkgateway.scheduler.core.reasons.peer_texts import explain_peer_rules, explain_peer_rules_in_empty
from vkgateway.scheduler.core.reasons.pool_sums import change_text
from vkgateway.scheduler.core.reasons.remedies import Remedies, Remedy
from vkgateway.scheduler.core.snapshot import GUARANTEED, Node, Pod, Shape


def find_reason(
    state: CycleState, pending_gang: PendingGang, fits: FitCache, remedies: Remedies
) -> tuple[PendingReport, PoolState | None]:
    """Return the report, and the pool in whose queue the gang waits."""
    pools = list(state.usable_pools(pending_gang))
    if not pools:
        return _report_no_pool(state, pending_gang), None
    large_enough = [pool_state for pool_state in pools if is_feasible(pool_state, pending_gang)]
    possible = [pool_state for pool_state in large_enough if not can_never_borrow(pool_state, pending_gang)]
    if not possible:
        report = (
            _report_reserve(pending_gang, large_enough[0], remedies)
            if large_enough
            else _report_infeasible(pending_gang, pools)
        )
        return _mention_reduction(report, pending_gang, pools), None
    free = [
        pool_state
        for pool_state in possible
        if not pool_state.tenant_usage.exceeded_limits(pending_gang.tenant, pending_gang.min_members)
    ]
    if not free:
        # A gang that exceeds the whole limit is in no queue.
        within_limit = [
            pool_state
            for pool_state in possible
            if not _exceeds_whole_limit(pool_state, pending_gang.tenant, sum_requests(pending_gang.min_members))
        ]
        pool_state = (within_limit or possible)[0]
        report = report_quota(pending_gang, pending_gang.min_members, pool_state, remedies)
        return report, next(iter(within_limit), None)
    borrowing = [
        pool_state
        for pool_state in free
        if pool_state.tenant_usage.may_borrow(pending_gang.tenant, pending_gang.min_members)
    ]
    if not borrowing:
        return _find_reason_inside(state, pending_gang, free, fits, remedies), None
    return _find_reason_now(state, pending_gang, borrowing, fits, remedies)


def _find_reason_now(
    state: CycleState, pending_gang: PendingGang, free: Sequence[PoolState], fits: FitCache, remedies: Remedies
) -> tuple[PendingReport, PoolState]:
    """Return the report of a gang that its limit and the nodes of these pools allow."""
    for pool_state in free:
        ahead = pool_state.reservations.limits.get(pending_gang.tenant, pending_gang.gang.id)
        if ahead not in pending_gang.gang.part_ids and fits.fits_now(pool_state, pending_gang):
            what = f"capacity is free, but the limit in {pools_text([pool_state.pool.key])}"
            report = _report_reserved(pending_gang, what, state.gangs[ahead].whole_id)
            pods = [*state.pending_gangs[ahead].min_members, *pending_gang.min_members]
            return _with_remedy(report, remedies.of_limit(pool_state, pending_gang, pods)), pool_state
    for pool_state in free:
        if (reserved := _report_guarantee_reserved(pending_gang, pool_state)) is not None:
            return _mention_reduction(reserved, pending_gang, free), pool_state
    for pool_state in free:
        reservation = pool_state.reservations.nodes
        if (
            reservation is not None
            and reservation.gang not in pending_gang.gang.part_ids
            and fits.fits_now(pool_state, pending_gang)
        ):
            report = _report_reservation(state, pending_gang, reservation)
            report = _with_remedy(report, _guarantee_remedy(pending_gang, pool_state, remedies))
            return _mention_reduction(report, pending_gang, free), pool_state
    reserving = (
        each
        for each in free
        if each.reservations.nodes is not None and each.reservations.nodes.gang == pending_gang.gang.id
    )
    report = _report_no_room(pending_gang, free, fits)
    report = _with_remedy(report, _guarantee_remedy(pending_gang, free[0], remedies))
    return _mention_reduction(report, pending_gang, free), next(reserving, free[0])


def _find_reason_inside(
    state: CycleState, pending_gang: PendingGang, pools: Sequence[PoolState], fits: FitCache, remedies: Remedies
) -> PendingReport:
    """Return the report of a gang that may start only inside its tenant's guarantee."""
    for pool_state in pools:
        if (report := _report_guarantee_reserved(pending_gang, pool_state)) is not None:
            return _mention_reduction(report, pending_gang, pools)
    inside = [
        pool_state
        for pool_state in (pools if pending_gang.gang.band is GUARANTEED else ())
        if pool_state.guarantee.has_guarantee_left(pending_gang.gang, pending_gang.min_members)
        and not fits.fits_now(pool_state, pending_gang)
    ]
    if inside:
        return _mention_reduction(_report_no_room(pending_gang, inside, fits), pending_gang, inside)
    return report_budget(state, pending_gang, pending_gang.min_members, pools[0], remedies)


def _report_guarantee_reserved(pending_gang: PendingGang, pool_state: PoolState) -> PendingReport | None:
    """Return the report of a gang that would fit the guarantee, if it were not reserved for a gang ahead."""
    if pending_gang.gang.band is not GUARANTEED:
        return None
    reserved = pool_state.guarantee.reserved_ahead(pending_gang.gang)
    if reserved is None or not pool_state.guarantee.has_guarantee_left(pending_gang.gang, pending_gang.min_members):
        return None
    what = f"the rest of the guarantee in {pools_text([pool_state.pool.key])}"
    return _report_reserved(pending_gang, what, reserved.gang.whole_id)


def _mention_reduction(report: PendingReport, pending_gang: PendingGang, pools: Iterable[PoolState]) -> PendingReport:
    """Add the reduction to the report of a gang that could start in its tenant's guarantee without missing nodes."""
    if pending_gang.gang.band is not GUARANTEED:
        return report
    for pool_state in pools:
        for loss in pool_state.guarantees.losses:
            if loss.tenant == pending_gang.tenant:
                where = pools_text([pool_state.pool.key])
                return replace(
                    report,
                    message=f"{report.message}; missing nodes reduce its guarantee in {where}: {change_text(loss)}",
                )
    return report


def _report_no_pool(state: CycleState, pending_gang: PendingGang) -> PendingReport:
    known = [key for key in pending_gang.allowed_pools if key in state.pool_states]
    if known:
        message = f"{pending_gang.tenant} has no quota in {pools_text(known)}; an admin can add it to the Tenant"
        return _build_report(pending_gang, PendingReason.QUOTA, message)
    message = f"there is no pool {pools_text(pending_gang.allowed_pools)}"
    return _build_report(pending_gang, PendingReason.INFEASIBLE, message)


def _request_text(pending_gang: PendingGang) -> str:
    level_text = f" within one {pending_gang.gang.required_level}" if pending_gang.gang.required_level else ""
    return f"{pods_text(pending_gang.min_members)}{level_text}"


def _report_infeasible(pending_gang: PendingGang, pools: Sequence[PoolState]) -> PendingReport:
    largest = max(count_placeable_empty(pool_state, pending_gang) for pool_state in pools)
    fit = f"only {largest} of {len(pending_gang.min_members)}" if largest else "none"
    return _build_report(
        pending_gang,
        PendingReason.INFEASIBLE,
        f"needs {_request_text(pending_gang)}; even on empty nodes, {fit} would fit"
        f"{explain_too_large(pending_gang, pools) or explain_peer_rules_in_empty(pending_gang)}",
        numbers={"needed": float(len(pending_gang.min_members)), "largest": float(largest)},
    )


def _report_reserve(pending_gang: PendingGang, pool_state: PoolState, remedies: Remedies) -> PendingReport:
    needed, reserve = float(len(pending_gang.min_members)), pool_state.facts.idle_reserve / 1000
    report = _build_report(
        pending_gang,
        PendingReason.INFEASIBLE,
        f"needs {_request_text(pending_gang)}; {reserve_text(pool_state)}, too much for a gang of this size to borrow",
        numbers={"needed": needed, "largest": 0.0, "reserve": reserve},
    )
    return _with_remedy(report, remedies.of_guarantee(pool_state, pending_gang, pending_gang.min_members))


def report_quota(
    pending_gang: PendingGang, pods: Sequence[Pod], pool_state: PoolState, remedies: Remedies
) -> PendingReport:
    """Return the report of a gang whose pods exceed its tenant's limit in a pool."""
    names = pool_state.tenant_usage.exceeded_limits(pending_gang.tenant, pods)
    used = pool_state.tenant_usage.usage.get(pending_gang.tenant, {})
    limit, wanted = pool_state.tenant_usage.quotas[pending_gang.tenant].limit, sum_requests(pods)
    parts = (render_milli({name: amounts.get(name, 0) for name in names}) for amounts in (wanted, used, limit))
    needs, in_use, at_most = parts
    where = pools_text([pool_state.pool.key])
    message = f"needs {needs}; in use in {where}: {in_use}; limit: {at_most}"
    if _exceeds_whole_limit(pool_state, pending_gang.tenant, wanted):
        message = f"needs {needs}, more than the whole limit in {where}: {at_most}"
    numbers = {
        f"{what} {name}": amounts.get(name, 0) / 1000
        for name in names
        for what, amounts in (("needed", wanted), ("used", used), ("limit", limit))
    }
    report = _build_report(pending_gang, PendingReason.QUOTA, message, numbers=numbers)
    return _with_remedy(report, remedies.of_limit(pool_state, pending_gang, pods))


def report_budget(
    state: CycleState, pending_gang: PendingGang, pods: Sequence[Pod], pool_state: PoolState, remedies: Remedies
) -> PendingReport:
    """Return the report of a gang whose pods may not borrow in a pool, because a budget is used up."""
    quota = pool_state.tenant_usage.quotas[pending_gang.tenant]
    message = budget_text(quota, pods, state.now, band=pending_gang.gang.band)
    report = _build_report(pending_gang, PendingReason.BUDGET, message, numbers=budget_numbers(quota, pods))
    return _with_remedy(report, remedies.of_guarantee(pool_state, pending_gang, pods))


def _exceeds_whole_limit(pool_state: PoolState, tenant: str, wanted: MilliResources) -> bool:
    limit = pool_state.tenant_usage.quotas[tenant].limit
    return any(amount > limit.get(name, amount) for name, amount in wanted.items())


def _report_reserved(pending_gang: PendingGang, what: str, ahead: str) -> PendingReport:
    gang_ahead = ahead.removeprefix(f"{pending_gang.tenant}/")
    message = f"{what} is reserved for {gang_ahead}, which is ahead and has waited for long"
    return _build_report(pending_gang, PendingReason.RESERVATION, message, behind=ahead)


def _report_reservation(state: CycleState, pending_gang: PendingGang, reservation: Reservation) -> PendingReport:
    when = (
        f"starts in about {duration_text(reservation.start - state.now)}"
        if reservation.start is not None
        else "has waited for long"
    )
    ahead = state.gangs[reservation.gang]
    is_own = ahead.tenant == pending_gang.tenant
    gang_ahead = ahead.whole_id.removeprefix(f"{ahead.tenant}/") if is_own else "another tenant's gang"
    message = f"capacity is free, but reserved for {gang_ahead}, which is ahead and {when}"
    return _build_report(pending_gang, PendingReason.RESERVATION, message, behind=ahead.whole_id)


def _report_no_room(pending_gang: PendingGang, pools: Iterable[PoolState], fits: FitCache) -> PendingReport:
    pools = list(pools)
    fit = max(fits.count_placeable(pool_state, pending_gang) for pool_state in pools)
    needed = len(pending_gang.min_members)
    message = f"needs {_request_text(pending_gang)}; {fit} of {needed} would fit now"
    numbers = {"needed": float(needed), "fit": float(fit)}
    reserving = next(
        (
            each
            for each in pools
            if fits.count_placeable(each, pending_gang) == fit
            and would_use_reserve(each, pending_gang, pending_gang.min_members)
        ),
        None,
    )
    if fit < needed:
        message += explain_peer_rules(pools, pending_gang, fit)
    if reserving is not None and fit == needed:
        message += f", but {reserve_text(reserving)}"
        numbers["reserve"] = reserving.facts.idle_reserve / 1000
        numbers["idle"] = reserving.node_resources.free.idle_units / 1000
    return _build_report(pending_gang, PendingReason.ROOM, message, numbers=numbers)


def _guarantee_remedy(pending_gang: PendingGang, pool_state: PoolState, remedies: Remedies) -> Remedy:
    """Return what would let a gang start inside its tenant's guarantee, if there is one."""
    return remedies.of_guarantee(pool_state, pending_gang, pending_gang.min_members, only_there=True)


def _with_remedy(report: PendingReport, remedy: Remedy) -> PendingReport:
    """Add the numbers of the limit or the guarantee that decide, and what would change them."""
    if not remedy.text:
        return report
    return replace(
        report, message=report.message + remedy.text, ends=remedy.ends, numbers={**report.numbers, **remedy.numbers}
    )


def _build_report(
    pending_gang: PendingGang,
    code: PendingReason,
    message: str,
    *,
    behind: str = "",
    numbers: Mapping[str, float] | None = None,
) -> PendingReport:
    return PendingReport(gang=pending_gang.gang.id, code=code, message=message, behind=behind, numbers=numbers or {})


def explain_too_large(pending_gang: PendingGang, pools: Iterable[PoolState]) -> str:
    """Return why its largest pods fit no node, as the end of a sentence; empty: each pod fits by itself."""
    nodes = [node for pool_state in pools for node in pool_state.pool.nodes]
    level = pending_gang.gang.required_level
    if level and not any(level in node.labels for node in nodes):
        return f"; no node has the label {level}"
    for shape in dict.fromkeys(pod.shape for pod in pending_gang.min_members):
        matching = [node for node in nodes if matches_terms(shape.terms, node.labels)]
        if nodes and not matching:
            return "; no node has the labels that its node affinity requires"
        matching = [node for node in matching if not has_untolerated_taint(shape.tolerations, node.taints)]
        if nodes and not matching:
            return "; it does not tolerate the taints of the nodes"
        largest = {
            name: max((_largest_request_on(node, shape, name) for node in matching), default=0)
            for name, _ in shape.requests
        }
        too_small: MilliResources = {name: largest[name] for name, amount in shape.requests if amount > largest[name]}
        if too_small:
            return f"; a pod can have {render_milli(too_small)} at most"
    return ""


def _largest_request_on(node: Node, shape: Shape, name: str) -> int:
    """Return the most of a resource that a single-container pod can get on the node: of one zone, where zones apply."""
    offered = node.allocatable.get(name, 0)
    if node.topology is None or len(shape.parts) > 1:
        return offered
    zones = [zone.allocatable[name] for zone in node.topology.zones if name in zone.allocatable]
    return min(offered, max(zones, default=offered))
