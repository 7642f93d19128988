"""Cells reserved for a tenant's gang that has waited for long, because its later gangs fill them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from vkgateway.arbiter.cycle_state import CycleState
from vkgateway.arbiter.guarantees.cell_placement import CellUses
from vkgateway.arbiter.guarantees.reserved_cells import CellReservation, CellUse
from vkgateway.arbiter.phases.preemption_plans import placement_in_guarantee
from vkgateway.arbiter.pool_state import PoolState
from vkgateway.arbiter.queueing.order import is_ranked_after
from vkgateway.arbiter.queueing.pending_gangs import PendingGang
from vkgateway.arbiter.queueing.tenant_usage import sum_requests
from vkgateway.arbiter.snapshot import Pod


@dataclass(frozen=True, slots=True)
class _LaterGang:
    """A gang that was created after the one that waits, and is inside the cells."""

    started: float
    """When it started (seconds since the epoch)."""
    name: str
    pods: tuple[Pod, ...]
    cell_uses: tuple[CellUse, ...]
    """By pod."""


def reserve_cells(ledger: CycleState, pools: Iterable[PoolState], ask: PendingGang) -> None:
    """Reserve cells for a gang that has waited for long, if its tenant's later gangs alone are in its way.

    Others like them would go on starting in what some of them leave, and the cells would never be empty enough. The
    gang may borrow meanwhile.
    """
    if not ledger.has_aged(ask.gang):
        return
    for standing in pools:
        if ask.tenant in standing.cell_reservations:
            return
        found = _find_reserved_cells(ledger, standing, ask)
        if found is not None:
            standing.cell_reservations[ask.tenant] = found
            return


def _find_reserved_cells(ledger: CycleState, standing: PoolState, ask: PendingGang) -> CellReservation | None:
    """Return the cells that are free once the first of its later gangs have ended, the oldest first; as few as suffice.

    So the same ones are reserved in each cycle, whatever starts beside them.
    """
    later, unit = _later_gangs(ledger, standing, ask), standing.pool.unit_resource
    held = sum(pod.shape.amount_of(unit) for each in later for pod in each.pods)
    needed = sum(pod.shape.amount_of(unit) for pod in ask.min_members)
    if not later or standing.guarantee_usage.units_left(ask.tenant) + held < needed:
        return None
    nominated_by = cache(lambda count: _nominated_cells(standing, ask, later[:count]))
    if nominated_by(len(later)) is None:
        return None
    number = bisect_left(range(len(later)), True, key=lambda count: nominated_by(count) is not None)
    leaves, nominated = later[:number], nominated_by(number)
    assert nominated is not None
    ends = [standing.expected_ends.end_of(pod.uid) for each in leaves for pod in each.pods]
    known = [end for end in ends if end is not None]
    return CellReservation(
        gang=ask.gang,
        awaited=tuple(hold for each in leaves for hold in each.cell_uses),
        nominated=tuple(nominated),
        start=max(known, default=ledger.now) if len(known) == len(ends) else None,
    )


def _nominated_cells(standing: PoolState, ask: PendingGang, leaves: Sequence[_LaterGang]) -> CellUses | None:
    """Return what the gang would hold in cells if the pool were empty and these had ended; None: it does not fit."""
    quota = standing.quotas.get(ask.tenant)
    if quota is None:
        return None
    mark = standing.cells.mark()
    for node, amount in (hold for each in leaves for hold in each.cell_uses):
        standing.cells.release_cells(ask.tenant, node, amount)
    gone = sum_requests(pod for each in leaves for pod in each.pods)
    found = None
    if standing.guarantee_usage.may_hold(quota, ask.gang, ask.min_members, freed=gone):
        inside = placement_in_guarantee(standing, ask, ask.min_members)
        nodes = inside(standing.empty)
        found = inside.cell_uses(nodes) if nodes is not None else None
    standing.cells.undo(mark)
    return found


def _later_gangs(ledger: CycleState, standing: PoolState, ahead: PendingGang) -> list[_LaterGang]:
    """Return the tenant's later gangs that are inside cells, or will be, in the order of their starts."""
    names = {*standing.guaranteed_gangs.get(ahead.tenant, ()), *ledger.guaranteed_starts.get(ahead.tenant, ())}
    unit, found = standing.pool.unit_resource, []
    for name in sorted(names):
        gang = ledger.gangs[name]
        if not is_ranked_after(gang, ahead.gang):
            continue
        given = _assigned_nodes(ledger, standing, name)
        nodes = [(pod, pod.node if standing.has_pod(pod) else given.get(pod.uid, "")) for pod in gang.pods]
        held = [(pod, node) for pod, node in nodes if node and standing.is_guaranteed(pod.uid)]
        if held:
            since = max(pod.since if standing.has_pod(pod) else ledger.now for pod, _ in held)
            holds = tuple((node, pod.shape.amount_of(unit)) for pod, node in held)
            found.append(_LaterGang(since, name, tuple(pod for pod, _ in held), holds))
    return sorted(found, key=lambda each: (each.started, each.name))


def _assigned_nodes(ledger: CycleState, standing: PoolState, name: str) -> Mapping[str, str]:
    """The nodes that it was given in this pool, or is planned for."""
    start, plan = ledger.started.get(name), ledger.plans.get(name)
    if start is not None and start.pool_state is standing:
        return start.nodes
    return plan.nodes if plan is not None and plan.pool == standing.pool.key else {}
