"""Worker pool: removed tenants are drained, and failures are counted and retried."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from prometheus_client import REGISTRY

from tests.support.machine import patience
from tests.support.waiting import wait_until
from vkgateway.api.errors import ConflictError, UnavailableError
from vkgateway.kube.errors import ServerError
from vkgateway.runtime.requests import ReconcileRequest
from vkgateway.runtime.workers import WorkerPool

ITEM = ReconcileRequest("pod", ("default", "web"))


class FakeReconcilers:
    """Reconcilers that block each handler until it is released, and then fail as prepared."""

    def __init__(self, *failures: Exception) -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.failures = list(failures)
        self.handled = 0

    async def handle_request(self, request: ReconcileRequest) -> None:
        self.begun.set()
        await self.go.wait()
        self.handled += 1
        if self.failures:
            raise self.failures.pop(0)


@pytest.fixture
async def pool() -> AsyncIterator[WorkerPool]:
    pool = WorkerPool(workers=4)
    task = asyncio.create_task(pool.run())
    yield pool
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def count_retries(reason: str) -> float:
    return REGISTRY.get_sample_value("vkgateway_work_retries_total", {"reason": reason}) or 0.0


def make_request(sort: str) -> float:
    return REGISTRY.get_sample_value("vkgateway_work_seconds_count", {"sort": sort}) or 0.0


async def test_removed_tenant_is_drained_when_its_last_handler_ends(pool: WorkerPool) -> None:
    alpha, beta = FakeReconcilers(), FakeReconcilers()
    pool.add_tenant("alpha", alpha)
    pool.add_tenant("beta", beta)
    for tenant in ("alpha", "beta"):
        pool.queue.add(tenant, ITEM)
    await asyncio.gather(alpha.begun.wait(), beta.begun.wait())
    pool.remove_tenant("alpha")
    draining = asyncio.create_task(pool.wait_drained("alpha"))
    await asyncio.sleep(0)
    assert not draining.done()
    alpha.go.set()
    async with asyncio.timeout(patience(30)):
        await draining
    assert (alpha.handled, beta.handled) == (1, 0)
    beta.go.set()


@pytest.mark.parametrize(
    "failure", [ServerError("no", status=500), UnavailableError("not now"), RuntimeError("defect")]
)
async def test_failures_of_a_removed_tenant_are_drained_and_not_retried(pool: WorkerPool, failure: Exception) -> None:
    alpha = FakeReconcilers(failure)
    pool.add_tenant("alpha", alpha)
    pool.queue.add("alpha", ITEM)
    await alpha.begun.wait()
    pool.remove_tenant("alpha")
    alpha.go.set()
    async with asyncio.timeout(patience(30)):
        await pool.wait_drained("alpha")
    await asyncio.sleep(0)
    assert pool.queue.num_requeues("alpha", ITEM) == 0


async def test_drain_returns_immediately_without_work(pool: WorkerPool) -> None:
    async with asyncio.timeout(patience(30)):
        await pool.wait_drained("nobody")


async def test_stopped_pool_leaves_nothing_to_wait_for() -> None:
    pool = WorkerPool(workers=1)
    alpha = FakeReconcilers()
    pool.add_tenant("alpha", alpha)
    pool.queue.add("alpha", ITEM)
    task = asyncio.create_task(pool.run())
    await alpha.begun.wait()
    pool.remove_tenant("alpha")
    draining = asyncio.create_task(pool.wait_drained("alpha"))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    async with asyncio.timeout(patience(30)):
        await draining


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (ServerError("no", status=500), "ServerError"),
        (UnavailableError("not now"), "UnavailableError"),
        (RuntimeError("defect"), "defect"),
    ],
)
async def test_failures_are_counted_by_reason_and_retried(pool: WorkerPool, failure: Exception, reason: str) -> None:
    before, looks = count_retries(reason), make_request("pod")
    alpha = FakeReconcilers(failure)
    alpha.go.set()
    pool.add_tenant("alpha", alpha)
    pool.queue.add("alpha", ITEM)
    await wait_until(lambda: alpha.handled >= 2, seconds=30)
    assert count_retries(reason) == before + 1
    assert make_request("pod") >= looks + 1


@pytest.mark.parametrize("failure", [UnavailableError, ConflictError])
async def test_retries_of_waiting_requests_back_off(pool: WorkerPool, failure: type[Exception]) -> None:
    alpha = FakeReconcilers(*(failure("not now") for _ in range(3)))
    alpha.go.set()
    pool.add_tenant("alpha", alpha)
    pool.queue.add("alpha", ITEM)
    failures = set()
    async with asyncio.timeout(patience(30)):
        while alpha.handled < 4:
            failures.add(pool.queue.num_requeues("alpha", ITEM))
            await asyncio.sleep(0.005)
    assert {1, 2, 3} <= failures


async def test_unresponsive_tenants_leave_workers_to_others() -> None:
    pool = WorkerPool()
    done = asyncio.Event()

    class Silent:
        async def handle_request(self, request: ReconcileRequest) -> None:
            await asyncio.Event().wait()

    class Answering:
        async def handle_request(self, request: ReconcileRequest) -> None:
            done.set()

    task = asyncio.create_task(pool.run())
    try:
        for number in range(7):
            pool.add_tenant(f"silent-{number}", Silent())
            for key in range(100):
                pool.queue.add(f"silent-{number}", ReconcileRequest("pod", ("n", str(key))))
        await asyncio.sleep(0)
        pool.add_tenant("other", Answering())
        pool.queue.add("other", ReconcileRequest("pod", ("n", "first")))
        async with asyncio.timeout(patience(30)):
            await done.wait()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
