"""Give back: of lots that make room together, each is tried again, the dearest first, and spared if it can be.

Where all pods are equal, whether they fit is a matter of counting: the search is then exact and touches little.
Otherwise every answer but a clear no comes from the placement itself, and all are tried until nobody more is spared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from vkgateway.arbiter.cheapest import Ground, Market
from vkgateway.arbiter.evictable import FloatArray
from vkgateway.arbiter.fitting import BoolArray, IntArray
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
    left = dict.fromkeys(dearest_first(market, lots))
    core = _cores(market, left)
    count = _Count(ground, market, left)
    for lot in tuple(left):
        if core.get(lot) not in left and count.could_without(lot):
            count.spare(lot)
            del left[lot]
    return list(left)


class _Count:
    """How many pods of each group fit in each domain if certain lots go: the gang fits nowhere else."""

    def __init__(self, ground: Ground, market: Market, lots: Iterable[int]) -> None:
        self._ground, self._market = ground, market
        self._free = ground.free.copy()
        for lot in lots:
            rows = market.of_lot(lot)
            self._free[:, rows.node] += rows.freed
        self._allowed = [group.allowed & (ground.domain >= 0) for group in ground.groups]
        self._fit = [
            np.where(allowed, slots(self._free, group.ask), 0)
            for group, allowed in zip(ground.groups, self._allowed, strict=True)
        ]
        number = int(ground.domain.max(initial=0)) + 1
        self._totals: list[FloatArray] = [
            np.bincount(ground.domain[allowed], weights=fit[allowed], minlength=number).astype(np.float64)
            for allowed, fit in zip(self._allowed, self._fit, strict=True)
        ]

    def could_without(self, lot: int) -> bool:
        """Whether there is a domain with room for each group by itself if this lot stays."""
        may: BoolArray | None = None
        for group, (_, totals) in zip(self._ground.groups, self._without(lot), strict=True):
            enough = totals >= group.count
            may = enough if may is None else may & enough
        return may is None or bool(may.any())

    def spare(self, lot: int) -> None:
        """This lot stays."""
        rows = self._market.of_lot(lot)
        for number, (fit, totals) in enumerate(self._without(lot)):
            self._fit[number][rows.node] = fit
            self._totals[number] = totals
        self._free[:, rows.node] -= rows.freed

    def _without(self, lot: int) -> Iterator[tuple[IntArray, FloatArray]]:
        """For each group how many fit on the lot's nodes and in all domains."""
        rows = self._market.of_lot(lot)
        node, domain = rows.node, self._ground.domain
        for group, allowed, fit, totals in zip(
            self._ground.groups, self._allowed, self._fit, self._totals, strict=True
        ):
            inside = allowed[node]
            fewer = np.where(inside, slots(self._free[:, node] - rows.freed, group.ask), 0)
            without = totals.copy()
            np.add.at(without, domain[node][inside], (fewer - fit[node])[inside])
            yield fewer, without


def spare_by_trial(
    room: Room,
    ground: Ground,
    market: Market,
    lots: Mapping[int, Lot],
    *,
    place: Callable[[], Nodes | None],
    nodes: Nodes,
    anywhere: bool = False,
) -> tuple[list[int], Nodes]:
    """Who must go of the lots, whose pods the room counts as gone already, and where the gang is then.

    `place` tries the placement and leaves the room as it is; `nodes` is what it says now. Afterwards the room counts
    only those as gone that must go. `anywhere`: lots may also be needed that free nothing on the gang's nodes.
    """
    left = dict.fromkeys(dearest_first(market, tuple(lots)))
    core = _cores(market, left)
    used = set(nodes.values())
    for lot in tuple(left) if not anywhere else ():
        if core.get(lot) not in left and not any(pod.node in used for pod in lots[lot].pods):
            _stays(room, lots[lot])
            del left[lot]
    count = _Count(ground, market, left)
    spared = True
    while spared:
        spared = False
        for lot in tuple(left):
            if core.get(lot) in left or not count.could_without(lot):
                continue
            mark = room.mark()
            _stays(room, lots[lot])
            found = place()
            if found is None:
                room.undo(mark)
            else:
                nodes, spared = found, True
                count.spare(lot)
                del left[lot]
    return list(left), nodes


def _cores(market: Market, lots: Iterable[int]) -> dict[int, int]:
    """For each lot that goes with the core of its gang, which that is: it cannot stay as long as the core goes."""
    return {companion: lot for lot in lots for companion in market.companions.get(lot, ())}


def _stays(room: Room, lot: Lot) -> None:
    for pod in lot.pods:
        if pod.node in room:
            room.take(pod.node, pod.shape)
