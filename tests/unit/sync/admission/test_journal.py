"""Journal of cycles: written asynchronously, in order and without loss."""

from __future__ import annotations

import asyncio
import threading

from tests.support.machine import patience
from tests.unit.arbiter.simulated_cluster import Cluster
from vkgateway.scheduler.core.decisions import Decisions
from vkgateway.scheduler.core.snapshot import Snapshot
from vkgateway.scheduler.service.decisionlog import Journal

SNAPSHOT = Cluster([], []).snapshot()


class FakeDisk:
    """Disk that blocks writes until it is released."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.written: list[tuple[bool, float]] = []

    def write_cycle(self, snapshot: Snapshot | None, _: Decisions, now: float) -> None:
        assert self.free.wait(patience(10))
        if now == 2:
            raise OSError("no space left")
        self.written.append((snapshot is not None, now))


async def test_slow_disk_delays_no_cycle_and_loses_none() -> None:
    disk = FakeDisk()
    journal = Journal(disk.write_cycle)
    for number in range(20):
        journal.add_cycle(SNAPSHOT, Decisions(), float(number))
        await asyncio.sleep(0)
    assert disk.written == []
    disk.free.set()
    await journal.close()
    whole = [(True, float(number)) for number in range(17) if number != 2]
    bare = [(False, float(number)) for number in range(17, 20)]
    assert disk.written == whole + bare  # a failed write is logged, and the next cycles are written nevertheless
    journal.add_cycle(SNAPSHOT, Decisions(), 99.0)
    await journal.close()
    assert disk.written[-1] == (True, 99.0)
    await journal.close()
    await journal.finish()
    journal.add_cycle(SNAPSHOT, Decisions(), 100.0)  # a leader that stops does not carry it out
    await journal.close()
    assert disk.written[-1] == (True, 99.0)
