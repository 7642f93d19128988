"""Other cells in the place of those bound, where that lets all unused cells be bound: no pod is touched by it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from vkgateway.arbiter.bindings import Bindings, Holding
from vkgateway.arbiter.cuts import Counts, total, units

_KINDS = 64
"""Of so many kinds of a tenant's nodes each is tried with each; there are seldom more than a few."""


def enlarge(bindings: Bindings, level: int) -> bool:
    """Bind larger cells in place of smaller ones while that helps at a level where room is short; whether any did.

    Only cells of that level and above make room at it, and only in place of smaller ones.
    """
    helped = False
    for holding, nodes in _in_order(bindings):
        for node in nodes:
            if not any(holding.unused[: level + 1]):
                break
            if not any(holding.bound[node][level + 1 :]):
                continue
            if bindings.tally.slack[level] >= 0:
                return True
            helped |= _enlarge_on(bindings, holding, node, level)
    return helped


def _in_order(bindings: Bindings) -> Iterator[tuple[Holding, list[int]]]:
    for tenant in sorted(bindings.holdings):
        holding = bindings.holdings[tenant]
        usable = (node for node in holding.bound if bindings.tally.usable[node])
        yield holding, sorted(usable, key=bindings.names.__getitem__)


def _enlarge_on(bindings: Bindings, holding: Holding, node: int, level: int) -> bool:
    for cells in bindings.ways(holding, node, holding.used[node]):
        changes = _changes(bindings, holding, node, cells)
        if changes is not None and _helps(bindings, changes, level):
            bindings.put(holding, node, cells, holding.used[node])
            return True
    return False


def exchange(bindings: Bindings, level: int) -> bool:
    """Have two nodes of a tenant change cells where that helps at a level where room is short; whether any did."""
    for holding, nodes in _in_order(bindings):
        kinds: dict[tuple[object, ...], int] = {}
        for node in nodes:
            kinds.setdefault((bindings.tally.rooms[node], holding.used[node], *holding.bound[node]), node)
        for one, other in combinations(list(kinds.values())[:_KINDS], 2):
            if _exchange_between(bindings, holding, one, other, level):
                return True
    return False


def _exchange_between(bindings: Bindings, holding: Holding, one: int, other: int, level: int) -> bool:
    here, there = holding.bound[one], holding.bound[other]
    if here == there or not (_holds(bindings, holding, one, there) and _holds(bindings, holding, other, here)):
        return False
    first, second = _changes(bindings, holding, one, there), _changes(bindings, holding, other, here)
    if first is None or second is None:
        return False
    if not _helps(bindings, [a + b for a, b in zip(first, second, strict=True)], level):
        return False
    bindings.put(holding, one, there, holding.used[one])
    bindings.put(holding, other, here, holding.used[other])
    return True


def _holds(bindings: Bindings, holding: Holding, node: int, cells: Sequence[int]) -> bool:
    return total(cells, bindings.levels) >= min(units(holding.used[node]), bindings.size(holding, node))


def _changes(bindings: Bindings, holding: Holding, node: int, cells: Counts) -> list[int] | None:
    """What binding these instead does to each slack; None: there is no room for them."""
    tally, old = bindings.tally, holding.bound[node]
    after = tally.room_after(node, old, cells)
    return tally.changes(tally.rooms[node], after, old, cells) if after >= 0 else None


def _helps(bindings: Bindings, changes: Sequence[int], level: int) -> bool:
    """Whether that makes room at the level, and leaves no other level short of room that was not."""
    return changes[level] > 0 and all(
        change >= 0 or slack + change >= 0 for slack, change in zip(bindings.tally.slack, changes, strict=True)
    )
