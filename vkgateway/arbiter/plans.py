"""Room that is being made: plans of earlier cycles are kept while they hold, new ones are made by eviction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from vkgateway.arbiter.accounts import total_of
from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.decisions import Evict
from vkgateway.arbiter.evictable import Evictable
from vkgateway.arbiter.facts import GUARANTEED, PLACED, Gang, Plan, Pod
from vkgateway.arbiter.fitting import BoolArray
from vkgateway.arbiter.inside import Inside, hold_where_placed
from vkgateway.arbiter.lastcell import stays_in_use
from vkgateway.arbiter.ledger import Ledger
from vkgateway.arbiter.line import by_priority
from vkgateway.arbiter.lots import suffices
from vkgateway.arbiter.ownroom import own_victims
from vkgateway.arbiter.placement import place
from vkgateway.arbiter.reserve import as_left, leaves_reserve, plan_leaves_reserve, reserve_for
from vkgateway.arbiter.standing import Standing
from vkgateway.arbiter.victims import Choice, choose


@dataclass(frozen=True, slots=True)
class Making:
    """How room could be made for a gang's core in a pool."""

    choice: Choice
    evicts: tuple[Evict, ...]
    """All who would be told to go, those of the gang's own tenant first."""
    told: Sequence[tuple[Gang, Pod]]
    """Who was told to go before, and is counted on."""
    inside: Inside | None
    leaves: int | None = None
    """As of the plan that is made of it."""


def find_room(
    ledger: Ledger, standing: Standing, ask: Ask, evictable: Evictable, *, inside: Inside | None = None
) -> Making | None:
    """Where the smallest loss makes room for the gang; None: whoever of these goes, it does not fit. Nothing is done.

    Counted on is first who leaves anyway, for whatever reason. `inside`: within its tenant's cells; it may then count
    on everyone who was told to go before, for whomever, and its tenant's own borrowing work goes where the limit is
    reached. For those who end late it waits only where nobody could go sooner, and who borrows not at all. Who borrows
    also leaves the pool's reserve.
    """
    making = _find_room(ledger, standing, ask, evictable, inside)
    leaves = inside is None and reserve_for(standing, ask.core) > 0
    slow = ledger.ends_late(standing) if making is not None and (making.choice.awaits or leaves) else set()
    if making is None or not slow or (slow.isdisjoint(making.choice.awaits) and not leaves):
        return making
    sooner = _find_room(ledger, standing, ask, evictable, inside, without=slow)
    return making if sooner is None and inside is not None else sooner


def _find_room(
    ledger: Ledger,
    standing: Standing,
    ask: Ask,
    evictable: Evictable,
    inside: Inside | None,
    *,
    without: Set[str] = frozenset(),
) -> Making | None:
    """`without`: pods that are ending, and not waited for."""
    told = ledger.told(standing) if inside is not None else _told_for_who_borrows(ledger, standing, ask)
    told = [(gang, pod) for gang, pod in told if pod.uid not in standing.leaving]
    coming = [pod for pod in standing.leaving.values() if pod.uid not in without]
    coming += [pod for _, pod in told]
    for own in _for_limit(ledger, standing, ask, evictable, inside, told=told, coming=coming):
        choice = choose(
            standing.room,
            evictable,
            ask.gang,
            ask.core,
            now=ledger.now,
            over=standing.over(),
            among=among(standing, ask),
            ceiling=inside.ceiling(standing.room) if inside is not None else None,
            coming=[*coming, *pods_of(standing, own)],
            exempt={evict.gang for evict in own} | (standing.superior_to(ask.gang) if inside is not None else set()),
            placer=inside,
            leaves=reserve_for(standing, ask.core) if inside is None else 0,
        )
        if choice is not None:
            return Making(choice, (*own, *choice.evicts), told, inside)
    return None


def _for_limit(
    ledger: Ledger,
    standing: Standing,
    ask: Ask,
    evictable: Evictable,
    inside: Inside | None,
    *,
    told: Iterable[tuple[Gang, Pod]],
    coming: Sequence[Pod],
) -> Iterator[tuple[Evict, ...]]:
    """Yield victims of the tenant's own by which it keeps its limit; a gang that borrows has none."""
    if inside is None:
        yield ()
        return
    gone = [standing.leaving.of(ask.tenant), total_of(pod for gang, pod in told if gang.tenant == ask.tenant)]
    missing = standing.missing_of_limit(ask.tenant, ask.core, gone)
    yield from own_victims(standing, ask, missing, inside, evictable=evictable, coming=coming, now=ledger.now)


