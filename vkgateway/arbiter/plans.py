"""Room that is being made: plans of earlier cycles are kept while they hold, new ones are made by eviction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.decisions import Evict
from vkgateway.arbiter.evictable import Evictable
from vkgateway.arbiter.facts import Gang, Plan, Pod, PodState
from vkgateway.arbiter.fitting import BoolArray
from vkgateway.arbiter.inside import Inside, hold_where_placed
from vkgateway.arbiter.ledger import Ledger
from vkgateway.arbiter.line import by_priority
from vkgateway.arbiter.placement import place
from vkgateway.arbiter.standing import Standing
from vkgateway.arbiter.victims import choose


@dataclass(frozen=True, slots=True)
class _Unit:
    """Pods of one gang that go or stay together."""

    gang: str
    pods: tuple[Pod, ...]


def make_room(
    ledger: Ledger, standing: Standing, ask: Ask, evictable: Evictable, *, inside: Inside | None = None
) -> bool:
    """Plan the gang's start where the smallest loss makes room; False: whoever of these goes, it does not fit.

    Counted on is first who leaves anyway, for whatever reason. `inside`: within its tenant's cells.
    """
    told = ledger.told_for(ask.gang.id, standing)
    choice = choose(
        standing.room,
        evictable,
        ask.gang,
        ask.core,
        now=ledger.now,
        over=standing.over(),
        among=among(standing, ask),
        ceiling=inside.ceiling(standing.room) if inside is not None else None,
        coming=[*standing.leaving.values(), *(pod for _, pod in told)],
        placer=inside,
    )
    if choice is None:
        return False
    if inside is not None:
        inside.commit(choice.nodes)
    standing.take(ask.core, choice.nodes)
    standing.leaving.update((pod.uid, pod) for _, pod in told)
    ledger.plan(ask, standing, choice.nodes, inside=inside is not None, evicts=choice.evicts)
    return True


def among(standing: Standing, ask: Ask, nodes: Mapping[str, str] | None = None) -> BoolArray | None:
    """Where the gang's other pods may go: near those that run, or were just given nodes, if it asks for that."""
    level = ask.gang.required_level
    there = [pod.node for pod in ask.running if pod.node in standing.room] or list((nodes or {}).values())
    return standing.room.near(there[0], level) if level and there else None


def place_now(standing: Standing, ask: Ask, pods: Sequence[Pod]) -> dict[str, str] | None:
    """A place for these pods in what is free; it is taken."""
    gang = ask.gang
    return place(
        standing.room,
        pods,
        required_level=gang.required_level,
        preferred_level=gang.preferred_level,
        among=among(standing, ask),
    )


def inside_of(standing: Standing, ask: Ask, pods: Sequence[Pod]) -> Inside:
    """The search for a place of these pods inside their tenant's cells."""
    gang = ask.gang
    return Inside(
        standing.cells,
        ask.tenant,
        pods,
        required_level=gang.required_level,
        preferred_level=gang.preferred_level,
        among=among(standing, ask),
    )


def spare(ledger: Ledger) -> None:
    """Of all who were told to go, or are to be told now, those stay without whom all plans hold; the dearest first."""
    for standing in ledger.standings.values():
        plans = [
            (ledger.asks[gang], plan.nodes)
            for gang, plan in sorted(ledger.plans.items())
            if plan.pool == standing.pool.key
        ]
        lost = {evict.gang: evict.lost for evict in ledger.evicts}
        units = [unit for gang in standing.gangs.values() for unit in _units(standing, gang)]
        units.sort(key=lambda unit: (-lost.get(unit.gang, 0.0), unit.gang, -unit.pods[0].rank, unit.pods[0].uid))
        needed = {pod.uid for unit in _needed(standing, plans, units) for pod in unit.pods}
        for unit in units:
            for pod in unit.pods:
                if pod.uid in needed:
                    standing.leaving[pod.uid] = pod
                else:
                    standing.leaving.pop(pod.uid, None)
    evicts = [left for evict in ledger.evicts if (left := _left(ledger, evict)) is not None]
    new = {uid for evict in evicts for uid in evict.pods}
    ledger.evicts[:] = [*evicts, *_told_for_others(ledger, new)]


