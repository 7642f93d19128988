"""Load generator: concurrency and order."""

from __future__ import annotations

import asyncio

from bench.floor import run_pipeline
from bench.load import for_each
from bench.pods import spread_pods
from bench.settings import IN_FLIGHT, hollow_nodes


async def test_concurrency_is_limited() -> None:
    under_way, most = 0, 0
    seen: list[int] = []

    async def act(item: int) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        seen.append(item)
        under_way -= 1

    await for_each(range(20), act, in_flight=3)
    assert sorted(seen) == list(range(20))
    assert most == 3


async def test_second_step_follows_the_first() -> None:
    items = spread_pods(3 * IN_FLIGHT, 4)
    done: list[tuple[str, tuple[int, str]]] = []

    async def first(item: tuple[int, str]) -> None:
        await asyncio.sleep(0)
        done.append(("first", item))

    async def second(item: tuple[int, str]) -> None:
        done.append(("second", item))

    await run_pipeline(items, first, second)
    assert len(done) == 2 * len(items)
    assert all(done.index(("first", item)) < done.index(("second", item)) for item in items)


def test_pods_are_distributed_over_places() -> None:
    assert spread_pods(3, 2) == [(0, "p-00000"), (1, "p-00001"), (0, "p-00002")]


def test_nodes_have_spare_capacity() -> None:
    assert hollow_nodes(1) == 4
    assert hollow_nodes(2500) * 110 >= 2500 * 1.2