def pods_of(standing: Standing, evicts: Iterable[Evict]) -> list[Pod]:
    """Return the pods that these evictions evict in the pool."""
    return [
        pod
        for evict in evicts
        for uids in [set(evict.pods)]
        for pod in standing.gangs[evict.gang].pods
        if pod.uid in uids
    ]


def _told_for_who_borrows(ledger: Ledger, standing: Standing, ask: Ask) -> list[tuple[Gang, Pod]]:
    """Who was told to go for the gang, and may be called in for it where it borrows: it may have been inside then."""
    name = ask.gang.whole
    return [(gang, pod) for gang, pod in ledger.told_for(name, standing) if is_called_in(gang, name)]


def is_called_in(gang: Gang, name: str) -> bool:
    """Return whether what leaves of a gang may do so for one that borrows (`Gang.whole`).

    That is surplus, and what runs in the place that was reserved for that one.
    """
    if any(each.behind == name for each in gang.pods):
        return True
    return gang.elastic and suffices(gang, [each for each in gang.pods if each.state is PLACED])


def carry_out(ledger: Ledger, standing: Standing, ask: Ask, making: Making) -> None:
    """Plan the gang's start in the room that was found; nothing in the pool may have changed since."""
    nodes, inside = making.choice.nodes, making.inside
    if inside is not None:
        inside.commit(nodes)
    standing.take(ask.core, nodes)
    may_start = standing.holds(ask.core, nodes) and (inside is not None or leaves_reserve(standing, ask.core))
    if not making.evicts and may_start and not standing.beyond_limit(ask.tenant, ask.core):
        # The search for victims looks closer than that for a place: nobody needs to go.
        ledger.start(ask, standing, ask.core, nodes, inside=inside is not None)
        return
    for gang, pod in making.told:
        standing.leaving.add(gang.tenant, [pod])
    ledger.plan(ask, standing, nodes, inside=inside is not None, made=ledger.next_made(), evicts=making.evicts)


def among(standing: Standing, ask: Ask, nodes: Mapping[str, str] | None = None) -> BoolArray | None:
    """Where the gang's other pods may go: near those that are there, or were just given nodes, if it asks for that."""
    level = ask.gang.required_level
    if not level:
        return None
    there = [pod.node for pod in ask.there if pod.node in standing.room] or list((nodes or {}).values())
    return standing.room.near(there[0], level) if there else None


def place_now(standing: Standing, ask: Ask, pods: Sequence[Pod]) -> dict[str, str] | None:
    """A place for these pods in what is free, which they borrow; it is taken.

    Nodes without anybody's cells are taken before those that are equal in all else: there it may be left alone.
    """
    gang = ask.gang
    return place(
        standing.room,
        pods,
        required_level=gang.required_level,
        preferred_level=gang.preferred_level,
        among=among(standing, ask),
        liked=standing.unbound,
    )


def place_lent(standing: Standing, ask: Ask, pods: Sequence[Pod]) -> dict[str, str] | None:
    """Return the same. In a pool with a reserve it leaves the rest of cells in use until last.

    What is idle there serves guaranteed pods at once. What is idle on other tenants' nodes does not.
    """
    if standing.reserve:
        gang = ask.gang
        nodes = place(
            standing.room,
            pods,
            required_level=gang.required_level,
            preferred_level=gang.preferred_level,
            among=standing.room.mask(among(standing, ask)) & standing.without_rest,
            liked=standing.unbound,
        )
        if nodes is not None:
            return nodes
    return place_now(standing, ask, pods)


def place_beside_reserve(standing: Standing, ask: Ask, pods: Sequence[Pod]) -> dict[str, str] | None:
    """Return a place as `place_now` does; None: the gang would use the pool's reserve."""
    mark = standing.room.mark()
    nodes = place_lent(standing, ask, pods)
    if nodes is not None and not leaves_reserve(standing, pods):
        standing.room.undo(mark)
        return None
    return nodes


def inside_of(standing: Standing, ask: Ask, pods: Sequence[Pod], *, filling: bool = False) -> Inside:
    """The search for a place of these pods inside their tenant's cells; `filling`: in those that are bound already."""
    gang = ask.gang
    return Inside(
        standing.cells,
        ask.tenant,
        pods,
        required_level=gang.required_level,
        preferred_level=gang.preferred_level,
        among=among(standing, ask),
        beside=standing.reserved_before(gang),
        filling=filling,
    )


