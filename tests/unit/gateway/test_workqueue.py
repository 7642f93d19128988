"""Objects that a controller reconciles: one worker for each, retries, no object affects others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import REGISTRY

from tests.support.machine import patience
from tests.unit.background import in_background
from vkgateway.api.errors import VkgatewayError
from vkgateway.kube import errors
from vkgateway.kube.backoff import Backoff
from vkgateway.runtime.workqueue import ObjectQueue

SOON = Backoff(base=0.001, cap=0.001)


@asynccontextmanager
async def running(fleet: ObjectQueue) -> AsyncIterator[None]:
    async with in_background(fleet.run()):
        yield


async def test_objects_enqueued_before_start_are_reconciled() -> None:
    seen = asyncio.Event()

    async def look(name: str) -> float | None:
        assert name == "a"
        seen.set()
        return None

    fleet = ObjectQueue("x", look)
    fleet.enqueue("a")
    async with running(fleet), asyncio.timeout(patience(30)):
        await seen.wait()


async def test_triggers_during_run_cause_one_more_run() -> None:
    active, looks = 0, 0
    go, again = asyncio.Event(), asyncio.Event()

    async def look(_name: str) -> float | None:
        nonlocal active, looks
        active += 1
        looks += 1
        assert active == 1
        await go.wait()
        active -= 1
        if looks == 2:
            again.set()
        return None

    fleet = ObjectQueue("x", look)
    async with running(fleet), asyncio.timeout(patience(30)):
        fleet.enqueue("a")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for _ in range(5):
            fleet.enqueue("a")
        go.set()
        await again.wait()
        for _ in range(5):
            await asyncio.sleep(0)
    assert looks == 2


async def test_failed_object_is_retried_without_affecting_others() -> None:
    reports: list[str] = []
    tries = 0
    healed, other = asyncio.Event(), asyncio.Event()

    async def look(name: str) -> float | None:
        nonlocal tries
        if name == "good":
            other.set()
            return None
        tries += 1
        if tries < 3:
            raise errors.ServerError("broken", status=500)
        healed.set()
        return None

    async def on_error(name: str, error: Exception) -> None:
        reports.append(f"{name}: {error}")
        raise RuntimeError("telling fails too")

    fleet = ObjectQueue("x", look, on_error=on_error, backoff=SOON)
    async with running(fleet), asyncio.timeout(patience(30)):
        fleet.enqueue("bad")
        fleet.enqueue("good")
        await healed.wait()
        await other.wait()
    assert reports == ["bad: broken", "bad: broken"]


async def test_object_enqueued_during_its_run_is_reconciled_again() -> None:
    twice = asyncio.Event()
    looks: list[int] = []

    async def look(name: str) -> float | None:
        looks.append(len(looks))
        if len(looks) == 1:
            fleet.enqueue(name)
        else:
            twice.set()
        return None

    fleet = ObjectQueue("x", look)
    async with running(fleet), asyncio.timeout(patience(30)):
        fleet.enqueue("a")
        await twice.wait()
    assert looks == [0, 1]


async def test_object_is_requeued_after_requested_time() -> None:
    twice = asyncio.Event()
    looks = 0

    async def look(_name: str) -> float | None:
        nonlocal looks
        looks += 1
        if looks == 2:
            twice.set()
        return 0.001

    fleet = ObjectQueue("x", look)
    fleet.enqueue("a")
    async with running(fleet), asyncio.timeout(patience(30)):
        await twice.wait()


@pytest.mark.parametrize(("failure", "counted"), [(RuntimeError("a bug"), 1), (VkgatewayError("etcd is away"), 0)])
async def test_unexpected_errors_are_counted_as_defects(failure: Exception, counted: int) -> None:
    def defects() -> float:
        return REGISTRY.get_sample_value("vkgateway_work_retries_total", {"reason": "defect"}) or 0.0

    before, handled = defects(), asyncio.Event()

    async def fail(_name: str) -> float | None:
        raise failure

    async def report(_name: str, _error: Exception) -> None:
        handled.set()

    fleet = ObjectQueue("x", fail, on_error=report, backoff=Backoff(base=60, cap=60))
    async with running(fleet), asyncio.timeout(patience(30)):
        fleet.enqueue("a")
        await handled.wait()
    assert defects() == before + counted


async def test_objects_that_take_long_delay_no_other_and_start_again_after_a_stop() -> None:
    names = {f"tenant-{number}" for number in range(200)}
    started: set[str] = set()
    all_started = asyncio.Event()

    async def look(name: str) -> float | None:
        started.add(name)
        if started == names:
            all_started.set()
        await asyncio.get_running_loop().create_future()
        return None

    fleet = ObjectQueue("x", look)
    for _ in range(2):
        fleet.enqueue(*names)
        async with running(fleet), asyncio.timeout(patience(30)):
            await all_started.wait()
        started.clear()
        all_started.clear()
