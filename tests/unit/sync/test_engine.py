"""The engine: who is removed is drained, and what goes wrong is counted and tried again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from prometheus_client import REGISTRY

from vkgateway.kube.errors import ServerError
from vkgateway.model.errors import ConflictError, UnavailableError
from vkgateway.sync.workers import ReconcileRequest, WorkerPool

ITEM: ReconcileRequest = ("pod", "", "default", "web")


class Reconcilers:
    """Holds every handler until it is let go, then fails as it is told."""

    def __init__(self, *failures: Exception) -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.failures = list(failures)
        self.handled = 0

    async def handle_request(self, item: ReconcileRequest) -> None:
        self.begun.set()
        await self.go.wait()
        self.handled += 1
        if self.failures:
            raise self.failures.pop(0)


@pytest.fixture
async def engine() -> AsyncIterator[WorkerPool]:
    engine = WorkerPool(workers=4)
    task = asyncio.create_task(engine.run())
    yield engine
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def retries(reason: str) -> float:
    return REGISTRY.get_sample_value("vkgateway_work_retries_total", {"reason": reason}) or 0.0


def work(sort: str) -> float:
    return REGISTRY.get_sample_value("vkgateway_work_seconds_count", {"sort": sort}) or 0.0


async def test_a_removed_tenant_is_drained_when_its_last_handler_ends(engine: WorkerPool) -> None:
    alpha, beta = Reconcilers(), Reconcilers()
    engine.add_tenant("alpha", alpha)
    engine.add_tenant("beta", beta)
    for tenant in ("alpha", "beta"):
        engine.queue.add(tenant, ITEM)
    await asyncio.gather(alpha.begun.wait(), beta.begun.wait())
    engine.remove_tenant("alpha")
    draining = asyncio.create_task(engine.wait_drained("alpha"))
    await asyncio.sleep(0)
    assert not draining.done()
    alpha.go.set()
    async with asyncio.timeout(30):
        await draining
    assert (alpha.handled, beta.handled) == (1, 0)
    beta.go.set()


@pytest.mark.parametrize(
    "failure", [ServerError("no", status=500), UnavailableError("not now"), RuntimeError("defect")]
)
async def test_what_fails_for_a_removed_tenant_is_drained_too_and_not_tried_again(
    engine: WorkerPool, failure: Exception
) -> None:
    alpha = Reconcilers(failure)
    engine.add_tenant("alpha", alpha)
    engine.queue.add("alpha", ITEM)
    await alpha.begun.wait()
    engine.remove_tenant("alpha")
    alpha.go.set()
    async with asyncio.timeout(30):
        await engine.wait_drained("alpha")
    await asyncio.sleep(0)
    assert engine.queue.num_requeues("alpha", ITEM) == 0


async def test_nothing_is_waited_for_where_nothing_is_at_work(engine: WorkerPool) -> None:
    async with asyncio.timeout(30):
        await engine.wait_drained("nobody")


async def test_an_engine_that_is_stopped_leaves_nothing_to_wait_for() -> None:
    engine = WorkerPool(workers=1)
    alpha = Reconcilers()
    engine.add_tenant("alpha", alpha)
    engine.queue.add("alpha", ITEM)
    task = asyncio.create_task(engine.run())
    await alpha.begun.wait()
    engine.remove_tenant("alpha")
    draining = asyncio.create_task(engine.wait_drained("alpha"))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    async with asyncio.timeout(30):
        await draining


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (ServerError("no", status=500), "ServerError"),
        (UnavailableError("not now"), "UnavailableError"),
        (RuntimeError("defect"), "defect"),
    ],
)
async def test_failures_are_counted_by_reason_and_tried_again(
    engine: WorkerPool, failure: Exception, reason: str
) -> None:
    before, looks = retries(reason), work("pod")
    alpha = Reconcilers(failure)
    alpha.go.set()
    engine.add_tenant("alpha", alpha)
    engine.queue.add("alpha", ITEM)
    async with asyncio.timeout(30):
        while alpha.handled < 2:  # noqa: ASYNC110 - the second look comes by the queue's own timer
            await asyncio.sleep(0.005)
    assert retries(reason) == before + 1
    assert work("pod") >= looks + 1


@pytest.mark.parametrize("failure", [UnavailableError, ConflictError])
async def test_what_waits_for_something_else_is_looked_at_less_and_less_often(
    engine: WorkerPool, failure: type[Exception]
) -> None:
    alpha = Reconcilers(*(failure("not now") for _ in range(3)))
    alpha.go.set()
    engine.add_tenant("alpha", alpha)
    engine.queue.add("alpha", ITEM)
    failures = set()
    async with asyncio.timeout(30):
        while alpha.handled < 4:
            failures.add(engine.queue.num_requeues("alpha", ITEM))
            await asyncio.sleep(0.005)
    assert {1, 2, 3} <= failures


async def test_some_tenants_that_never_answer_leave_workers_to_the_others() -> None:
    engine = WorkerPool()
    done = asyncio.Event()

    class Silent:
        async def handle_request(self, item: ReconcileRequest) -> None:
            await asyncio.Event().wait()

    class Answering:
        async def handle_request(self, item: ReconcileRequest) -> None:
            done.set()

    task = asyncio.create_task(engine.run())
    try:
        for number in range(7):
            engine.add_tenant(f"silent-{number}", Silent())
            for key in range(100):
                engine.queue.add(f"silent-{number}", ("pod", "", "n", str(key)))
        await asyncio.sleep(0)
        engine.add_tenant("other", Answering())
        engine.queue.add("other", ("pod", "", "n", "first"))
        async with asyncio.timeout(30):
            await done.wait()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
