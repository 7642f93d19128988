"""When a gang can start, by what ends: the first time at which placing it succeeds."""

from __future__ import annotations

from random import Random
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from vkgateway.arbiter import freeing
from vkgateway.arbiter.ends import End, Ends
from vkgateway.arbiter.facts import Gang, Node, Pod, PodState, Policy, Pool, Shape
from vkgateway.arbiter.forecast import Future
from vkgateway.arbiter.placement import place
from vkgateway.arbiter.room import Room

GPU = "nvidia.com/gpu"
NOW = 10.0
TIMES = (5.0, 10.0, 11.0, 12.0, 12.5, 13.0, 20.0, 40.0)
"""Some of them are overdue."""
SHAPES = (
    Shape.of({GPU: 1000}),
    Shape.of({GPU: 2000, "cpu": 4000}),
    Shape.of({GPU: 4000, "cpu": 24_000}),
    Shape.of({"cpu": 12_000}),
    Shape.of({"other": 1000}),
)


class _Case:
    """A pool, what runs in it, some of it not known to `Ends`, and the pods of a gang that waits."""

    def __init__(self, random: Random) -> None:
        nodes = tuple(_node(random, f"n{number}") for number in range(random.randint(1, 8)))
        pool = Pool(key=("compute", "pool"), nodes=nodes, governed=(GPU,), levels=("rack",))
        self.room = Room(pool)
        self.ends = Ends(self.room, Policy())
        self.known: list[End] = []
        self.also: list[End] = []
        for number in range(random.randint(0, 20)):
            self._runs(random, number)
        shapes = random.choices(SHAPES[:4] if random.random() < 0.9 else SHAPES, k=random.choice((1, 1, 1, 2)))
        count = random.randint(1, 6)
        self.pods = [Pod(uid=f"p{number}", shape=shapes[number % len(shapes)]) for number in range(count)]
        self.level = random.choice(("", "rack"))
        self.among = random.sample(self.room.names, random.randint(1, len(nodes))) if random.random() < 0.3 else None

    def _runs(self, random: Random, number: int) -> None:
        node, shape, time = random.choice(self.room.names), random.choice(SHAPES[:4]), random.choice((None, *TIMES))
        if self.room.fits(node, shape) or random.random() < 0.1:
            self.room.take(node, shape)
            if time is not None and random.random() < 0.3:
                self.also.append(End(time, node, shape))
                return
            pod = Pod(uid=f"u{number}", shape=shape, state=PodState.PLACED, pool=self.room.pool.key, node=node)
            gang = Gang(id=f"g{number}", tenant="a", pods=(pod,), pools=(self.room.pool.key,), run_limit=time)
            self.ends.put(gang, pod)
            if time is not None:
                self.known.append(End(max(time, NOW), node, shape))

    @property
    def all_ends(self) -> list[End]:
        return [*self.known, *self.also]

    def first(self) -> float | None:
        """The first time at which placing succeeds."""
        for time in sorted({end.time for end in self.all_ends}):
            mark = self.room.mark()
            self.room.give_all((end.node, end.shape) for end in self.all_ends if end.time <= time)
            found = place(self.room, self.pods, required_level=self.level, among=self.among)
            self.room.undo(mark)
            if found is not None:
                return time
        return None


def _node(random: Random, name: str) -> Node:
    allocatable = {GPU: random.choice((2000, 4000, 8000)), "cpu": random.choice((16_000, 48_000))}
    labels = {"rack": random.choice("xy")} if random.random() < 0.7 else {}
    return Node(name=name, allocatable=allocatable, labels=labels, usable=random.random() < 0.9)


@given(seed=st.integers(0, 1 << 32), part=st.sampled_from([1, 3, 256]))
@settings(deadline=None)
def test_the_time_is_the_first_at_which_the_gang_can_be_placed(seed: int, part: int) -> None:
    case = _Case(Random(seed))
    future = Future(case.room, case.ends, NOW, case.also)
    first = case.first()
    with patch.object(freeing, "_FIRST", part):
        found = future.earliest(case.pods, required_level=case.level, among=case.among)
        if len({pod.shape for pod in case.pods}) == 1:
            assert found == first
        if found is None:
            return
        assert future.place(case.pods, found, required_level=case.level, among=case.among) is not None
        for after in sorted({end.time for end in case.all_ends}):
            then = future.earliest(case.pods, required_level=case.level, among=case.among, after=after)
            assert then == max(after, found)
