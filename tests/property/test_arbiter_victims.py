"""Victim search over random pools: no unneeded victim, none in cells, all or nothing, deterministic."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.arbiter.borrowed_pool import (
    NOW,
    gpu_shape,
    make_node,
    mixed_gang,
    placed_pod,
    resources_and_candidates,
    running_gang,
    waiting_gang,
)
from tests.unit.arbiter.simulated_cluster import capacity_on
from vkgateway.scheduler.core.capacity.node_resources import NodeResources
from vkgateway.scheduler.core.capacity.placement import place_pods
from vkgateway.scheduler.core.decisions import Evict
from vkgateway.scheduler.core.preemption.eviction_units import select_min_members
from vkgateway.scheduler.core.preemption.victim_search import VictimChoice, choose_victims
from vkgateway.scheduler.core.snapshot import Gang, Node, Pod, PodState, Shape

SIZES = st.sampled_from([gpu_shape(1, 4), gpu_shape(2, 8), gpu_shape(4, 30), gpu_shape(8, 32), gpu_shape(0, 20)])
AGES = st.sampled_from([0.0, 1.0, 5.0, 5.0, 60.0, 700.0])


@dataclass(frozen=True)
class Case:
    nodes: tuple[Node, ...]
    gangs: tuple[Gang, ...]
    asking: Gang
    coming: tuple[Pod, ...]

    def choose_victims(self, gangs: Sequence[Gang] | None = None) -> VictimChoice | None:
        resources, evictable = resources_and_candidates(self.nodes, self.gangs if gangs is None else gangs)
        for pod in self.coming:
            resources.add_pods(pod.node, pod.shape)
        return choose_victims(
            resources, evictable, self.asking, self.asking.pods, now=NOW, excess={"t1": 1.0}, ending=self.coming
        )

    def resources_without(self, gone: Sequence[str]) -> NodeResources:
        """Return the free resources after these pods and the ending pods have terminated."""
        resources, _ = resources_and_candidates(self.nodes)
        for gang in self.gangs:
            for pod in gang.pods:
                if pod.uid not in gone:
                    resources.add_pods(pod.node, pod.shape)
        return resources

    def fits_without(self, gone: Sequence[str]) -> bool:
        gang = self.asking
        return place_pods(self.resources_without(gone), gang.pods, required_level=gang.required_level) is not None


PODS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=6)
"""Node of each pod, and whether it is inside its tenant's cells (0)."""
GANGS = st.lists(
    st.tuples(SIZES, PODS, AGES, st.booleans(), st.integers(1, 4), st.integers(0, 7), st.booleans()), max_size=8
)
NODES = st.lists(st.sampled_from([4, 8, 8]), min_size=1, max_size=6)
ENDING = st.lists(st.integers(0, 5), max_size=2)
LEVEL = st.sampled_from(["", "", "rack"])


def _case(
    sizes: Sequence[int],
    gangs: Sequence[tuple[Shape, Sequence[tuple[int, int]], float, bool, int, int, bool]],
    ending: Sequence[int],
    asked: Sequence[Shape],
    level: str,
) -> Case:
    cluster = tuple(make_node(f"n{index}", size=size, rack=f"r{index % 2}") for index, size in enumerate(sizes))
    resources = resources_and_candidates(cluster)[0]
    built = []
    for number, (shape, on, age, elastic, minimum, more, priority) in enumerate(gangs):
        found = [_pod(f"g{number}-{rank}", resources, shape, each, age, rank) for rank, each in enumerate(on)]
        if pods := tuple(pod for pod in found if pod is not None):
            gang = running_gang(
                f"g{number}",
                [],
                tenant=f"t{more % 2}",
                elastic=elastic,
                minimum=minimum,
                priority=int(priority),
                minimum_run=10.0 if more & 2 else 0.0,
                restart_cost=30.0 if more & 4 else 0.0,
            )
            built.append(replace(gang, pods=pods))
    coming = [_pod(f"e{number}", resources, gpu_shape(2, 8), (on, 1), 0.0, 0) for number, on in enumerate(ending)]
    going = tuple(replace(pod, state=PodState.ENDING) for pod in coming if pod is not None)
    return Case(cluster, tuple(built), mixed_gang(asked, required_level=level), going)


def _pod(uid: str, resources: NodeResources, shape: Shape, at: tuple[int, int], age: float, rank: int) -> Pod | None:
    """Return a pod if it fits."""
    names = resources.nodes.names
    on = names[at[0] % len(names)]
    if any(resources.free.amounts_on(on)[name] < amount for name, amount in shape.requests):
        return None
    resources.add_pods(on, shape)
    return placed_pod(uid, on, shape, age=age + rank % 2, borrowed=at[1] > 0, rank=rank)


EQUAL = st.tuples(SIZES, st.integers(1, 5)).map(lambda pair: [pair[0]] * pair[1])
UNEQUAL = st.lists(SIZES, min_size=1, max_size=5)
cases = st.builds(_case, NODES, GANGS, ENDING, UNEQUAL, LEVEL)
cases_of_equals = st.builds(_case, NODES, GANGS, ENDING, EQUAL, LEVEL)
patient = settings(deadline=None, max_examples=60)


def victim_uids(evicts: Sequence[Evict]) -> list[str]:
    return [uid for evict in evicts for uid in evict.pods]


