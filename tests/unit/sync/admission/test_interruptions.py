"""Evictions from beginning to end, with a gateway that dies after each of its writes: the same end, nothing twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
from aiohttp import web

from tests.unit.background import in_background
from tests.unit.sync.admission.platform import (
    DEADLINE,
    LOW,
    annotation,
    bind,
    condition,
    deleted,
    gated,
    is_let_go,
    run,
)
from tests.unit.sync.world import BELOW, COMPUTE_NODE, World, until, world
from vkgateway.kube.resources import PODS

Dispatch = Callable[[web.Request], Awaitable[web.StreamResponse]]
ENDED = ("Succeeded", "Failed")
ELASTIC = {"vkgateway.io/gang": "train", "vkgateway.io/gang-min": "1", "vkgateway.io/gang-elastic-max": "2"}


class Interruption:
    """The write after which nothing is answered any more: it is done, and the gateway does not know."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.writes = 0
        self.reached = asyncio.Event()

    def wrap(self, dispatch: Dispatch) -> Dispatch:
        async def wrapped(request: web.Request) -> web.StreamResponse:
            if request.method == "GET":
                return await dispatch(request)
            self.writes += 1
            if self.writes > self.after:
                await asyncio.Event().wait()
            answer = await dispatch(request)
            if self.writes >= self.after:
                self.reached.set()
                await asyncio.Event().wait()
            return answer

        return wrapped


@contextmanager
def interrupted(here: World, interruption: Interruption) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for server in (here.above, here.below):
            patch.setattr(server, "_dispatch", interruption.wrap(server._dispatch))
        yield


@asynccontextmanager
async def everybody_else(here: World) -> AsyncIterator[None]:
    """The tenant's scheduler, the compute cluster's and its kubelet, who go on whatever happens to the gateway."""

    loop = asyncio.get_running_loop()
    ends: dict[str, float] = {}
    """When those who are deleted will have ended: they take their time."""

    def is_over(name: str) -> bool:
        return loop.time() >= ends.setdefault(name, loop.time() + 0.1)

    async def work() -> None:
        while True:
            for document in here.above.store.all(PODS):
                name = document["metadata"]["name"]
                if is_let_go(here, name) and not document["spec"].get("nodeName") and not deleted(document):
                    bind(here, name)
            for document in here.below.store.all(PODS):
                name = document["metadata"]["name"]
                bound = document["spec"].get("nodeName")
                if not bound and not deleted(document):
                    run(here, name)
                elif bound and deleted(document) and document["status"]["phase"] not in ENDED and is_over(name):
                    here.end(name, code=143)
            await asyncio.sleep(0.002)

    async with in_background(work()):
        yield


