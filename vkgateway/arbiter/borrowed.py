"""Steps 3 and 4: gangs that borrow, in turn; the first of a pool that does not fit gets a place in the future."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

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
    step = _Step(ledger)
    for ask in in_turn(ledger.waiting(), lambda ask: share(ledger, ask), ledger.policy, ledger.now):
        turn.append(ask)
        pools = [standing for standing in ledger.pools(ask) if not standing.beyond_limit(ask.tenant, ask.core)]
        if not any(step.start(standing, ask) for standing in pools):
            _wait(step, pools, ask)
    return turn


def _wait(step: _Step, pools: Sequence[Standing], ask: Ask) -> None:
    if not any(step.make_room(standing, ask) for standing in pools):
        any(step.reserve(standing, ask) for standing in pools)


class _Step:
    """The step under way. In it room only shrinks: what did not fit for one gang is not tried for its equals."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._failed: set[Hashable] = set()

    def start(self, standing: Standing, ask: Ask) -> bool:
        kept = standing.reservation
        free = (
            kept is None
            or kept.lets(standing.ends, ask.gang, self._ledger.now)
            or kept.may_lend(ask.gang, self._ledger.now)
        )
        return self._once(("start", free), standing, ask, lambda: start_in(self._ledger, standing, ask, ask.core))

    def make_room(self, standing: Standing, ask: Ask) -> bool:
        """Call in surplus and what runs in its reserved place, or wait for what is leaving.

        Only where nothing is kept for somebody ahead.
        """
        told = self._ledger.told_for(ask.gang.id, standing)
        callable_ = standing.callable_for(ask.gang.id)
        if standing.reservation is not None or not (standing.leaving or told or len(callable_)):
            return False
        made = self._once(("room",), standing, ask, lambda: make_room(self._ledger, standing, ask, callable_))
        if made:
            self._failed.clear()
        return made

    def reserve(self, standing: Standing, ask: Ask) -> bool:
        if standing.reservation is not None:
            return False
        aged = self._ledger.now - ask.gang.created >= self._ledger.policy.age_cap
        return self._once(("reserve", aged), standing, ask, lambda: self._reserve(standing, ask))

    def _reserve(self, standing: Standing, ask: Ask) -> bool:
        standing.reservation = _reservation(self._ledger, standing, ask)
        return standing.reservation is not None

    def _once(self, what: Hashable, standing: Standing, ask: Ask, attempt: Callable[[], bool]) -> bool:
        """Try, if it was not tried in vain for an equal gang. Who has others go for it is like nobody else."""
        alone = ask.running or ask.gang.id in standing.behind or self._ledger.told_for(ask.gang.id, standing)
        key: Hashable = (
            what,
            standing.pool.key,
            tuple(pod.shape for pod in ask.core),
            ask.gang.required_level,
            ask.gang.id if alone else "",
        )
        if key in self._failed:
            return False
        done = attempt()
        if not done:
            self._failed.add(key)
        return done


def share(ledger: Ledger, ask: Ask) -> float:
    """The tenant's share in the pool that the gang likes best."""
    standing = next(ledger.pools(ask), None)
    return standing.share(ask.tenant) if standing is not None else 0.0


def start_in(ledger: Ledger, standing: Standing, ask: Ask, pods: Sequence[Pod]) -> bool:
    """Start these pods in what is free and not kept for somebody else, if they all fit."""
    behind, nodes = "", find_behind(ledger, standing, ask, pods)
    kept = standing.reservation
    if nodes is None and kept is not None and kept.may_lend(ask.gang, ledger.now):
        behind, nodes = kept.gang, place_now(standing, ask, pods)
    elif nodes is not None:
        standing.take(pods, nodes)
    if nodes is None:
        return False
    guaranteed = ask.gang.band is Band.GUARANTEED
    inside = guaranteed and standing.move_in(ask.tenant, [(pod, nodes[pod.uid]) for pod in pods])
    ledger.start(ask, standing, pods, nodes, inside=inside, behind=behind)
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


def _reservation(ledger: Ledger, standing: Standing, ask: Ask) -> Reservation | None:
    """A place at the earliest time that is known; without any, only for those who have waited for long."""
    gang = ask.gang
    lent = tuple(pod for pod in standing.callable_for(gang.id).pods() if pod.node in standing.room)
    mark = standing.room.mark()
    standing.give(lent)
    found = earliest(
        standing.room, standing.ends, ask.core, required_level=gang.required_level, among=among(standing, ask)
    )
    standing.room.undo(mark)
    if found is not None:
        return Reservation(gang.id, ask.core, found[1], found[0], lent)
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
    return Reservation(gang.id, ask.core, choice.nodes, None, lent) if choice is not None else None
