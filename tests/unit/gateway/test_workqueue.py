"""Tests of the work queue and its workers."""

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
from vkgateway.runtime.workqueue import DONE, ReconcileResult, WorkQueue

SOON = Backoff(base=0.001, cap=0.001)


async def ignore(_name: str, _error: Exception) -> None:
    """Ignore errors."""


@asynccontextmanager
async def running(fleet: WorkQueue) -> AsyncIterator[None]:
    async with in_background(fleet.run()):
        yield


async def test_objects_enqueued_before_start_are_reconciled() -> None:
    seen = asyncio.Event()

    async def look(name: str) -> ReconcileResult:
        assert name == "a"
        seen.set()
        return None

    fleet = WorkQueue("x", look, on_error=ignore)
    fleet.enqueue("a")
    async with running(fleet), asyncio.timeout(patience(30)):
        await seen.wait()


async def test_triggers_during_run_cause_one_more_run() -> None:
    active, looks = 0, 0
    go, again = asyncio.Event(), asyncio.Event()

    async def look(_name: str) -> ReconcileResult:
        nonlocal active, looks
        active += 1
        looks += 1
        assert active == 1
        await go.wait()
        active -= 1
        if looks == 2:
            again.set()
        return None

    fleet = WorkQueue("x", look, on_error=ignore)
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

    async def look(name: str) -> ReconcileResult:
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

    fleet = WorkQueue("x", look, on_error=on_error, backoff=SOON)
    async with running(fleet), asyncio.timeout(patience(30)):
        fleet.enqueue("bad")
        fleet.enqueue("good")
        await healed.wait()
        await other.wait()
    assert reports == ["bad: broken", "bad: broken"]


async def test_finished_worker_is_removed_unless_triggered() -> None:
    looks: list[int] = []

    async def look(name: str) -> ReconcileResult:
        looks.append(len(looks))
        if len(looks) == 1:
            fleet.enqueue(name)
        return DONE

    fleet = WorkQueue("x", look, on_error=ignore)
    async with running(fleet), asyncio.timeout(patience(30)):
        fleet.enqueue("a")
        while len(fleet):  # noqa: ASYNC110 - a fleet tells no event when it is empty
            await asyncio.sleep(0)
    assert looks == [0, 1]


async def test_object_is_requeued_after_requested_time() -> None:
    twice = asyncio.Event()
    looks = 0

    async def look(_name: str) -> ReconcileResult:
        nonlocal looks
        looks += 1
        if looks == 2:
            twice.set()
        return 0.001

    fleet = WorkQueue("x", look, on_error=ignore)
    fleet.enqueue("a")
    async with running(fleet), asyncio.timeout(patience(30)):
        await twice.wait()


@pytest.mark.parametrize(("failure", "counted"), [(RuntimeError("a bug"), 1), (VkgatewayError("etcd is away"), 0)])
async def test_unexpected_errors_are_counted_as_defects(failure: Exception, counted: int) -> None:
    def defects() -> float:
        return REGISTRY.get_sample_value("vkgateway_work_retries_total", {"reason": "defect"}) or 0.0

    before, handled = defects(), asyncio.Event()

    async def fail(_name: str) -> ReconcileResult:
        raise failure

    async def report(_name: str, _error: Exception) -> None:
        handled.set()

    fleet = WorkQueue("x", fail, on_error=report, backoff=Backoff(base=60, cap=60))
    async with running(fleet), asyncio.timeout(patience(30)):
        fleet.enqueue("a")
        await handled.wait()
    assert defects() == before + counted