def keep_plans(ledger: Ledger, *, borrowed: bool) -> None:
    """Whoever has a plan starts when it can; the plans of the others are kept, if they still hold.

    `borrowed`: the plans of those that borrow, which keep no guarantee waiting; otherwise those inside cells.
    """
    for standing in ledger.standings.values():
        _Keeper(ledger, standing, borrowed=borrowed).run()


class _Keeper:
    """The plans for one pool, inside cells or borrowed."""

    def __init__(self, ledger: Ledger, standing: Standing, *, borrowed: bool) -> None:
        self._ledger = ledger
        self._standing = standing
        self._borrowed = borrowed

    def run(self) -> None:
        waiting: list[tuple[Ask, Plan]] = []
        for ask in sorted(self._ledger.planned(), key=lambda ask: by_priority(ask.gang)):
            plan = ask.gang.plan
            if plan is None or plan.borrowed is not self._borrowed or not self._hold(ask, plan):
                continue
            waiting.append((ask, plan))
            self._standing.take(ask.core, plan.nodes)
        if not self._borrowed:
            names = {ask.gang.id for ask, _ in waiting}
            for name in sorted(self._standing.within.planned - names):
                self._standing.within.let_go(name)
        kept = self._feasible(waiting)
        for gang, pod in list(self._told(kept)):
            self._standing.leaving.add(gang.tenant, [pod])
        for ask, plan in kept:
            _untake(self._standing, ask, plan)
        # Of plans on one node the older has what comes free first: whoever follows does not keep it waiting.
        for ask, plan in sorted(kept, key=lambda each: (each[1].made, by_priority(each[0].gang))):
            self._standing.take(ask.core, plan.nodes)
            ready = ask.gang.part is None and is_free(self._standing, ask, plan)
            if ready and not self._standing.beyond_limit(ask.tenant, ask.core):
                self._ledger.start(ask, self._standing, ask.core, plan.nodes, inside=not plan.borrowed)
            else:
                inside, leaves = not plan.borrowed, plan.leaves
                self._ledger.plan(ask, self._standing, plan.nodes, inside=inside, made=plan.made, leaves=leaves)

    def _hold(self, ask: Ask, plan: Plan) -> bool:
        """Whether the plan can be kept as far as nodes, limits and cells go; its cells are held then."""
        standing, pods = self._standing, ask.core
        usable = plan.pool == standing.pool.key and plan.pool in ask.pools and standing.usable_by(ask)
        if not usable or not (plan.borrowed or ask.gang.band is GUARANTEED):
            return False
        if plan.nodes.keys() != {pod.uid for pod in pods} or not _may_go_there(standing, ask, plan):
            return False
        told = total_of(
            pod
            for gang, pod in self._ledger.told(standing)
            if gang.tenant == ask.tenant and pod.uid not in standing.leaving
        )
        if standing.missing_of_limit(ask.tenant, pods, [standing.leaving.of(ask.tenant), told]):
            return False
        if plan.borrowed:
            return True
        if ask.gang.id in standing.within.planned:
            return True
        placed = [(pod, plan.nodes[pod.uid]) for pod in pods]
        return standing.allows_inside(ask.gang, pods) and hold_where_placed(
            standing.cells, ask.tenant, standing.pool.unit, placed
        )

    def _feasible(self, waiting: Sequence[tuple[Ask, Plan]]) -> list[tuple[Ask, Plan]]:
        """Those whose room will be there; the others' is let go, the last first."""
        standing, kept = self._standing, list(waiting)
        slow = self._ledger.ends_late(standing) if self._borrowed else set()
        while kept:
            mark = standing.room.mark()
            standing.give(pod for uid, pod in standing.leaving.items() if uid not in slow)
            standing.give(pod for _, pod in self._told(kept))
            bad = next((each for each in reversed(kept) if not standing.holds(each[0].core, each[1].nodes)), None)
            if bad is None:
                # A guarantee may have used the reserve since: what a plan has of its own tenant is not lost by that.
                kept = [(ask, as_left(standing, plan)) for ask, plan in kept]
                bad = next((each for each in reversed(kept) if not is_free(standing, *each)), None)
            standing.room.undo(mark)
            if bad is None:
                break
            let_go(standing, *bad)
            kept.remove(bad)
        return kept

    def _told(self, kept: Sequence[tuple[Ask, Plan]]) -> Iterator[tuple[Gang, Pod]]:
        """Who was told to go before: for one of these, or for anybody where they are inside their cells."""
        names = {ask.gang.whole for ask, _ in kept}
        for gang, pod in self._ledger.told(self._standing) if kept else ():
            if pod.uid not in self._standing.leaving and (not self._borrowed or pod.evicted_for in names):
                yield gang, pod


