"""What may be called in for a gang at one stage, and at what price: the lots of a pool as the search sees them.

Prices are whole thousandths of a GPU-second (of the pool's unit). On top of what is lost each unit costs a thousandth,
so that of what costs nothing the least is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from vkgateway.arbiter.capacity.node_fit import IntArray
from vkgateway.arbiter.capacity.node_resources import NodeResources
from vkgateway.arbiter.preemption.candidates import CandidateTable, FloatArray, PreemptionCandidates
from vkgateway.arbiter.preemption.cheapest_sets import PricedCandidates
from vkgateway.arbiter.preemption.eviction_units import EvictionStage
from vkgateway.arbiter.preemption.node_costs import FreedRows, TieBreakers

_MAX_COST = 1e14
"""No lot costs more: a hundred thousand million GPU-seconds."""

_PROTECTED_COST = 10**15
"""What a lot costs on top inside its minimum run time: more than anything that is lost elsewhere."""

_AGE_BITS, _PRIORITY_BITS, _OVER_BITS = 41, 11, 10
"""How finely age (in milliseconds), priority and what a tenant has over its guarantee decide between equals."""


@dataclass(frozen=True, slots=True)
class PreemptionCosts:
    """By lot, for one moment."""

    stage: IntArray
    """0: it cannot be called in."""
    lost: FloatArray
    """GPU-seconds of work that are lost by it."""
    tie_breakers: TieBreakers


def preemption_costs(
    evictable: PreemptionCandidates, *, now: float, over: Mapping[str, float], exempt: Set[str]
) -> PreemptionCosts:
    """What each lot is worth now. `over`: how far tenants are over their guarantees; `exempt`: gangs left alone."""
    table = evictable.as_table()
    stage = table.stage * table.alive
    stage[(stage == EvictionStage.WORK) & (table.protected_until > now)] = EvictionStage.PROTECTED
    for gang in exempt:
        stage[list(evictable.numbers_of_gang(gang))] = 0
    lost = np.maximum(table.units * now - table.work_begun, 0) / 1000 + table.restart_cost
    lost[table.stage == EvictionStage.SURPLUS] = 0
    return PreemptionCosts(stage, lost, _tie_breakers(evictable, table, over))


def price_candidates(
    evictable: PreemptionCandidates,
    room: NodeResources,
    resources: Sequence[str],
    found: PreemptionCosts,
    stage: EvictionStage,
) -> PricedCandidates:
    """All lots that may be called in at this stage. `resources`: the lines of what rows free; unknown ones are zero."""
    rows = freed_rows(evictable, room, resources)
    open_to = (found.stage > 0) & (found.stage <= stage)
    price = _cost_at_stage(evictable.as_table(), found, stage)
    return PricedCandidates(rows.filter_rows(open_to[rows.candidate]), price, found.tie_breakers, evictable.dependents)


def freed_rows(evictable: PreemptionCandidates, room: NodeResources, resources: Sequence[str]) -> FreedRows:
    """What each lot frees on each of the room's nodes. `resources`: the lines of the amounts; unknown ones are zero."""
    table = evictable.as_table()
    position = evictable.node_indices(room.names)[table.row_node]
    columns = evictable.resource_columns()
    freed = np.zeros((len(resources), len(position)), dtype=np.int64)
    for line, resource in enumerate(resources):
        if resource in columns and columns[resource] < len(table.row_freed):
            freed[line] = table.row_freed[columns[resource]]
    there = (table.alive[table.row_candidate] > 0) & (position >= 0)
    return FreedRows(table.row_candidate, position, freed).filter_rows(there)


def has_resources(room: NodeResources, resources: Sequence[str]) -> bool:
    """Whether the pool's nodes have all of the resources."""
    try:
        for resource in resources:
            room.free_amounts(resource)
    except KeyError:
        return False
    return True


def _cost_at_stage(table: CandidateTable, found: PreemptionCosts, stage: EvictionStage) -> IntArray:
    if stage is EvictionStage.SURPLUS:
        return table.units + 1
    price = np.rint(np.minimum(found.lost * 1000, _MAX_COST)).astype(np.int64) + table.units // 1000 + 1
    price[found.stage == EvictionStage.SURPLUS] = 0
    price[found.stage == EvictionStage.PROTECTED] += _PROTECTED_COST
    return price


def _tie_breakers(evictable: PreemptionCandidates, table: CandidateTable, over: Mapping[str, float]) -> TieBreakers:
    """The tenant furthest over its guarantee first, then low priority, then the young."""
    far = _rank_values([-over.get(tenant, 0.0) for tenant in evictable.tenant_names()], _OVER_BITS)
    low = _rank_values(list(evictable.priority_values()), _PRIORITY_BITS)
    most = (1 << _AGE_BITS) - 1
    age = most - np.clip(table.since * 1000, 0, most).astype(np.int64)
    standing = (((far[table.tenant] << _PRIORITY_BITS) + low[table.priority]) << _AGE_BITS) + age
    return TieBreakers(standing, -table.rank, table.digest)


def _rank_values(values: Sequence[float], bits: int) -> IntArray:
    """The place of each value among all of them, the smallest 0; the last places are one where bits do not suffice."""
    place = {value: index for index, value in enumerate(sorted(set(values)))}
    return np.array([min(place[value], (1 << bits) - 1) for value in values], dtype=np.int64)
