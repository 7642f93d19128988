"""Tests of heap trimming."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys

import pytest

from tests.support.machine import patience
from vkgateway.serve import heap

GAPS = """
from pathlib import Path
from vkgateway.serve.heap import find_trim

def size():
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) >> 10

kept = [bytes(2000) for _ in range(40_000)]
# Two of twenty blocks stay: gaps of nine pages, none of them at the end of the heap.
kept = [value for number, value in enumerate(kept) if number % 20 < 2]
before = size()
find_trim()()
print(before - size())
"""

LARGE = """
import sys
from pathlib import Path
from vkgateway.serve.heap import mmap_large_blocks

def heap():
    maps = Path("/proc/self/maps").read_text().splitlines()
    first, last = next(line for line in maps if line.endswith("[heap]")).split()[0].split("-")
    return (int(last, 16) - int(first, 16)) >> 20

if sys.argv[1] == "apart":
    assert mmap_large_blocks()
bytes(30 << 20)  # raises glibc's dynamic mmap threshold
before = heap()
kept = [bytes(100_000) for _ in range(200)]
print(heap() - before)
"""


@pytest.fixture
def _glibc() -> None:
    if heap.find_trim() is None:
        pytest.skip("the C library has no malloc_trim")


@pytest.mark.usefixtures("_glibc")
def test_trim_returns_fragmented_memory() -> None:
    run = subprocess.run([sys.executable, "-c", GAPS], check=True, capture_output=True, text=True)
    assert int(run.stdout) > 20, "MiB of some 70 that are free"


@pytest.mark.usefixtures("_glibc")
def test_large_blocks_are_allocated_outside_the_heap() -> None:
    grown = {
        how: int(subprocess.run([sys.executable, "-c", LARGE, how], check=True, capture_output=True, text=True).stdout)
        for how in ("apart", "together")
    }
    assert grown["apart"] == 0
    assert grown["together"] >= 19


async def test_heap_is_trimmed_periodically(monkeypatch: pytest.MonkeyPatch) -> None:
    often, times = asyncio.Event(), itertools.count(1)
    monkeypatch.setattr(heap, "find_trim", lambda: lambda: often.set() if next(times) == 3 else None)
    task = asyncio.create_task(heap.trim_loop(every=0.001))
    async with asyncio.timeout(patience(5)):
        await often.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_missing_trim_function_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "find_trim", lambda: None)
    async with asyncio.timeout(patience(5)):
        await heap.trim_loop()
