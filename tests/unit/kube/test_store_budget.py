"""A server with more objects than its budget: memory is bounded, nothing counts as deleted, and it recovers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.support.waiting import let_pass
from tests.unit.kube.test_reflector import put, watching
from vkgateway.kube.client import Client
from vkgateway.kube.resources import CONFIG_MAPS
from vkgateway.kube.store_budget import RETRY_SECONDS, StoreBudget, StoreFullError


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as found:
        yield found


def client_of(server: FakeApiServer, *, objects: int = 1000, size: int = 1 << 30) -> tuple[Client, StoreBudget]:
    client = server.client()
    client.store_budget = StoreBudget(objects_max=objects, bytes_max=size)
    return client, client.store_budget


def delete(server: FakeApiServer, name: str) -> None:
    server.store.delete(CONFIG_MAPS, name, "default")


@pytest.mark.parametrize("streaming", [True, False])
async def test_objects_beyond_the_budget_are_not_kept_until_others_are_deleted(
    server: FakeApiServer, streaming: bool
) -> None:
    for number in range(3):
        put(server, f"a{number}")
    client, budget = client_of(server, objects=5)
    client.streaming_lists = streaming
    async with client, watching(client) as seen:
        for number in range(20):
            put(server, f"b{number:02}")
        await seen.until(lambda: budget.problem)
        assert len(seen.names) <= 5
        assert seen.complete == [False]
        assert RETRY_SECONDS in seen.sleeps or max(seen.sleeps) >= RETRY_SECONDS
        assert not [change for change in seen.changes if change.startswith("-")], "nothing counts as deleted"
        assert "more than the 5 objects" in budget.problem
        for number in range(17):
            delete(server, f"b{number:02}")
        delete(server, "a0")
        await seen.until(lambda: seen.complete == [True])
        assert seen.names == ["a1", "a2", "b17", "b18", "b19"]
        assert (budget.objects, budget.problem) == (5, "")
    assert (budget.objects, budget.bytes) == (0, 0)


async def test_bytes_are_bounded_too_and_shared_by_the_reflectors_of_a_client(server: FakeApiServer) -> None:
    client, budget = client_of(server, size=200_000)
    put(server, "small", "x" * 1000)
    async with client, watching(client) as seen, watching(client, label_selector="a=b") as other:
        counted = budget.bytes
        assert 8 * 1000 < counted < 8 * 2000
        put(server, "large", "x" * 30_000, labels={"a": "b"})
        await seen.until(lambda: budget.problem)
        assert "0 MiB of objects" in budget.problem
        assert budget.bytes <= 200_000
        put(server, "large", "x", labels={"a": "b"})
        await seen.until(lambda: seen.complete == [True])
        await other.until(lambda: other.complete == [True])
        assert budget.objects == 3
    assert budget.bytes == 0


async def test_changes_and_deletions_keep_the_count(server: FakeApiServer) -> None:
    client, budget = client_of(server)
    async with client, watching(client) as seen:
        put(server, "a", "x" * 1000)
        await seen.until(lambda: seen.names == ["a"])
        large = budget.bytes
        put(server, "a", "x")
        await seen.until(lambda: "~a" in seen.changes)
        assert (budget.objects, budget.bytes < large) == (1, True)
        delete(server, "a")
        await seen.until(lambda: seen.names == [])
        assert (budget.objects, budget.bytes) == (0, 0)


async def test_objects_that_cannot_be_decoded_count(server: FakeApiServer) -> None:
    client, budget = client_of(server, objects=5)
    async with client, watching(client) as seen:
        for number in range(20):
            put(server, f"a{number}", "poison")
        await seen.until(lambda: budget.problem)
        await let_pass(0.05)
        assert len(seen.reflector.state.unreadable_keys) <= 5


def test_refused_change_counts_nothing() -> None:
    budget = StoreBudget(objects_max=1, bytes_max=100)
    budget.change(objects=1, size=90, what="pods")
    for objects, size in ((1, 1), (0, 11)):
        with pytest.raises(StoreFullError):
            budget.change(objects=objects, size=size, what="pods")
    budget.change(objects=0, size=-50, what="pods")
    assert (budget.objects, budget.bytes) == (1, 40)
