"""What has been decided so far in a cycle, and the standing of each pool with it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.carry import Carry
from vkgateway.arbiter.decisions import Admit, Evict, Promote, Reprieve
from vkgateway.arbiter.facts import NOTIFIED, PLACED, Gang, Plan, Pod, Policy, PoolKey
from vkgateway.arbiter.fitting import BoolArray
from vkgateway.arbiter.late import late
from vkgateway.arbiter.promotion import promoted
from vkgateway.arbiter.standing import Checkpoint as StandingCheckpoint
from vkgateway.arbiter.standing import Standing

_MOMENT = 1e-6
"""Seconds between two plans of one cycle; times since the epoch are not told more finely."""


class Start(NamedTuple):
    """A gang that starts in this cycle, and where."""

    standing: Standing
    nodes: dict[str, str]


class Checkpoint(NamedTuple):
    """What was decided at one moment of a cycle."""

    standings: dict[PoolKey, StandingCheckpoint]
    plans: dict[str, Plan]
    started: dict[str, Start]
    evicts: list[Evict]
    admits: list[Admit]
    inside: dict[str, dict[str, None]]
    booked: int
    freed: bool


class Ledger:
    """A cycle under way."""

    def __init__(self, carry: Carry, policy: Policy, now: float, barred: Collection[str] = ()) -> None:
        """`barred`: gangs that get nothing, and for which nothing is reserved: a start of theirs was withdrawn."""
        self.now = now
        self.barred = barred
        self.policy = policy
        self.gangs: Mapping[str, Gang] = carry.gangs
        self.asks: Mapping[str, Ask] = carry.asks
        self.beyond: Collection[str] = carry.beyond.keys()
        """Gangs of which pods beyond the minimum wait."""
        self.standings: Mapping[PoolKey, Standing] = carry.standings
        unreadable = {**carry.unreadable, **carry.unready} if carry.unready else carry.unreadable
        self.unreadable = [unreadable[name] for name in sorted(unreadable)]
        """Gangs of which some wait, and nothing can be done for them."""
        self.parts: Mapping[str, tuple[str, ...]] = carry.parts
        """The parts of each gang that is handled in parts."""
        self._only_plans = False
        self.pool_of: dict[str, PoolKey] = {}
        """By uid the pools of the pods of such gangs that start in this cycle."""
        self.plans: dict[str, Plan] = {}
        self.started: dict[str, Start] = {}
        self.evicts: list[Evict] = []
        self.freed = False
        """What was kept for somebody is free: the room of who borrows and starts in another pool, or cells."""
        self.inside: dict[str, dict[str, None]] = {}
        """By tenant the gangs that were given something inside its cells."""
        self.booked = 0
        """Grows whenever somebody gets something."""
        self._admits: list[Admit] = []
        self.needy = carry.waiting
        """Gangs that have not what they need to run."""
        self._guaranteed = self.needy.where(~self.needy.low)
        self._planned = self.needy.where(self.needy.planned)
        self.to_borrow: dict[str, list[Ask]] = {}
        """By tenant the gangs that the last cycle planned to borrow."""
        for ask in self._planned:
            if ask.gang.plan is not None and ask.gang.plan.borrowed:
                self.to_borrow.setdefault(ask.tenant, []).append(ask)
        self._made = max((ask.gang.plan.made for ask in self._planned if ask.gang.plan is not None), default=0.0)
        self._told = {key: list(_told(standing)) for key, standing in self.standings.items()}
        self._told_for: dict[tuple[str, PoolKey], list[tuple[Gang, Pod]]] = {}
        for key, told in self._told.items():
            for gang, pod in told:
                self._told_for.setdefault((pod.evicted_for, key), []).append((gang, pod))

    def planned(self) -> list[Ask]:
        """Gangs that the last cycle planned for, that still have not what they need to run, and of which nothing has
        been decided in this one.
        """
        return self._left(self._planned)

    def waiting(self) -> BoolArray:
        """A mask of those of `needy` of which nothing has been decided."""
        return self.needy.others(self.started.keys() | self.plans.keys())

    def has_aged(self, gang: Gang) -> bool:
        """Whether it has waited for so long that it grows no older."""
        return self.now - gang.created >= self.policy.age_cap

    def may_move(self) -> BoolArray:
        """A mask of those of `needy` that have a plan, borrow, and may go to several pools."""
        plans = (name for name, plan in self.plans.items() if plan.borrowed and self._may_move(self.asks[name]))
        return ~self.needy.others(plans)

    @staticmethod
    def _may_move(ask: Ask) -> bool:
        return len(ask.pools) > 1 and ask.gang.part is None

    def next_made(self) -> float:
        """The time of a plan that is made now: later than that of all others, so that they have an order."""
        self._made = max(self.now, self._made + _MOMENT)
        return self._made

    def guaranteed(self) -> list[Ask]:
        """Gangs of the guaranteed band that have not what they need to run, and of which nothing has been decided."""
        return [ask for ask in self._left(self._guaranteed) if ask.gang.id not in self.barred]

    def _left(self, asks: Sequence[Ask]) -> list[Ask]:
        done = self.started.keys() | self.plans.keys()
        return [ask for ask in asks if ask.gang.id not in done]

    def pools(self, ask: Ask) -> Iterator[Standing]:
        """The pools that the gang may use, best liked first."""
        for key in ask.pools:
            standing = self.standings.get(key)
            if standing is not None and standing.usable_by(ask):
                yield standing

    def told(self, standing: Standing) -> Sequence[tuple[Gang, Pod]]:
        """Pods in a pool that were told to go before this cycle, with their gangs."""
        return self._told.get(standing.pool.key, ())

    def told_before(self) -> frozenset[str]:
        """Uids of the pods that were told to go before this cycle."""
        return frozenset(pod.uid for told in self._told.values() for _, pod in told)

    def told_for(self, gang: str, standing: Standing) -> list[tuple[Gang, Pod]]:
        """Those of them that go for this gang (`Gang.whole`)."""
        return self._told_for.get((gang, standing.pool.key), [])

    def ends_late(self, standing: Standing) -> set[str]:
        """Uids of the pods that take longer to end than whoever could be told to go now."""
        slow = late(standing.leaving.values(), 0.0, since=self.now, now=self.now)
        if next(slow, None) is None:
            return set()
        slow = late(standing.leaving.values(), standing.going_takes, since=self.now, now=self.now)
        return {pod.uid for pod in slow}

    def leaving_gangs(self, standing: Standing) -> list[Gang]:
        """Gangs of which pods in a pool were told to go, before or in this cycle."""
        names = {gang.id for gang, _ in self.told(standing)} | {evict.gang for evict in self.evicts}
        return [standing.gangs[name] for name in sorted(names) if name in standing.gangs]

    def start(
        self,
        ask: Ask,
        standing: Standing,
        pods: Sequence[Pod],
        nodes: Mapping[str, str],
        *,
        inside: bool,
        behind: str = "",
        lent: bool = False,
    ) -> None:
        """These pods start now; their room is taken already, and their cells are held if they are inside.

        `behind`: the gang in whose reserved place they start. `lent`: they can be called in for whoever is ahead.
        """
        if self._only_plans:
            self.plan(ask, standing, nodes, inside=inside, made=self.next_made())
            return
        self._book(ask, standing, pods, inside=inside)
        self._admit(ask, standing, pods, nodes, inside=inside, behind=behind, lent=lent)

    def start_planned(self, ask: Ask, standing: Standing, nodes: Mapping[str, str]) -> None:
        """A gang that has a plan starts on other nodes than planned; room and cells are seen to."""
        plan = self.plans.pop(ask.gang.id)
        self._admit(ask, standing, ask.core, nodes, inside=not plan.borrowed)

    def _admit(
        self,
        ask: Ask,
        standing: Standing,
        pods: Sequence[Pod],
        nodes: Mapping[str, str],
        *,
        inside: bool,
        behind: str = "",
        lent: bool = False,
    ) -> None:
        gang = ask.gang
        chosen = {pod.uid: nodes[pod.uid] for pod in pods}
        admit = Admit(gang=gang.id, pool=standing.pool.key, nodes=chosen, borrowed=not inside, behind=behind)
        self._admits.append(admit)
        if gang.part is not None:
            self.pool_of.update(dict.fromkeys(chosen, standing.pool.key))
        before = self.started.get(gang.id)
        self.started[gang.id] = Start(standing, {**before.nodes, **nodes} if before is not None else dict(nodes))
        standing.ends.add_start(gang, pods, nodes, self.now)
        kept = standing.reservation
        if kept is not None and (behind or lent or kept.lets(standing.ends, gang, self.now)):
            for pod in pods:
                kept.will_be_gone(nodes[pod.uid], pod.shape)

    def plan(
        self,
        ask: Ask,
        standing: Standing,
        nodes: Mapping[str, str],
        *,
        inside: bool,
        made: float,
        evicts: Iterable[Evict] = (),
        leaves: int | None = None,
    ) -> None:
        """The gang starts there when those have gone who leave; its room is taken already, its cells are held."""
        self._book(ask, standing, ask.core, inside=inside)
        plan = Plan(pool=standing.pool.key, nodes=dict(nodes), borrowed=not inside, made=made, leaves=leaves)
        self.plans[ask.gang.id] = plan
        for evict in evicts:
            self._evict(standing, evict)
            for other, beside in list(self._beside(evict)):
                self._evict(other, beside)

    def _evict(self, standing: Standing, evict: Evict) -> None:
        pods = standing.told_to_go(evict)
        standing.ends.add_leaving(standing.gangs[evict.gang], pods, evict.deadline)
        self.evicts.append(evict)

    def _beside(self, evict: Evict) -> Iterator[tuple[Standing, Evict]]:
        """Yield the evictions of all else that runs of a gang in several pools, whose part is evicted."""
        gang = self.gangs[evict.gang]
        if gang.part is None or not evict.whole:
            return
        for name in gang.kin:
            for standing in self.standings.values():
                known = standing.gangs.get(name)
                pods = tuple(
                    pod.uid
                    for pod in (known.pods if known is not None else ())
                    if pod.state is PLACED and standing.has(pod) and pod.uid not in standing.leaving
                )
                if pods:
                    yield standing, replace(evict, gang=name, pods=pods, lost=0.0, saved=0.0)

    def unplan(self, ask: Ask) -> None:
        """The gang has no plan any more, it starts in another pool; its room and its cells were let go already."""
        plan = self.plans.pop(ask.gang.id)
        standing = self.standings[plan.pool]
        for pod in ask.core:
            standing.count(ask.tenant, pod, -1)
            if not plan.borrowed:
                standing.within.move_out(ask.tenant, pod)
        self.freed = self.freed or plan.borrowed

    def _book(self, ask: Ask, standing: Standing, pods: Sequence[Pod], *, inside: bool) -> None:
        self.booked += 1
        for each in self.standings.values():
            kept = each.cells_kept.get(ask.tenant)
            if kept is not None and kept.gang is ask.gang:
                del each.cells_kept[ask.tenant]
                self.freed = True
        for pod in pods:
            standing.count(ask.tenant, pod)
        if inside:
            self.inside.setdefault(ask.tenant, {})[ask.gang.id] = None
            standing.mark_inside(ask.tenant, pods, gang=ask.gang.id)

    def admits(self) -> Iterator[Admit]:
        """One for each gang, pool and side of the cells; what was admitted in pieces is put together."""
        together: dict[tuple[str, PoolKey, bool, str], Admit] = {}
        for admit in self._admits:
            key = admit.gang, admit.pool, admit.borrowed, admit.behind
            known = together.get(key)
            together[key] = admit if known is None else replace(admit, nodes={**known.nodes, **admit.nodes})
        yield from together.values()

    def reprieves(self) -> Iterator[Reprieve]:
        """Who was told to go and may stay, because nobody counts on it."""
        again = {uid for evict in self.evicts for uid in evict.pods}
        leaving = {uid for standing in self.standings.values() for uid in standing.leaving}
        by_gang: dict[str, list[str]] = {}
        for told in self._told.values():
            for gang, pod in told:
                if pod.uid not in again and pod.uid not in leaving:
                    by_gang.setdefault(gang.id, []).append(pod.uid)
        for name, pods in sorted(by_gang.items()):
            yield Reprieve(gang=name, pods=tuple(pods))

    def promotes(self) -> Iterator[Promote]:
        """Running pods that borrowed and are inside cells now; not those that are to go."""
        going = {uid for evict in self.evicts for uid in evict.pods}
        for standing in self.standings.values():
            for gang in promoted(standing):
                pods = tuple(
                    pod.uid
                    for pod in gang.pods
                    if pod.state is PLACED and pod.borrowed and standing.is_inside(pod.uid) and pod.uid not in going
                )
                if pods:
                    yield Promote(gang=gang.id, pods=pods)

    # Gangs in several pools

    @contextmanager
    def only_plans(self) -> Iterator[None]:
        """Plan whatever could start meanwhile: whether it starts is decided by the other parts of its gang."""
        self._only_plans = True
        try:
            yield
        finally:
            self._only_plans = False

    def needy_parts(self, gang: Gang) -> list[Ask]:
        """Return the parts of a gang that have not what they need to run; of a whole gang, that gang if it has not."""
        asks = (self.asks.get(name) for name in gang.kin)
        return [ask for ask in asks if ask is not None and ask.core]

    def is_decided(self, ask: Ask) -> bool:
        """Return whether the gang, or part of one, starts or has a plan."""
        return ask.gang.id in self.started or ask.gang.id in self.plans

    def has_plan(self, whole: str) -> bool:
        """Return whether a gang, or any part of it, has a plan."""
        return whole in self.plans or any(name in self.plans for name in self.parts.get(whole, ()))

    def any_part(self, whole: str) -> Gang:
        """Return a gang, or a part of one in several pools: they are of one rank."""
        return self.gangs[self.parts.get(whole, (whole,))[0]]

    def checkpoint(self) -> Checkpoint:
        """Return what is decided now, to go back to it."""
        return Checkpoint(
            {key: standing.checkpoint() for key, standing in self.standings.items()},
            dict(self.plans),
            dict(self.started),
            list(self.evicts),
            list(self._admits),
            {tenant: dict(gangs) for tenant, gangs in self.inside.items()},
            self.booked,
            self.freed,
        )

    def go_back(self, to: Checkpoint) -> None:
        """Undo what was decided since then."""
        for key, standing in self.standings.items():
            standing.go_back(to.standings[key])
        self.plans, self.started, self.inside = dict(to.plans), dict(to.started), to.inside
        self.evicts[:], self._admits[:] = to.evicts, to.admits
        self.booked, self.freed = to.booked, to.freed


def _told(standing: Standing) -> Iterator[tuple[Gang, Pod]]:
    """Pods in a pool that were told to go, by their gangs."""
    for name in sorted(standing.told):
        gang = standing.told[name]
        for pod in gang.pods:
            if pod.state is NOTIFIED and pod.pool == standing.pool.key:
                yield gang, pod
