"""Steps 3 and 4: gangs that borrow, in turn; the first of a pool that does not fit gets a place in the future."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.facts import GUARANTEED, Pod
from vkgateway.arbiter.feasible import impossible
from vkgateway.arbiter.fitting import IntArray
from vkgateway.arbiter.forecast import Reservation, earliest
from vkgateway.arbiter.ledger import Ledger
from vkgateway.arbiter.plans import among, make_room, place_now
from vkgateway.arbiter.standing import Standing
from vkgateway.arbiter.turn import Turn
from vkgateway.arbiter.victims import choose


def start_borrowed(ledger: Ledger) -> IntArray:
    """Start whoever fits into what is free; returns all, as indices of `Ledger.needy`, in their turn."""
    left = np.flatnonzero(ledger.waiting())
    turn = Turn(ledger.needy, left, partial(share, ledger), ledger.policy, ledger.now)
    step, booked = _Step(ledger, turn), ledger.booked
    while (ask := turn.next(booked=ledger.booked != booked)) is not None:
        booked = ledger.booked
        step.try_all(ask)
    return turn.order()


def overtaken(ledger: Ledger, turn: IntArray) -> bool:
    """Whether somebody who was refused for a kept place would be asked first, as shares are after all that started."""
    kept = [standing.reservation for standing in ledger.standings.values() if standing.reservation is not None]
    refused = {kind for each in kept for kind in each.refused}
    if not refused:
        return False
    left = turn[ledger.waiting()[turn]]
    needy = ledger.needy
    firsts = left[np.unique(needy.tenant[left], return_index=True)[1]]
    first = [needy.asks[index] for index in firsts.tolist()]
    keys = {ask.tenant: (share(ledger, ask), ask.gang.created, ask.tenant) for ask in first}
    behind = np.isin(needy.tenant[firsts], needy.tenant[left[np.isin(needy.kind[left], list(refused))]])
    tenants = {ask.tenant for ask, is_behind in zip(first, behind.tolist(), strict=True) if is_behind}
    holders = [ledger.asks[each.gang].tenant for each in kept]
    last = max(keys[tenant] for tenant in holders)
    return any(keys[tenant] < last for tenant in tenants if tenant not in holders)


class _Step:
    """The step under way. In it room only shrinks: what did not fit for one gang is not tried for its equals."""

    def __init__(self, ledger: Ledger, turn: Turn) -> None:
        self._ledger = ledger
        self._turn = turn
        self._failed: set[Hashable] = set()
        self._possible: dict[tuple[str, int], list[Standing]] = {}
        """By tenant and kind the pools where it is not certain that they fit nowhere."""

    def try_all(self, ask: Ask) -> None:
        """Start it, or make room for it, or keep a place for it."""
        pools = [
            standing
            for standing in self._pools(ask)
            if not standing.beyond_limit(ask.tenant, ask.core) and not crowds_out(self._ledger, standing, ask, ask.core)
        ]
        for standing in pools:
            if self.start(standing, ask):
                return
        if any(self.make_room(standing, ask) for standing in pools):
            self._failed.clear()
            self._turn.hope_again()
        elif not any(self.reserve(standing, ask) for standing in pools) and not self._alone(ask):
            self._turn.give_up()

    def _pools(self, ask: Ask) -> list[Standing]:
        """The pools that it may use, without those where it fits nowhere, whoever goes."""
        equals = ask.tenant, ask.kind
        found = self._possible.get(equals)
        if found is None:
            found = [standing for standing in self._ledger.pools(ask) if not impossible(standing, ask)]
            self._possible[equals] = found
        return found

    def _aged(self, ask: Ask) -> bool:
        return self._ledger.now - ask.gang.created >= self._ledger.policy.age_cap

    def _alone(self, ask: Ask) -> bool:
        """Whether it is like nobody else: some of it runs, or others go for it."""
        return any(self._alone_in(standing, ask) for standing in self._ledger.pools(ask))

    def _alone_in(self, standing: Standing, ask: Ask) -> bool:
        name = ask.gang.id
        return bool(ask.running) or name in standing.behind or bool(self._ledger.told_for(name, standing))

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
        if standing.reservation is not None:
            return False
        callable_ = standing.callable_for(ask.gang.id)
        if not (standing.leaving or self._ledger.told_for(ask.gang.id, standing) or len(callable_)):
            return False
        return self._once(("room",), standing, ask, lambda: make_room(self._ledger, standing, ask, callable_))

    def reserve(self, standing: Standing, ask: Ask) -> bool:
        if standing.reservation is not None:
            return False
        return self._once(("reserve", self._aged(ask)), standing, ask, lambda: self._reserve(standing, ask))

    def _reserve(self, standing: Standing, ask: Ask) -> bool:
        standing.reservation = _reservation(self._ledger, standing, ask)
        return standing.reservation is not None

    def _once(self, what: Hashable, standing: Standing, ask: Ask, attempt: Callable[[], bool]) -> bool:
        """Try, if it was not tried in vain for an equal gang. Who has others go for it is like nobody else."""
        key: Hashable = what, standing.pool.key, ask.kind
        if key in self._failed and not self._alone_in(standing, ask):
            return False
        done = attempt()
        if not done and not self._alone_in(standing, ask):
            self._failed.add(key)
        return done


def share(ledger: Ledger, ask: Ask) -> float:
    """The tenant's share in the pool that the gang likes best."""
    for key in ask.pools:
        standing = ledger.standings.get(key)
        if standing is not None and standing.usable_by(ask):
            return standing.share(ask.tenant)
    return 0.0


