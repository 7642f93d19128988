"""Forecasts of starts: the first known end at which the placement succeeds."""

from __future__ import annotations

from random import Random
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.arbiter.simulated_cluster import capacity_on
from vkgateway.scheduler.core.capacity import future_fit
from vkgateway.scheduler.core.capacity.expected_ends import ExpectedEnds, PodEnd
from vkgateway.scheduler.core.capacity.forecast import PoolForecast
from vkgateway.scheduler.core.capacity.node_resources import NodeResources
from vkgateway.scheduler.core.capacity.placement import place_pods
from vkgateway.scheduler.core.snapshot import Gang, Node, Pod, PodState, Policy, Pool, Shape

GPU = "nvidia.com/gpu"
NOW = 10.0
TIMES = (5.0, 10.0, 11.0, 12.0, 12.5, 13.0, 20.0, 40.0)
"""Some pods are overdue."""
SHAPES = (
    Shape.from_requests({GPU: 1000}),
    Shape.from_requests({GPU: 2000, "cpu": 4000}),
    Shape.from_requests({GPU: 4000, "cpu": 24_000}),
    Shape.from_requests({"cpu": 12_000}),
    Shape.from_requests({"other": 1000}),
)


class _Case:
    """Pool with running pods, some unknown to `ExpectedEnds`, and the pods of a waiting gang."""

    def __init__(self, random: Random) -> None:
        nodes = tuple(_node(random, f"n{number}") for number in range(random.randint(1, 8)))
        pool = Pool(key=("compute", "pool"), nodes=nodes, governed=(GPU,), levels=("rack",))
        self.room = NodeResources(pool)
        self.ends = ExpectedEnds(self.room.nodes, pool, Policy())
        self.known: list[PodEnd] = []
        self.also: list[PodEnd] = []
        for number in range(random.randint(0, 20)):
            self._add_running(random, number)
        shapes = random.choices(SHAPES[:4] if random.random() < 0.9 else SHAPES, k=random.choice((1, 1, 1, 2)))
        count = random.randint(1, 6)
        self.pods = [Pod(uid=f"p{number}", shape=shapes[number % len(shapes)]) for number in range(count)]
        self.level = random.choice(("", "rack"))
        self.among = (
            random.sample(self.room.nodes.names, random.randint(1, len(nodes))) if random.random() < 0.3 else None
        )

    def _add_running(self, random: Random, number: int) -> None:
        node, shape, time = (
            random.choice(self.room.nodes.names),
            random.choice(SHAPES[:4]),
            random.choice((None, *TIMES)),
        )
        if capacity_on(self.room, node, shape) or random.random() < 0.1:
            self.room.add_pods(node, shape)
            if time is not None and random.random() < 0.3:
                self.also.append(PodEnd(time, node, shape))
                return
            pod = Pod(uid=f"u{number}", shape=shape, state=PodState.PLACED, pool=self.room.pool.key, node=node)
            gang = Gang(id=f"g{number}", tenant="a", pods=(pod,), pools=(self.room.pool.key,), run_limit=time)
            self.ends.update_pod(gang, pod)
            if time is not None:
                self.known.append(PodEnd(max(time, NOW), node, shape))

    @property
    def all_ends(self) -> list[PodEnd]:
        return [*self.known, *self.also]

    def first_time(self) -> float | None:
        """Return the first time at which the placement succeeds."""
        for time in sorted({end.time for end in self.all_ends}):
            with self.room.trial():
                self.room.remove_many((end.node, end.shape) for end in self.all_ends if end.time <= time)
                found = place_pods(self.room, self.pods, required_level=self.level, among=self.among)
            if found is not None:
                return time
        return None


def _node(random: Random, name: str) -> Node:
    allocatable = {GPU: random.choice((2000, 4000, 8000)), "cpu": random.choice((16_000, 48_000))}
    labels = {"rack": random.choice("xy")} if random.random() < 0.7 else {}
    return Node(name=name, allocatable=allocatable, labels=labels, usable=random.random() < 0.9)


@given(seed=st.integers(0, 1 << 32), part=st.sampled_from([1, 3, 256]))
@settings(deadline=None)
def test_forecast_is_first_time_that_fits(seed: int, part: int) -> None:
    case = _Case(Random(seed))
    future = PoolForecast(case.room, case.ends, NOW, case.also)
    first = case.first_time()
    with patch.object(future_fit, "_FIRST_ENDS", part):
        found = future.earliest_start(case.pods, required_level=case.level, among=case.among)
        if len({pod.shape for pod in case.pods}) == 1:
            assert found == first
        if found is None:
            return
        assert future.place_at(case.pods, found, required_level=case.level, among=case.among) is not None
        for after in sorted({end.time for end in case.all_ends}):
            then = future.earliest_start(case.pods, required_level=case.level, among=case.among, after=after)
            assert then == max(after, found)
