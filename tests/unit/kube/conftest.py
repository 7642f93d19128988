"""What all tests of the client layer share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.fakes.apiserver import FakeApiServer
from vkgateway.kube.client import Client


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    """A fake API server; the test fails where it leaves tasks behind."""
    before = asyncio.all_tasks()
    async with FakeApiServer() as server:
        yield server
    await asyncio.sleep(0)
    current = asyncio.current_task()
    left = {task for task in asyncio.all_tasks() - before if task is not current and not task.done()}
    assert not left, f"tasks left behind: {left}"


@pytest.fixture
async def client(server: FakeApiServer) -> AsyncIterator[Client]:
    """A client of the fake."""
    async with server.client() as client:
        yield client
