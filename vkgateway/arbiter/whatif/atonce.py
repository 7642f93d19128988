"""A guarantee that is used at once: the cells in use, and what pods that fill the others would meet (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vkgateway.arbiter.cells import Cells, Placed
from vkgateway.arbiter.cuts import WHOLE
from vkgateway.arbiter.facts import WAITING, Gang, Pod, Pool, Snapshot
from vkgateway.arbiter.whatif.answers import Cell, Eviction, Outcome, Verdict
from vkgateway.arbiter.whatif.difference import Difference
from vkgateway.arbiter.whatif.gangs import pod_shape
from vkgateway.arbiter.whatif.outcomes import Outcomes
from vkgateway.arbiter.whatif.trial import Case, Trial, with_gangs

_MOST_TRIED: Final = 64
"""Cells that are filled, the largest first: the time that the arbiter takes grows with the square of their number."""


@dataclass(frozen=True, slots=True)
class AtOnce:
    """What becomes of each cell, and who is evicted for them."""

    cells: tuple[Cell, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    untried: int = 0
    """So many more cells that are not in use were not filled: it would take too long."""


def at_once(trial: Trial, changed: Case, pool: Pool, tenant: str) -> AtOnce:
    """Fill each cell of a tenant's that is not in use by a lone pod, and let the arbiter decide.

    `changed` is the case with the guarantee; its decisions are carried out first.
    """
    if not pool.unit:
        return AtOnce()
    after = changed.then(trial.now)
    cells = Cells(pool, after.quotas, placed_inside(after, pool))
    bound = [
        Cell(size=size, bound=True, node=node, verdict=Verdict.STARTS)
        for node, sizes in cells.bound(tenant).items()
        for size in sizes
    ]
    unused = [size for size, number in cells.unused(tenant).items() for _ in range(number)]
    free = sorted(unused, reverse=True)[:_MOST_TRIED]
    gangs = [
        _filling(name, tenant, size, pool, trial.now)
        for name, size in zip(trial.ids(tenant, len(free)), free, strict=True)
    ]
    used = trial.decide(with_gangs(after, gangs))
    outcomes = Outcomes(used.decisions, trial.now, trial.names)
    difference = Difference(trial, used, before=trial.decide(after), about=[gang.id for gang in gangs])
    found = [_cell(size, outcomes.of(gang, gang.pods)) for gang, size in zip(gangs, free, strict=True)]
    return AtOnce((*bound, *found), tuple(difference.evictions()), len(unused) - len(free))


def placed_inside(snapshot: Snapshot, pool: Pool) -> list[Placed]:
    """Return the pods that run inside guarantees in a pool, for `Cells`."""
    return [
        (gang.tenant, pod.node, pod.shape.amount(pool.unit))
        for gang in snapshot.gangs
        for pod in gang.pods
        if is_inside(pod, pool)
    ]


def is_inside(pod: Pod, pool: Pool) -> bool:
    """Return whether a pod runs in a pool, inside its tenant's guarantee."""
    return pod.state is not WAITING and pod.pool == pool.key and not pod.borrowed


def _filling(name: str, tenant: str, size: int, pool: Pool, now: float) -> Gang:
    shape = pod_shape({pool.unit: size * WHOLE}, [pool])
    return Gang(id=name, tenant=tenant, pods=(Pod(uid=name, shape=shape),), pools=(pool.key,), created=now)


def _cell(size: int, outcome: Outcome) -> Cell:
    return Cell(
        size=size,
        bound=False,
        node=outcome.placements[0].node if outcome.placements else "",
        verdict=outcome.verdict,
        borrowed=outcome.borrowed,
        message=outcome.message,
        expected=outcome.expected,
    )