def _units(standing: Standing, gang: Gang) -> Iterator[_Unit]:
    """What of the gang leaves by our word: pod by pod where it runs without them; else all of them together."""
    told = [pod for pod in gang.pods if pod.state is PodState.NOTIFIED and pod.pool == standing.pool.key]
    if not any(pod.uid in standing.leaving for pod in told):
        return
    left = [pod for pod in gang.pods if pod.state is PodState.PLACED]
    roles = all(sum(pod.role == role for pod in left) >= number for role, number in gang.role_minimum.items())
    if left and len(left) >= gang.minimum and roles:
        yield from (_Unit(gang.id, (pod,)) for pod in told if pod.uid in standing.leaving)
    else:
        yield _Unit(gang.id, tuple(told))


def _needed(standing: Standing, plans: Sequence[tuple[Ask, Mapping[str, str]]], units: Sequence[_Unit]) -> list[_Unit]:
    """Those without whose leaving the plans do not hold, whose room is taken already; tried in this order."""
    ours = {pod.uid for unit in units for pod in unit.pods}
    mark = standing.room.mark()
    standing.give(pod for uid, pod in standing.leaving.items() if uid not in ours)
    for unit in units:
        standing.give(unit.pods)
    needed = []
    for unit in units:
        before = standing.room.mark()
        standing.take_back(unit.pods)
        if not all(standing.holds(ask.core, nodes) for ask, nodes in plans):
            standing.room.undo(before)
            needed.append(unit)
    standing.room.undo(mark)
    return needed


def _told_for_others(ledger: Ledger, new: Set[str]) -> Iterator[Evict]:
    """Who was told before to go for a gang that needs it no more, and goes at the same time for another one."""
    for standing in ledger.standings.values():
        for gang in standing.gangs.values():
            pods = [
                pod
                for pod in gang.pods
                if pod.uid in standing.leaving
                and pod.state is PodState.NOTIFIED
                and pod.uid not in new
                and pod.evicted_for not in ledger.plans
            ]
            if pods:
                yield Evict(
                    gang=gang.id,
                    pods=tuple(pod.uid for pod in pods),
                    whole=all(pod.state is not PodState.PLACED for pod in gang.pods),
                    makes_room_for=_for_whom(ledger, standing, {pod.node for pod in pods}),
                    deadline=min(pod.deadline for pod in pods),
                    lost=0.0,
                )


def _for_whom(ledger: Ledger, standing: Standing, nodes: Set[str]) -> str:
    """The first gang that has a plan on these nodes."""
    plans = sorted(
        ((gang, plan) for gang, plan in ledger.plans.items() if plan.pool == standing.pool.key),
        key=lambda each: each[0],
    )
    return next((gang for gang, plan in plans if nodes & set(plan.nodes.values())), plans[0][0])


def _left(ledger: Ledger, evict: Evict) -> Evict | None:
    """The eviction without those who can stay, for a gang that still has a plan; None: all of them can stay."""
    leaving = {uid for standing in ledger.standings.values() for uid in standing.leaving}
    pods = tuple(uid for uid in evict.pods if uid in leaving)
    if not pods:
        return None
    if evict.makes_room_for not in ledger.plans:
        standing = next(each for each in ledger.standings.values() if pods[0] in each.leaving)
        nodes = {standing.leaving[uid].node for uid in pods}
        evict = replace(evict, makes_room_for=_for_whom(ledger, standing, nodes))
    return replace(evict, pods=pods, lost=evict.lost * len(pods) / len(evict.pods)) if pods != evict.pods else evict


def keep_plans(ledger: Ledger) -> None:
    """Whoever has a plan starts when it can; the plans of the others are kept, if they still hold."""
    for standing in ledger.standings.values():
        _Keeper(ledger, standing).run()


