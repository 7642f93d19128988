"""What a tenant's cells hold, kept for its own gang that is ahead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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
        if _only_later_work_is_in_its_way(ledger, standing, ask):
            standing.cells_kept.setdefault(ask.tenant, ask.gang)
            return


def _only_later_work_is_in_its_way(ledger: Ledger, standing: Standing, ask: Ask) -> bool:
    later = list(_later(ledger, standing, ask.gang))
    quota = standing.quotas.get(ask.tenant)
    if not later or quota is None:
        return False
    mark = standing.cells.mark()
    for pod, node in later:
        standing.cells.release(ask.tenant, node, pod.shape.amount(standing.pool.unit))
    allowed = standing.within.allows(quota, ask.core, gone=total_of(pod for pod, _ in later))
    fits = allowed and inside_of(standing, ask, ask.core)(standing.empty) is not None
    standing.cells.undo(mark)
    return fits


def _later(ledger: Ledger, standing: Standing, ahead: Gang) -> Iterator[_Held]:
    """What its tenant's later gangs hold of cells, or will."""
    for gang, held in _all(ledger, standing):
        if gang.tenant == ahead.tenant and comes_after(gang, ahead):
            yield from (each for each in held if standing.is_inside(each[0].uid))


def _all(ledger: Ledger, standing: Standing) -> Iterator[tuple[Gang, Iterable[_Held]]]:
    for gang in standing.gangs.values():
        yield gang, ((pod, pod.node) for pod in gang.pods if standing.has(pod))
    for name, start in ledger.started.items():
        if start.standing is standing:
            gang = ledger.gangs[name]
            yield gang, [(pod, start.nodes[pod.uid]) for pod in gang.pods if pod.uid in start.nodes]
    for name, plan in ledger.plans.items():
        if plan.pool == standing.pool.key:
            gang = ledger.gangs[name]
            yield gang, [(pod, plan.nodes[pod.uid]) for pod in gang.pods if pod.uid in plan.nodes]
