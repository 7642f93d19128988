"""Steps 3 and 4: gangs that borrow, in turn; the first of a pool that does not fit gets a place in the future."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.bestpool import best, cost, fit, fits_inside
from vkgateway.arbiter.facts import GUARANTEED, Gang, Plan, Pod, Shape
from vkgateway.arbiter.feasible import impossible
from vkgateway.arbiter.fitting import IntArray
from vkgateway.arbiter.forecast import Future, Reservation
from vkgateway.arbiter.guaranteed import try_inside
from vkgateway.arbiter.ledger import Ledger
from vkgateway.arbiter.limitline import crowds_out, keep_limit
from vkgateway.arbiter.plans import Making, among, carry_out, find_room, let_go, place_lent
from vkgateway.arbiter.reserve import leaves_reserve, reserve_for
from vkgateway.arbiter.shares import Shares
from vkgateway.arbiter.standing import Standing
from vkgateway.arbiter.together import try_together, undecided_parts
from vkgateway.arbiter.turn import Turn
from vkgateway.arbiter.victims import choose

T = TypeVar("T")


def start_borrowed(ledger: Ledger) -> IntArray:
    """Start whoever fits into what is free; returns all, as indices of `Ledger.needy`, in their turn.

    Whoever has a plan has its turn, too, where another pool may have room for it first.
    """
    left = np.flatnonzero(ledger.waiting() | ledger.may_move())
    turn = Turn(ledger.needy, left, Shares(ledger), ledger.policy, ledger.now)
    step, booked = _Step(ledger, turn), ledger.booked
    while (ask := turn.next(booked=ledger.booked != booked)) is not None:
        booked, plan = ledger.booked, ledger.plans.get(ask.gang.id)
        if ask.gang.id in ledger.barred:
            continue
        if ask.gang.part is not None:
            step.try_parts(ask)
        elif plan is None:
            step.try_all(ask)
        else:
            step.try_others(ask, plan)
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
    shares = Shares(ledger, _borrowing(ledger))
    keys = {ask.tenant: (shares.of(ask), ask.gang.created, ask.tenant) for ask in first}
    behind = np.isin(needy.tenant[firsts], needy.tenant[left[np.isin(needy.kind[left], list(refused))]])
    tenants = {ask.tenant for ask, is_behind in zip(first, behind.tolist(), strict=True) if is_behind}
    holders = [ledger.asks[each.gang].tenant for each in kept]
    last = max(keys[tenant] for tenant in holders)
    return any(keys[tenant] < last for tenant in tenants if tenant not in holders)


def _borrowing(ledger: Ledger) -> Iterator[tuple[Gang, Pod]]:
    """Pods that start in this cycle and borrow, with their gangs."""
    for admit in ledger.admits():
        if admit.borrowed:
            gang = ledger.gangs[admit.gang]
            yield from ((gang, pod) for pod in gang.pods if pod.uid in admit.nodes)


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
        pools = list(self._open(ask))
        if self.start(pools, ask):
            return
        if self.make_room(pools, ask):
            self._hope_again()
        elif not self.reserve(pools, ask):
            if not pools:
                keep_limit(self._ledger, self._pools(ask), ask)
            if not self._alone(ask):
                self._turn.give_up()

    def try_parts(self, ask: Ask) -> None:
        """Start or plan all parts of a gang, or reserve places for them; nothing, where another part was tried."""
        parts = undecided_parts(self._ledger, ask)
        equals = ask.tenant, tuple(part.kind for part in parts)
        if self._ledger.is_decided(ask) or not parts:
            return
        if equals not in self._failed:
            if self._together(parts):
                if any(part.gang.id in self._ledger.plans for part in parts):
                    # A part inside its guarantee counts on pods that leave; gangs whose turn has passed may, too.
                    self._ledger.freed = True
                    self._hope_again()
                return
            self._failed.add(equals)
            self._reserve_parts(parts)
        if not any(self._alone(part) for part in parts):
            self._turn.give_up()

    def _together(self, parts: Sequence[Ask]) -> bool:
        """Start or plan all parts, inside guarantees where that is possible; else beside what is left of them.

        The nodes on which one part is inside its guarantee may be the only ones for another part.
        """
        ways = (self._inside_or_borrow, self._borrow) if parts[0].gang.band is GUARANTEED else (self._borrow,)
        return any(try_together(self._ledger, parts, way) is None for way in ways)

    def _inside_or_borrow(self, pools: Sequence[Standing], ask: Ask) -> bool:
        return try_inside(self._ledger, pools, ask) or self._borrow(pools, ask)

    def _borrow(self, pools: Sequence[Standing], ask: Ask) -> bool:
        there = {standing.pool.key for standing in pools}
        allowed = [standing for standing in self._open(ask) if standing.pool.key in there]
        return self.start(allowed, ask) or self.make_room(allowed, ask)

    def _reserve_parts(self, parts: Sequence[Ask]) -> None:
        """Reserve a place for each part that does not fit, and for the others what they need when these can start."""
        pools = {part.gang.id: list(self._open(part)) for part in parts}
        for part in parts:
            if not pools[part.gang.id]:
                keep_limit(self._ledger, self._pools(part), part)
        if not all(pools.values()):
            return
        free = {part.gang.id: self._free(part, pools[part.gang.id]) for part in parts}
        short = [part for part in parts if free[part.gang.id] is None]
        found = {part.gang.id: self._first_reservation(part, pools[part.gang.id]) for part in short}
        aged = self._ledger.has_aged(parts[0].gang)
        if not short or not (aged or all(found.values())):
            return
        starts = [each[1].start if each is not None else None for each in found.values()]
        known = [start for start in starts if start is not None]
        last = max(known) if len(known) == len(starts) else None
        for part in parts:
            place = free[part.gang.id]
            if place is not None:
                standing, nodes = place
                found[part.gang.id] = standing, Reservation.of(part.gang, part.core, nodes, last, ends=standing.ends)
        for each in found.values():
            if each is not None and each[0].reservation is None:
                each[0].reservation = each[1]

    def _free(self, part: Ask, pools: Sequence[Standing]) -> tuple[Standing, dict[str, str]] | None:
        """Return where a part fits now, beside what is reserved."""
        for standing in pools:
            nodes = find_behind(self._ledger, standing, part, part.core)
            if nodes is not None:
                return standing, nodes
        return None

    def _first_reservation(self, part: Ask, pools: Sequence[Standing]) -> tuple[Standing, Reservation] | None:
        found = [(each, kept) for each in pools if (kept := self._reservation(each, part)) is not None]
        return best(found, _start_of) if found else None

    def try_others(self, ask: Ask, plan: Plan) -> None:
        """Start whoever has a plan in another pool that has room for good; nobody goes for it then."""
        pools = (standing for standing in self._open(ask) if standing.pool.key != plan.pool)
        places = [each for each in self._places(pools, ask) if not each[1].behind]
        if not places:
            return
        let_go(self._ledger.standings[plan.pool], ask, plan)
        self._ledger.unplan(ask)
        self._start_at_best(places, ask)
        self._hope_again()

    def _hope_again(self) -> None:
        """There is more room than before."""
        self._failed.clear()
        self._turn.hope_again()

    def _open(self, ask: Ask) -> Iterator[Standing]:
        """Those of its pools where no limit holds it up."""
        for standing in self._pools(ask):
            beyond = standing.beyond_limit(ask.tenant, ask.core)
            if not beyond and not crowds_out(self._ledger, standing, ask, ask.core):
                yield standing

    def _pools(self, ask: Ask) -> list[Standing]:
        """The pools that it may use, without those where it fits nowhere, whoever goes."""
        equals = ask.tenant, ask.kind
        found = self._possible.get(equals)
        if found is None:
            found = [standing for standing in self._ledger.pools(ask) if not impossible(standing, ask)]
            self._possible[equals] = found
        return found

    def _alone(self, ask: Ask) -> bool:
        """Whether it is like nobody else: some of it is there, or others go for it."""
        return any(self._alone_in(standing, ask) for standing in self._ledger.pools(ask))

    def _alone_in(self, standing: Standing, ask: Ask) -> bool:
        name = ask.gang.whole
        return bool(ask.there) or name in standing.behind or bool(self._ledger.told_for(name, standing))

    def start(self, pools: Sequence[Standing], ask: Ask) -> bool:
        """Where it fits best into what is free."""
        if len(pools) == 1:
            place = self._place(pools[0], ask)
            if place is not None:
                _start_at(self._ledger, pools[0], ask, ask.core, place)
            return place is not None
        places = list(self._places(pools, ask))
        if places:
            self._start_at_best(places, ask)
        return bool(places)

    def _start_at_best(self, places: Sequence[tuple[Standing, Place]], ask: Ask) -> None:
        standing, place = best(places, lambda each: _rank(each[0], ask, each[1]))
        standing.take(ask.core, place.nodes)
        _start_at(self._ledger, standing, ask, ask.core, place)

    def _places(self, pools: Iterable[Standing], ask: Ask) -> Iterator[tuple[Standing, Place]]:
        """A place in each pool that has one; all rooms are left as they were."""
        for standing in pools:
            mark = standing.room.mark()
            place = self._place(standing, ask)
            if place is not None:
                standing.room.undo(mark)
                yield standing, place

    def _place(self, standing: Standing, ask: Ask) -> Place | None:
        kept = standing.reservation
        free = (
            kept is None
            or kept.lets(standing.ends, ask.gang, self._ledger.now)
            or kept.may_lend(ask.gang, self._ledger.now)
        )
        return self._once(("start", free), standing, ask, lambda: _take(self._ledger, standing, ask, ask.core))

    def make_room(self, pools: Sequence[Standing], ask: Ask) -> bool:
        """Call in surplus and what runs in its reserved place, or wait for what is leaving, where that costs least."""
        found = [(standing, making) for standing in pools if (making := self._making(standing, ask)) is not None]
        if not found:
            return False
        standing, making = best(found, lambda each: cost(each[0], ask, each[1], self._ledger.now))
        carry_out(self._ledger, standing, ask, making)
        return True

    def _making(self, standing: Standing, ask: Ask) -> Making | None:
        """Only where nothing is kept for somebody ahead."""
        if standing.reservation is not None:
            return None
        callable_ = standing.callable_for(ask.gang.whole)
        if not (standing.leaving or self._ledger.told_for(ask.gang.whole, standing) or len(callable_)):
            return None
        return self._once(("room",), standing, ask, lambda: find_room(self._ledger, standing, ask, callable_))

    def reserve(self, pools: Sequence[Standing], ask: Ask) -> bool:
        """Keep a place where it can start first."""
        found = self._first_reservation(ask, pools)
        if found is None:
            return False
        standing, kept = found
        standing.reservation = kept
        return True

    def _reservation(self, standing: Standing, ask: Ask) -> Reservation | None:
        if standing.reservation is not None:
            return None
        what = "reserve", self._ledger.has_aged(ask.gang)
        return self._once(what, standing, ask, lambda: _reservation(self._ledger, standing, ask))

    def _once(self, what: Hashable, standing: Standing, ask: Ask, attempt: Callable[[], T | None]) -> T | None:
        """Try, if it was not tried in vain for an equal gang. Who has others go for it is like nobody else."""
        if ask.gang.part is not None:
            return attempt()  # What is free for it may be another part's in the next attempt.
        key: Hashable = what, standing.pool.key, ask.kind
        if key in self._failed and not self._alone_in(standing, ask):
            return None
        found = attempt()
        if found is None and not self._alone_in(standing, ask):
            self._failed.add(key)
        return found


def _start_of(found: tuple[Standing, Reservation]) -> float:
    start = found[1].start
    return math.inf if start is None else start


class Place(NamedTuple):
    """Where pods can start now, and the gang in whose reserved place that is, if it is in one."""

    nodes: dict[str, str]
    behind: str = ""


def _take(ledger: Ledger, standing: Standing, ask: Ask, pods: Sequence[Pod]) -> Place | None:
    """A place for all these pods in what is free and not kept for somebody else; it is taken."""
    nodes = _take_behind(ledger, standing, ask, pods)
    if nodes is not None:
        return Place(nodes)
    kept = standing.reservation
    if kept is not None and ask.gang.part is None and kept.may_lend(ask.gang, ledger.now):
        nodes = _place(standing, ask, pods)
        if nodes is not None:
            return Place(nodes, ledger.gangs[kept.gang].whole)
    return None


def _start_at(ledger: Ledger, standing: Standing, ask: Ask, pods: Sequence[Pod], place: Place) -> None:
    """Start these pods where a place was taken."""
    nodes, guaranteed = place.nodes, ask.gang.band is GUARANTEED
    inside = guaranteed and standing.move_in(ask.gang, [(pod, nodes[pod.uid]) for pod in pods])
    ledger.start(ask, standing, pods, nodes, inside=inside, behind=place.behind)


def _rank(standing: Standing, ask: Ask, place: Place) -> tuple[bool, bool, int, int]:
    """The smaller the better: inside its guarantee, not in a place from which it is sent away, and the best fit."""
    return not fits_inside(standing, ask, place.nodes), bool(place.behind), *fit(standing.room, ask.core, place.nodes)


def find_behind(ledger: Ledger, standing: Standing, ask: Ask, pods: Sequence[Pod]) -> dict[str, str] | None:
    """A place that takes nothing from the reservation; the room is left as it was."""
    mark = standing.room.mark()
    nodes = _take_behind(ledger, standing, ask, pods)
    standing.room.undo(mark)
    return nodes


def _take_behind(ledger: Ledger, standing: Standing, ask: Ask, pods: Sequence[Pod]) -> dict[str, str] | None:
    """The same, and it is taken."""
    mark, kept = standing.room.mark(), standing.reservation
    nodes = _place(standing, ask, pods)
    # A part of a gang may have to wait for another part, and then does not end as soon.
    lets = kept is None or (ask.gang.part is None and kept.lets(standing.ends, ask.gang, ledger.now))
    if nodes is not None and lets:
        return nodes
    standing.room.undo(mark)
    if nodes is None or kept is None:
        return None
    kept.narrow(standing.room)
    nodes = _place(standing, ask, pods)
    standing.room.undo(mark)
    if nodes is None:
        kept.refused.add(ask.kind)
    else:
        standing.take(pods, nodes)
    return nodes


def _place(standing: Standing, ask: Ask, pods: Sequence[Pod]) -> dict[str, str] | None:
    """Return a place in what is free beside the pool's reserve, or where the gang is inside its guarantee; take it.

    Room that a reservation needs, and that is taken for it meanwhile, is not idle: or later gangs would use up what
    the first one must leave, again and again.
    """
    mark = standing.room.mark()
    nodes = place_lent(standing, ask, pods)
    if nodes is None or leaves_reserve(standing, pods) or (pods is ask.core and fits_inside(standing, ask, nodes)):
        return nodes
    standing.room.undo(mark)
    return None


def _reservation(ledger: Ledger, standing: Standing, ask: Ask) -> Reservation | None:
    """A place at the earliest time that is known; without any, only for those who have waited for long."""
    gang = ask.gang
    lent = tuple(pod for pod in standing.callable_for(gang.whole).pods() if pod.node in standing.room)
    mark = standing.room.mark()
    standing.give(lent)
    leaves, near = reserve_for(standing, ask.core), among(standing, ask)
    future = Future(standing.room, standing.ends, ledger.now, leaves=leaves)
    start = future.earliest(ask.core, required_level=gang.required_level, among=near)
    places = None
    if start is not None:
        places = future.place(ask.core, start, required_level=gang.required_level, among=near)
    standing.room.undo(mark)
    if places is not None:
        return _kept(standing, ask, places, start, lent)
    if not ledger.has_aged(gang):
        return None
    nodes = _after_victims(ledger, standing, ask) or _after_victims(
        ledger, standing, ask, also=_planned(ledger, standing)
    )
    return _kept(standing, ask, nodes, None, lent) if nodes is not None else None


def _after_victims(
    ledger: Ledger, standing: Standing, ask: Ask, *, also: Iterable[tuple[str, Shape]] = ()
) -> Mapping[str, str] | None:
    """Return where the gang fits once the cheapest of what may be evicted, and `also` nodes and shapes, have gone."""
    mark, slow = standing.room.mark(), ledger.ends_late(standing)
    for node, shape in also:
        standing.room.give(node, shape)
    choice = choose(
        standing.room,
        standing.evictable,
        ask.gang,
        ask.core,
        now=ledger.now,
        over=standing.over(),
        among=among(standing, ask),
        coming=[pod for uid, pod in standing.leaving.items() if uid not in slow],
        leaves=reserve_for(standing, ask.core),
    )
    standing.room.undo(mark)
    return choice.nodes if choice is not None else None


def _planned(ledger: Ledger, standing: Standing) -> Iterator[tuple[str, Shape]]:
    """Yield where gangs are to start that borrow: they will end, too."""
    for name, plan in ledger.plans.items():
        if plan.pool == standing.pool.key and plan.borrowed:
            yield from ((plan.nodes[pod.uid], pod.shape) for pod in ledger.asks[name].core)


def _kept(
    standing: Standing, ask: Ask, nodes: Mapping[str, str], start: float | None, lent: Iterable[Pod]
) -> Reservation:
    reservation = Reservation.of(ask.gang, ask.core, nodes, start, ends=standing.ends)
    for pod in lent:
        end = standing.ends.of(pod.uid)
        if start is None or end is None or end > start:
            reservation.will_be_gone(pod.node, pod.shape)
    return reservation
