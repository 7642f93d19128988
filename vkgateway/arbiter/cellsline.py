"""Cells reserved for a tenant's gang that has waited for long, because its later gangs fill them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from vkgateway.arbiter.accounts import total_of
from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.facts import Pod
from vkgateway.arbiter.inside import Holds
from vkgateway.arbiter.ledger import Ledger
from vkgateway.arbiter.line import comes_after
from vkgateway.arbiter.plans import inside_of
from vkgateway.arbiter.reservedcells import Held, ReservedCells
from vkgateway.arbiter.standing import Standing


@dataclass(frozen=True, slots=True)
class _Later:
    """A gang that was created after the one that waits, and is inside the cells."""

    since: float
    """When it started (seconds since the epoch)."""
    name: str
    pods: tuple[Pod, ...]
    holds: tuple[Held, ...]
    """By pod."""


def keep_cells(ledger: Ledger, pools: Iterable[Standing], ask: Ask) -> None:
    """Reserve cells for a gang that has waited for long, if its tenant's later gangs alone are in its way.

    Others like them would go on starting in what some of them leave, and the cells would never be empty enough. The
    gang may borrow meanwhile.
    """
    if not ledger.has_aged(ask.gang):
        return
    for standing in pools:
        if ask.tenant in standing.cells_kept:
            return
        found = _reserved(ledger, standing, ask)
        if found is not None:
            standing.cells_kept[ask.tenant] = found
            return


def _reserved(ledger: Ledger, standing: Standing, ask: Ask) -> ReservedCells | None:
    """Return the cells that are free once the first of its later gangs have ended, the oldest first; as few as suffice.

    So the same ones are reserved in each cycle, whatever starts beside them.
    """
    later, unit = _later(ledger, standing, ask), standing.pool.unit
    held = sum(pod.shape.amount(unit) for each in later for pod in each.pods)
    needed = sum(pod.shape.amount(unit) for pod in ask.core)
    if not later or standing.within.left(ask.tenant) + held < needed:
        return None
    nominated_by = cache(lambda count: _nominated(standing, ask, later[:count]))
    if nominated_by(len(later)) is None:
        return None
    number = bisect_left(range(len(later)), True, key=lambda count: nominated_by(count) is not None)
    leaves, nominated = later[:number], nominated_by(number)
    assert nominated is not None
    ends = [standing.ends.of(pod.uid) for each in leaves for pod in each.pods]
    known = [end for end in ends if end is not None]
    return ReservedCells(
        gang=ask.gang,
        leaves=tuple(hold for each in leaves for hold in each.holds),
        nominated=tuple(nominated),
        start=max(known, default=ledger.now) if len(known) == len(ends) else None,
    )


def _nominated(standing: Standing, ask: Ask, leaves: Sequence[_Later]) -> Holds | None:
    """Return what the gang would hold in cells if the pool were empty and these had ended; None: it does not fit."""
    quota = standing.quotas.get(ask.tenant)
    if quota is None:
        return None
    mark = standing.cells.mark()
    for node, amount in (hold for each in leaves for hold in each.holds):
        standing.cells.release(ask.tenant, node, amount)
    gone = total_of(pod for each in leaves for pod in each.pods)
    found = None
    if standing.within.allows(quota, ask.gang, ask.core, gone=gone):
        inside = inside_of(standing, ask, ask.core)
        nodes = inside(standing.empty)
        found = inside.holds(nodes) if nodes is not None else None
    standing.cells.undo(mark)
    return found


def _later(ledger: Ledger, standing: Standing, ahead: Ask) -> list[_Later]:
    """Return the tenant's later gangs that are inside cells, or will be, in the order of their starts."""
    names = {*standing.sheltered.get(ahead.tenant, ()), *ledger.inside.get(ahead.tenant, ())}
    unit, found = standing.pool.unit, []
    for name in sorted(names):
        gang = ledger.gangs[name]
        if not comes_after(gang, ahead.gang):
            continue
        given = _given(ledger, standing, name)
        nodes = [(pod, pod.node if standing.has(pod) else given.get(pod.uid, "")) for pod in gang.pods]
        held = [(pod, node) for pod, node in nodes if node and standing.is_inside(pod.uid)]
        if held:
            since = max(pod.since if standing.has(pod) else ledger.now for pod, _ in held)
            holds = tuple((node, pod.shape.amount(unit)) for pod, node in held)
            found.append(_Later(since, name, tuple(pod for pod, _ in held), holds))
    return sorted(found, key=lambda each: (each.since, each.name))


def _given(ledger: Ledger, standing: Standing, name: str) -> Mapping[str, str]:
    """The nodes that it was given in this pool, or is planned for."""
    start, plan = ledger.started.get(name), ledger.plans.get(name)
    if start is not None and start.standing is standing:
        return start.nodes
    return plan.nodes if plan is not None and plan.pool == standing.pool.key else {}
