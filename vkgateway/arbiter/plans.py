"""Room that is being made: plans of earlier cycles are kept while they hold, new ones are made by eviction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """Pods of one gang that go or stay together; `evict`: they have not been told yet."""

    pods: tuple[Pod, ...]
    evict: Evict | None = None


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
    by_loss = sorted(choice.evicts, key=lambda evict: (-evict.lost, evict.gang))
    units = [*(unit for evict in by_loss for unit in _new_units(standing, evict)), *_told_units(told)]
    needed = _needed(standing, [(ask, choice.nodes)], units)
    _note_leaving(standing, needed)
    ledger.plan(ask, standing, choice.nodes, inside=inside is not None, evicts=_evicts(needed))
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


def _new_units(standing: Standing, evict: Evict) -> Iterator[_Unit]:
    pods = {pod.uid: pod for pod in standing.gangs[evict.gang].pods}
    if evict.whole:
        yield _Unit(tuple(pods[uid] for uid in evict.pods), evict)
        return
    for uid in evict.pods:
        yield _Unit((pods[uid],), replace(evict, pods=(uid,), lost=evict.lost / len(evict.pods)))


def _told_units(told: Iterable[tuple[Gang, Pod]]) -> Iterator[_Unit]:
    """Pods that could stay one by one, where their gang runs without them; else all of a gang."""
    by_gang: dict[str, tuple[Gang, list[Pod]]] = {}
    for gang, pod in told:
        by_gang.setdefault(gang.id, (gang, []))[1].append(pod)
    for gang, pods in by_gang.values():
        left = [pod for pod in gang.pods if pod.state is PodState.PLACED]
        roles = all(sum(pod.role == role for pod in left) >= number for role, number in gang.role_minimum.items())
        if left and len(left) >= gang.minimum and roles:
            yield from (_Unit((pod,)) for pod in pods)
        else:
            yield _Unit(tuple(pods))


def _needed(standing: Standing, plans: Sequence[tuple[Ask, Mapping[str, str]]], units: Sequence[_Unit]) -> list[_Unit]:
    """Those without whose leaving the plans do not hold, whose room is taken already; tried in this order."""
    mark = standing.room.mark()
    standing.give(standing.leaving.values())
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


def _note_leaving(standing: Standing, needed: Iterable[_Unit]) -> None:
    standing.leaving.update((pod.uid, pod) for unit in needed for pod in unit.pods)


def _evicts(needed: Iterable[_Unit]) -> Iterator[Evict]:
    """One for each gang."""
    together: dict[str, Evict] = {}
    for unit in needed:
        if (evict := unit.evict) is not None:
            known = together.get(evict.gang)
            if known is not None:
                evict = replace(evict, pods=tuple(sorted((*known.pods, *evict.pods))), lost=known.lost + evict.lost)
            together[evict.gang] = evict
    yield from (together[gang] for gang in sorted(together))


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
            if self._standing.fits(ask.core, plan.nodes):
                self._ledger.start(ask, self._standing, ask.core, plan.nodes, inside=not plan.borrowed)
            else:
                waiting.append((ask, plan))
        for ask, plan in waiting:
            self._standing.take(ask.core, plan.nodes)
        kept = self._started_elsewhere(self._feasible(waiting))
        told = [each for ask, _ in kept for each in self._ledger.told_for(ask.gang.id, self._standing)]
        nodes = [(ask, plan.nodes) for ask, plan in kept]
        _note_leaving(self._standing, _needed(self._standing, nodes, list(_told_units(told))))
        for ask, plan in kept:
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

    def _let_go(self, ask: Ask, plan: Plan) -> None:
        """The plan's room and cells are free again."""
        standing = self._standing
        for pod in ask.core:
            standing.room.give(plan.nodes[pod.uid], pod.shape)
            if not plan.borrowed:
                standing.cells.release(ask.tenant, plan.nodes[pod.uid], pod.shape.amount(standing.pool.unit))

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
            self._let_go(*bad)
            kept.remove(bad)
        return kept

    def _started_elsewhere(self, waiting: Sequence[tuple[Ask, Plan]]) -> list[tuple[Ask, Plan]]:
        """Whoever can start at once on other nodes does; returns the others."""
        standing, left = self._standing, []
        for ask, plan in waiting:
            mark, held = standing.room.mark(), standing.cells.mark()
            self._let_go(ask, plan)
            nodes = self._elsewhere(ask, plan)
            if nodes is None:
                standing.room.undo(mark)
                standing.cells.undo(held)
                left.append((ask, plan))
            else:
                self._ledger.start(ask, standing, ask.core, nodes, inside=not plan.borrowed)
        return left

    def _elsewhere(self, ask: Ask, plan: Plan) -> Mapping[str, str] | None:
        if plan.borrowed:
            return place_now(self._standing, ask, ask.core)
        inside = inside_of(self._standing, ask, ask.core)
        nodes = inside(self._standing.room)
        if nodes is not None:
            inside.commit(nodes)
            self._standing.take(ask.core, nodes)
        return nodes
