"""What a tenant's cells hold, kept for its own gang that is ahead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from vkgateway.arbiter.accounts import total_of
from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.facts import Gang, Pod
from vkgateway.arbiter.ledger import Ledger
from vkgateway.arbiter.line import comes_after
from vkgateway.arbiter.plans import inside_of
from vkgateway.arbiter.standing import Standing

_Held = tuple[Pod, str]
"""A pod inside its tenant's cells, and its node."""


def keep_cells(ledger: Ledger, pools: Iterable[Standing], ask: Ask) -> None:
    """Keep cells for a gang that has waited for long, if only what its tenant brought after it fills them.

    That would go on starting in what others of it leave, and the cells would never be empty enough. It may borrow.
    """
    if not ledger.has_aged(ask.gang):
        return
    for standing in pools:
        if ask.tenant in standing.cells_kept:
            return
        if _only_later_work_is_in_its_way(ledger, standing, ask):
            standing.cells_kept[ask.tenant] = ask.gang
            return


def _only_later_work_is_in_its_way(ledger: Ledger, standing: Standing, ask: Ask) -> bool:
    later = list(_later(ledger, standing, ask.gang))
    quota, unit = standing.quotas.get(ask.tenant), standing.pool.unit
    if not later or quota is None:
        return False
    there = standing.within.left(ask.tenant) + sum(pod.shape.amount(unit) for pod, _ in later)
    if there < sum(pod.shape.amount(unit) for pod in ask.core):
        return False
    mark = standing.cells.mark()
    for pod, node in later:
        standing.cells.release(ask.tenant, node, pod.shape.amount(unit))
    allowed = standing.within.allows(quota, ask.gang, ask.core, gone=total_of(pod for pod, _ in later))
    fits = allowed and inside_of(standing, ask, ask.core)(standing.empty) is not None
    standing.cells.undo(mark)
    return fits


def _later(ledger: Ledger, standing: Standing, ahead: Gang) -> Iterator[_Held]:
    """What its tenant's later gangs hold of cells, or will."""
    names = {*standing.sheltered.get(ahead.tenant, ()), *ledger.inside.get(ahead.tenant, ())}
    for name in sorted(names):
        gang = ledger.gangs[name]
        if comes_after(gang, ahead):
            given = _given(ledger, standing, name)
            held = ((pod, pod.node if standing.has(pod) else given.get(pod.uid, "")) for pod in gang.pods)
            yield from (each for each in held if each[1] and standing.is_inside(each[0].uid))


def _given(ledger: Ledger, standing: Standing, name: str) -> Mapping[str, str]:
    """The nodes that it was given in this pool, or is planned for."""
    start, plan = ledger.started.get(name), ledger.plans.get(name)
    if start is not None and start.standing is standing:
        return start.nodes
    return plan.nodes if plan is not None and plan.pool == standing.pool.key else {}
