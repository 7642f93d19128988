"""Give back: of lots that make room together, each is tried again, the dearest first, and spared if it can be.

Where all pods are equal, whether they fit is a matter of counting: the search is then exact and touches little.
Otherwise every answer comes from the placement itself, and all are tried until nobody more can be spared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from vkgateway.arbiter.cheapest import Ground, Market
from vkgateway.arbiter.fitting import IntArray
from vkgateway.arbiter.lots import Lot
from vkgateway.arbiter.offers import slots
from vkgateway.arbiter.room import Room

Nodes = Mapping[str, str]
"""Pod uids to nodes."""


def dearest_first(market: Market, lots: Sequence[int] | IntArray) -> list[int]:
    """The order in which lots are tried again: the reverse of that in which equals would be called in."""
    found = np.asarray(lots, dtype=np.int64)
    ties = market.ties
    order = np.lexsort((ties.digest[found], ties.rank[found], ties.standing[found], market.price[found]))
    return [int(lot) for lot in found[order][::-1]]


def spare_by_count(ground: Ground, market: Market, lots: IntArray) -> list[int]:
    """Who must go of the lots for the one group of equal pods. No one of those left could stay if the others go."""
    group = ground.groups[0]
    free = ground.free.copy()
    for lot in lots.tolist():
        rows = market.of_lot(lot)
        free[:, rows.node] += rows.freed
    allowed = group.allowed & (ground.domain >= 0)
    fit = np.where(allowed, slots(free, group.ask), 0)
    totals = np.bincount(ground.domain[allowed], weights=fit[allowed], minlength=1)
    left = dict.fromkeys(dearest_first(market, lots))
    core = _cores(market, left)
    for lot in tuple(left):
        if core.get(lot) in left:
            continue
        rows = market.of_lot(lot)
        node = rows.node
        fewer = np.where(allowed[node], slots(free[:, node] - rows.freed, group.ask), 0)
        inside = allowed[node]
        without = totals.copy()
        np.add.at(without, ground.domain[node][inside], (fewer - fit[node])[inside])
        if without.max() >= group.count:
            free[:, node] -= rows.freed
            fit[node], totals = fewer, without
            del left[lot]
    return list(left)


def spare_by_trial(
    room: Room, market: Market, lots: Mapping[int, Lot], place: Callable[[], Nodes | None], nodes: Nodes
) -> tuple[list[int], Nodes]:
    """Who must go of the lots, whose pods the room counts as gone already, and where the gang is then.

    `place` tries the placement and leaves the room as it is; `nodes` is what it says now. Afterwards the room counts
    only those as gone that must go.
    """
    left = dict.fromkeys(dearest_first(market, tuple(lots)))
    core = _cores(market, left)
    used = set(nodes.values())
    for lot in tuple(left):
        if core.get(lot) not in left and not any(pod.node in used for pod in lots[lot].pods):
            _stays(room, lots[lot])
            del left[lot]
    spared = True
    while spared:
        spared = False
        for lot in tuple(left):
            if core.get(lot) in left:
                continue
            mark = room.mark()
            _stays(room, lots[lot])
            found = place()
            if found is None:
                room.undo(mark)
            else:
                nodes, spared = found, True
                del left[lot]
    return list(left), nodes


def _cores(market: Market, lots: Iterable[int]) -> dict[int, int]:
    """For each lot that goes with the core of its gang, which that is: it cannot stay as long as the core goes."""
    return {companion: lot for lot in lots for companion in market.companions.get(lot, ())}


def _stays(room: Room, lot: Lot) -> None:
    for pod in lot.pods:
        if pod.node in room:
            room.take(pod.node, pod.shape)
