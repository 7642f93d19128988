"""What may be called in for a gang at one stage, and at what price: the lots of a pool as the search sees them.

Prices are whole thousandths of a GPU-second (of the pool's unit). On top of what is lost each unit costs a thousandth,
so that of what costs nothing the least is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from vkgateway.arbiter.cheapest import Market
from vkgateway.arbiter.evictable import Evictable, FloatArray, Table
from vkgateway.arbiter.fitting import IntArray
from vkgateway.arbiter.lots import Stage
from vkgateway.arbiter.offers import Rows, Ties
from vkgateway.arbiter.room import Room

_MOST = 1e14
"""No lot costs more: a hundred thousand million GPU-seconds."""

_INFINITE = 10**15
"""What a lot costs on top inside its minimum run time: more than anything that is lost elsewhere."""

_AGE_BITS, _PRIORITY_BITS, _OVER_BITS = 41, 11, 10
"""How finely age (in milliseconds), priority and what a tenant has over its guarantee decide between equals."""


@dataclass(frozen=True, slots=True)
class Prices:
    """By lot, for one moment."""

    stage: IntArray
    """0: it cannot be called in."""
    lost: FloatArray
    """GPU-seconds of work that are lost by it."""
    ties: Ties


def prices(evictable: Evictable, *, now: float, over: Mapping[str, float], exempt: Set[str]) -> Prices:
    """What each lot is worth now. `over`: how far tenants are over their guarantees; `exempt`: gangs left alone."""
    table = evictable.table()
    stage = table.stage * table.alive
    stage[(stage == Stage.WORK) & (table.protected > now)] = Stage.PROTECTED
    for gang in exempt:
        stage[list(evictable.of_gang(gang))] = 0
    lost = np.maximum(table.units * now - table.begun, 0) / 1000 + table.restart
    lost[table.stage == Stage.SURPLUS] = 0
    return Prices(stage, lost, _ties(evictable, table, over))


def market(evictable: Evictable, room: Room, resources: Sequence[str], found: Prices, stage: Stage) -> Market:
    """All lots that may be called in at this stage. `resources`: the lines of what rows free; unknown ones are zero."""
    rows = rows_of(evictable, room, resources)
    open_to = (found.stage > 0) & (found.stage <= stage)
    price = _price(evictable.table(), found, stage)
    return Market(rows.only(open_to[rows.lot]), price, found.ties, evictable.companions)


def rows_of(evictable: Evictable, room: Room, resources: Sequence[str]) -> Rows:
    """What each lot frees on each of the room's nodes. `resources`: the lines of the amounts; unknown ones are zero."""
    table = evictable.table()
    position = evictable.nodes_in(room.names)[table.row_node]
    columns = evictable.resources()
    freed = np.zeros((len(resources), len(position)), dtype=np.int64)
    for line, resource in enumerate(resources):
        if resource in columns and columns[resource] < len(table.row_freed):
            freed[line] = table.row_freed[columns[resource]]
    there = (table.alive[table.row_lot] > 0) & (position >= 0)
    return Rows(table.row_lot, position, freed).only(there)


def knows(room: Room, resources: Sequence[str]) -> bool:
    """Whether the pool's nodes have all of the resources."""
    try:
        for resource in resources:
            room.amount(resource)
    except KeyError:
        return False
    return True


def _price(table: Table, found: Prices, stage: Stage) -> IntArray:
    if stage is Stage.SURPLUS:
        return table.units + 1
    price = np.rint(np.minimum(found.lost * 1000, _MOST)).astype(np.int64) + table.units // 1000 + 1
    price[found.stage == Stage.SURPLUS] = 0
    price[found.stage == Stage.PROTECTED] += _INFINITE
    return price


def _ties(evictable: Evictable, table: Table, over: Mapping[str, float]) -> Ties:
    """The tenant furthest over its guarantee first, then low priority, then the young."""
    far = _ranks([-over.get(tenant, 0.0) for tenant in evictable.tenants()], _OVER_BITS)
    low = _ranks(list(evictable.priorities()), _PRIORITY_BITS)
    most = (1 << _AGE_BITS) - 1
    age = most - np.clip(table.since * 1000, 0, most).astype(np.int64)
    standing = (((far[table.tenant] << _PRIORITY_BITS) + low[table.priority]) << _AGE_BITS) + age
    return Ties(standing, -table.rank, table.digest)


def _ranks(values: Sequence[float], bits: int) -> IntArray:
    """The place of each value among all of them, the smallest 0; the last places are one where bits do not suffice."""
    place = {value: index for index, value in enumerate(sorted(set(values)))}
    return np.array([min(place[value], (1 << bits) - 1) for value in values], dtype=np.int64)
