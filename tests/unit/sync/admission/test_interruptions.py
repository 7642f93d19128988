"""Evictions with a gateway that stops after each of its writes: the same result, and no write is repeated."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
from aiohttp import web

from tests.support.waiting import wait_until
from tests.unit.background import in_background
from tests.unit.sync.admission.cluster_helpers import (
    DEADLINE,
    LOW,
    bind_pod,
    create_gated,
    get_annotation,
    get_condition,
    is_deleting,
    is_ungated,
    run_pod,
)
from tests.unit.sync.world import COMPUTE_NAMESPACE, COMPUTE_NODE, World, start_world
from vkgateway.kube.resources import PODS
from vkgateway.scheduler.service import pending_reporter

Dispatch = Callable[[web.Request], Awaitable[web.StreamResponse]]
ENDED = ("Succeeded", "Failed")
ELASTIC = {"vkgateway.io/gang": "train", "vkgateway.io/gang-min": "1", "vkgateway.io/gang-elastic-max": "2"}


class Interruption:
    """The write after which the gateway gets no answers: the server has executed it, and the gateway does not know."""

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
def run_interrupted(world: World, interruption: Interruption) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for server in (world.tenant_server, world.compute_server):
            patch.setattr(server, "_dispatch", interruption.wrap(server._dispatch))
        yield


@asynccontextmanager
async def other_requests(world: World) -> AsyncIterator[None]:
    """The tenant's scheduler, the compute scheduler and the kubelet, which continue while the gateway is stopped."""

    loop = asyncio.get_running_loop()
    ends: dict[str, float] = {}
    """Times at which deleted pods will have ended."""

    def is_over(name: str) -> bool:
        return loop.time() >= ends.setdefault(name, loop.time() + 0.1)

    async def work() -> None:
        while True:
            for document in world.tenant_server.store.all(PODS):
                name = document["metadata"]["name"]
                if is_ungated(world, name) and not document["spec"].get("nodeName") and not is_deleting(document):
                    bind_pod(world, name)
            for document in world.compute_server.store.all(PODS):
                name = document["metadata"]["name"]
                bound = document["spec"].get("nodeName")
                if not bound and not is_deleting(document):
                    run_pod(world, name)
                elif bound and is_deleting(document) and document["status"]["phase"] not in ENDED and is_over(name):
                    world.end_pod(name, code=143)
            await asyncio.sleep(0.002)

    async with in_background(work()):
        yield


def peak_usage(world: World) -> int:
    """Return the highest number of GPUs that were in use at the same time."""
    held: dict[str, int] = {}
    most = 0
    for change in world.compute_server.store.history:
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


def created_pods(world: World) -> Counter[str]:
    """Return how often each compute pod was created."""
    return Counter(
        change.new["metadata"]["name"]
        for change in world.compute_server.store.history
        if change.resource is PODS and change.old is None and change.new is not None
    )


class Scenario:
    """Course of events in a pool of 8 GPUs that are guaranteed to a tenant."""

    notice = 0.2
    writes = 0
    """Number of writes after which the gateway stops once; there are no more writes."""

    def start_scenario(self, world: World) -> None:
        """Create the initial pods."""
        raise NotImplementedError

    async def continue_scenario(self, world: World) -> None:
        """Continue from the point of interruption to the end."""
        raise NotImplementedError

    def check_result(self, world: World) -> None:
        """Check the result."""
        raise NotImplementedError


class Reclaim(Scenario):
    """A guaranteed pod takes the place of one of two running low-priority pods."""

    writes = 32

    def start_scenario(self, world: World) -> None:
        for rank in range(2):
            create_gated(world, f"low-{rank}", gpus=4, gang=("train", 2), **LOW)

    async def continue_scenario(self, world: World) -> None:
        if world.tenant_pod("high") is None:
            await wait_until(lambda: pod_phases(world, "low-0", "low-1") == ["Running"] * 2)
            create_gated(world, "high", gpus=8)
        await wait_until(lambda: world.pod_phase("high") == "Running")
        await wait_until(lambda: pod_phases(world, "low-0", "low-1") == ["Failed"] * 2)
        await wait_until(lambda: compute_names(world) == ["high"])

    def check_result(self, world: World) -> None:
        assert created_pods(world) == {"low-0": 1, "low-1": 1, "high": 1}
        for rank in range(2):
            assert disruption_reason(world, f"low-{rank}") == ("True", "PreemptionByVkgateway")
        assert get_annotation(world.compute_pod("high"), "vkgateway.io/compute-node") == COMPUTE_NODE
        assert get_annotation(world.compute_pod("high"), "vkgateway.io/borrowed") == "false"
        assert world.compute_server.store.find(PODS, "high", COMPUTE_NAMESPACE) is not None


