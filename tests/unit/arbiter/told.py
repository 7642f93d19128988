"""Clusters that look at each cycle, and stories told in them: what must hold whatever comes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from tests.unit.arbiter.sim import GPU, KEY, Cluster, gang, held, node, quota
from tests.unit.arbiter.stories import GRACE, NOTICE, TENANTS, Mix, Step, Story, gang_of, story
from vkgateway.arbiter.asks import Ask, read
from vkgateway.arbiter.cells import Cells
from vkgateway.arbiter.cycle import decide
from vkgateway.arbiter.decisions import Decisions, Hold, HoldCode
from vkgateway.arbiter.facts import Band, Gang, Plan, Pod, PodState, Policy, Pool, Snapshot
from vkgateway.arbiter.inside import Inside
from vkgateway.arbiter.placement import place
from vkgateway.arbiter.room import Room


class Told(Cluster):
    """A cluster that looks at each cycle."""

    @classmethod
    def of(cls, story: Story) -> Told:
        return cls(story.nodes, story.quotas, policy=Policy(age_cap=story.age_cap), recreate=story.recreate)

    def cycle(self) -> Decisions:
        before = self.snapshot()
        decisions = super().cycle()
        self.look(before, decisions)
        return decisions

    def look(self, before: Snapshot, decisions: Decisions) -> None:
        self.conserves(decisions)
        self.needs_all(before, decisions)

    def play(self, story: Story) -> None:
        """Tell the story to its end."""
        for step in story.steps:
            for name in step.leaves:
                self.gangs.pop(name, None)
            if step.down is not None:
                nodes = tuple(replace(each, usable=each.name not in step.down) for each in self.pool.nodes)
                self.pool = replace(self.pool, nodes=nodes)
            if step.forgets:
                self.gangs = {name: replace(each, plan=None) for name, each in self.gangs.items()}
            for one, run in step.arrives:
                self.add(one)
                if run is not None:
                    self.runs[one.id] = run
            self.cycle()
            self.advance(step.seconds)

    def room(self, *, without: tuple[str, ...] = (), plans: dict[str, Plan]) -> Room:
        room = Room(self.pool)
        for each in self.gangs.values():
            for pod in each.pods:
                if pod.node and pod.uid not in without:
                    room.take(pod.node, pod.shape)
                elif each.id in plans and pod.uid in plans[each.id].nodes:
                    room.take(plans[each.id].nodes[pod.uid], pod.shape)
        return room

    def conserves(self, decisions: Decisions) -> None:
        """No gang waits for room that fits into what is free, but for a reservation."""
        holds = held(decisions)
        asks = [ask for each in self.gangs.values() if (ask := self._wants_room(each, holds.get(each.id))) is not None]
        room = self.room(plans=dict(decisions.plans)) if asks else None
        for ask in asks:
            assert room is not None
            found = place(room, ask.core, required_level=ask.gang.required_level)
            assert found is None, f"{ask.gang.id} would fit"

    def _wants_room(self, each: Gang, hold: Hold | None) -> Ask | None:
        """What a gang asks for that waits for room; None where it does not, or where that is not always found."""
        runs = any(pod.state is PodState.PLACED for pod in each.pods)
        if hold is None or runs or hold.code not in (HoldCode.ROOM, HoldCode.INFEASIBLE):
            return None
        ask = read(each)
        # No ask: it is going, and what of it waits, waits for the rest to be made anew. Of two resources, whether
        # they fit is not always found.
        return ask if isinstance(ask, Ask) and not any(pod.shape.amount("cpu") for pod in ask.core) else None

    def needs_all(self, before: Snapshot, decisions: Decisions) -> None:
        """Whoever is told to go: without that, the gang that it goes for would not fit."""
        gone = {uid for evict in decisions.evicts for uid in evict.pods}
        known = {each.id: each for each in before.gangs}
        pods = [pod for each in self.gangs.values() for pod in each.pods]
        leaving = {pod.uid for pod in pods if pod.state in (PodState.NOTIFIED, PodState.ENDING)}
        told = {pod.uid for each in before.gangs for pod in each.pods if pod.state is PodState.NOTIFIED}
        for evict in decisions.evicts:
            if told & set(evict.pods):
                continue  # They go for another gang than before; all plans together need them.
            asks, plan = known[evict.makes_room_for], decisions.plans[evict.makes_room_for]
            others = {name: other for name, other in decisions.plans.items() if name != asks.id}
            room = self.room(without=tuple((leaving | gone) - set(evict.pods)), plans=others)
            core = [pod for pod in asks.pods if pod.uid in plan.nodes]
            if plan.borrowed:
                goes = known[evict.gang]
                called = {pod.behind for pod in goes.pods if pod.state is PodState.PLACED}
                assert (goes.elastic and not evict.whole) or asks.id in called, f"{evict}: who borrows evicts nobody"
                found = place(room, core, required_level=asks.required_level)
            else:
                found = Inside(self.cells(others), asks.tenant, core, required_level=asks.required_level)(room)
            stays = set(evict.pods)
            assert found is None or self.over_limit(asks, core, (leaving | gone) - stays, others), (
                f"{evict} for nothing"
            )

    def over_limit(self, asks: Gang, core: list[Pod], leaving: set[str], plans: dict[str, Plan]) -> bool:
        """Whether the gang would be beyond its tenant's limit if only those went who leave."""
        limit = next(quota.limit for quota in self.quotas if quota.tenant == asks.tenant)
        for name, most in limit.items():
            used = sum(pod.shape.amount(name) for pod in core)
            for each in self.gangs.values():
                mine = [pod for pod in each.pods if each.tenant == asks.tenant and pod.uid not in leaving]
                used += sum(pod.shape.amount(name) for pod in mine if pod.node or self._planned(each, pod, plans))
            if used > most:
                return True
        return False

    def _planned(self, each: Gang, pod: Pod, plans: dict[str, Plan]) -> bool:
        return each.id in plans and pod.uid in plans[each.id].nodes

    def cells(self, plans: dict[str, Plan] | None = None) -> Cells:
        """With the plans of these gangs."""
        placed = [
            (each.tenant, node_name, pod.shape.amount(GPU))
            for each in self.gangs.values()
            for pod in each.pods
            for node_name in [self._inside_on(each, pod, plans or {})]
            if node_name
        ]
        return Cells(self.pool, self.quotas, placed)

    def _inside_on(self, each: Gang, pod: Pod, plans: dict[str, Plan]) -> str:
        if pod.node:
            return "" if pod.borrowed else pod.node
        plan = plans.get(each.id)
        return plan.nodes.get(pod.uid, "") if plan is not None and not plan.borrowed else ""


