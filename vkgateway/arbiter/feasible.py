"""Whether a gang could ever start in a pool: asked of the pool as if it were empty, and kept by kind."""

from __future__ import annotations

from collections.abc import Callable

from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.placement import largest, place
from vkgateway.arbiter.plans import among
from vkgateway.arbiter.standing import Standing


def feasible(standing: Standing, ask: Ask) -> bool:
    """Whether the gang fits into the pool if all else is gone and all nodes can be used."""
    return bool(_kept("fits", standing, ask, _fits_empty))


def impossible(standing: Standing, ask: Ask) -> bool:
    """Whether it is certain that the gang fits nowhere, whoever goes: its pods are equal, and too many or too large.

    Where they are not, the search for a place may find one in a fuller pool that it misses in an emptier one.
    """
    return not ask.there and bool(_kept("never", standing, ask, _is_impossible))


def largest_ever(standing: Standing, ask: Ask) -> int:
    """How many of the gang's core would fit into the empty pool."""
    return _kept("most", standing, ask, _most_empty)


def _kept(what: str, standing: Standing, ask: Ask, found: Callable[[Standing, Ask], int]) -> int:
    if ask.there:
        return found(standing, ask)
    known = standing.ever.get((what, ask.kind))
    if known is None:
        known = standing.ever[what, ask.kind] = found(standing, ask)
    return known


def _is_impossible(standing: Standing, ask: Ask) -> bool:
    first = ask.core[0].shape
    return all(pod.shape == first for pod in ask.core) and not feasible(standing, ask)


def _fits_empty(standing: Standing, ask: Ask) -> bool:
    room, level = standing.empty, ask.gang.required_level
    mark = room.mark()
    found = place(room, ask.core, required_level=level, among=among(standing, ask))
    room.undo(mark)
    return found is not None


def _most_empty(standing: Standing, ask: Ask) -> int:
    level = ask.gang.required_level
    return largest(standing.empty, ask.core, required_level=level, among=among(standing, ask))