class _Keeper:
    """The plans for one pool."""

    def __init__(self, ledger: Ledger, standing: Standing) -> None:
        self._ledger = ledger
        self._standing = standing

    def run(self) -> None:
        waiting: list[tuple[Ask, Plan]] = []
        for ask in sorted(self._ledger.waiting(), key=by_priority):
            plan = ask.gang.plan
            if plan is None or not self._hold(ask, plan):
                continue
            waiting.append((ask, plan))
            self._standing.take(ask.core, plan.nodes)
        for ask, plan in self._feasible(waiting):
            # Plans on one node may count on each other's victims: whoever finds it below zero waits for all of them.
            if self._standing.holds(ask.core, plan.nodes):
                self._ledger.start(ask, self._standing, ask.core, plan.nodes, inside=not plan.borrowed)
                continue
            told = self._ledger.told_for(ask.gang.id, self._standing)
            self._standing.leaving.update((pod.uid, pod) for _, pod in told)
            self._ledger.plan(ask, self._standing, plan.nodes, inside=not plan.borrowed)

    def _hold(self, ask: Ask, plan: Plan) -> bool:
        """Whether the plan can be kept as far as nodes, limits and cells go; its cells are held then."""
        standing, pods = self._standing, ask.core
        if plan.pool != standing.pool.key or not standing.usable_by(ask) or plan.nodes.keys() != {p.uid for p in pods}:
            return False
        if not all(
            node in standing.room and standing.room.nodes[standing.room.position(node)].usable
            for node in plan.nodes.values()
        ):
            return False
        if standing.beyond_limit(ask.tenant, pods):
            return False
        if plan.borrowed:
            return True
        placed = [(pod, plan.nodes[pod.uid]) for pod in pods]
        return standing.allows_inside(ask.tenant, pods) and hold_where_placed(
            standing.cells, ask.tenant, standing.pool.unit, placed
        )

    def _feasible(self, waiting: Sequence[tuple[Ask, Plan]]) -> list[tuple[Ask, Plan]]:
        """Those whose room will be there; the others' is let go, the last first."""
        standing, kept = self._standing, list(waiting)
        while kept:
            mark = standing.room.mark()
            standing.give(standing.leaving.values())
            for ask, _ in kept:
                standing.give(pod for _, pod in self._ledger.told_for(ask.gang.id, standing))
            bad = next((each for each in reversed(kept) if not standing.holds(each[0].core, each[1].nodes)), None)
            standing.room.undo(mark)
            if bad is None:
                break
            _let_go(standing, *bad)
            kept.remove(bad)
        return kept


def _let_go(standing: Standing, ask: Ask, plan: Plan) -> None:
    """The plan's room and cells are free again."""
    for pod in ask.core:
        standing.room.give(plan.nodes[pod.uid], pod.shape)
        if not plan.borrowed:
            standing.cells.release(ask.tenant, plan.nodes[pod.uid], pod.shape.amount(standing.pool.unit))


def start_elsewhere(ledger: Ledger) -> None:
    """Whoever has a plan, and could start at once on other nodes than those, does."""
    for gang, plan in sorted(ledger.plans.items()):
        ask, standing = ledger.asks[gang], ledger.standings[plan.pool]
        mark, held = standing.room.mark(), standing.cells.mark()
        _let_go(standing, ask, plan)
        nodes = _elsewhere(standing, ask, plan)
        if nodes is None:
            standing.room.undo(mark)
            standing.cells.undo(held)
        else:
            ledger.start_planned(ask, standing, nodes)


def _elsewhere(standing: Standing, ask: Ask, plan: Plan) -> Mapping[str, str] | None:
    if plan.borrowed:
        return place_now(standing, ask, ask.core)
    inside = inside_of(standing, ask, ask.core)
    nodes = inside(standing.room)
    if nodes is not None:
        inside.commit(nodes)
        standing.take(ask.core, nodes)
    return nodes