class ShrinkAndGrowth(Scenario):
    """An elastic gang loses one pod, and gets another one when capacity is free again."""

    writes = 30

    def start_scenario(self, world: World) -> None:
        for rank in range(2):
            create_gated(world, f"low-{rank}", gpus=4, annotations=ELASTIC, **LOW)

    async def continue_scenario(self, world: World) -> None:
        if world.tenant_pod("low-2") is None:
            if world.tenant_pod("high") is None:
                await wait_until(lambda: pod_phases(world, "low-0", "low-1") == ["Running"] * 2)
                create_gated(world, "high", gpus=4)
            await wait_until(lambda: world.pod_phase("high") == "Running")
            await wait_until(lambda: sorted(pod_phases(world, "low-0", "low-1")) == ["Failed", "Running"])
            create_gated(world, "low-2", gpus=4, annotations=ELASTIC, **LOW)
        if world.tenant_pod("high") is not None:
            world.tenant_server.store.delete(PODS, "high", "default", grace=0)
        await wait_until(lambda: world.pod_phase("low-2") == "Running")
        await wait_until(lambda: len(compute_names(world)) == 2)

    def check_result(self, world: World) -> None:
        assert created_pods(world) == {"low-0": 1, "low-1": 1, "low-2": 1, "high": 1}
        went = [name for name in ("low-0", "low-1") if world.pod_phase(name) == "Failed"]
        assert [disruption_reason(world, name) for name in went] == [("True", "PreemptionByVkgateway")]


class Reprieved(Scenario):
    """A low-priority pod gets a notice for a pod that is then deleted, and stays."""

    notice = 30
    writes = 20

    def start_scenario(self, world: World) -> None:
        create_gated(world, "low", gpus=8, **LOW)

    async def continue_scenario(self, world: World) -> None:
        if disruption_reason(world, "low") is None:
            if world.tenant_pod("high") is None:
                await wait_until(lambda: world.pod_phase("low") == "Running")
                create_gated(world, "high", gpus=8)
            await wait_until(lambda: disruption_reason(world, "low"))
        if world.tenant_pod("high") is not None:
            world.tenant_server.store.delete(PODS, "high", "default", grace=0)
        await wait_until(lambda: disruption_reason(world, "low") == ("False", "EvictionWithdrawn"))
        await wait_until(lambda: not get_annotation(world.tenant_pod("low"), DEADLINE))
        await wait_until(lambda: not get_annotation(world.compute_pod("low"), DEADLINE))

    def check_result(self, world: World) -> None:
        assert world.pod_phase("low") == "Running"
        assert created_pods(world) == {"low": 1}


def pod_phases(world: World, *names: str) -> list[str]:
    return [world.pod_phase(name) for name in names]


def compute_names(world: World) -> list[str]:
    return [each["metadata"]["name"] for each in world.compute_server.store.all(PODS)]


def disruption_reason(world: World, name: str) -> tuple[str, str] | None:
    """Return status and reason of the eviction condition."""
    notified = get_condition(world, "DisruptionTarget", name)
    return notified[:2] if notified else None


@asynccontextmanager
async def notified_pods(scenario: Scenario) -> AsyncIterator[World]:
    """Return a world in which a scenario has started."""
    async with start_world() as world:
        world.notice = scenario.notice
        world.limit = world.limit | {"nvidia.com/gpu": 16_000}
        world.guarantee = {"nvidia.com/gpu": 8000}
        scenario.start_scenario(world)
        async with other_requests(world):
            yield world


STORIES = [Reclaim(), ShrinkAndGrowth(), Reprieved()]


@pytest.mark.parametrize(
    ("scenario", "after"),
    [pytest.param(each, n, id=f"{type(each).__name__}-{n}") for each in STORIES for n in range(1, each.writes + 1)],
)
async def test_gateway_stopped_after_any_write_neither_omits_nor_repeats_work(scenario: Scenario, after: int) -> None:
    async with notified_pods(scenario) as world:
        interruption = Interruption(after)
        with run_interrupted(world, interruption):
            async with world.run_gateway():
                notified = asyncio.create_task(scenario.continue_scenario(world))
                death = asyncio.create_task(interruption.reached.wait())
                await asyncio.wait([notified, death], return_when=asyncio.FIRST_COMPLETED)
                for task in (notified, death):
                    task.cancel()
                await asyncio.gather(notified, death, return_exceptions=True)
        async with world.run_gateway():
            await scenario.continue_scenario(world)
            await world.wait_settled()
        assert peak_usage(world) == 8
        scenario.check_result(world)


@pytest.mark.parametrize("scenario", STORIES, ids=lambda scenario: type(scenario).__name__)
async def test_number_of_interruption_points_matches_the_writes(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_reporter, "_PATIENCE", 3600.0)  # only on a slow machine a pod waits for long
    async with notified_pods(scenario) as world:
        uninterrupted = Interruption(after=10_000)
        with run_interrupted(world, uninterrupted):
            async with world.run_gateway():
                await scenario.continue_scenario(world)
                await world.wait_settled()
        assert uninterrupted.writes <= scenario.writes