def crowds_out(ledger: Ledger, standing: Standing, ask: Ask, pods: Sequence[Pod]) -> bool:
    """Whether these pods would use up what their tenant's limit leaves for its own gang for which a place is kept."""
    kept = standing.reservation
    ahead = ledger.asks.get(kept.gang) if kept is not None else None
    if kept is None or ahead is None or ahead is ask or ahead.tenant != ask.tenant:
        return False
    if kept.lets(standing.ends, ask.gang, ledger.now):
        return False
    return bool(standing.beyond_limit(ask.tenant, [*ahead.core, *pods]))


def start_in(ledger: Ledger, standing: Standing, ask: Ask, pods: Sequence[Pod]) -> bool:
    """Start these pods in what is free and not kept for somebody else, if they all fit."""
    behind, nodes = "", _take_behind(ledger, standing, ask, pods)
    kept = standing.reservation
    if nodes is None and kept is not None and kept.may_lend(ask.gang, ledger.now):
        behind, nodes = kept.gang, place_now(standing, ask, pods)
    if nodes is None:
        return False
    guaranteed = ask.gang.band is GUARANTEED
    inside = guaranteed and standing.move_in(ask.tenant, [(pod, nodes[pod.uid]) for pod in pods], gang=ask.gang.id)
    ledger.start(ask, standing, pods, nodes, inside=inside, behind=behind)
    return True


def find_behind(ledger: Ledger, standing: Standing, ask: Ask, pods: Sequence[Pod]) -> dict[str, str] | None:
    """A place that takes nothing from the reservation; the room is left as it was."""
    mark = standing.room.mark()
    nodes = _take_behind(ledger, standing, ask, pods)
    standing.room.undo(mark)
    return nodes


def _take_behind(ledger: Ledger, standing: Standing, ask: Ask, pods: Sequence[Pod]) -> dict[str, str] | None:
    """The same, and it is taken."""
    mark, kept = standing.room.mark(), standing.reservation
    nodes = place_now(standing, ask, pods)
    if nodes is not None and (kept is None or kept.lets(standing.ends, ask.gang, ledger.now)):
        return nodes
    standing.room.undo(mark)
    if nodes is None or kept is None:
        return None
    kept.narrow(standing.room)
    nodes = place_now(standing, ask, pods)
    standing.room.undo(mark)
    if nodes is None:
        kept.refused.add(ask.kind)
    else:
        standing.take(pods, nodes)
    return nodes


def _reservation(ledger: Ledger, standing: Standing, ask: Ask) -> Reservation | None:
    """A place at the earliest time that is known; without any, only for those who have waited for long."""
    gang = ask.gang
    lent = tuple(pod for pod in standing.callable_for(gang.id).pods() if pod.node in standing.room)
    mark = standing.room.mark()
    standing.give(lent)
    found = earliest(
        standing.room,
        standing.ends,
        ask.core,
        now=ledger.now,
        required_level=gang.required_level,
        among=among(standing, ask),
    )
    standing.room.undo(mark)
    if found is not None:
        return _kept(standing, ask, found[1], found[0], lent)
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
    return _kept(standing, ask, choice.nodes, None, lent) if choice is not None else None


def _kept(
    standing: Standing, ask: Ask, nodes: Mapping[str, str], start: float | None, lent: Iterable[Pod]
) -> Reservation:
    reservation = Reservation.of(ask.gang, ask.core, nodes, start, ends=standing.ends)
    for pod in lent:
        end = standing.ends.of(pod.uid)
        if start is None or end is None or end > start:
            reservation.will_be_gone(pod.node, pod.shape)
    return reservation
