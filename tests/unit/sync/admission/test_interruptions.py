"""A reclaim from beginning to end, with a gateway that dies after each of its writes: the same end, nothing twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
from aiohttp import web

from tests.unit.sync.admission.platform import LOW, annotation, bind, condition, deleted, gated, is_let_go, run
from tests.unit.sync.world import BELOW, COMPUTE_NODE, World, until, world
from vkgateway.kube.resources import PODS

Dispatch = Callable[[web.Request], Awaitable[web.StreamResponse]]
ENDED = ("Succeeded", "Failed")


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

    task = asyncio.create_task(work())
    try:
        yield
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


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


async def reclaim(here: World) -> None:
    """Low work of two runs, and a guaranteed pod takes its place."""
    if here.tenant_pod("high") is None:
        await until(lambda: [here.phase(f"low-{rank}") for rank in range(2)] == ["Running"] * 2, seconds=8)
        gated(here, "high", gpus=8)
    await until(lambda: here.phase("high") == "Running", seconds=10)
    await until(lambda: [here.phase(f"low-{rank}") for rank in range(2)] == ["Failed"] * 2, seconds=8)


@pytest.mark.parametrize("after", range(1, 31))
async def test_a_gateway_that_dies_after_any_write_leaves_nothing_undone_and_nothing_done_twice(after: int) -> None:
    async with world() as here:
        here.notice = 0.2
        here.limit = here.limit | {"nvidia.com/gpu": 16_000}
        here.guarantee = {"nvidia.com/gpu": 8000}
        for rank in range(2):
            gated(here, f"low-{rank}", gpus=4, gang=("train", 2), **LOW)
        interruption = Interruption(after)
        async with everybody_else(here):
            with interrupted(here, interruption):
                async with here.gateway():
                    story = asyncio.create_task(reclaim(here))
                    death = asyncio.create_task(interruption.reached.wait())
                    await asyncio.wait([story, death], return_when=asyncio.FIRST_COMPLETED)
                    for task in (story, death):
                        task.cancel()
                    await asyncio.gather(story, death, return_exceptions=True)
            async with here.gateway():
                await reclaim(here)
                await until(lambda: [pod["metadata"]["name"] for pod in here.below.store.all(PODS)] == ["high"])

        assert born_below(here) == {"low-0": 1, "low-1": 1, "high": 1}
        assert most_in_use(here) == 8
        for rank in range(2):
            assert (condition(here, "DisruptionTarget", f"low-{rank}") or ("", ""))[1] == "PreemptionByVkgateway"
        assert annotation(here.compute_pod("high"), "vkgateway.io/compute-node") == COMPUTE_NODE
        assert annotation(here.compute_pod("high"), "vkgateway.io/borrowed") == "false"
        assert here.below.store.find(PODS, "high", BELOW) is not None
