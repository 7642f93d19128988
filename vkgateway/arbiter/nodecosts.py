"""What it would cost to make room on each node by itself: where a cell had best be bound."""

from __future__ import annotations

from collections.abc import Mapping, Set

import numpy as np

from vkgateway.arbiter.evictable import Evictable, FloatArray
from vkgateway.arbiter.facts import Shape
from vkgateway.arbiter.lots import Stage
from vkgateway.arbiter.market import knows, market, prices
from vkgateway.arbiter.offers import Want, least_costs, slots, usefulness
from vkgateway.arbiter.room import Room


def node_costs(
    room: Room,
    evictable: Evictable,
    shape: Shape,
    count: int,
    *,
    now: float,
    over: Mapping[str, float] | None = None,
    exempt: Set[str] = frozenset(),
) -> FloatArray:
    """GPU-seconds that are lost, by position, if so many pods of the shape are to fit on a node; 0: they do already.

    Infinite where they cannot, whoever goes. Gangs count in full on each of their nodes, and for more than all others
    together inside their minimum run time. On a node with many lots it may be too much by some that could be spared.
    `over` and `exempt` are as for `victims.choose`.
    """
    costs = np.full(len(room), np.inf)
    resources = sorted(name for name, _ in shape.requests)
    if not knows(room, resources):
        return costs
    ask = np.array([shape.amount(name) for name in resources], dtype=np.int64)
    free = np.array([room.amount(name) for name in resources], dtype=np.int64).reshape(len(resources), len(room))
    allowed = room.fitting.mask(shape)
    missing = np.maximum(count - slots(free, ask), 0)
    costs[allowed & (missing == 0)] = 0.0
    found = prices(evictable, now=now, over=over or {}, exempt=exempt)
    offered = market(evictable, room, resources, found, Stage.PROTECTED)
    rows = offered.rows.only((allowed & (missing > 0))[offered.rows.node])
    want = Want(free, ask, count)
    useful = usefulness(rows, want)
    rows, useful = rows.only(useful > 0), useful[useful > 0]
    if len(rows.lot):
        price = offered.price[rows.lot]
        node, least = least_costs(rows, price, useful, ties=offered.ties, want=want, missing=missing)
        costs[node] = least / 1000
    return costs