def most_in_use(here: World) -> int:
    """The most GPUs that were ever in use at once."""
    held: dict[str, int] = {}
    most = 0
    for change in here.below.store.history:
        if change.resource is not PODS:
            continue
        document = change.new or change.old
        assert document is not None
        name = document["metadata"]["name"]
        held.pop(name, None)
        if change.new is not None and document["spec"].get("nodeName") and document["status"]["phase"] not in ENDED:
            held[name] = int(document["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
        most = max(most, sum(held.values()))
    return most


def born_below(here: World) -> Counter[str]:
    """How often each pod came into being below."""
    return Counter(
        change.new["metadata"]["name"]
        for change in here.below.store.history
        if change.resource is PODS and change.old is None and change.new is not None
    )


class Story:
    """What happens to a pool of 8 GPUs that are guaranteed to a tenant."""

    notice = 0.2
    writes = 0
    """After each of so many the gateway dies once; there are no more."""

    def begin(self, here: World) -> None:
        """Who is there at first."""
        raise NotImplementedError

    async def go_on(self, here: World) -> None:
        """From wherever it was broken off to its end."""
        raise NotImplementedError

    def check(self, here: World) -> None:
        """How it must have ended."""
        raise NotImplementedError


class Reclaim(Story):
    """Low work of two runs, and a guaranteed pod takes its place."""

    writes = 32

    def begin(self, here: World) -> None:
        for rank in range(2):
            gated(here, f"low-{rank}", gpus=4, gang=("train", 2), **LOW)

    async def go_on(self, here: World) -> None:
        if here.tenant_pod("high") is None:
            await until(lambda: phases(here, "low-0", "low-1") == ["Running"] * 2)
            gated(here, "high", gpus=8)
        await until(lambda: here.phase("high") == "Running")
        await until(lambda: phases(here, "low-0", "low-1") == ["Failed"] * 2)
        await until(lambda: names_below(here) == ["high"])

    def check(self, here: World) -> None:
        assert born_below(here) == {"low-0": 1, "low-1": 1, "high": 1}
        for rank in range(2):
            assert disruption(here, f"low-{rank}") == ("True", "PreemptionByVkgateway")
        assert annotation(here.compute_pod("high"), "vkgateway.io/compute-node") == COMPUTE_NODE
        assert annotation(here.compute_pod("high"), "vkgateway.io/borrowed") == "false"
        assert here.below.store.find(PODS, "high", BELOW) is not None


class ShrinkAndGrowth(Story):
    """An elastic gang gives one of its pods up, and gets another when there is room again."""

    writes = 30

    def begin(self, here: World) -> None:
        for rank in range(2):
            gated(here, f"low-{rank}", gpus=4, marks=ELASTIC, **LOW)

    async def go_on(self, here: World) -> None:
        if here.tenant_pod("low-2") is None:
            if here.tenant_pod("high") is None:
                await until(lambda: phases(here, "low-0", "low-1") == ["Running"] * 2)
                gated(here, "high", gpus=4)
            await until(lambda: here.phase("high") == "Running")
            await until(lambda: sorted(phases(here, "low-0", "low-1")) == ["Failed", "Running"])
            gated(here, "low-2", gpus=4, marks=ELASTIC, **LOW)
        if here.tenant_pod("high") is not None:
            here.above.store.delete(PODS, "high", "default", grace=0)
        await until(lambda: here.phase("low-2") == "Running")
        await until(lambda: len(names_below(here)) == 2)

    def check(self, here: World) -> None:
        assert born_below(here) == {"low-0": 1, "low-1": 1, "low-2": 1, "high": 1}
        went = [name for name in ("low-0", "low-1") if here.phase(name) == "Failed"]
        assert [disruption(here, name) for name in went] == [("True", "PreemptionByVkgateway")]


class Reprieved(Story):
    """Low work is told to go for a pod that then is not there any more, and stays."""

    notice = 30
    writes = 20

    def begin(self, here: World) -> None:
        gated(here, "low", gpus=8, **LOW)

    async def go_on(self, here: World) -> None:
        if disruption(here, "low") is None:
            if here.tenant_pod("high") is None:
                await until(lambda: here.phase("low") == "Running")
                gated(here, "high", gpus=8)
            await until(lambda: disruption(here, "low"))
        if here.tenant_pod("high") is not None:
            here.above.store.delete(PODS, "high", "default", grace=0)
        await until(lambda: disruption(here, "low") == ("False", "EvictionWithdrawn"))
        await until(lambda: not annotation(here.tenant_pod("low"), DEADLINE))
        await until(lambda: not annotation(here.compute_pod("low"), DEADLINE))

    def check(self, here: World) -> None:
        assert here.phase("low") == "Running"
        assert born_below(here) == {"low": 1}


def phases(here: World, *names: str) -> list[str]:
    return [here.phase(name) for name in names]


def names_below(here: World) -> list[str]:
    return [each["metadata"]["name"] for each in here.below.store.all(PODS)]


def disruption(here: World, name: str) -> tuple[str, str] | None:
    """Status and reason of what is told of its eviction."""
    told = condition(here, "DisruptionTarget", name)
    return told[:2] if told else None


@asynccontextmanager
async def told_to(story: Story) -> AsyncIterator[World]:
    """A world in which a story has begun."""
    async with world() as here:
        here.notice = story.notice
        here.limit = here.limit | {"nvidia.com/gpu": 16_000}
        here.guarantee = {"nvidia.com/gpu": 8000}
        story.begin(here)
        async with everybody_else(here):
            yield here


STORIES = [Reclaim(), ShrinkAndGrowth(), Reprieved()]


@pytest.mark.parametrize(
    ("story", "after"),
    [pytest.param(each, n, id=f"{type(each).__name__}-{n}") for each in STORIES for n in range(1, each.writes + 1)],
)
async def test_a_gateway_that_dies_after_any_write_leaves_nothing_undone_and_nothing_done_twice(
    story: Story, after: int
) -> None:
    async with told_to(story) as here:
        interruption = Interruption(after)
        with interrupted(here, interruption):
            async with here.gateway():
                told = asyncio.create_task(story.go_on(here))
                death = asyncio.create_task(interruption.reached.wait())
                await asyncio.wait([told, death], return_when=asyncio.FIRST_COMPLETED)
                for task in (told, death):
                    task.cancel()
                await asyncio.gather(told, death, return_exceptions=True)
        async with here.gateway():
            await story.go_on(here)
            await here.settled()
        assert most_in_use(here) == 8
        story.check(here)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: type(story).__name__)
async def test_there_are_no_more_writes_than_those_after_which_it_dies(story: Story) -> None:
    async with told_to(story) as here:
        uninterrupted = Interruption(after=10_000)
        with interrupted(here, uninterrupted):
            async with here.gateway():
                await story.go_on(here)
                await here.settled()
        assert uninterrupted.writes <= story.writes
