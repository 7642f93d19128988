"""Other cells in the place of those bound, where that lets all unused cells be bound: no pod is touched by it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from vkgateway.arbiter.guarantees.cell_bindings import CellBindings, TenantCells
from vkgateway.arbiter.guarantees.cell_sizes import CellCounts, round_up_units, total_units

_MAX_KINDS = 64
"""Of so many kinds of a tenant's nodes each is tried with each; there are seldom more than a few."""


def enlarge_cells(bindings: CellBindings, level: int) -> bool:
    """Bind larger cells in place of smaller ones while that helps at a level where room is short; whether any did.

    Only cells of that level and above make room at it, and only in place of smaller ones.
    """
    helped = False
    for holding, nodes in _usable_bound_nodes(bindings):
        for node in nodes:
            if not any(holding.unused[: level + 1]):
                break
            if not any(holding.bound_by_node[node][level + 1 :]):
                continue
            if bindings.cell_slack.slack[level] >= 0:
                return True
            helped |= _enlarge_on(bindings, holding, node, level)
    return helped


def _usable_bound_nodes(bindings: CellBindings) -> Iterator[tuple[TenantCells, list[int]]]:
    for tenant in sorted(bindings.cells_by_tenant):
        holding = bindings.cells_by_tenant[tenant]
        usable = (node for node in holding.bound_by_node if bindings.cell_slack.usable[node])
        yield holding, sorted(usable, key=bindings.names.__getitem__)


def _enlarge_on(bindings: CellBindings, holding: TenantCells, node: int, level: int) -> bool:
    for cells in bindings.possible_bindings(holding, node, holding.used_by_node[node]):
        changes = _slack_changes(bindings, holding, node, cells)
        if changes is not None and _improves_level(bindings, changes, level):
            bindings.set_bound_cells(holding, node, cells, holding.used_by_node[node])
            return True
    return False


def exchange_cells(bindings: CellBindings, level: int) -> bool:
    """Have two nodes of a tenant change cells where that helps at a level where room is short; whether any did."""
    for holding, nodes in _usable_bound_nodes(bindings):
        kinds: dict[tuple[object, ...], int] = {}
        for node in nodes:
            kinds.setdefault(
                (bindings.cell_slack.free_units[node], holding.used_by_node[node], *holding.bound_by_node[node]), node
            )
        for one, other in combinations(list(kinds.values())[:_MAX_KINDS], 2):
            if _exchange_two_nodes(bindings, holding, one, other, level):
                return True
    return False


def _exchange_two_nodes(bindings: CellBindings, holding: TenantCells, one: int, other: int, level: int) -> bool:
    here, there = holding.bound_by_node[one], holding.bound_by_node[other]
    if here == there or not (
        _covers_usage(bindings, holding, one, there) and _covers_usage(bindings, holding, other, here)
    ):
        return False
    first, second = _slack_changes(bindings, holding, one, there), _slack_changes(bindings, holding, other, here)
    if first is None or second is None:
        return False
    if not _improves_level(bindings, [a + b for a, b in zip(first, second, strict=True)], level):
        return False
    bindings.set_bound_cells(holding, one, there, holding.used_by_node[one])
    bindings.set_bound_cells(holding, other, here, holding.used_by_node[other])
    return True


def _covers_usage(bindings: CellBindings, holding: TenantCells, node: int, cells: Sequence[int]) -> bool:
    return total_units(cells, bindings.levels) >= min(
        round_up_units(holding.used_by_node[node]), bindings.bound_units(holding, node)
    )


def _slack_changes(bindings: CellBindings, holding: TenantCells, node: int, cells: CellCounts) -> list[int] | None:
    """What binding these instead does to each slack; None: there is no room for them."""
    tally, old = bindings.cell_slack, holding.bound_by_node[node]
    after = tally.free_units_after(node, old, cells)
    return tally.slack_changes(tally.free_units[node], after, old, cells) if after >= 0 else None


def _improves_level(bindings: CellBindings, changes: Sequence[int], level: int) -> bool:
    """Whether that makes room at the level, and leaves no other level short of room that was not."""
    return changes[level] > 0 and all(
        change >= 0 or slack + change >= 0 for slack, change in zip(bindings.cell_slack.slack, changes, strict=True)
    )
