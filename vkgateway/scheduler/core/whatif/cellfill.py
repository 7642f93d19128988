"""Simultaneous use of a guarantee: the cells in use, and what pods meet that fill the others (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vkgateway.scheduler.core.guarantees.cell_sizes import MILLI_PER_UNIT
from vkgateway.scheduler.core.guarantees.pool_guarantees import PlacedAmount, PoolGuarantees
from vkgateway.scheduler.core.snapshot import WAITING, Gang, Pod, Pool, Snapshot
from vkgateway.scheduler.core.whatif.answers import Cell, Eviction, Outcome, Verdict
from vkgateway.scheduler.core.whatif.difference import Difference
from vkgateway.scheduler.core.whatif.gangs import pod_shape
from vkgateway.scheduler.core.whatif.outcomes import OutcomeLookup
from vkgateway.scheduler.core.whatif.simulation import DecidedSnapshot, Simulation, with_gangs

_MOST_TRIED: Final = 64
"""Number of cells that are filled, the largest first: the arbiter's time grows with the square of their number."""


@dataclass(frozen=True, slots=True)
class CellFill:
    """State of each cell, and the evictions for them."""

    cells: tuple[Cell, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    untried: int = 0
    """Number of unused cells that were not filled because it would take too long."""


def fill_cells(simulation: Simulation, changed: DecidedSnapshot, pool: Pool, tenant: str) -> CellFill:
    """Fill each unused cell of a tenant with a single pod, and let the arbiter decide.

    `changed` is the case with the guarantee; its decisions are carried out first.
    """
    if not pool.unit_resource:
        return CellFill()
    after = changed.apply_decisions(simulation.now)
    guarantees = PoolGuarantees(pool, after.quotas, placed_inside(after, pool))
    in_use = [
        Cell(size=size, in_use=True, node=node, verdict=Verdict.STARTS)
        for node, sizes in guarantees.cells_in_use(tenant).items()
        for size in sizes
    ]
    unused = [size for size, number in guarantees.unused_cells(tenant).items() for _ in range(number)]
    tried = sorted(unused, reverse=True)[:_MOST_TRIED]
    gangs = [
        _filling_gang(name, tenant, size, pool, simulation.now)
        for name, size in zip(simulation.unused_gang_ids(tenant, len(tried)), tried, strict=True)
    ]
    used = simulation.decide_about(with_gangs(after, gangs))
    outcomes = OutcomeLookup(used.decisions, simulation.now, simulation.names)
    difference = Difference(simulation, used, before=simulation.decide_about(after), about=[gang.id for gang in gangs])
    found = [_filled_cell(size, outcomes.outcome_of(gang, gang.pods)) for gang, size in zip(gangs, tried, strict=True)]
    return CellFill((*in_use, *found), tuple(difference.new_evictions()), len(unused) - len(tried))


def placed_inside(snapshot: Snapshot, pool: Pool) -> list[PlacedAmount]:
    """Return the pods that run inside guarantees in a pool, for `PoolGuarantees`."""
    return [
        (gang.tenant, pod.node, pod.shape.amount_of(pool.unit_resource))
        for gang in snapshot.gangs
        for pod in gang.pods
        if is_inside(pod, pool)
    ]


def is_inside(pod: Pod, pool: Pool) -> bool:
    """Return whether a pod runs in a pool, inside its tenant's guarantee."""
    return pod.state is not WAITING and pod.pool == pool.key and not pod.borrowed


def _filling_gang(name: str, tenant: str, size: int, pool: Pool, now: float) -> Gang:
    shape = pod_shape({pool.unit_resource: size * MILLI_PER_UNIT}, [pool])
    return Gang(id=name, tenant=tenant, pods=(Pod(uid=name, shape=shape),), pools=(pool.key,), created=now)


def _filled_cell(size: int, outcome: Outcome) -> Cell:
    return Cell(
        size=size,
        in_use=False,
        node=outcome.placements[0].node if outcome.placements else "",
        verdict=outcome.verdict,
        borrowed=outcome.borrowed,
        message=outcome.message,
        expected=outcome.expected,
    )