def _may_go_there(standing: Standing, ask: Ask, plan: Plan) -> bool:
    """Whether the plan's nodes are there and take these pods: since it was made, labels and taints may have changed."""
    room = standing.room
    if not all(node in room for node in plan.nodes.values()):
        return False
    near = among(standing, ask, plan.nodes)
    for pod in ask.core:
        position = room.position(plan.nodes[pod.uid])
        if not room.fitting.mask(pod.shape)[position] or (near is not None and not near[position]):
            return False
    return True


def is_free(standing: Standing, ask: Ask, plan: Plan) -> bool:
    """Return whether the room of a plan, which is taken already, is free and the pool's reserve beside it is idle."""
    return standing.holds(ask.core, plan.nodes) and plan_leaves_reserve(standing, ask.core, plan)


def any_plan_lacks_reserve(ledger: Ledger) -> bool:
    """Return whether a start of this cycle used units of the reserve that a plan to borrow must leave idle."""
    return any(
        standing.reserve > 0
        and any(
            plan.borrowed and plan.pool == key and not _will_leave_reserve(standing, ledger.asks[name], plan)
            for name, plan in ledger.plans.items()
        )
        for key, standing in ledger.standings.items()
    )


def _will_leave_reserve(standing: Standing, ask: Ask, plan: Plan) -> bool:
    mark = standing.room.mark()
    standing.give(standing.leaving.values())
    leaves = plan_leaves_reserve(standing, ask.core, plan)
    standing.room.undo(mark)
    return leaves


def let_go(standing: Standing, ask: Ask, plan: Plan) -> None:
    """The plan's room and cells are free again."""
    for pod in ask.core:
        standing.room.give(plan.nodes[pod.uid], pod.shape)
        if not plan.borrowed:
            standing.cells.release(ask.tenant, plan.nodes[pod.uid], pod.shape.amount(standing.pool.unit))


def start_ready(ledger: Ledger) -> None:
    """Whoever has a plan, and for whom nobody needs to go after all, starts; of those on one node the older first."""
    for key, standing in ledger.standings.items():
        plans = [(ledger.asks[name], plan) for name, plan in ledger.plans.items() if plan.pool == key]
        plans.sort(key=lambda each: (each[1].made, by_priority(each[0].gang)))
        for ask, plan in plans:
            _untake(standing, ask, plan)
        for ask, plan in plans:
            standing.take(ask.core, plan.nodes)
            ready = ask.gang.part is None and is_free(standing, ask, plan)
            if ready and standing.within_limit(ask.tenant, ask.core):
                ledger.start_planned(ask, standing, plan.nodes)


def _untake(standing: Standing, ask: Ask, plan: Plan) -> None:
    for pod in ask.core:
        standing.room.give(plan.nodes[pod.uid], pod.shape)


def start_elsewhere(ledger: Ledger) -> bool:
    """Whoever has a plan, and could start at once on other nodes than those, does; whether anybody did."""
    before = len(ledger.plans)
    for gang, plan in sorted(ledger.plans.items()):
        ask, standing = ledger.asks[gang], ledger.standings[plan.pool]
        if ask.gang.part is not None:
            continue
        mark, held = standing.room.mark(), standing.cells.mark()
        let_go(standing, ask, plan)
        nodes = elsewhere(standing, ask, plan) if standing.within_limit(ask.tenant, ask.core) else None
        if nodes is None:
            standing.room.undo(mark)
            standing.cells.undo(held)
        else:
            ledger.start_planned(ask, standing, nodes)
    return len(ledger.plans) < before


def elsewhere(standing: Standing, ask: Ask, plan: Plan) -> Mapping[str, str] | None:
    """A place in what is free for a gang whose plan was let go, inside cells if that was; room and cells are taken."""
    if plan.borrowed:
        return place_beside_reserve(standing, ask, ask.core)
    filling = stays_in_use(standing, ask, plan.nodes.values())
    inside = inside_of(standing, ask, ask.core, filling=filling)
    nodes = inside(standing.room)
    if nodes is not None:
        inside.commit(nodes)
        standing.take(ask.core, nodes)
    return nodes