def without_one(case: Case, choice: VictimChoice) -> Iterator[list[str]]:
    """Yield the victims without those of one gang that could have stayed."""
    gangs = {gang.id: gang for gang in case.gangs}
    for evict in choice.evicts:
        others = victim_uids([each for each in choice.evicts if each is not evict])
        if not evict.whole:
            yield from ([*others, *(uid for uid in evict.pods if uid != spared)] for spared in evict.pods)
        elif gangs[evict.gang].elastic:
            core = {pod.uid for pod in select_min_members(gangs[evict.gang], gangs[evict.gang].pods)}
            yield [*others, *(uid for uid in evict.pods if uid not in core)]
        else:
            yield others


@patient
@given(cases)
def test_no_victim_is_unneeded(case: Case) -> None:
    choice = case.choose_victims()
    if choice is not None:
        for gone in without_one(case, choice):
            assert not case.fits_without(gone), (choice, gone)


@patient
@given(cases)
def test_all_or_nothing(case: Case) -> None:
    choice = case.choose_victims()
    if choice is None:
        return
    assert list(choice.nodes) == [pod.uid for pod in case.asking.pods]
    resources = case.resources_without(victim_uids(choice.evicts))
    for pod in case.asking.pods:
        assert capacity_on(resources, choice.nodes[pod.uid], pod.shape)
        resources.add_pods(choice.nodes[pod.uid], pod.shape)
    if case.asking.required_level:
        racks = {node.name: node.labels["rack"] for node in case.nodes}
        assert len({racks[name] for name in choice.nodes.values()}) == 1


@patient
@given(cases)
def test_only_evictable_pods_are_evicted(case: Case) -> None:
    choice = case.choose_victims()
    gangs = {gang.id: gang for gang in case.gangs}
    for evict in choice.evicts if choice is not None else ():
        gang, gone = gangs[evict.gang], set(evict.pods)
        assert gone <= {pod.uid for pod in gang.pods if pod.borrowed}
        if evict.whole:
            assert gone == {pod.uid for pod in gang.pods if pod.borrowed}
        else:
            assert len(gang.pods) - len(gone) >= min(gang.minimum, len(gang.pods))
            assert gang.elastic or not all(pod.borrowed for pod in gang.pods)


@patient
@given(cases_of_equals)
def test_victims_are_found_if_any_suffice(case: Case) -> None:
    if case.choose_victims() is None:
        assert not case.fits_without(_evictable_pods(case.gangs, surplus_only=False))


@patient
@given(cases_of_equals)
def test_earlier_stages_are_evicted_first(case: Case) -> None:
    choice = case.choose_victims()
    if choice is None or not choice.evicts:
        return
    assert not case.fits_without([])
    if choice.lost or any(evict.whole for evict in choice.evicts):
        assert not case.fits_without(_evictable_pods(case.gangs, surplus_only=True))
    young = {gang.id for gang in case.gangs if min(pod.since for pod in gang.pods) + gang.minimum_run > NOW}
    if any(evict.gang in young and (evict.whole or evict.lost) for evict in choice.evicts):
        old = [gang for gang in case.gangs if gang.id not in young]
        surplus = _evictable_pods([gang for gang in case.gangs if gang.id in young], surplus_only=True)
        assert not case.fits_without([*surplus, *_evictable_pods(old, surplus_only=False)])


def _evictable_pods(gangs: Sequence[Gang], *, surplus_only: bool) -> list[str]:
    """Return all evictable pods."""
    found = []
    for gang in gangs:
        core = {pod.uid for pod in select_min_members(gang, gang.pods)}
        surplus = [pod for pod in gang.pods if gang.elastic and pod.uid not in core]
        found += [pod.uid for pod in (surplus if surplus_only else gang.pods) if pod.borrowed]
    return found


@patient
@given(cases, st.randoms(use_true_random=False))
def test_input_order_does_not_matter(case: Case, random: object) -> None:
    shuffled = list(case.gangs)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert case.choose_victims() == case.choose_victims(shuffled)


@patient
@given(cases)
def test_removed_gangs_leave_no_trace(case: Case) -> None:
    resources, evictable = resources_and_candidates(case.nodes, case.gangs)
    fresh = choose_victims(resources, evictable, case.asking, case.asking.pods, now=NOW)
    for gang in [*case.gangs, running_gang("other", ["n0", "n0"], 1)]:
        evictable.update_gang(replace(gang, elastic=not gang.elastic, minimum=1))
    evictable.remove_gang("other")
    for gang in case.gangs:
        evictable.update_gang(gang)
    assert choose_victims(resources, evictable, case.asking, case.asking.pods, now=NOW) == fresh


@patient
@given(st.lists(st.tuples(st.integers(1, 500), st.integers(0, 9)), min_size=1, max_size=7), st.integers(1, 3))
def test_cheapest_single_node_gangs_are_evicted(gangs: list[tuple[int, int]], count: int) -> None:
    cluster = [make_node(f"n{index}") for index in range(len(gangs))]
    lost = [8 * age + restart for age, restart in gangs]
    on = [
        running_gang(f"g{index}", [f"n{index}"], 8, age=age, restart_cost=restart)
        for index, (age, restart) in enumerate(gangs)
    ]
    asking = waiting_gang(count)
    choice = choose_victims(*resources_and_candidates(cluster, on), asking, asking.pods, now=NOW)
    if count > len(gangs):
        assert choice is None
    else:
        assert choice is not None
        assert choice.lost == min(sum(each) for each in itertools.combinations(lost, count))
