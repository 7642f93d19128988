"""The work queue with an unresponsive server: its tenant leaves workers to other tenants."""

from __future__ import annotations

import asyncio

from vkgateway.kube.backoff import Backoff
from vkgateway.kube.errors import Unreachable
from vkgateway.runtime.workqueue import FairQueue, run_workers


class Server:
    """Handler that blocks until `time_out` (then all calls fail) or `answers` (then all calls succeed)."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[None]] = []
        self.answers = False

    async def handle(self, _tenant: str, _key: str) -> None:
        if self.answers:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        await future

    def time_out(self) -> None:
        for future in self.waiting:
            future.set_exception(Unreachable("no answer in time"))
        self.waiting.clear()

    def come_back(self) -> None:
        self.answers = True
        for future in self.waiting:
            future.set_result(None)
        self.waiting.clear()


async def _turns() -> None:
    """Let all tasks proceed."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_unresponsive_server_occupies_fewer_workers_until_it_answers() -> None:
    queue: FairQueue[str] = FairQueue(per_tenant=4, backoff=Backoff(base=1000.0, cap=1000.0))
    server = Server()
    workers = asyncio.create_task(run_workers(queue, server.handle, concurrency=8))
    for number in range(20):
        queue.add("alpha", f"pod-{number}")
    held = []
    try:
        for _ in range(3):
            await _turns()
            held.append(len(server.waiting))
            server.time_out()
        await _turns()
        held.append(len(server.waiting))
        assert held == [4, 1, 1, 1]
        server.come_back()
        await _turns()
        assert len(queue) == 0
        server.answers = False
        for number in range(20, 30):
            queue.add("alpha", f"pod-{number}")
        await _turns()
        assert len(server.waiting) == 4
    finally:
        workers.cancel()
        await asyncio.gather(workers, return_exceptions=True)
        queue.close()
