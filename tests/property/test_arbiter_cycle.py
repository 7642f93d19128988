"""The cycle over random clusters, quotas and arrivals, carried out step by step: what must hold whatever comes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.unit.arbiter.sim import GPU, KEY, Cluster, gang, held, node, quota
from vkgateway.arbiter.cells import Cells
from vkgateway.arbiter.cycle import decide
from vkgateway.arbiter.decisions import Decisions, HoldCode
from vkgateway.arbiter.facts import Band, Gang, Node, Plan, Pod, PodState, Policy, Quota, Snapshot
from vkgateway.arbiter.inside import Inside
from vkgateway.arbiter.placement import place
from vkgateway.arbiter.refusals import refusals
from vkgateway.arbiter.room import Room

TENANTS = ("a", "b", "c")
STEP = 4.0
BOUND = 15.0
"""Notice and grace of every gang in these tests."""


@dataclass(frozen=True)
class Arrival:
    gang: Gang
    run: float | None
    after: int
    """Steps of time before it comes."""


@st.composite
def quotas(draw: st.DrawFn, there: tuple[Node, ...]) -> tuple[Quota, ...]:
    found: list[Quota] = []
    for tenant in TENANTS:
        guarantee = draw(st.sampled_from([0, 0, 1, 2, 4, 6, 8, 12, 16]))
        limit = draw(st.sampled_from([None, None, None, 4, 8, 16]))
        one = quota(
            tenant,
            guarantee,
            limit=None if limit is None else max(limit, guarantee),
            weight=draw(st.sampled_from([1.0, 1.0, 2.0])),
        )
        pool = Cluster(there, []).pool
        if refusals(pool, [*found, one]):
            one = replace(one, guarantee={})
        found.append(one)
    return tuple(found)


@st.composite
def arrivals(draw: st.DrawFn, number: int, *, equal: bool) -> Arrival:
    sizes = st.sampled_from([1, 2, 4, 8])
    count = draw(st.integers(1, 4))
    shapes = [draw(sizes)] * count if equal else [draw(sizes) for _ in range(count)]
    band = draw(st.sampled_from([Band.GUARANTEED, Band.LOW]))
    elastic = draw(st.booleans())
    run = draw(st.sampled_from([None, 5.0, 12.0, 40.0]))
    one = gang(
        f"g{number}",
        draw(st.sampled_from(TENANTS)),
        shapes,
        band=band,
        elastic=elastic,
        minimum=draw(st.integers(1, count)) if elastic or draw(st.integers(0, 4)) == 0 else count,
        priority=draw(st.integers(0, 2)),
        run_limit=run if draw(st.booleans()) else None,
        minimum_run=draw(st.sampled_from([0.0, 0.0, 20.0])),
        required_level=draw(st.sampled_from(["", "", "", "rack"])) if not equal else "",
    )
    return Arrival(one, run, draw(st.sampled_from([0, 0, 0, 1, 2])))


@dataclass(frozen=True)
class Story:
    nodes: tuple[Node, ...]
    quotas: tuple[Quota, ...]
    arrivals: tuple[Arrival, ...]
    recreate: bool
    age_cap: float

    def cluster(self) -> Cluster:
        return Cluster(self.nodes, self.quotas, policy=Policy(age_cap=self.age_cap), recreate=self.recreate)


@st.composite
def stories(draw: st.DrawFn, equal: bool = False) -> Story:
    there = tuple(
        node(f"n{index}", draw(st.sampled_from([8, 8, 4])), rack=f"r{index % 2}")
        for index in range(draw(st.integers(1, 4)))
    )
    return Story(
        there,
        draw(quotas(there)),
        tuple(draw(arrivals(number, equal=equal)) for number in range(draw(st.integers(1, 9)))),
        draw(st.booleans()),
        draw(st.sampled_from([10.0, 3600.0])),
    )


class Told(Cluster):
    """A cluster that looks at each cycle."""

    again = False
    """Whether deciding again must decide nothing."""

    def cycle(self) -> Decisions:
        before = self.snapshot()
        decisions = super().cycle()
        assert decisions == decide(before, self.now)
        assert decisions == decide(replace(before, gangs=before.gangs[::-1]), self.now)
        if self.again:
            again = decide(self.snapshot(), self.now)
            assert (again.admits, again.evicts, again.reprieves) == ((), (), ()), (decisions, again)
            assert again.plans == decisions.plans
        self.conserves(decisions)
        self.needs_all(before, decisions)
        return decisions

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
        room = self.room(plans=dict(decisions.plans))
        for each in self.gangs.values():
            hold = holds.get(each.id)
            runs = any(pod.state is PodState.PLACED for pod in each.pods)
            if hold is None or runs or hold.code not in (HoldCode.ROOM, HoldCode.INFEASIBLE):
                continue
            core = self.core(each)
            assert place(room, core, required_level=each.required_level) is None, each.id

    def core(self, each: Gang) -> list[Pod]:
        waiting = [pod for pod in each.pods if pod.state is PodState.WAITING]
        return sorted(waiting, key=lambda pod: (pod.rank, pod.uid))[: each.minimum]

    def needs_all(self, before: Snapshot, decisions: Decisions) -> None:
        """Whoever is told to go: without that, the gang that it goes for would not fit."""
        gone = {uid for evict in decisions.evicts for uid in evict.pods}
        known = {each.id: each for each in before.gangs}
        leaving = {
            pod.uid
            for each in self.gangs.values()
            for pod in each.pods
            if pod.state in (PodState.NOTIFIED, PodState.ENDING)
        }
        told = {pod.uid for each in before.gangs for pod in each.pods if pod.state is PodState.NOTIFIED}
        for evict in decisions.evicts:
            if told & set(evict.pods):
                continue  # They go for another gang than before; all plans together need them.
            asks, plan = known[evict.makes_room_for], decisions.plans[evict.makes_room_for]
            others = {name: other for name, other in decisions.plans.items() if name != asks.id}
            room = self.room(without=tuple((leaving | gone) - set(evict.pods)), plans=others)
            core = [pod for pod in asks.pods if pod.uid in plan.nodes]
            if plan.borrowed:
                found = place(room, core, required_level=asks.required_level)
            else:
                cells = self.cells(others)
                found = Inside(cells, asks.tenant, core, required_level=asks.required_level)(room)
            assert found is None, (evict, found)

    def cells(self, plans: dict[str, Plan] | None = None) -> Cells:
        """With the plans of these gangs."""
        placed = [
            (each.tenant, node_name, pod.shape.amount(GPU))
            for each in self.gangs.values()
            for pod in each.pods
            for node_name in [self.inside_on(each, pod, plans or {})]
            if node_name
        ]
        return Cells(self.pool, self.quotas, placed)

    def inside_on(self, each: Gang, pod: Pod, plans: dict[str, Plan]) -> str:
        if pod.node:
            return "" if pod.borrowed else pod.node
        plan = plans.get(each.id)
        return plan.nodes.get(pod.uid, "") if plan is not None and not plan.borrowed else ""


def told(story: Story) -> Told:
    there = story.cluster()
    return Told(there.pool.nodes, there.quotas, policy=there.policy, recreate=story.recreate)


@settings(deadline=None, max_examples=20, derandomize=True, phases=[Phase.explicit, Phase.generate])
@given(stories())
def test_whatever_comes(story: Story) -> None:
    there = told(story)
    for arrival in story.arrivals:
        for _ in range(arrival.after):
            there.cycle()
            there.advance(STEP)
        there.add(arrival.gang)
        if arrival.run is not None:
            there.runs[arrival.gang.id] = arrival.run
        there.cycle()
    for _ in range(6):
        there.advance(STEP)
        there.cycle()


@pytest.mark.xfail(reason="known gap, seldom: where pods told to go for one gang make room for another", strict=False)
@settings(deadline=None, max_examples=20, derandomize=True, phases=[Phase.explicit, Phase.generate])
@given(stories())
def test_deciding_again_decides_nothing(story: Story) -> None:
    there = told(story)
    there.again = True
    for arrival in story.arrivals:
        there.add(arrival.gang)
        there.cycle()
        there.advance(STEP)


@settings(deadline=None, max_examples=20, derandomize=True, phases=[Phase.explicit, Phase.generate])
@given(stories(equal=True))
def test_what_fits_its_tenants_cells_starts_in_time(story: Story) -> None:
    there = Cluster(story.nodes, story.quotas, recreate=story.recreate)
    due: dict[str, float] = {}
    for arrival in story.arrivals:
        one = replace(arrival.gang, run_limit=None)
        for _ in range(arrival.after):
            there.settle(0)
            _on_time(there, due)
            there.advance(STEP)
        there.cycle()
        if one.band is Band.GUARANTEED and _fits_cells(there, one):
            due[one.id] = there.now + BOUND
        there.add(one)
        there.cycle()
        _on_time(there, due)
    for _ in range(10):
        there.advance(1)
        there.cycle()
        _on_time(there, due)


def _fits_cells(there: Cluster, one: Gang) -> bool:
    """By counting: whether the tenant's cells that nobody uses, and what is spare in others, hold the equal pods."""
    if any(
        other.tenant == one.tenant and (other.plan or True in there.borrowed(other.id))
        for other in there.gangs.values()
    ):
        return False
    if there.quotas[TENANTS.index(one.tenant)].limit:
        return False
    cells, size = there.cells(), one.pods[0].shape.amount(GPU) // 1000
    places = sum(cell // size * number for cell, number in cells.unused(one.tenant).items())
    places += sum(cells.spare(one.tenant, name) // 1000 // size for name in cells.bound(one.tenant))
    return places >= one.minimum


def _on_time(there: Cluster, due: dict[str, float]) -> None:
    for name, time in due.items():
        assert name in there.started or there.now < time, f"{name} has not started by {time}"


@settings(deadline=None, max_examples=20, derandomize=True, phases=[Phase.explicit, Phase.generate])
@given(stories(), st.data())
def test_nodes_that_come_and_go_do_no_harm(story: Story, data: st.DataObject) -> None:
    there = Cluster(story.nodes, story.quotas, policy=Policy(age_cap=story.age_cap), recreate=story.recreate)
    for arrival in story.arrivals:
        there.add(arrival.gang)
        down = data.draw(st.sets(st.sampled_from([each.name for each in story.nodes]), max_size=2))
        nodes = tuple(replace(each, usable=each.name not in down) for each in story.nodes)
        there.pool = replace(there.pool, nodes=nodes)
        decisions = there.cycle()
        for admit in decisions.admits:
            assert not down & set(admit.nodes.values())
        again = decide(there.snapshot(), there.now)
        assert (again.admits, again.evicts, again.reprieves) == ((), (), ()), (decisions, again)
        there.advance(STEP)
    assert there.pool.key == KEY
