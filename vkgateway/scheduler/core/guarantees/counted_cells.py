"""Cells of all tenants in a pool, those that missing nodes leave, and what nodes they need. It does without numpy, as
an idle gateway does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from vkgateway.scheduler.core.decisions import GuaranteeLoss
from vkgateway.scheduler.core.guaranteed_nodes import Guarantees, pack_cells
from vkgateway.scheduler.core.guarantees.bindability import CellSlack
from vkgateway.scheduler.core.guarantees.cell_sizes import (
    MILLI_PER_UNIT,
    CellCounts,
    counts_by_size,
    pool_levels,
    quota_cells,
    round_up_units,
    smallest_cover,
    total_units,
    units_for_cells,
)
from vkgateway.scheduler.core.guarantees.reduction import reduce_cells
from vkgateway.scheduler.core.snapshot import Pool, Quota


class CountedCells(NamedTuple):
    """Cells of a pool."""

    levels: tuple[int, ...]
    """Cell sizes, the largest first."""
    held: Mapping[str, CellCounts]
    """Cells of each tenant."""
    here: Mapping[str, CellCounts]
    """Those of them on nodes that accept pods: pods on other nodes use up the rest."""
    losses: tuple[GuaranteeLoss, ...]
    """Guarantees that were reduced, by tenant; empty while all cells fit."""


def count_pool_cells(pool: Pool, quotas: Iterable[Quota], away: Mapping[tuple[str, str], int]) -> CountedCells:
    """Return the cells of a pool. `away`: thousandths on nodes that accept no pods, by tenant and node."""
    unit, levels = pool.unit_resource, pool_levels(pool)
    pool_quotas = sorted(
        (quota for quota in quotas if quota.pool == pool.key), key=lambda quota: (quota.granted, quota.tenant)
    )
    asked = {quota.tenant: quota_cells(quota, unit, levels) for quota in pool_quotas}
    here = {tenant: list(cells) for tenant, cells in asked.items()}
    for (tenant, _), amount in sorted(away.items()):
        cells = here.get(tenant)
        taken = smallest_cover(cells, levels, round_up_units(amount)) if cells is not None else None
        if cells is not None:
            here[tenant] = [have - gone for have, gone in zip(cells, taken or cells, strict=True)]
    slack = CellSlack(levels, (units_for_cells(node, unit) for node in pool.nodes if node.usable))
    for cells in here.values():
        for level, count in enumerate(cells):
            slack.add_cells(level, count)
    if slack.short_level() is None:
        return CountedCells(levels, asked, here, ())
    before = {tenant: list(cells) for tenant, cells in here.items()}
    units = {tenant: total_units(cells, levels) for tenant, cells in asked.items()}
    lost = reduce_cells(slack, here, units, pool_quotas)
    held = {
        tenant: [count + now - then for count, now, then in zip(cells, here[tenant], before[tenant], strict=True)]
        for tenant, cells in asked.items()
    }
    losses = (
        GuaranteeLoss(
            pool=pool.key,
            tenant=tenant,
            units=lost[tenant],
            asked=counts_by_size(asked[tenant], levels),
            held=counts_by_size(held[tenant], levels),
        )
        for tenant in sorted(asked)
        if held[tenant] != asked[tenant]
    )
    return CountedCells(levels, held, here, tuple(losses))


def usable_size(pool: Pool, number: int) -> int:
    """Return the thousandths that a node of the pool has for guarantees."""
    return units_for_cells(pool.nodes[number], pool.unit_resource) * MILLI_PER_UNIT


def pack_counted(pool: Pool, counted: CountedCells) -> dict[int, Guarantees]:
    """Return what the tenants are guaranteed on nodes of each size, in thousandths."""
    cells = {
        tenant: {size * MILLI_PER_UNIT: count for size, count in counts_by_size(counts, counted.levels).items()}
        for tenant, counts in counted.here.items()
    }
    sizes = [usable_size(pool, number) for number, node in enumerate(pool.nodes) if node.usable]
    return pack_cells(cells, sizes)


def count_spare_nodes(pool: Pool, quotas: Iterable[Quota]) -> int:
    """Return the nodes beyond all guarantees, if every node that accepts no pods is empty."""
    packed = pack_counted(pool, count_pool_cells(pool, quotas, {}))
    return sum(node.usable for node in pool.nodes) - sum(guarantees.total for guarantees in packed.values())
