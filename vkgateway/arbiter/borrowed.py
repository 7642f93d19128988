"""Steps 3 and 4: gangs that borrow, in turn; the first of a pool that does not fit gets a place in the future."""

from __future__ import annotations

from collections.abc import Sequence

from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.facts import Band, Pod
from vkgateway.arbiter.forecast import Reservation, earliest
from vkgateway.arbiter.ledger import Ledger
from vkgateway.arbiter.line import in_turn
from vkgateway.arbiter.plans import among, make_room, place_now
from vkgateway.arbiter.standing import Standing
from vkgateway.arbiter.victims import choose


def start_borrowed(ledger: Ledger) -> list[Ask]:
    """Start whoever fits into what is free; returns all that were asked, in their turn."""
    turn = []
    for ask in in_turn(ledger.waiting(), lambda ask: share(ledger, ask), ledger.policy, ledger.now):
        turn.append(ask)
        pools = [standing for standing in ledger.pools(ask) if not standing.beyond_limit(ask.tenant, ask.core)]
        if any(start_in(ledger, standing, ask, ask.core) for standing in pools):
            continue
        if any(
            standing.reservation is None and make_room(ledger, standing, ask, standing.surplus) for standing in pools
        ):
            continue
        for standing in pools:
            if standing.reservation is None:
                standing.reservation = _reserve(ledger, standing, ask)
                if standing.reservation is not None:
                    break
    return turn


def share(ledger: Ledger, ask: Ask) -> float:
    """The tenant's share in the pool that the gang likes best."""
    standing = next(ledger.pools(ask), None)
    return standing.share(ask.tenant) if standing is not None else 0.0


def start_in(ledger: Ledger, standing: Standing, ask: Ask, pods: Sequence[Pod]) -> bool:
    """Start these pods in what is free and not kept for somebody else, if they all fit."""
    nodes = find_behind(ledger, standing, ask, pods)
    if nodes is None:
        return False
    standing.take(pods, nodes)
    guaranteed = ask.gang.band is Band.GUARANTEED
    inside = guaranteed and standing.move_in(ask.tenant, [(pod, nodes[pod.uid]) for pod in pods])
    ledger.start(ask, standing, pods, nodes, inside=inside)
    return True


def find_behind(ledger: Ledger, standing: Standing, ask: Ask, pods: Sequence[Pod]) -> dict[str, str] | None:
    """A place that takes nothing from the reservation; the room is left as it was."""
    mark, kept = standing.room.mark(), standing.reservation
    nodes = place_now(standing, ask, pods)
    standing.room.undo(mark)
    if nodes is None or kept is None or kept.lets(standing.ends, ask.gang, ledger.now):
        return nodes
    kept.narrow(standing.room, standing.ends)
    nodes = place_now(standing, ask, pods)
    standing.room.undo(mark)
    return nodes


def _reserve(ledger: Ledger, standing: Standing, ask: Ask) -> Reservation | None:
    """A place at the earliest time that is known; without any, only for those who have waited for long."""
    gang = ask.gang
    found = earliest(
        standing.room, standing.ends, ask.core, required_level=gang.required_level, among=among(standing, ask)
    )
    if found is not None:
        return Reservation(gang.id, ask.core, found[1], found[0])
    if ledger.now - gang.created < ledger.policy.age_cap:
        return None
    choice = choose(
        standing.room,
        standing.evictable,
        gang,
        ask.core,
        now=ledger.now,
        over=standing.over(),
        among=among(standing, ask),
        coming=standing.leaving.values(),
    )
    return Reservation(gang.id, ask.core, choice.nodes, None) if choice is not None else None
