"""Candidates of a search at one stage, with their costs.

Costs are whole thousandths of a GPU-second (of the pool's unit). Each unit adds a thousandth to the lost work, so that
among candidates without loss the smallest is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from vkgateway.scheduler.core.capacity.node_fit import FloatArray, IntArray
from vkgateway.scheduler.core.capacity.node_resources import NodeResources
from vkgateway.scheduler.core.preemption.candidate_rows import CandidateTable
from vkgateway.scheduler.core.preemption.candidates import PreemptionCandidates
from vkgateway.scheduler.core.preemption.cheapest_sets import PricedCandidates
from vkgateway.scheduler.core.preemption.eviction_units import EvictionStage
from vkgateway.scheduler.core.preemption.node_costs import FreedRows, TieBreakers

_MAX_COST = 1e14
"""Upper bound of a candidate's cost: 1e11 GPU-seconds."""

_PROTECTED_COST = 10**15
"""Additional cost within the minimum run time: more than any other loss."""

_AGE_BITS, _PRIORITY_BITS, _OVER_BITS = 41, 11, 10
"""Bits for age (in milliseconds), priority and a tenant's excess over its guarantee in the tie breakers."""


@dataclass(frozen=True, slots=True)
class PreemptionCosts:
    """Stage and cost of each candidate at one moment."""

    stage: IntArray
    """0: not evictable."""
    lost: FloatArray
    """GPU-seconds of work that its eviction loses."""
    tie_breakers: TieBreakers


def preemption_costs(
    candidates: PreemptionCandidates, *, now: float, excess: Mapping[str, float], exempt: Set[str]
) -> PreemptionCosts:
    """Return the current cost of each candidate.

    `excess`: the tenants' excess over their guarantees. `exempt`: gangs that must not be evicted.
    """
    table = candidates.rows.as_table()
    stage = table.stage * table.alive
    stage[(stage == EvictionStage.WORK) & (table.protected_until > now)] = EvictionStage.PROTECTED
    for gang in exempt:
        stage[list(candidates.numbers_of_gang(gang))] = 0
    lost = np.maximum(table.units * now - table.work_begun, 0) / 1000 + table.restart_cost
    lost[table.stage == EvictionStage.SURPLUS] = 0
    return PreemptionCosts(stage, lost, _tie_breakers(table, excess))


def price_candidates(
    candidates: PreemptionCandidates,
    node_resources: NodeResources,
    resources: Sequence[str],
    costs: PreemptionCosts,
    stage: EvictionStage,
) -> PricedCandidates:
    """Return the candidates up to this stage. `resources`: lines of the freed amounts; unknown ones are zero."""
    rows = freed_rows(candidates, node_resources, resources)
    allowed = (costs.stage > 0) & (costs.stage <= stage)
    cost = _cost_at_stage(candidates.rows.as_table(), costs, stage)
    return PricedCandidates(rows.filter_rows(allowed[rows.candidate]), cost, costs.tie_breakers, candidates.dependents)


def freed_rows(candidates: PreemptionCandidates, node_resources: NodeResources, resources: Sequence[str]) -> FreedRows:
    """Return what each candidate frees on each node. `resources`: lines of the amounts; unknown ones are zero."""
    table = candidates.rows.as_table()
    position = candidates.rows.node_indices(node_resources.nodes.names)[table.row_node]
    freed = np.zeros((len(resources), len(position)), dtype=np.int64)
    for line, resource in enumerate(resources):
        column = table.resources.get(resource, len(table.row_freed))
        if column < len(table.row_freed):
            freed[line] = table.row_freed[column]
    mask = (table.alive[table.row_candidate] > 0) & (position >= 0)
    return FreedRows(table.row_candidate, position, freed).filter_rows(mask)


def has_resources(node_resources: NodeResources, resources: Sequence[str]) -> bool:
    """Return whether the pool's nodes have all of the resources."""
    try:
        for resource in resources:
            node_resources.free.amounts_of(resource)
    except KeyError:
        return False
    return True


def _cost_at_stage(table: CandidateTable, costs: PreemptionCosts, stage: EvictionStage) -> IntArray:
    if stage is EvictionStage.SURPLUS:
        return table.units + 1
    cost = np.rint(np.minimum(costs.lost * 1000, _MAX_COST)).astype(np.int64) + table.units // 1000 + 1
    cost[costs.stage == EvictionStage.SURPLUS] = 0
    cost[costs.stage == EvictionStage.PROTECTED] += _PROTECTED_COST
    return cost


def _tie_breakers(table: CandidateTable, excess: Mapping[str, float]) -> TieBreakers:
    """Return the tie breakers: the tenant furthest over its guarantee first, then low priority, then young gangs."""
    excess_rank = _rank_values([-excess.get(tenant, 0.0) for tenant in table.tenants], _OVER_BITS)
    priority_rank = _rank_values(list(table.priorities), _PRIORITY_BITS)
    most = (1 << _AGE_BITS) - 1
    age = most - np.clip(table.since * 1000, 0, most).astype(np.int64)
    gang_order = (((excess_rank[table.tenant] << _PRIORITY_BITS) + priority_rank[table.priority]) << _AGE_BITS) + age
    return TieBreakers(gang_order, -table.rank, table.digest)


def _rank_values(values: Sequence[float], bits: int) -> IntArray:
    """Return the rank of each value, 0 for the smallest; the highest ranks are equal if the bits do not suffice."""
    rank_by_value = {value: index for index, value in enumerate(sorted(set(values)))}
    return np.array([min(rank_by_value[value], (1 << bits) - 1) for value in values], dtype=np.int64)