class Again(Told):
    """Decides once more with its decisions carried out: that must decide nothing. The order of telling is nothing."""

    def look(self, before: Snapshot, decisions: Decisions) -> None:
        assert decisions == decide(replace(before, gangs=before.gangs[::-1]), self.now), (
            "another order, other decisions"
        )
        again = decide(self.snapshot(), self.now)
        nothing = (again.admits, again.evicts, again.reprieves, again.promotes) == ((), (), (), ())
        assert nothing, f"first {decisions}\nthen {again}"
        assert again.plans == decisions.plans, f"plans {decisions.plans}\nthen {again.plans}"


class OnTime(Cluster):
    """What comes and fits its tenant's cells starts within notice, grace and a cycle."""

    def play(self, story: Story) -> None:
        due: dict[str, float] = {}
        for step in story.steps:
            for one, run in step.arrives:
                self.cycle()
                if one.band is Band.GUARANTEED and self._fits_cells(one):
                    due[one.id] = self.now + NOTICE + GRACE
                self.add(replace(one, run_limit=None))
                if run is not None:
                    self.runs[one.id] = run
            self.cycle()
            for _ in range(int(step.seconds)):
                self._check_due(due)
                self.advance(1)
                self.cycle()

    def _check_due(self, due: dict[str, float]) -> None:
        for name, time in due.items():
            assert name in self.started or self.now < time, f"{name} has not started by {time}"

    def _fits_cells(self, one: Gang) -> bool:
        """By counting: whether the tenant's cells that nobody uses, and what is spare in others, hold equal pods."""
        mine = [other for other in self.gangs.values() if other.tenant == one.tenant]
        if any(other.plan or True in self.borrowed(other.id) for other in mine if other.band is Band.GUARANTEED):
            return False
        cells, size = self.cells(), one.pods[0].shape.amount(GPU) // 1000
        places = sum(cell // size * number for cell, number in cells.unused(one.tenant).items())
        places += sum(cells.spare(one.tenant, name) // 1000 // size for name in cells.bound(one.tenant))
        return places >= one.minimum


def whatever_comes(random: Random) -> tuple[Story, Callable[[Story], None]]:
    return story(random, Mix()), lambda each: Told.of(each).play(each)


def deciding_again(random: Random) -> tuple[Story, Callable[[Story], None]]:
    mix = Mix(downs=random.random() < 0.3, forgets=random.random() < 0.3, tail=2)
    return story(random, mix), lambda each: Again.of(each).play(each)


def in_time(random: Random) -> tuple[Story, Callable[[Story], None]]:
    def tell(each: Story) -> None:
        OnTime(each.nodes, each.quotas, recreate=each.recreate).play(each)

    return story(random, Mix(equal=True, limits=False, leaves=False)), tell


def nobody_starves(random: Random) -> tuple[Story, Callable[[Story], None]]:
    """A gang that fits an empty pool starts, whatever keeps coming: of others, or of its own tenant's low band."""
    runs = (5.0, 12.0, 20.0)
    mix = Mix(most_nodes=3, most_gangs=3, limits=False, leaves=False, tail=0, runs=runs)
    begins = story(random, mix)
    quotas = tuple(replace(each, guarantee={}) for each in begins.quotas)
    big = gang("big", random.choice(TENANTS), _largest(random, begins))
    comes = (Step(((big, 20.0),), seconds=4.0),)
    small = Mix(sizes=(1, 2, 4), runs=runs)
    always = tuple(
        Step(
            ((_after(big, gang_of(random, small, f"s{number}")), random.choice(runs)),),
            seconds=random.choice((2.0, 6.0)),
        )
        for number in range(20)
    )

    def tell(each: Story) -> None:
        there = Cluster(each.nodes, each.quotas, policy=Policy(age_cap=20.0, age_weight=0.3), recreate=each.recreate)
        names = {one.id for step in each.steps for one, _ in step.arrives}
        for step in each.steps:
            for one, run in step.arrives:
                there.add(one)
                there.runs[one.id] = run or 20.0
            there.cycle()
            there.advance(step.seconds)
        for _ in range(30):
            there.cycle()
            there.advance(4.0)
        assert "big" not in names or "big" in there.started, "it starves"

    return replace(begins, quotas=quotas, steps=(*begins.steps, *comes, *always)), tell


def _after(big: Gang, one: Gang) -> Gang:
    """Its tenant's own work is not ahead of it for ever."""
    return replace(one, band=Band.LOW, priority=0) if one.tenant == big.tenant else one


def _largest(random: Random, begins: Story) -> list[int]:
    """Pods that fit an empty pool, but would not fit beside much."""
    room = Room(Pool(key=KEY, nodes=begins.nodes, governed=(GPU,), levels=("rack",)))
    sizes: list[int] = []
    for size in random.choice(((8,), (4,), (8, 4), (8, 2))):
        while place(room, gang("x", "a", [size]).pods) is not None and len(sizes) < 8:
            sizes.append(size)
    return sizes or [1]


def better_than_alone(random: Random) -> tuple[Story, Callable[[Story], None]]:
    """No guaranteed gang waits for longer than in a cluster of its tenant's own cells, but for notice and grace.

    Of that tenant's gangs none is ahead of another by priority: one that comes within notice and grace would pass those
    that had started before it came, had they been alone, and whoever asks for that order wants it so.
    """
    mix = Mix(equal=True, limits=False, leaves=False, tail=30, runs=(5.0, 12.0, 40.0), most_gangs=12)
    found = story(random, mix)
    size = random.choice((1, 2, 4, 8))
    steps = []
    for step in found.steps:
        arrives = tuple((_alone(one, size) if one.tenant == "a" else one, run) for one, run in step.arrives)
        steps.append(replace(step, arrives=arrives))

    def tell(each: Story) -> None:
        shared = Cluster(each.nodes, each.quotas, recreate=True)
        cells = [size for size, number in shared.cells().unused("a").items() for _ in range(number)]
        own = [node(f"own{number}", size) for number, size in enumerate(cells)]
        private = Cluster(own, [quota("a", sum(cells), cells=tuple(cells))], recreate=True)
        for step in each.steps:
            for one, run in step.arrives:
                for there in (shared, private):
                    if there is shared or one.tenant == "a":
                        there.add(one)
                        there.runs[one.id] = run or 40.0
            for there in (shared, private) if own else ():
                there.settle(step.seconds)
        for name, time in private.started.items():
            if shared.now > time + NOTICE + GRACE + 1:
                assert shared.started.get(name, 1e9) <= time + NOTICE + GRACE + 1, f"{name} would start sooner alone"

    return replace(found, steps=tuple(steps)), tell


def _alone(one: Gang, size: int) -> Gang:
    return gang(one.id, one.tenant, [size], band=Band.GUARANTEED)


INVARIANTS = {
    each.__name__: each for each in (whatever_comes, deciding_again, in_time, nobody_starves, better_than_alone)
}
