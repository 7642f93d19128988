"""Cells in use are filled before a tenant binds its last one of a size, be it by eviction where that costs little."""

from __future__ import annotations

from collections.abc import Iterable

from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.lastcell import rest_of_last_cell
from vkgateway.arbiter.ledger import Ledger
from vkgateway.arbiter.plans import Making, carry_out, find_room, inside_of
from vkgateway.arbiter.standing import Standing

_BLOCKED = 3600.0
"""Seconds for which a gang of unknown run time is taken to keep a cell bound, and a larger gang waiting."""


def fill_cell(ledger: Ledger, pools: Iterable[Standing], ask: Ask) -> bool:
    """Start a gang in what is left of cells that are bound, or plan that; whether it was done.

    Only where it would otherwise bind the last unused cell of the largest size: a gang of that size would wait for as
    long as this one runs. What is evicted may lose no more than the idle rest of that cell is worth for this time.
    """
    for standing in pools:
        rest = rest_of_last_cell(standing, ask)
        if rest <= 0:
            continue
        inside = inside_of(standing, ask, ask.core, filling=True)
        making = find_room(ledger, standing, ask, standing.evictable, inside=inside)
        if making is not None and _lost(making) <= rest * (standing.ends.run(ask.gang) or _BLOCKED):
            carry_out(ledger, standing, ask, making)
            return True
    return False


def _lost(making: Making) -> float:
    return sum(evict.lost for evict in making.evicts)
