"""Replacement of bound cells so that all unused cells can be bound; no pod is affected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from vkgateway.arbiter.guarantees.cell_bindings import CellBindings, TenantCells
from vkgateway.arbiter.guarantees.cell_sizes import CellCounts, round_up_units, total_units

_MAX_KINDS = 64
"""Number of kinds of a tenant's nodes that are paired for an exchange; more than a few are rare."""


def enlarge_cells(bindings: CellBindings, level: int) -> bool:
    """Replace smaller bound cells by larger ones while this helps a level that lacks capacity; return whether any did.

    Only cells of this level and above free capacity at it, and only in place of smaller ones.
    """
    helped = False
    for tenant_cells, nodes in _usable_bound_nodes(bindings):
        for node in nodes:
            if not any(tenant_cells.unused[: level + 1]):
                break
            if not any(tenant_cells.bound_by_node[node][level + 1 :]):
                continue
            if bindings.cell_slack.slack[level] >= 0:
                return True
            helped |= _enlarge_on(bindings, tenant_cells, node, level)
    return helped


def _usable_bound_nodes(bindings: CellBindings) -> Iterator[tuple[TenantCells, list[int]]]:
    for tenant in sorted(bindings.cells_by_tenant):
        tenant_cells = bindings.cells_by_tenant[tenant]
        usable = (node for node in tenant_cells.bound_by_node if bindings.cell_slack.usable[node])
        yield tenant_cells, sorted(usable, key=bindings.names.__getitem__)


def _enlarge_on(bindings: CellBindings, tenant_cells: TenantCells, node: int, level: int) -> bool:
    for cells in tenant_cells.possible_bindings(node, tenant_cells.used_by_node[node]):
        changes = _slack_changes(bindings, tenant_cells, node, cells)
        if changes is not None and _improves_level(bindings, changes, level):
            bindings.set_bound_cells(tenant_cells, node, cells, tenant_cells.used_by_node[node])
            return True
    return False


def exchange_cells(bindings: CellBindings, level: int) -> bool:
    """Exchange the cells of two nodes of a tenant where this helps a level that lacks capacity.

    Return whether any cells were exchanged.
    """
    for tenant_cells, nodes in _usable_bound_nodes(bindings):
        kinds: dict[tuple[object, ...], int] = {}
        for node in nodes:
            kinds.setdefault(
                (
                    bindings.cell_slack.free_units[node],
                    tenant_cells.used_by_node[node],
                    *tenant_cells.bound_by_node[node],
                ),
                node,
            )
        for one, other in combinations(list(kinds.values())[:_MAX_KINDS], 2):
            if _exchange_two_nodes(bindings, tenant_cells, one, other, level):
                return True
    return False


def _exchange_two_nodes(bindings: CellBindings, tenant_cells: TenantCells, one: int, other: int, level: int) -> bool:
    cells_of_one, cells_of_other = tenant_cells.bound_by_node[one], tenant_cells.bound_by_node[other]
    if cells_of_one == cells_of_other or not (
        _covers_usage(bindings, tenant_cells, one, cells_of_other)
        and _covers_usage(bindings, tenant_cells, other, cells_of_one)
    ):
        return False
    first, second = (
        _slack_changes(bindings, tenant_cells, one, cells_of_other),
        _slack_changes(bindings, tenant_cells, other, cells_of_one),
    )
    if first is None or second is None:
        return False
    if not _improves_level(bindings, [a + b for a, b in zip(first, second, strict=True)], level):
        return False
    bindings.set_bound_cells(tenant_cells, one, cells_of_other, tenant_cells.used_by_node[one])
    bindings.set_bound_cells(tenant_cells, other, cells_of_one, tenant_cells.used_by_node[other])
    return True


def _covers_usage(bindings: CellBindings, tenant_cells: TenantCells, node: int, cells: Sequence[int]) -> bool:
    return total_units(cells, bindings.levels) >= min(
        round_up_units(tenant_cells.used_by_node[node]), tenant_cells.bound_units(node)
    )


def _slack_changes(bindings: CellBindings, tenant_cells: TenantCells, node: int, cells: CellCounts) -> list[int] | None:
    """Return the change of each slack if these cells replace the bound ones; None: they do not fit."""
    cell_slack, old = bindings.cell_slack, tenant_cells.bound_by_node[node]
    after = cell_slack.free_units_after(node, old, cells)
    return cell_slack.slack_changes(cell_slack.free_units[node], after, old, cells) if after >= 0 else None


def _improves_level(bindings: CellBindings, changes: Sequence[int], level: int) -> bool:
    """Return whether the changes help this level and make no other level lack capacity."""
    return changes[level] > 0 and all(
        change >= 0 or slack + change >= 0 for slack, change in zip(bindings.cell_slack.slack, changes, strict=True)
    )
